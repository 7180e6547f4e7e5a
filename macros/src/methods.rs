//! `#[grain_methods]`: reads the impl block. What it expands to is in `expansion`.

mod event;
mod expansion;
mod version;

use darling::util::SpannedValue;
use darling::{FromMeta, ast::NestedMeta};
use proc_macro2::{Ident, Span, TokenStream};
use quote::quote;
use syn::{
    Attribute, FnArg, GenericArgument, ImplItem, ImplItemFn, ItemImpl, Meta, Pat, PatType,
    PathArguments, PathSegment, ReceiverKind, ReturnType, Safety, Type, Visibility, ext::IdentExt,
    parse_quote, spanned::Spanned,
};

use crate::{errors::Errors, message::checked_version, names, travel};
use event::EventHandler;
use version::OlderMethod;

/// The impl block of a grain, read and checked.
struct GrainMethods {
    grain: Type,
    name: Ident,
    visibility: Visibility,
    methods: Vec<Method>,
    events: Vec<EventHandler>,
    on_activate: Option<Hook>,
    on_deactivate: Option<Hook>,
}

/// One method that can be called from elsewhere.
struct Method {
    name: Ident,
    id: SpannedValue<String>,
    version: u16,
    older: Vec<OlderMethod>,
    access: Access,
    parameters: Vec<Parameter>,
    reply: Reply,
    documentation: Vec<Attribute>,
    conditions: Vec<Attribute>,
}

/// Whether a turn has the state to itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Exclusive,
    Shared,
}

enum Parameter {
    /// `ctx: &Ctx`
    Context,
    /// `name: T`
    Owned { name: Ident, ty: Type },
    /// `name: &Archived<T>`
    Archived { name: Ident, ty: Type },
}

/// What a method returns; with an error, it returns `Result<value, error>`.
struct Reply {
    value: Type,
    error: Option<Type>,
}

/// `on_activate` or `on_deactivate`.
struct Hook {
    name: Ident,
    parameters: Vec<Parameter>,
    returns: Span,
}

/// Expands the attribute. On error the impl block stays, so that one mistake is one error.
pub(crate) fn expand(settings: &TokenStream, item: &TokenStream) -> TokenStream {
    let mut block: ItemImpl = match syn::parse2(item.clone()) {
        Ok(block) => block,
        Err(error) => {
            let error = error.to_compile_error();
            return quote!(#error #item);
        }
    };
    let read = no_settings(settings).and_then(|()| read(&block));
    strip_method_attributes(&mut block);
    match read {
        Ok(methods) => {
            let expansion = methods.expansion();
            quote! {
                #[allow(
                    clippy::unused_async,
                    clippy::needless_pass_by_value,
                    reason = "grain methods are async and take their arguments by value"
                )]
                #block
                #expansion
            }
        }
        Err(error) => {
            let error = error.to_compile_error();
            quote!(#block #error)
        }
    }
}

fn no_settings(settings: &TokenStream) -> syn::Result<()> {
    if settings.is_empty() {
        return Ok(());
    }
    let text = "`#[grain_methods]` takes no settings: those of the type stand in `#[grain(…)]`";
    Err(syn::Error::new_spanned(settings, text))
}

fn strip_method_attributes(block: &mut ItemImpl) {
    for item in &mut block.items {
        if let ImplItem::Fn(function) = item {
            let is_ours = |attribute: &Attribute| {
                ["method", "on_event", "was"].iter().any(|it| attribute.path().is_ident(it))
            };
            function.attrs.retain(|attribute| !is_ours(attribute));
        }
    }
}

fn read(block: &ItemImpl) -> syn::Result<GrainMethods> {
    let (grain, name) = grain_of(block)?;
    let mut found = GrainMethods {
        grain,
        name,
        visibility: Visibility::Inherited,
        methods: Vec::new(),
        events: Vec::new(),
        on_activate: None,
        on_deactivate: None,
    };
    let mut errors = Errors::default();
    for item in &block.items {
        errors.keep(found.take(item));
    }
    errors.keep(one_visibility(block).map(|visibility| found.visibility = visibility));
    errors.keep(distinct_ids(&found));
    errors.finish()?;
    Ok(found)
}

