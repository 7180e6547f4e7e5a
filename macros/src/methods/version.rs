//! `#[was(1, fn(line: LineV1) -> u64)]`: a signature that a method had. Reads it, and writes its
//! arguments, and how each version's become the other's: by the name of the parameter.
//!
//! A parameter that the other version has not is left out; one that only this version has is its
//! type's `Default`. What needs more thought is a method of another name.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, ImplItemFn, LitInt, ReturnType, Token, Type, TypeFnPtr, spanned::Spanned};

use super::expansion::{local, travelling_type};
use super::{Method, parse_quote};
use crate::{errors::Errors, travel};

/// A signature that a method had.
pub(super) struct OlderMethod {
    pub(super) version: u16,
    parameters: Vec<OlderParameter>,
    reply: Type,
}

struct OlderParameter {
    name: Ident,
    ty: Type,
}

/// What stands in the brackets.
struct Written {
    version: LitInt,
    signature: TypeFnPtr,
}

impl Parse for Written {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let version = input.parse()?;
        input.parse::<Token![,]>()?;
        let signature = input.parse()?;
        input.parse::<Option<Token![,]>>()?;
        Ok(Self { version, signature })
    }
}

/// The signatures that a method had, each before `version`.
pub(super) fn read(function: &ImplItemFn, version: u16) -> syn::Result<Vec<OlderMethod>> {
    let mut errors = Errors::default();
    let mut found: Vec<OlderMethod> = Vec::new();
    for attribute in written(function) {
        let Some(older) = errors.keep(read_one(attribute, version)) else { continue };
        if found.iter().any(|earlier| earlier.version == older.version) {
            let text = format!("version {} stands here already: write it once", older.version);
            errors.keep::<()>(Err(syn::Error::new_spanned(attribute, text)));
        }
        found.push(older);
    }
    errors.finish()?;
    Ok(found)
}

/// The attributes.
pub(super) fn written(function: &ImplItemFn) -> impl Iterator<Item = &Attribute> {
    function.attrs.iter().filter(|attribute| attribute.path().is_ident("was"))
}

fn read_one(attribute: &Attribute, present: u16) -> syn::Result<OlderMethod> {
    let Ok(Written { version, signature }) = attribute.parse_args::<Written>() else {
        let text = "say which version it was, and how it was called: write \
                    `#[was(1, fn(name: Type) -> Reply)]`";
        return Err(syn::Error::new_spanned(attribute, text));
    };
    let number: u16 = version.base10_parse()?;
    if number == 0 {
        return Err(syn::Error::new(version.span(), "versions begin at 1: write `#[was(1, …)]`"));
    }
    if number >= present {
        let text = format!(
            "the method itself is of version {present}: raise that with `#[method(version = …)]`"
        );
        return Err(syn::Error::new(version.span(), text));
    }
    let mut errors = Errors::default();
    let parameters = signature.inputs.iter().map(|input| {
        let Some((name, _)) = &input.name else {
            let text = "parameters become each other by their names: write `name: Type`";
            return Err(syn::Error::new_spanned(&input.ty, text));
        };
        travel::check(&input.ty)?;
        Ok(OlderParameter { name: name.clone(), ty: input.ty.clone() })
    });
    let parameters: Vec<_> = parameters.filter_map(|parameter| errors.keep(parameter)).collect();
    let reply = errors.keep(reply_of(&signature.output));
    errors.finish()?;
    let reply = reply.expect("the errors were returned above");
    Ok(OlderMethod { version: number, parameters, reply })
}

fn reply_of(output: &ReturnType) -> syn::Result<Type> {
    let ReturnType::Type(_, ty) = output else {
        return Ok(parse_quote!(()));
    };
    travel::check(ty)?;
    Ok(Type::clone(ty))
}

impl Method {
    /// The constant that names the signatures which the method had.
    fn was_name(&self) -> Ident {
        self.hidden("WAS")
    }

