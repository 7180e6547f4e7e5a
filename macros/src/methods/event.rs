//! `#[on_event]`: a method that takes the events of a stream. Reads it, and writes what is its own:
//! the constant to subscribe with, its entry among the methods, its arm of the dispatch.

use darling::util::SpannedValue;
use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::{
    Attribute, ImplItemFn, Meta, ReturnType, Type, Visibility, ext::IdentExt, parse_quote,
    spanned::Spanned,
};

use super::expansion::{guard_of, local};
use super::{Access, Parameter};
use super::{
    access_of, attributes_called, generic_types, last_segment, parameters_of, settings_of,
};

/// A method that takes events.
pub(super) struct EventHandler {
    pub(super) name: Ident,
    pub(super) id: SpannedValue<String>,
    access: Access,
    parameters: Vec<Parameter>,
    message: Type,
    /// `Result<(), E>`, or nothing.
    returns: Option<Type>,
    visibility: Visibility,
    conditions: Vec<Attribute>,
}

/// Whether the method takes events.
pub(super) fn takes_events(function: &ImplItemFn) -> bool {
    function.attrs.iter().any(|attribute| attribute.path().is_ident("on_event"))
}

pub(super) fn read(function: &ImplItemFn) -> syn::Result<EventHandler> {
    let marks = function.attrs.iter().filter(|attribute| attribute.path().is_ident("on_event"));
    for (index, mark) in marks.enumerate() {
        if index > 0 || !matches!(mark.meta, Meta::Path(_)) {
            let text = "write `#[on_event]` once, without settings";
            return Err(syn::Error::new_spanned(mark, text));
        }
    }
    let access = access_of(function)?;
    let parameters = parameters_of(function)?;
    let message = message_of(function, &parameters)?;
    let settings = settings_of(function)?;
    if settings.version > 1 {
        let text = "an event is of its message's version: raise `#[message(version = …)]`";
        return Err(syn::Error::new_spanned(&function.sig.ident, text));
    }
    Ok(EventHandler {
        name: function.sig.ident.clone(),
        id: settings.id,
        access,
        message,
        returns: returns_of(&function.sig.output)?,
        visibility: function.vis.clone(),
        conditions: attributes_called(function, "cfg"),
        parameters,
    })
}

fn message_of(function: &ImplItemFn, parameters: &[Parameter]) -> syn::Result<Type> {
    let mut messages = parameters.iter().filter_map(|parameter| match parameter {
        Parameter::Context => None,
        Parameter::Owned { ty, .. } | Parameter::Archived { ty, .. } => Some(ty),
    });
    if let (Some(message), None) = (messages.next(), messages.next()) {
        return Ok(message.clone());
    }
    let text = "an event is one message: take it as `&Archived<M>` or as `M`, and \
                        `ctx: &Ctx` beside it if it is needed";
    Err(syn::Error::new_spanned(&function.sig.inputs, text))
}

fn returns_of(output: &ReturnType) -> syn::Result<Option<Type>> {
    let ReturnType::Type(_, ty) = output else {
        return Ok(None);
    };
    let of_result = last_segment(ty).filter(|segment| segment.ident == "Result");
    match of_result.map(generic_types).as_deref() {
        Some([Type::Tuple(value), _]) if value.elems.is_empty() => Ok(Some(Type::clone(ty))),
        Some(_) | None => {
            let text = "nobody hears what an event's handler returns: return nothing, or \
                        `Result<(), E>` to have the stream deliver it again after an error";
            Err(syn::Error::new_spanned(ty, text))
        }
    }
}

impl EventHandler {
    /// The constant that names the handler to who subscribes it.
    fn constant(&self) -> Ident {
        let name = self.name.unraw().to_string().to_uppercase();
        Ident::new(&name, self.name.span())
    }

    pub(super) fn spec_name(&self) -> Ident {
        format_ident!("__{}_SPEC", self.constant())
    }

    pub(super) fn conditions(&self) -> &[Attribute] {
        &self.conditions
    }

    /// The constant, on the grain itself.
    pub(super) fn associated(&self, grain: &Type) -> TokenStream {
        let Self { visibility, conditions, id, message, .. } = self;
        let (constant, id) = (self.constant(), &**id);
        let documentation = format!("Subscribes a grain with its `{}`.", self.name.unraw());
        // An error about the message is shown where it stands.
        let new = quote_spanned! {message.span()=>
            ::siloring::grain::EventMethod::<#grain, #message>::new
        };
        quote! {
            #(#conditions)*
            #[doc = #documentation]
            #visibility const #constant: ::siloring::grain::EventMethod<#grain, #message> =
                #new(::siloring::MethodId::of(#id));
        }
    }

    /// Its entry among the methods.
    pub(super) fn spec(&self, grain: &Type) -> TokenStream {
        let (conditions, spec, constant) = (&self.conditions, self.spec_name(), self.constant());
        let name = self.name.unraw().to_string();
        let access = self.access.variant();
        quote! {
            #(#conditions)*
            const #spec: ::siloring::grain::MethodSpec =
                <#grain>::#constant.spec(#name, ::siloring::grain::Access::#access);
        }
    }

    /// The arm that runs it.
    pub(super) fn arm(&self, grain: &Type, turn: &Ident) -> TokenStream {
        let Self { conditions, name, message, .. } = self;
        let spec = self.spec_name();
        let (state, event) = (local("state"), local("event"));
        // An error about what it returns is shown where it says so.
        let said = self.returns.as_ref().map_or_else(|| name.span(), Spanned::span);
        let outcome = Ident::new("outcome", Span::mixed_site().located_at(said));
        let (guard, borrow) = guard_of(self.access, &state, turn);
        let values = self.parameters.iter().map(|parameter| match parameter {
            Parameter::Context => quote!(#turn.ctx()),
            Parameter::Owned { ty, .. } => quote!(#turn.owned::<#ty>(#event)?),
            Parameter::Archived { .. } => quote!(#event),
        });
        let (returned, ended): (Type, TokenStream) = match &self.returns {
            None => (parse_quote!(()), quote!(#turn.reply(&#outcome))),
            Some(ty) => (ty.clone(), quote_spanned!(ty.span()=> #turn.handled(#outcome))),
        };
        quote! {
            #(#conditions)*
            id if id == #spec.id => {
                let #event = #turn.arguments::<#message>()?;
                #guard
                let #outcome: #returned = <#grain>::#name(#borrow #(, #values)*).await;
                #ended
            }
        }
    }
}