/// The grain's type and the name of it, which its reference is called after.
fn grain_of(block: &ItemImpl) -> syn::Result<(Type, Ident)> {
    if let Some((path, _)) = &block.trait_ {
        let text =
            "`#[grain_methods]` stands on the grain's own impl block: write `impl Type { … }`";
        return Err(syn::Error::new_spanned(path, text));
    }
    if !block.generics.params.is_empty() {
        let text = "a grain type is one concrete type: remove the parameters";
        return Err(syn::Error::new_spanned(&block.generics, text));
    }
    let Some(last) = last_segment(&block.self_ty) else {
        let text = "a grain is a struct: write its name here";
        return Err(syn::Error::new_spanned(&block.self_ty, text));
    };
    Ok((Type::clone(&block.self_ty), last.ident.clone()))
}

impl GrainMethods {
    fn take(&mut self, item: &ImplItem) -> syn::Result<()> {
        let ImplItem::Fn(function) = item else {
            let text = "only methods stand here: move this into a plain `impl` block";
            return Err(syn::Error::new_spanned(item, text));
        };
        well_formed(function)?;
        if is_uncalled(function) {
            without_versions(function)?;
        }
        if function.sig.ident == "on_activate" {
            self.on_activate = Some(read_hook(function)?);
        } else if function.sig.ident == "on_deactivate" {
            self.on_deactivate = Some(read_hook(function)?);
        } else if event::takes_events(function) {
            self.events.push(event::read(function)?);
        } else {
            self.methods.push(read_method(function)?);
        }
        Ok(())
    }
}

/// Whether nobody calls it.
fn is_uncalled(function: &ImplItemFn) -> bool {
    let is_hook = |name| function.sig.ident == name;
    is_hook("on_activate") || is_hook("on_deactivate") || event::takes_events(function)
}

/// What nobody calls has no versions of its own.
fn without_versions(function: &ImplItemFn) -> syn::Result<()> {
    match version::written(function).next() {
        Some(attribute) => Err(syn::Error::new_spanned(
            attribute,
            "it has no versions of its own: an event is of its message's, which says \
             `#[message(…, was(…))]`",
        )),
        None => Ok(()),
    }
}

/// What holds for methods and hooks alike.
fn well_formed(function: &ImplItemFn) -> syn::Result<()> {
    let signature = &function.sig;
    if signature.asyncness.is_none() {
        let text = "a grain method is an `async fn`: add `async`, or move a helper into a plain \
                    `impl` block";
        return Err(syn::Error::new(signature.fn_token.span, text));
    }
    if let Safety::Unsafe(token) = &signature.safety {
        let text = "a grain method is called from elsewhere and cannot be `unsafe`: remove it";
        return Err(syn::Error::new(token.span, text));
    }
    if !signature.generics.params.is_empty() {
        let text = "a grain method has one concrete signature: remove the parameters";
        return Err(syn::Error::new_spanned(&signature.generics, text));
    }
    if let Some(variadic) = &signature.variadic {
        return Err(syn::Error::new_spanned(variadic, "write each parameter out"));
    }
    Ok(())
}

fn read_method(function: &ImplItemFn) -> syn::Result<Method> {
    let signature = &function.sig;
    let access = access_of(function)?;
    let mut errors = Errors::default();
    let parameters = errors.keep(parameters_of(function));
    let reply = errors.keep(reply_of(&signature.output));
    let settings = errors.keep(settings_of(function));
    errors.finish()?;
    let kept = "the errors were returned above";
    let Settings { id, version } = settings.expect(kept);
    Ok(Method {
        name: signature.ident.clone(),
        id,
        version,
        older: version::read(function, version)?,
        access,
        parameters: parameters.expect(kept),
        reply: reply.expect(kept),
        documentation: attributes_called(function, "doc"),
        conditions: attributes_called(function, "cfg"),
    })
}

fn attributes_called(function: &ImplItemFn, name: &str) -> Vec<Attribute> {
    let called = |attribute: &&Attribute| attribute.path().is_ident(name);
    function.attrs.iter().filter(called).cloned().collect()
}

