//! The address parser: total, canonical, and what it takes apart can be put together again.

use std::cmp::Ordering;

use siloring_core::limits::ADDRESS_BYTES_MAX;
use siloring_core::{Address, AddressError};

/// What an error repeats of a text: 64 characters, each escaped at worst as `\u{10ffff}`, and a
/// sentence.
const ERROR_BYTES_MAX: usize = 64 * 16 + 256;

/// Reads the input as one or, at its first line feed, two texts.
pub(super) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (one, other) = text.split_once('\n').unwrap_or((&text, &text));
    let (one, other) = (check(one), check(other));
    if let (Some(one), Some(other)) = (one, other) {
        let same = one.as_str() == other.as_str();
        assert_eq!(one == other, same, "equal addresses have one text");
        assert_eq!(one.hash() == other.hash(), same, "two texts have two hashes");
        assert_eq!(one.cmp(&other) == Ordering::Equal, same, "the order agrees with equality");
    }
}

fn check(text: &str) -> Option<Address> {
    let address = match Address::parse(text) {
        Ok(address) => address,
        Err(error) => {
            check_error(text, &error);
            return None;
        }
    };
    assert!(text.len() <= ADDRESS_BYTES_MAX, "an address is bounded");
    assert!(!text.chars().any(char::is_control), "an address can be printed");
    assert_eq!(address.as_str(), text, "the text is canonical");
    let (kind, id) = (address.kind().0, address.id());
    assert!(!kind.is_empty(), "a kind is not empty");
    assert!(!id.is_empty(), "an id is not empty");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    assert!(kind.bytes().all(plain), "a kind is plain: {kind:?}");
    let inner = format!("{kind}/{id}");
    let whole = match address.host() {
        Some(host) => format!("{host}~{inner}"),
        None => inner.clone(),
    };
    assert_eq!(whole, text, "the parts make the whole");
    let inner = Address::parse(&inner).expect("the inner address is one");
    assert_eq!((inner.kind(), inner.host()), (address.kind(), None), "the inner kind routes");
    Some(address)
}

fn check_error(text: &str, error: &AddressError) {
    let shown = error.to_string();
    assert!(shown.len() <= ERROR_BYTES_MAX, "an error is bounded: {} bytes", shown.len());
    assert!(!shown.chars().any(char::is_control), "an error can be printed: {shown:?}");
    assert_eq!(Address::parse(text).as_ref(), Err(error), "a text has one error");
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let long = format!("room/{}", "x".repeat(ADDRESS_BYTES_MAX - 5));
    let texts = [
        "room/general",
        "chat.room/general/annex\nchat.room/general/anne",
        "mesh-1~portal/alice",
        "a~b~portal/alice\nb~portal/alice",
        "~portal/x",
        "room/",
        "/x",
        "r m/x",
        "r\u{e4}um/\u{1f600}",
        "room/\u{0}",
        &long,
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
