//! Which types may travel, as far as their names tell.
//!
//! The compiler has the last word: a type that does not implement `Layout` cannot travel. This
//! check comes first because it knows the remedy and points at the very type.

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::Type;

/// Names of types that never travel, and what to write instead.
const REMEDIES: [(&str, &str); 16] = [
    ("usize", "its size depends on the machine: write `u64`"),
    ("isize", "its size depends on the machine: write `i64`"),
    ("str", "texts travel owned: write `String`, or `&Archived<String>` to read one in place"),
    ("HashMap", "its order is random: write `Vec<(K, V)>`"),
    ("HashSet", "its order is random: write `Vec<T>`"),
    ("BTreeMap", "maps do not travel: write `Vec<(K, V)>`"),
    ("BTreeSet", "sets do not travel: write `Vec<T>`"),
    ("Rc", "shared pointers do not travel: write the value itself"),
    ("Arc", "shared pointers do not travel: write the value itself"),
    ("Cow", "borrowed values do not travel: write the owned type"),
    ("Duration", "durations have no fixed layout: write milliseconds as `u64`"),
    ("Instant", "a moment means nothing on another machine: write a duration as `u64`"),
    ("SystemTime", "times have no fixed layout: write seconds since 1970 as `u64`"),
    ("PathBuf", "paths belong to one machine: write `String`"),
    ("Self", "the caller's side has another `Self`: write the type's name"),
    ("Ctx", "the context is a parameter of its own: write `ctx: &Ctx`"),
];

/// Checks that `ty` names nothing that cannot travel.
pub(crate) fn check(ty: &Type) -> syn::Result<()> {
    if matches!(ty, Type::Reference(_)) {
        let text = "references do not travel: write the owned type, or `&Archived<T>` as a \
                    parameter to read a `T` in place";
        return Err(syn::Error::new_spanned(ty, text));
    }
    if matches!(ty, Type::ImplTrait(_) | Type::TraitObject(_)) {
        let text = "only concrete types travel: write the type itself";
        return Err(syn::Error::new_spanned(ty, text));
    }
    check_tokens(ty.to_token_stream())
}

fn check_tokens(tokens: TokenStream) -> syn::Result<()> {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => check_ident(&ident)?,
            TokenTree::Group(group) => check_tokens(group.stream())?,
            TokenTree::Punct(punct) if punct.as_char() == '&' => {
                return Err(syn::Error::new(
                    punct.span(),
                    "references do not travel: write the owned type",
                ));
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
    Ok(())
}

fn check_ident(ident: &Ident) -> syn::Result<()> {
    match REMEDIES.iter().find(|(name, _)| ident == name) {
        Some((name, remedy)) => {
            Err(syn::Error::new(ident.span(), format!("`{name}` cannot travel: {remedy}")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    #[test]
    fn types_that_cannot_travel_are_found_however_deep() {
        let deep: Type = parse_quote!(Option<Vec<(u64, std::sync::Arc<String>)>>);
        assert!(check(&deep).unwrap_err().to_string().contains("`Arc` cannot travel"));
        let nested: Type = parse_quote!(Vec<&str>);
        assert!(check(&nested).unwrap_err().to_string().contains("references do not travel"));
        let fine: Type = parse_quote!(Result<Vec<[u8; 16]>, chat::RoomError>);
        assert!(check(&fine).is_ok());
    }
}
