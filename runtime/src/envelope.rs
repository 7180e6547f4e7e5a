//! The envelope's rarer parts: deadline, identity, headers, call chain, trace, what makes a request
//! an event or idempotent, corrected place.
//!
//! They travel in the extension block of a frame; a request with the default deadline and none of
//! the others carries no block at all.

use core::time::Duration;
use std::sync::Arc;

use siloring_core::address::{Address, AddressHash};
use siloring_core::ids::{ActivationNumber, Endpoint, Generation, ShardIndex, ViewNumber};
use siloring_core::limits::{
    CHAIN_MAX, EXTENSION_BYTES_MAX, HEADERS_MAX, SUBSCRIPTION_KEY_BYTES_MAX,
};
use siloring_core::wire::{ExtensionWriter, Extensions, Tag};

use crate::directory::Place;

/// What makes a request the delivery of a stream's event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventInfo {
    /// The stream.
    pub stream: Address,
    /// The subscriber's key, unique in its stream.
    pub subscription: Box<str>,
    /// The number of the stream owner's activation: an owner of an earlier one is refused.
    pub epoch: ActivationNumber,
    /// Where the event stands in the owner's queue.
    pub position: u64,
    /// How many events before this one the subscription was not given.
    pub missed: u64,
    /// From 1: how often the owner has tried.
    pub attempt: u8,
    /// Who published: one for each incarnation and shard.
    pub origin: u128,
    /// The origin's number of the event.
    pub number: u64,
}

/// What makes a request idempotent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Idempotency {
    /// Names the request.
    pub key: u128,
    /// Whether it may have been handled already.
    pub sending: Sending,
}

/// Whether a request is sent for the first time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sending {
    /// No activation can have it.
    First,
    /// It was handed over before, to this activation or hub if that is known. Nobody else may begin
    /// to handle it.
    Again(Option<ActivationNumber>),
}

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
    /// What makes the request an event.
    pub event: Option<Arc<EventInfo>>,
    /// What makes the request idempotent.
    pub idempotency: Option<Idempotency>,
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
    /// The key of an event's subscription is too long.
    #[error("a subscription's key exceeds {SUBSCRIPTION_KEY_BYTES_MAX} bytes")]
    SubscriptionTooLong,
}

impl Envelope {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.identity.is_none()
            && self.headers.is_empty()
            && self.chain.is_empty()
            && self.trace.is_none()
            && self.event.is_none()
            && self.idempotency.is_none()
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
        let subscription = self.event.as_ref().map_or(0, |event| event.subscription.len());
        if subscription > SUBSCRIPTION_KEY_BYTES_MAX {
            return Err(EnvelopeError::SubscriptionTooLong);
        }
        Ok(())
    }
}

/// The parts of an extension block, as read from a frame.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Parts {
    /// Until the deadline.
    pub deadline: Option<Duration>,
    /// Identity, headers, chain, trace, event, idempotency.
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
    if let Some(event) = &envelope.event {
        writer.push(Tag::Event, &event_entry(event));
    }
    if let Some(idempotency) = &envelope.idempotency {
        write_idempotency(*idempotency, writer);
    }
}

fn event_entry(event: &EventInfo) -> Vec<u8> {
    let key = event.subscription.as_bytes();
    let mut entry = Vec::with_capacity(EVENT_FIXED_BYTES + key.len() + event.stream.as_str().len());
    let words =
        [event.epoch.view.0, event.epoch.counter, event.position, event.missed, event.number];
    for word in words {
        entry.extend_from_slice(&word.to_le_bytes());
    }
    entry.extend_from_slice(&event.origin.to_le_bytes());
    entry.push(event.attempt);
    entry.push(u8::try_from(key.len()).expect("checked by Envelope::check"));
    entry.extend_from_slice(key);
    entry.extend_from_slice(event.stream.as_str().as_bytes());
    entry
}

fn write_idempotency(idempotency: Idempotency, writer: &mut ExtensionWriter<'_>) {
    let mut entry = [0; 32];
    entry[..16].copy_from_slice(&idempotency.key.to_le_bytes());
    let used = match idempotency.sending {
        Sending::First => 16,
        Sending::Again(number) => {
            if let Some(number) = number {
                entry[16..24].copy_from_slice(&number.view.0.to_le_bytes());
                entry[24..].copy_from_slice(&number.counter.to_le_bytes());
            }
            32
        }
    };
    writer.push(Tag::IdempotencyKey, &entry[..used]);
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
            Tag::Trace
            | Tag::Identity
            | Tag::Header
            | Tag::Ancestor
            | Tag::Event
            | Tag::IdempotencyKey => {
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
        Tag::Event => envelope.event = read_event(value).map(Arc::new),
        Tag::IdempotencyKey => envelope.idempotency = read_idempotency(value),
        Tag::Header | Tag::Ancestor | Tag::DeadlineMs | Tag::Place | Tag::View => {}
    }
}

