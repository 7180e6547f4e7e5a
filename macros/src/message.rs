//! `#[message]`: rkyv's derives, the layout hash, the stable name.

use darling::util::{PathList, SpannedValue};
use darling::{FromMeta, ast::NestedMeta};
use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Attribute, Data, DeriveInput, Field, Fields, Path, ext::IdentExt, spanned::Spanned};

use crate::{errors::Errors, names, travel};

/// What the user wrote in the brackets.
#[derive(FromMeta)]
struct Declaration {
    #[darling(rename = "type")]
    type_name: Option<SpannedValue<String>>,
    version: Option<SpannedValue<u16>>,
    was: Option<PathList>,
    reads: Option<PathList>,
}

/// The same, checked.
struct Settings {
    type_name: String,
    version: u16,
    older: Vec<OlderType>,
}

/// An older version of the message.
struct OlderType {
    path: Path,
    ways: Ways,
}

/// How an older version and the present one become each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ways {
    /// Each becomes the other.
    Both,
    /// The older one is read, and sent to nobody.
    Up,
}

/// Expands the attribute. On error the item stays, so that one mistake is one error.
pub(crate) fn expand(settings: TokenStream, item: &TokenStream) -> TokenStream {
    let Ok(mut input) = syn::parse2::<DeriveInput>(item.clone()) else {
        let text = "`#[message]` stands on a struct or an enum";
        let error = syn::Error::new_spanned(item, text).to_compile_error();
        return quote!(#error #item);
    };
    let (settings, layout) = (read(settings), layout_of(&input));
    let (Settings { type_name, version, older }, layout) = match (settings, layout) {
        (Ok(settings), Ok(layout)) => (settings, layout),
        (settings, layout) => {
            strip_rkyv(&mut input);
            let settings = settings.err().map(darling::Error::write_errors);
            let layout = layout.err().map(|error| error.to_compile_error());
            return quote!(#input #settings #layout);
        }
    };
    let (derives, ident) = (derives(), &input.ident);
    let versions = older.iter().map(|older| older.becomes(ident));
    let older = older_list(ident, &older);
    quote! {
        #derives
        #input

        #layout

        #[automatically_derived]
        impl ::siloring::schema::Message for #ident {
            const TYPE: &'static str = #type_name;
            const VERSION: u16 = #version;
            #older
        }

        #[automatically_derived]
        impl ::siloring::versions::FromVersion<Self> for #ident {
            fn from_version(
                same: Self,
            ) -> ::core::result::Result<Self, ::siloring::versions::Unconvertible> {
                ::core::result::Result::Ok(same)
            }
        }
        #(#versions)*
    }
}

/// The constant that lists the older versions of a message.
fn older_list(ident: &Ident, older: &[OlderType]) -> Option<TokenStream> {
    let listed = older.iter().map(|OlderType { path, ways }| {
        let made = match ways {
            Ways::Both => quote!(both),
            Ways::Up => quote!(read_only),
        };
        quote_spanned! {path.span()=>
            ::siloring::versions::Older::#made::<#path, #ident>(
                <#path as ::siloring::schema::Message>::SCHEMA
            )
        }
    });
    (!older.is_empty()).then(|| {
        quote! {
            const OLDER: &'static [::siloring::versions::Older] = {
                const OLDER: &[::siloring::versions::Older] = &[#(#listed),*];
                ::core::assert!(
                    ::siloring::versions::are_distinct(OLDER),
                    "two of the older versions have one number"
                );
                OLDER
            };
        }
    })
}

impl OlderType {
    /// How it becomes `ident`, and `ident` it; and that it may.
    fn becomes(&self, ident: &Ident) -> TokenStream {
        let old = &self.path;
        let text = format!(
            "`{}` is no older version of `{ident}`: they have one type name, and `{ident}` the \
             higher version",
            old.to_token_stream()
        );
        let from_to = |from: &TokenStream, to: &TokenStream| {
            quote_spanned! {old.span()=>
                #[automatically_derived]
                impl ::siloring::versions::FromVersion<#from> for #to {
                    fn from_version(
                        other: #from,
                    ) -> ::core::result::Result<Self, ::siloring::versions::Unconvertible> {
                        ::siloring::versions::converted(other)
                    }
                }
            }
        };
        let (old, new) = (old.to_token_stream(), ident.to_token_stream());
        let up = from_to(&old, &new);
        let down = (self.ways == Ways::Both).then(|| from_to(&new, &old));
        quote_spanned! {self.path.span()=>
            #up
            #down

            const _: () = ::core::assert!(::siloring::versions::is_older::<#old, #new>(), #text);
        }
    }
}

/// The declared version, 1 by default; 0 means "no body" on the wire.
pub(crate) fn checked_version(version: Option<&SpannedValue<u16>>) -> syn::Result<u16> {
    match version {
        None => Ok(1),
        Some(version) if **version == 0 => {
            Err(syn::Error::new(version.span(), "versions begin at 1: write `version = 1`"))
        }
        Some(version) => Ok(**version),
    }
}

