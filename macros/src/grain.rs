//! `#[derive(Grain)]`: the constants of a grain type.

use darling::FromDeriveInput;
use darling::util::{Flag, SpannedValue};
use proc_macro2::{Ident, TokenStream};
use quote::quote;
use syn::{DeriveInput, Generics, Type, parse_quote};

use crate::names;

/// What the user wrote.
#[derive(FromDeriveInput)]
#[darling(attributes(grain), supports(struct_any, enum_any))]
struct Declaration {
    ident: Ident,
    generics: Generics,
    #[darling(rename = "type")]
    type_name: Option<SpannedValue<String>>,
    key: Option<Type>,
    placement: Option<SpannedValue<String>>,
    reentrant: Flag,
    idle_after_s: Option<SpannedValue<u64>>,
}

/// Expands the derive.
pub(crate) fn expand(input: TokenStream) -> darling::Result<TokenStream> {
    let input: DeriveInput = syn::parse2(input)?;
    let declaration = Declaration::from_derive_input(&input)?;
    let mut errors = darling::Error::accumulator();
    let type_name = errors.handle(type_name(&declaration));
    let placement = errors.handle(placement(&declaration));
    let idle_after = errors.handle(idle_after(&declaration));
    errors.handle(concrete(&declaration));
    errors.finish()?;

    let grain = &declaration.ident;
    let key = declaration.key.clone().unwrap_or_else(|| parse_quote!(::std::string::String));
    let reentrant = declaration.reentrant.is_present();
    Ok(quote! {
        #[automatically_derived]
        impl ::siloring::grain::GrainType for #grain {
            const TYPE: &'static str = #type_name;
            const PLACEMENT: ::siloring::grain::Placement =
                ::siloring::grain::Placement::#placement;
            const REENTRANT: bool = #reentrant;
            const IDLE_AFTER: ::core::option::Option<::core::time::Duration> = #idle_after;
            type Key = #key;
        }
    })
}

fn type_name(declaration: &Declaration) -> darling::Result<String> {
    let Some(name) = &declaration.type_name else {
        let text = "a grain needs a stable type name: write `#[grain(type = \"area.name\")]`";
        return Err(syn::Error::new(declaration.ident.span(), text).into());
    };
    names::check(name, "the grain's type name")?;
    Ok(name.as_ref().clone())
}

fn placement(declaration: &Declaration) -> darling::Result<TokenStream> {
    let Some(placement) = &declaration.placement else {
        return Ok(quote!(PreferLocal));
    };
    match placement.as_str() {
        "prefer_local" => Ok(quote!(PreferLocal)),
        "hash" => Ok(quote!(Hash)),
        "random" => Ok(quote!(Random)),
        other => {
            let text = format!(
                "unknown placement {other:?}: write \"prefer_local\", \"hash\" or \"random\""
            );
            Err(syn::Error::new(placement.span(), text).into())
        }
    }
}

fn idle_after(declaration: &Declaration) -> darling::Result<TokenStream> {
    match &declaration.idle_after_s {
        None => Ok(quote!(::core::option::Option::None)),
        Some(seconds) if **seconds == 0 => {
            let text = "an activation idle for 0 s would never live: write at least 1, or leave \
                        `idle_after_s` out for the silo's setting";
            Err(syn::Error::new(seconds.span(), text).into())
        }
        Some(seconds) => {
            let seconds = **seconds;
            Ok(quote! {
                ::core::option::Option::Some(::core::time::Duration::from_secs(#seconds))
            })
        }
    }
}

fn concrete(declaration: &Declaration) -> darling::Result<()> {
    if declaration.generics.params.is_empty() {
        return Ok(());
    }
    let text =
        "a grain type is one concrete type: remove the parameters, or declare one struct a type";
    Err(syn::Error::new_spanned(&declaration.generics, text).into())
}
