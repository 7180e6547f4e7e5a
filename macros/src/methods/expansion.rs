//! What `#[grain_methods]` writes: arguments, specs, the dispatch, the trait of the calls.
//!
//! All of it but the trait stands in one anonymous constant, so that it adds no name to the user's
//! module. Local names have the macro's own hygiene: no parameter can collide with them.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::{Attribute, Type, ext::IdentExt, parse_quote, spanned::Spanned};

use super::{Access, GrainMethods, Hook, Method, Parameter, Reply};
use crate::message;

impl GrainMethods {
    pub(super) fn expansion(&self) -> TokenStream {
        let reference = self.reference_trait();
        let arguments = self.methods.iter().map(Method::arguments_type);
        let older = self.methods.iter().map(|method| method.older_signatures(&self.grain));
        let specs = self.methods.iter().map(|method| method.spec(&self.grain));
        let event_specs = self.events.iter().map(|event| event.spec(&self.grain));
        let events = self.event_constants();
        let grain = self.implementation();
        let calls = self.calls();
        quote! {
            #reference
            #events

            const _: () = {
                #(#arguments)*
                #(#older)*
                #(#specs)*
                #(#event_specs)*
                #grain
                #calls
            };
        }
    }

    /// What events are subscribed to with.
    fn event_constants(&self) -> Option<TokenStream> {
        let grain = &self.grain;
        let constants = self.events.iter().map(|event| event.associated(grain));
        (!self.events.is_empty()).then(|| quote!(impl #grain { #(#constants)* }))
    }

    fn reference_name(&self) -> Ident {
        format_ident!("{}Ref", self.name)
    }

    /// The trait that the calls form.
    fn reference_trait(&self) -> TokenStream {
        let (visibility, name) = (&self.visibility, self.reference_name());
        let documentation = format!("Calls to the methods of [`{}`].", self.name);
        let methods = self.methods.iter().map(|method| {
            let (conditions, signature) = (&method.conditions, method.call_signature());
            let documentation = method.call_documentation(&self.name);
            quote! { #(#conditions)* #documentation #signature; }
        });
        quote! {
            #[doc = #documentation]
            #visibility trait #name {
                #(#methods)*
            }
        }
    }

    /// The trait's one implementation.
    fn calls(&self) -> TokenStream {
        let (grain, name) = (&self.grain, self.reference_name());
        let methods = self.methods.iter().map(Method::call);
        quote! {
            impl #name for ::siloring::GrainRef<#grain> {
                #(#methods)*
            }
        }
    }

    fn implementation(&self) -> TokenStream {
        let grain = &self.grain;
        let specs = self.methods.iter().map(|method| {
            let (conditions, spec) = (&method.conditions, method.spec_name());
            quote!(#(#conditions)* #spec)
        });
        let event_specs = self.events.iter().map(|event| {
            let (conditions, spec) = (event.conditions(), event.spec_name());
            quote!(#(#conditions)* #spec)
        });
        let specs = specs.chain(event_specs);
        let turn = local("turn");
        let activate = hook_arm(grain, &turn, self.on_activate.as_ref(), &quote!(ACTIVATE));
        let deactivate = hook_arm(grain, &turn, self.on_deactivate.as_ref(), &quote!(DEACTIVATE));
        let arms = self.methods.iter().map(|method| method.arm(grain, &turn));
        let events = self.events.iter().map(|event| event.arm(grain, &turn));
        let arms = arms.chain(events);
        let collision = format!(
            "two methods of `{}` hash to one id: give one of them another by \
             `#[method(id = \"…\")]`",
            self.name
        );
        quote! {
            impl ::siloring::grain::Grain for #grain {
                const METHODS: &'static [::siloring::grain::MethodSpec] = &[#(#specs),*];

                fn dispatch(
                    #turn: ::siloring::turn::Turn<Self>,
                ) -> impl ::core::future::Future<Output = ::siloring::turn::TurnOutput> + 'static {
                    async move {
                        match #turn.method() {
                            #activate
                            #deactivate
                            #(#arms)*
                            _ => #turn.unknown_method(),
                        }
                    }
                }
            }

            const _: () = ::core::assert!(
                ::siloring::grain::ids_are_distinct(
                    <#grain as ::siloring::grain::Grain>::METHODS
                ),
                #collision
            );
        }
    }
}