/// Removes the attributes that only the derives, which an error leaves out, would understand.
fn strip_rkyv(input: &mut DeriveInput) {
    let strip = |attributes: &mut Vec<Attribute>| {
        attributes.retain(|attribute| !attribute.path().is_ident("rkyv"));
    };
    strip(&mut input.attrs);
    match &mut input.data {
        Data::Struct(data) => data.fields.iter_mut().for_each(|field| strip(&mut field.attrs)),
        Data::Enum(data) => {
            for variant in &mut data.variants {
                strip(&mut variant.attrs);
                variant.fields.iter_mut().for_each(|field| strip(&mut field.attrs));
            }
        }
        Data::Union(_) => {}
    }
}

/// The derives of everything that travels.
pub(crate) fn derives() -> TokenStream {
    quote! {
        #[derive(
            ::siloring::rkyv::Archive,
            ::siloring::rkyv::Serialize,
            ::siloring::rkyv::Deserialize,
        )]
        #[rkyv(
            crate = ::siloring::rkyv,
            attr(allow(missing_debug_implementations, reason = "rkyv derives none")),
        )]
    }
}

fn read(settings: TokenStream) -> darling::Result<Settings> {
    let declared = Declaration::from_list(&NestedMeta::parse_meta_list(settings)?)?;
    let Some(name) = declared.type_name else {
        let text = "a message needs a stable type name: write `#[message(type = \"area.name\")]`";
        return Err(syn::Error::new(Span::call_site(), text).into());
    };
    names::check(&name, "the message's type name")?;
    let version = checked_version(declared.version.as_ref())?;
    let listed = |list: Option<PathList>, ways| {
        let paths = list.map(|list| list.to_vec()).unwrap_or_default();
        paths.into_iter().map(move |path| OlderType { path, ways })
    };
    let older = listed(declared.was, Ways::Both).chain(listed(declared.reads, Ways::Up));
    Ok(Settings { type_name: name.into_inner(), version, older: older.collect() })
}

/// The `Layout` of a struct or enum: names and layouts of its fields in their order, variant by
/// variant. The Rust type's own name is not part of it.
fn layout_of(input: &DeriveInput) -> syn::Result<TokenStream> {
    if !input.generics.params.is_empty() {
        return Err(syn::Error::new_spanned(
            &input.generics,
            "a message is one concrete type: remove the parameters",
        ));
    }
    let parts = match &input.data {
        Data::Struct(data) => fields_of(&data.fields)?,
        Data::Enum(data) => {
            let mut errors = Errors::default();
            let mut parts = vec![text("enum", Span::call_site())];
            for variant in &data.variants {
                errors.keep(untouched_by_rkyv(&variant.attrs));
                parts.push(named(&variant.ident));
                parts.extend(errors.keep(fields_of(&variant.fields)).into_iter().flatten());
            }
            errors.finish()?;
            parts
        }
        Data::Union(data) => {
            let text = "unions cannot travel: write an enum";
            return Err(syn::Error::new(data.union_token.span, text));
        }
    };
    Ok(layout(&input.ident, &parts))
}

fn fields_of(fields: &Fields) -> syn::Result<Vec<TokenStream>> {
    let mut errors = Errors::default();
    let parts = fields.iter().enumerate().map(|(index, field)| errors.keep(part_of(index, field)));
    let parts = parts.collect::<Vec<_>>();
    errors.finish()?;
    Ok(parts.into_iter().flatten().flatten().collect())
}

fn part_of(index: usize, field: &Field) -> syn::Result<[TokenStream; 2]> {
    untouched_by_rkyv(&field.attrs)?;
    travel::check(&field.ty)?;
    let name = match &field.ident {
        Some(ident) => named(ident),
        None => text(&index.to_string(), field.ty.span()),
    };
    Ok([name, typed(&field.ty)])
}

/// `#[rkyv(with = …)]` and its like would change the archive behind the fingerprint's back.
fn untouched_by_rkyv(attributes: &[Attribute]) -> syn::Result<()> {
    match attributes.iter().find(|attribute| attribute.path().is_ident("rkyv")) {
        Some(attribute) => Err(syn::Error::new_spanned(
            attribute,
            "the fingerprint would not see this change of layout: remove the attribute and convert \
             the value instead",
        )),
        None => Ok(()),
    }
}

/// The part of a layout that a name is.
pub(crate) fn named(name: &Ident) -> TokenStream {
    text(&name.unraw().to_string(), name.span())
}

fn text(text: &str, span: Span) -> TokenStream {
    let bytes = Literal::byte_string(text.as_bytes());
    quote_spanned!(span=> ::siloring::hash::stable_u64(#bytes))
}

/// The part of a layout that a type is.
pub(crate) fn typed(ty: &syn::Type) -> TokenStream {
    quote_spanned!(ty.span()=> <#ty as ::siloring::schema::Layout>::LAYOUT)
}

/// The implementation of `Layout` for `ident`: `parts` mixed in their order, then the archive's
/// size and alignment.
pub(crate) fn layout(ident: &Ident, parts: &[TokenStream]) -> TokenStream {
    let archived = quote!(::siloring::rkyv::Archived<#ident>);
    let mixes = parts.iter().map(|part| quote!(hash = ::siloring::schema::mix(hash, #part);));
    quote! {
        #[automatically_derived]
        impl ::siloring::schema::Layout for #ident {
            const LAYOUT: u64 = {
                let mut hash = ::core::mem::size_of::<#archived>() as u64;
                hash = ::siloring::schema::mix(hash, ::core::mem::align_of::<#archived>() as u64);
                #(#mixes)*
                hash
            };
        }
    }
}