    /// What the method's entry says of its versions.
    pub(super) fn versions(&self) -> Option<TokenStream> {
        let version = self.version;
        let was = self.was_name();
        let older = (!self.older.is_empty()).then(|| quote!(.was(#was)));
        (version > 1).then(|| quote!(.version(#version) #older))
    }

    /// The arguments of the signatures which the method had, and how they become the present ones.
    pub(super) fn older_signatures(&self, grain: &Type) -> Option<TokenStream> {
        if self.older.is_empty() {
            return None;
        }
        let (conditions, was, id) = (&self.conditions, self.was_name(), self.id_name());
        let types = self.older.iter().map(|older| self.older_arguments(older));
        let older = quote!(::siloring::versions::Older);
        let present = (self.arguments_name(), self.reply_type());
        let arguments = self.older.iter().map(|it| {
            let (version, name, present) = (it.version, self.older_name(it), &present.0);
            quote! {
                #older::both::<#name, #present>(::siloring::grain::arguments_schema::<#grain>(
                    #id,
                    #version,
                    <#name as ::siloring::schema::Layout>::LAYOUT,
                ))
            }
        });
        let replies = self.older.iter().map(|it| {
            let (version, reply, present) = (it.version, &it.reply, &present.1);
            // An error about how they become each other is shown at the older one.
            quote_spanned! {reply.span()=>
                #older::both::<#reply, #present>(::siloring::grain::reply_schema::<#grain>(
                    #id,
                    #version,
                    <#reply as ::siloring::schema::Layout>::LAYOUT,
                ))
            }
        });
        Some(quote! {
            #(#types)*

            #(#conditions)*
            const #was: ::siloring::grain::Signatures = {
                const ARGUMENTS: &[#older] = &[#(#arguments),*];
                const REPLIES: &[#older] = &[#(#replies),*];
                ::siloring::grain::Signatures { arguments: ARGUMENTS, replies: REPLIES }
            };
        })
    }

    fn older_name(&self, older: &OlderMethod) -> Ident {
        format_ident!("{}V{}", self.arguments_name(), older.version)
    }

    fn older_arguments(&self, older: &OlderMethod) -> TokenStream {
        let (old_name, name) = (self.older_name(older), self.arguments_name());
        let old: Vec<_> = older.parameters.iter().map(|it| (&it.name, &it.ty)).collect();
        let present: Vec<_> = self.travelling().collect();
        let arguments = travelling_type(&self.conditions, &old_name, &old);
        let up = self.conversion(&old_name, &old, &name, &present);
        let down = self.conversion(&name, &present, &old_name, &old);
        quote!(#arguments #up #down)
    }

    /// How the arguments `from` become the arguments `to`.
    fn conversion(
        &self,
        from: &Ident,
        from_fields: &[(&Ident, &Type)],
        to: &Ident,
        to_fields: &[(&Ident, &Type)],
    ) -> TokenStream {
        let conditions = &self.conditions;
        let other = local("other");
        let was = |name: &Ident| from_fields.iter().find(|(known, _)| *known == name);
        let common = to_fields.iter().filter(|(name, _)| was(name).is_some());
        let taken = common.map(|(name, _)| name.to_token_stream());
        let made = to_fields.iter().map(|(name, ty)| {
            if let Some((_, old)) = was(name) {
                quote_spanned! {ty.span()=>
                    #name: <#ty as ::siloring::versions::FromVersion<#old>>::from_version(#name)?
                }
            } else {
                quote_spanned!(ty.span()=> #name: ::core::default::Default::default())
            }
        });
        let unconvertible = quote!(::siloring::versions::Unconvertible);
        quote! {
            #(#conditions)*
            impl ::siloring::versions::FromVersion<#from> for #to {
                fn from_version(
                    #other: #from,
                ) -> ::core::result::Result<Self, #unconvertible> {
                    let #from { #(#taken,)* .. } = #other;
                    ::core::result::Result::Ok(Self { #(#made),* })
                }
            }
        }
    }
}