/// The arm of a hook; a grain without it is done at once.
fn hook_arm(grain: &Type, turn: &Ident, hook: Option<&Hook>, id: &TokenStream) -> TokenStream {
    let Some(Hook { name, parameters, returns }) = hook else {
        return quote!(::siloring::grain::#id => #turn.done(),);
    };
    let state = local("state");
    let context = parameters.first().map(|_| quote!(, #turn.ctx()));
    // An error about what the hook returns is shown where it says so.
    let body = if name == "on_activate" {
        quote_spanned! {*returns=>
            let outcome: ::core::result::Result<(), ::std::string::String> =
                <#grain>::#name(&mut #state #context).await;
            #turn.activated(outcome)
        }
    } else {
        quote_spanned! {*returns=>
            <#grain>::#name(&mut #state #context).await;
            #turn.done()
        }
    };
    quote! {
        ::siloring::grain::#id => {
            let mut #state = #turn.exclusive();
            #body
        }
    }
}

impl Access {
    /// The name of the runtime's variant.
    pub(super) fn variant(self) -> TokenStream {
        match self {
            Self::Exclusive => quote!(Exclusive),
            Self::Shared => quote!(Shared),
        }
    }
}

/// How a turn takes the state, and how its method borrows that.
pub(super) fn guard_of(access: Access, state: &Ident, turn: &Ident) -> (TokenStream, TokenStream) {
    match access {
        Access::Exclusive => (quote!(let mut #state = #turn.exclusive();), quote!(&mut #state)),
        Access::Shared => (quote!(let #state = #turn.shared();), quote!(&#state)),
    }
}

/// A name that only the expansion sees.
pub(super) fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

impl Method {
    /// The name of a constant; no name that a user writes begins so.
    pub(super) fn hidden(&self, what: &str) -> Ident {
        format_ident!("__{}_{what}", self.name.unraw().to_string().to_uppercase())
    }

    fn spec_name(&self) -> Ident {
        self.hidden("SPEC")
    }

    pub(super) fn id_name(&self) -> Ident {
        self.hidden("ID")
    }

    /// The arguments that travel, in their order.
    pub(super) fn travelling(&self) -> impl Iterator<Item = (&Ident, &Type)> {
        self.parameters.iter().filter_map(|parameter| match parameter {
            Parameter::Context => None,
            Parameter::Owned { name, ty } | Parameter::Archived { name, ty } => Some((name, ty)),
        })
    }

    pub(super) fn arguments_name(&self) -> Ident {
        let words = self.name.unraw().to_string();
        let camel: String = words.split('_').map(capitalized).collect();
        format_ident!("__{camel}Arguments", span = self.name.span())
    }

    /// The hidden struct that the arguments travel as.
    fn arguments_type(&self) -> TokenStream {
        let fields: Vec<_> = self.travelling().collect();
        travelling_type(&self.conditions, &self.arguments_name(), &fields)
    }

    pub(super) fn reply_type(&self) -> Type {
        let Reply { value, error } = &self.reply;
        match error {
            None => value.clone(),
            Some(error) => parse_quote!(::core::result::Result<#value, #error>),
        }
    }

    fn spec(&self, grain: &Type) -> TokenStream {
        let (conditions, spec, id_name) = (&self.conditions, self.spec_name(), self.id_name());
        let (id, arguments, reply) = (&*self.id, self.arguments_name(), self.reply_type());
        let name = self.name.unraw().to_string();
        let span = reply.span();
        let reply = quote_spanned!(span=> <#reply as ::siloring::schema::Layout>::LAYOUT);
        let access = self.access.variant();
        let versions = self.versions();
        quote! {
            #(#conditions)*
            const #id_name: ::siloring::MethodId = ::siloring::MethodId::of(#id);
            #(#conditions)*
            const #spec: ::siloring::grain::MethodSpec =
                ::siloring::grain::MethodSpec::of::<#grain>(
                    #name,
                    #id_name,
                    <#arguments as ::siloring::schema::Layout>::LAYOUT,
                    #reply,
                    ::siloring::grain::Access::#access,
                )
                #versions;
        }
    }

    /// The arm that runs the method.
    fn arm(&self, grain: &Type, turn: &Ident) -> TokenStream {
        let (conditions, id, name) = (&self.conditions, self.id_name(), &self.name);
        let (state, arguments, reply) = (local("state"), local("arguments"), local("reply"));
        let arguments_type = self.arguments_name();
        let read = self
            .travelling()
            .next()
            .map(|_| quote!(let #arguments = #turn.arguments::<#arguments_type>()?;));
        let (guard, borrow) = guard_of(self.access, &state, turn);
        let values = self.parameters.iter().map(|parameter| match parameter {
            Parameter::Context => quote!(#turn.ctx()),
            Parameter::Owned { name, ty } => quote!(#turn.owned::<#ty>(&#arguments.#name)?),
            Parameter::Archived { name, .. } => quote!(&#arguments.#name),
        });
        let reply_type = self.reply_type();
        quote! {
            #(#conditions)*
            #id => {
                #read
                #guard
                let #reply: #reply_type = <#grain>::#name(#borrow #(, #values)*).await;
                #turn.reply(&#reply)
            }
        }
    }

    fn call_signature(&self) -> TokenStream {
        let name = &self.name;
        let parameters = self.travelling().map(|(name, ty)| quote!(#name: #ty));
        let Reply { value, error } = &self.reply;
        let error = error.iter();
        let call = quote!(::siloring::call::Call<#value #(, #error)*>);
        quote!(fn #name(&self #(, #parameters)*) -> #call)
    }

    fn call_documentation(&self, grain: &Ident) -> TokenStream {
        if self.documentation.is_empty() {
            let text = format!("Calls [`{grain}::{}`].", self.name);
            return quote!(#[doc = #text]);
        }
        let documentation = &self.documentation;
        quote!(#(#documentation)*)
    }

    fn call(&self) -> TokenStream {
        let (conditions, spec, signature) =
            (&self.conditions, self.spec_name(), self.call_signature());
        let arguments = self.arguments_name();
        let fields = self.travelling().map(|(field, _)| field);
        let fallible = self.reply.error.is_some();
        let call = if fallible { quote!(call_fallible) } else { quote!(call) };
        quote! {
            #(#conditions)*
            #signature {
                ::siloring::GrainRef::#call(self, &#spec, &#arguments { #(#fields),* })
            }
        }
    }
}

/// A struct that travels, of these fields.
pub(super) fn travelling_type(
    conditions: &[Attribute],
    name: &Ident,
    fields: &[(&Ident, &Type)],
) -> TokenStream {
    let derives = message::derives();
    let parts: Vec<TokenStream> =
        fields.iter().flat_map(|(field, ty)| [message::named(field), message::typed(ty)]).collect();
    let layout = message::layout(name, &parts);
    let fields = fields.iter().map(|(field, ty)| quote!(#field: #ty));
    quote! {
        #(#conditions)*
        #derives
        struct #name { #(#fields),* }

        #(#conditions)*
        #layout
    }
}

fn capitalized(word: &str) -> String {
    let mut characters = word.chars();
    match characters.next() {
        Some(first) => first.to_uppercase().chain(characters).collect(),
        None => String::new(),
    }
}
