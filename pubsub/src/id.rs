//! The name of a stream: a namespace and a key, as an address.

use siloring_core::address::{Address, AddressError};

/// The kind of streams' addresses.
pub const STREAM_KIND: &str = "stream";

/// Makes a stream's address.
///
/// # Errors
/// If namespace or key are empty, hold a control character or are too long together, or the
/// namespace holds a `/`.
pub fn stream_address(namespace: &str, key: &str) -> Result<Address, AddressError> {
    let text = format!("{STREAM_KIND}/{namespace}/{key}");
    if namespace.is_empty() || namespace.contains('/') || key.is_empty() {
        return Err(AddressError::EmptyId { text });
    }
    Address::parse(&text)
}

/// Namespace and key of a stream's address; `None` if it is none.
pub(crate) fn parts(stream: &Address) -> Option<(&str, &str)> {
    if stream.kind().0 != STREAM_KIND {
        return None;
    }
    stream.id().split_once('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_one_address() {
        let address = stream_address("room", "a/b").unwrap();
        assert_eq!(address.as_str(), "stream/room/a/b");
        assert_eq!(parts(&address), Some(("room", "a/b")));
        assert!(stream_address("a/b", "c").is_err(), "it would be stream b/c of a");
        assert!(stream_address("", "c").is_err() && stream_address("a", "").is_err());
    }
}