fn access_of(function: &ImplItemFn) -> syn::Result<Access> {
    let Some(receiver) = function.sig.receiver() else {
        let text = "a grain method takes `&mut self` (a turn of its own) or `&self` (turns may \
                    interleave): add it, or move a helper into a plain `impl` block";
        return Err(syn::Error::new_spanned(&function.sig.ident, text));
    };
    let ReceiverKind::Reference(_, None, mutability) = &receiver.kind else {
        let text = "a grain method borrows its state: write `&mut self` or `&self`";
        return Err(syn::Error::new_spanned(receiver, text));
    };
    Ok(if mutability.is_some() { Access::Exclusive } else { Access::Shared })
}

fn parameters_of(function: &ImplItemFn) -> syn::Result<Vec<Parameter>> {
    let mut errors = Errors::default();
    let mut parameters = Vec::new();
    let mut contexts = 0;
    for input in &function.sig.inputs {
        let FnArg::Typed(typed) = input else { continue };
        if let Some(parameter) = errors.keep(parameter_of(typed)) {
            contexts += u32::from(matches!(parameter, Parameter::Context));
            parameters.push(parameter);
        }
        if contexts > 1 {
            let text = "a turn has one context: remove this parameter";
            return Err(syn::Error::new_spanned(typed, text));
        }
    }
    errors.finish()?;
    Ok(parameters)
}

fn parameter_of(typed: &PatType) -> syn::Result<Parameter> {
    if is_context(&typed.ty) {
        return Ok(Parameter::Context);
    }
    let Some(name) = plain_name(&typed.pat) else {
        let text = "a parameter's name is part of the layout: give it a plain one and take it \
                    apart in the body";
        return Err(syn::Error::new_spanned(&typed.pat, text));
    };
    if let Some(ty) = archived(&typed.ty) {
        travel::check(ty)?;
        return Ok(Parameter::Archived { name, ty: ty.clone() });
    }
    travel::check(&typed.ty)?;
    Ok(Parameter::Owned { name, ty: Type::clone(&typed.ty) })
}

/// The name of `name: T` or `mut name: T`.
fn plain_name(pattern: &Pat) -> Option<Ident> {
    let Pat::Ident(pattern) = pattern else {
        return None;
    };
    let plain = pattern.by_ref.is_none() && pattern.subpat.is_none();
    plain.then(|| pattern.ident.clone())
}

/// Whether the type is `&Ctx`.
fn is_context(ty: &Type) -> bool {
    referent(ty).is_some_and(|segment| segment.ident == "Ctx")
}

/// The `T` of `&Archived<T>`.
fn archived(ty: &Type) -> Option<&Type> {
    let segment = referent(ty).filter(|segment| segment.ident == "Archived")?;
    match generic_types(segment).as_slice() {
        [only] => Some(only),
        _ => None,
    }
}

/// The last segment of the path behind a shared reference.
fn referent(ty: &Type) -> Option<&PathSegment> {
    let Type::Reference(reference) = ty else {
        return None;
    };
    last_segment(&reference.elem).filter(|_| reference.mutability.is_none())
}

fn last_segment(ty: &Type) -> Option<&PathSegment> {
    let Type::Path(path) = ty else { return None };
    path.path.segments.last().filter(|_| path.qself.is_none())
}

fn generic_types(segment: &PathSegment) -> Vec<&Type> {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else {
        return Vec::new();
    };
    let types = arguments.args.iter().filter_map(|argument| {
        let GenericArgument::Type(ty) = argument else {
            return None;
        };
        Some(ty)
    });
    types.collect()
}

fn reply_of(output: &ReturnType) -> syn::Result<Reply> {
    let ReturnType::Type(_, ty) = output else {
        return Ok(Reply { value: parse_quote!(()), error: None });
    };
    travel::check(ty)?;
    let Some(segment) = last_segment(ty).filter(|segment| segment.ident == "Result") else {
        return Ok(Reply { value: Type::clone(ty), error: None });
    };
    let [value, error] = generic_types(segment)[..] else {
        let text = "the error travels too, so its type must be seen: write `Result<V, E>`";
        return Err(syn::Error::new_spanned(ty, text));
    };
    Ok(Reply { value: value.clone(), error: Some(error.clone()) })
}

/// What stands in `#[method(…)]`.
#[derive(FromMeta)]
struct MethodSettings {
    id: Option<SpannedValue<String>>,
    version: Option<SpannedValue<u16>>,
}

