//! The envelope's rarer parts: deadline, identity, headers, call chain, trace, corrected place.
//!
//! They travel in the extension block of a frame; a request with the default deadline and none of
//! the others carries no block at all.

use core::time::Duration;

use siloring_core::address::AddressHash;
use siloring_core::ids::{ActivationNumber, Endpoint, Generation, ShardIndex, ViewNumber};
use siloring_core::limits::{CHAIN_MAX, EXTENSION_BYTES_MAX, HEADERS_MAX};
use siloring_core::wire::{ExtensionWriter, Extensions, Tag};

use crate::directory::Place;

/// What travels with a request besides its body.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Envelope {
    /// Who calls, as the surrounding program authenticated it.
    pub identity: Option<Box<str>>,
    /// Name and value pairs of the surrounding program.
    pub headers: Vec<(Box<str>, Box<str>)>,
    /// The activations that wait for this request, the direct sender excluded.
    pub chain: Vec<AddressHash>,
    /// 25-byte binary trace context.
    pub trace: Option<[u8; 25]>,
}

/// Why an envelope was refused. Nothing was sent; the caller shortens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// More headers than allowed.
    #[error("more than {HEADERS_MAX} headers")]
    TooManyHeaders,
    /// Identity and headers together are too long.
    #[error("identity and headers exceed {EXTENSION_BYTES_MAX} bytes")]
    TooLong,
}

impl Envelope {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.identity.is_none()
            && self.headers.is_empty()
            && self.chain.is_empty()
            && self.trace.is_none()
    }

    /// Checks the bounds.
    pub fn check(&self) -> Result<(), EnvelopeError> {
        if self.headers.len() > HEADERS_MAX {
            return Err(EnvelopeError::TooManyHeaders);
        }
        let headers: usize =
            self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        let identity = self.identity.as_ref().map_or(0, |identity| identity.len());
        let names = self.headers.iter().all(|(name, _)| u8::try_from(name.len()).is_ok());
        if identity + headers > EXTENSION_BYTES_MAX || !names {
            return Err(EnvelopeError::TooLong);
        }
        Ok(())
    }
}

/// The parts of an extension block, as read from a frame.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Parts {
    /// Until the deadline.
    pub deadline: Option<Duration>,
    /// Identity, headers, chain, trace.
    pub envelope: Option<Box<Envelope>>,
    /// Where the target really is, in a failure.
    pub place: Option<Place>,
    /// In which view a failure was decided.
    pub view: Option<ViewNumber>,
}

/// Appends the extension block of a request to `out`.
#[inline]
pub fn write_request(deadline: Option<Duration>, envelope: Option<&Envelope>, out: &mut Vec<u8>) {
    let mut writer = ExtensionWriter::new(out);
    if let Some(deadline) = deadline {
        let ms = u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX);
        writer.push(Tag::DeadlineMs, &ms.to_le_bytes());
    }
    if let Some(envelope) = envelope {
        write_envelope(envelope, &mut writer);
    }
    writer.finish();
}

fn write_envelope(envelope: &Envelope, writer: &mut ExtensionWriter<'_>) {
    if let Some(identity) = &envelope.identity {
        writer.push(Tag::Identity, identity.as_bytes());
    }
    for (name, value) in &envelope.headers {
        let mut entry = vec![u8::try_from(name.len()).expect("checked by Envelope::check")];
        entry.extend_from_slice(name.as_bytes());
        entry.extend_from_slice(value.as_bytes());
        writer.push(Tag::Header, &entry);
    }
    for ancestor in envelope.chain.iter().take(CHAIN_MAX) {
        writer.push(Tag::Ancestor, &ancestor.0.to_le_bytes());
    }
    if let Some(trace) = &envelope.trace {
        writer.push(Tag::Trace, trace);
    }
}

/// Appends the extension block of a failure to `out`.
pub fn write_failure(view: Option<ViewNumber>, place: Option<Place>, out: &mut Vec<u8>) {
    let mut writer = ExtensionWriter::new(out);
    if let Some(view) = view {
        writer.push(Tag::View, &view.0.to_le_bytes());
    }
    if let Some(place) = place {
        let mut entry = [0; 26];
        entry[0..8].copy_from_slice(&place.endpoint.silo.0.to_le_bytes());
        entry[8..10].copy_from_slice(&place.endpoint.shard.0.to_le_bytes());
        entry[10..18].copy_from_slice(&place.number.view.0.to_le_bytes());
        entry[18..26].copy_from_slice(&place.number.counter.to_le_bytes());
        writer.push(Tag::Place, &entry);
    }
    writer.finish();
}

