//! Stable names: of grain types, message types and methods.

use darling::util::SpannedValue;

/// Longest stable name: with a key of ordinary length, an address stays far below its limit.
const NAME_BYTES_MAX: usize = 128;

/// Checks that `name` may be the kind of an address: `a-z A-Z 0-9 . _ -`, not empty, not too long.
pub(crate) fn check(name: &SpannedValue<String>, what: &str) -> syn::Result<()> {
    let refused = |text: String| Err(syn::Error::new(name.span(), text));
    if name.is_empty() {
        return refused(format!("{what} must not be empty: write \"area.name\""));
    }
    if name.len() > NAME_BYTES_MAX {
        return refused(format!("{what} is longer than {NAME_BYTES_MAX} bytes: shorten it"));
    }
    let allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match name.chars().find(|c| !allowed(c)) {
        Some(wrong) => {
            refused(format!("{what} has {wrong:?} in it: only a-z A-Z 0-9 . _ - are allowed"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proc_macro2::Span;

    fn verdict(name: &str) -> Result<(), String> {
        let name = SpannedValue::new(name.to_owned(), Span::call_site());
        check(&name, "the name").map_err(|error| error.to_string())
    }

    #[test]
    fn a_name_is_what_an_address_allows_as_its_kind() {
        assert_eq!(verdict("chat.room-2_b"), Ok(()));
        assert!(verdict("").unwrap_err().contains("empty"));
        assert!(verdict("chat/room").unwrap_err().contains("'/'"));
        assert!(verdict(&"x".repeat(NAME_BYTES_MAX + 1)).unwrap_err().contains("longer"));
    }
}