/// The same, checked.
struct Settings {
    /// The text that names the method on the wire: its own name unless another is said.
    id: SpannedValue<String>,
    version: u16,
}

fn settings_of(function: &ImplItemFn) -> syn::Result<Settings> {
    let name = &function.sig.ident;
    let own = SpannedValue::new(name.unraw().to_string(), name.span());
    let mut attributes =
        function.attrs.iter().filter(|attribute| attribute.path().is_ident("method"));
    let Some(attribute) = attributes.next() else {
        return Ok(Settings { id: own, version: 1 });
    };
    if let Some(second) = attributes.next() {
        return Err(syn::Error::new_spanned(second, "one `#[method(…)]` is enough: merge them"));
    }
    let said = "say what is kept or changed: write `#[method(id = \"old_name\")]` or \
                `#[method(version = 2)]`";
    let Meta::List(list) = &attribute.meta else {
        return Err(syn::Error::new_spanned(attribute, said));
    };
    let settings = NestedMeta::parse_meta_list(list.tokens.clone())?;
    let MethodSettings { id, version } = MethodSettings::from_list(&settings)?;
    if id.is_none() && version.is_none() {
        return Err(syn::Error::new_spanned(attribute, said));
    }
    let version = checked_version(version.as_ref())?;
    let id = id.unwrap_or(own);
    names::check(&id, "the method's id")?;
    Ok(Settings { id, version })
}

fn read_hook(function: &ImplItemFn) -> syn::Result<Hook> {
    let name = &function.sig.ident;
    let access = access_of(function)?;
    let parameters = parameters_of(function)?;
    let only_context = parameters.iter().all(|parameter| matches!(parameter, Parameter::Context));
    if access != Access::Exclusive || !only_context {
        let text = format!("write `async fn {name}(&mut self)`, with `ctx: &Ctx` if it is needed");
        return Err(syn::Error::new_spanned(&function.sig.inputs, text));
    }
    let returns = match &function.sig.output {
        ReturnType::Default => None,
        ReturnType::Type(_, ty) => Some(ty),
    };
    match (name == "on_activate", returns) {
        (true, None) => {
            let text = "an activation may be refused: return `Result<(), String>`";
            Err(syn::Error::new_spanned(&function.sig, text))
        }
        (false, Some(ty)) => {
            let text = "nobody hears what `on_deactivate` returns: remove the type";
            Err(syn::Error::new_spanned(ty, text))
        }
        (true, Some(_)) | (false, None) => {
            Ok(Hook { name: name.clone(), parameters, returns: function.sig.output.span() })
        }
    }
}

/// The visibility that all methods share: it is that of the trait which their calls form.
fn one_visibility(block: &ItemImpl) -> syn::Result<Visibility> {
    let mut methods = block.items.iter().filter_map(|item| {
        let ImplItem::Fn(function) = item else {
            return None;
        };
        Some(function).filter(|function| !is_uncalled(function))
    });
    let Some(first) = methods.next() else {
        return Ok(Visibility::Inherited);
    };
    let Some(other) = methods.find(|function| function.vis != first.vis) else {
        return Ok(first.vis.clone());
    };
    let text = format!(
        "the calls form one trait, so a grain's methods share one visibility: write that of `{}`",
        first.sig.ident
    );
    Err(syn::Error::new_spanned(&other.sig.ident, text))
}

/// Two methods under one text are found here; two texts with one hash by an assertion in the
/// expansion.
fn distinct_ids(found: &GrainMethods) -> syn::Result<()> {
    let methods = found.methods.iter().map(|method| (&method.id, &method.name));
    let events = found.events.iter().map(|event| (&event.id, &event.name));
    let all: Vec<_> = methods.chain(events).collect();
    for (index, (id, name)) in all.iter().enumerate() {
        let earlier = all.iter().take(index).find(|(earlier, _)| ***earlier == ***id);
        // Variants of one method for different targets share its id.
        if let Some((_, earlier)) = earlier.filter(|(_, earlier)| earlier != name) {
            let text = format!("`{earlier}` has this id already: write another");
            return Err(syn::Error::new(SpannedValue::span(id), text));
        }
    }
    Ok(())
}