fn read_header(value: &[u8]) -> Option<(Box<str>, Box<str>)> {
    let (&length, rest) = value.split_first()?;
    let (name, value) = rest.split_at_checked(usize::from(length))?;
    Some((core::str::from_utf8(name).ok()?.into(), core::str::from_utf8(value).ok()?.into()))
}

/// The word at `at`, if all of it is there.
fn word(value: &[u8], at: usize) -> Option<u64> {
    value.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

fn number(value: &[u8], at: usize) -> Option<ActivationNumber> {
    Some(ActivationNumber { view: ViewNumber(word(value, at)?), counter: word(value, at + 8)? })
}

fn read_place(value: &[u8]) -> Option<Place> {
    let shard = value.get(8..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))?;
    Some(Place {
        endpoint: Endpoint { silo: Generation(word(value, 0)?), shard: ShardIndex(shard) },
        number: number(value, 10)?,
    })
}

/// Bytes of an event's entry before the subscription's key.
const EVENT_FIXED_BYTES: usize = 58;

fn read_event(value: &[u8]) -> Option<EventInfo> {
    let (fixed, texts) = value.split_at_checked(EVENT_FIXED_BYTES)?;
    let (&key_bytes, &attempt) = (fixed.last()?, fixed.get(EVENT_FIXED_BYTES - 2)?);
    let (key, stream) = texts.split_at_checked(usize::from(key_bytes))?;
    Some(EventInfo {
        stream: Address::parse(core::str::from_utf8(stream).ok()?).ok()?,
        subscription: core::str::from_utf8(key).ok()?.into(),
        epoch: number(fixed, 0)?,
        position: word(fixed, 16)?,
        missed: word(fixed, 24)?,
        attempt,
        origin: u128::from_le_bytes(*fixed[40..].first_chunk()?),
        number: word(fixed, 32)?,
    })
}

fn read_idempotency(value: &[u8]) -> Option<Idempotency> {
    let key = u128::from_le_bytes(*value.first_chunk()?);
    let sending = match value.len() {
        16 => Sending::First,
        _ => Sending::Again(number(value, 16).filter(|number| number.view != ViewNumber::ZERO)),
    };
    Some(Idempotency { key, sending })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The block as a receiver sees it: without its own length.
    fn seen(block: &[u8]) -> &[u8] {
        block.split_last_chunk::<4>().map_or(&[], |(entries, _)| entries)
    }

    fn event() -> EventInfo {
        EventInfo {
            stream: Address::parse("stream/chat/general").unwrap(),
            subscription: "room/1".into(),
            epoch: ActivationNumber { view: ViewNumber(7), counter: 8 },
            position: 9,
            missed: 10,
            attempt: 11,
            origin: 12 << 64,
            number: 13,
        }
    }

    #[test]
    fn an_event_is_laid_as_documented() {
        let entry = event_entry(&event());
        for (at, word) in [7u64, 8, 9, 10, 13].into_iter().enumerate() {
            assert_eq!(entry[at * 8..at * 8 + 8], word.to_le_bytes());
        }
        assert_eq!(entry[40..56], (12u128 << 64).to_le_bytes());
        assert_eq!(entry[56..58], [11, 6]);
        assert_eq!(&entry[58..], b"room/1stream/chat/general");
        for cut in 0..entry.len() - "stream/chat/general".len() + 3 {
            assert_eq!(read_event(&entry[..cut]), None, "{cut} bytes are no event");
        }
    }

    #[test]
    fn a_request_that_is_sent_again_says_to_whom() {
        let known = ActivationNumber { view: ViewNumber(7), counter: 8 };
        for sending in [Sending::First, Sending::Again(None), Sending::Again(Some(known))] {
            let idempotency = Some(Idempotency { key: u128::MAX - 1, sending });
            let envelope = Envelope { idempotency, ..Envelope::default() };
            let mut block = Vec::new();
            write_request(None, Some(&envelope), &mut block);
            assert_eq!(read(seen(&block)).envelope.as_deref(), Some(&envelope));
        }
    }

    #[test]
    fn a_request_reads_as_it_was_written() {
        let envelope = Envelope {
            identity: Some("alice".into()),
            headers: vec![("tenant".into(), "blue".into())],
            chain: vec![AddressHash(7), AddressHash(9)],
            trace: Some([3; 25]),
            event: Some(Arc::new(event())),
            idempotency: Some(Idempotency { key: 1 << 100, sending: Sending::First }),
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
        let subscription = "k".repeat(SUBSCRIPTION_KEY_BYTES_MAX + 1).into_boxed_str();
        let event = Some(Arc::new(EventInfo { subscription, ..event() }));
        let envelope = Envelope { event, ..Envelope::default() };
        assert_eq!(envelope.check(), Err(EnvelopeError::SubscriptionTooLong));
    }
}