/// Reads an extension block. Entries that are malformed, or too many, are left out.
pub fn read(block: &[u8]) -> Parts {
    let mut parts = Parts::default();
    for (tag, value) in Extensions::new(block) {
        match tag {
            Tag::DeadlineMs => {
                let ms = value.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
                parts.deadline = ms.map(|ms| Duration::from_millis(u64::from(ms)));
            }
            Tag::View => {
                parts.view = value.first_chunk().map(|b| ViewNumber(u64::from_le_bytes(*b)));
            }
            Tag::Place => parts.place = read_place(value),
            Tag::Trace | Tag::Identity | Tag::Header | Tag::Ancestor => {
                read_envelope(tag, value, parts.envelope.get_or_insert_default());
            }
        }
    }
    parts
}

fn read_envelope(tag: Tag, value: &[u8], envelope: &mut Envelope) {
    match tag {
        Tag::Trace => envelope.trace = value.first_chunk().copied(),
        Tag::Identity => envelope.identity = core::str::from_utf8(value).ok().map(Into::into),
        Tag::Header if envelope.headers.len() < HEADERS_MAX => {
            envelope.headers.extend(read_header(value));
        }
        Tag::Ancestor if envelope.chain.len() < CHAIN_MAX => {
            envelope
                .chain
                .extend(value.first_chunk().map(|bytes| AddressHash(u128::from_le_bytes(*bytes))));
        }
        Tag::Header | Tag::Ancestor | Tag::DeadlineMs | Tag::Place | Tag::View => {}
    }
}

fn read_header(value: &[u8]) -> Option<(Box<str>, Box<str>)> {
    let (&length, rest) = value.split_first()?;
    let (name, value) = rest.split_at_checked(usize::from(length))?;
    Some((core::str::from_utf8(name).ok()?.into(), core::str::from_utf8(value).ok()?.into()))
}

fn read_place(value: &[u8]) -> Option<Place> {
    let entry = value.first_chunk::<26>()?;
    let word = |at: usize| entry[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let shard = entry[8..].first_chunk().map(|bytes| u16::from_le_bytes(*bytes))?;
    Some(Place {
        endpoint: Endpoint { silo: Generation(word(0)?), shard: ShardIndex(shard) },
        number: ActivationNumber { view: ViewNumber(word(10)?), counter: word(18)? },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The block as a receiver sees it: without its own length.
    fn seen(block: &[u8]) -> &[u8] {
        block.split_last_chunk::<4>().map_or(&[], |(entries, _)| entries)
    }

    #[test]
    fn a_request_reads_as_it_was_written() {
        let envelope = Envelope {
            identity: Some("alice".into()),
            headers: vec![("tenant".into(), "blue".into())],
            chain: vec![AddressHash(7), AddressHash(9)],
            trace: Some([3; 25]),
        };
        let mut block = Vec::new();
        write_request(Some(Duration::from_millis(1500)), Some(&envelope), &mut block);
        let parts = read(seen(&block));
        assert_eq!(parts.deadline, Some(Duration::from_millis(1500)));
        assert_eq!(parts.envelope.as_deref(), Some(&envelope));
    }

    #[test]
    fn a_failure_carries_the_correct_place() {
        let place = Place {
            endpoint: Endpoint { silo: Generation(5), shard: ShardIndex(3) },
            number: ActivationNumber { view: ViewNumber(6), counter: 8 },
        };
        let mut block = Vec::new();
        write_failure(Some(ViewNumber(11)), Some(place), &mut block);
        let parts = read(seen(&block));
        assert_eq!((parts.view, parts.place), (Some(ViewNumber(11)), Some(place)));
    }

    #[test]
    fn a_plain_request_needs_no_block_and_garbage_is_left_out() {
        let mut block = Vec::new();
        write_request(None, Some(&Envelope::default()), &mut block);
        assert!(block.is_empty());
        assert_eq!(
            read(&[6, 2, 0, 1, 2, 4, 1, 0, 9]),
            Parts { envelope: Some(Box::default()), ..Parts::default() }
        );
    }

    #[test]
    fn bounds_are_checked_before_sending() {
        let long = "x".repeat(EXTENSION_BYTES_MAX + 1).into_boxed_str();
        let envelope = Envelope { identity: Some(long), ..Envelope::default() };
        assert_eq!(envelope.check(), Err(EnvelopeError::TooLong));
        let headers = vec![("a".into(), "b".into()); HEADERS_MAX + 1];
        let envelope = Envelope { headers, ..Envelope::default() };
        assert_eq!(envelope.check(), Err(EnvelopeError::TooManyHeaders));
    }
}
