//! Every archive that travels: validated, read whole, written again and read once more.
//!
//! The first byte says which type the rest is read as. What is no archive of it is refused without
//! a trace; what is one makes a value whose own archive is read as an equal value, and is no larger
//! than what came: nothing in an archive is counted twice. The extension block is held to the same.

use std::fmt::Debug;

use siloring_core::body::{self, Body, DecodeOwned, Encode};
use siloring_core::wire::{ExtensionWriter, Tag};
use siloring_core::{
    ActivationNumber, Address, AddressHash, ClaimNumber, Endpoint, ShardIndex, ViewNumber,
};
use siloring_runtime::control::{ControlMessage, ProbeNumber, Reached, ReadAge, ViewRows};
use siloring_runtime::directory::{
    Ask, DirectoryMessage, Holds, Item, ItemState, Key, Place, Rest, Span, Summary, TakeOver, Tell,
    Word,
};
use siloring_runtime::envelope::{
    self, Envelope, EventInfo, Idempotency, Sending, write_failure, write_request,
};
use siloring_transport::Purpose;

use super::cast;

/// What alignment may add to an archive that is laid anew.
const SLACK_BYTES: usize = 64;

/// A type that travels.
struct Kind {
    /// In the texts of failures.
    name: &'static str,
    read: fn(&'static str, &[u8]),
    seeds: Vec<Vec<u8>>,
}

pub(super) fn run(input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else {
        return;
    };
    let kinds = KINDS.with(Clone::clone);
    let kind = &kinds[usize::from(*choice) % kinds.len()];
    (kind.read)(kind.name, bytes);
}

thread_local! {
    /// Made once: the samples are built and archived for it.
    static KINDS: std::rc::Rc<[Kind]> = kinds().into();
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (choice, kind) in (0_u8..).zip(kinds()) {
        seeds.extend(kind.seeds.iter().map(|seed| [&[choice], &seed[..]].concat()));
    }
    seeds
}

fn kinds() -> Vec<Kind> {
    let mut kinds = Kinds(Vec::new());
    kinds.of("control", &control());
    kinds.of("directory", &directory());
    kinds.of("row", &[cast::row(cast::PEER, siloring_core::SiloStatus::Active)]);
    kinds.of("purpose", &[Purpose::Shard { from: ShardIndex(0), to: ShardIndex(1) }]);
    kinds.of("text", &["a text that is not kept in place".to_owned()]);
    siloring_pubsub::fuzz::show(&mut kinds);
    kinds.0.push(Kind { name: "extensions", read: read_extensions, seeds: extensions() });
    kinds.0
}

struct Kinds(Vec<Kind>);

impl Kinds {
    fn of<T>(&mut self, name: &'static str, samples: &[T])
    where
        T: Encode + DecodeOwned + PartialEq + Debug + 'static,
    {
        let seeds = samples.iter().map(|sample| Body::encode(sample).as_slice().to_vec());
        self.0.push(Kind { name, read: read_archive::<T>, seeds: seeds.collect() });
    }
}

impl siloring_pubsub::fuzz::Messages for Kinds {
    fn message<T>(&mut self, name: &'static str, sample: &T)
    where
        T: Encode + DecodeOwned + PartialEq + Debug + 'static,
    {
        self.of(name, std::slice::from_ref(sample));
    }
}

fn read_archive<T>(name: &'static str, bytes: &[u8])
where
    T: Encode + DecodeOwned + PartialEq + Debug,
{
    // Archives are read where they are aligned, in place.
    let came = Body::copy_of(bytes);
    let Ok(archived) = body::access::<T>(came.as_slice()) else {
        return;
    };
    let value = body::owned::<T>(archived).expect("what was validated can be taken out");
    let written = Body::encode(&value);
    let bound = came.len() + came.len() / 2 + SLACK_BYTES;
    assert!(written.len() <= bound, "{name}: {} of {} bytes", written.len(), came.len());
    let again = written.decode::<T>();
    assert_eq!(again.as_ref(), Ok(&value), "{name}: a value is read as it was written");
    let twice = Body::encode(&value);
    assert_eq!(twice.len(), written.len(), "{name}: a value has one length");
}

fn read_extensions(name: &'static str, block: &[u8]) {
    let parts = envelope::read(block);
    let mut out = Vec::new();
    write_request(parts.deadline, parts.envelope.as_deref(), &mut out);
    let again = envelope::read(without_length(&out));
    let empty = parts.envelope.as_deref().is_none_or(Envelope::is_empty);
    assert_eq!(again.deadline, parts.deadline, "{name}: a deadline survives");
    assert!(empty || again.envelope == parts.envelope, "{name}: an envelope survives");
    assert!(out.len() <= block.len() + SLACK_BYTES, "{name}: nothing is counted twice");
    let mut out = Vec::new();
    write_failure(parts.view, parts.place, &mut out);
    let again = envelope::read(without_length(&out));
    assert_eq!((again.view, again.place), (parts.view, parts.place), "{name}: a place survives");
}

/// A block as its receiver sees it.
fn without_length(block: &[u8]) -> &[u8] {
    block.split_last_chunk::<4>().map_or(&[], |(entries, _length)| entries)
}

fn control() -> Vec<ControlMessage> {
    let (number, view) = (ProbeNumber(7), cast::VIEW);
    let rows = ViewRows { number: ViewNumber::new(1, 9), rows: cast::rows() };
    vec![
        ControlMessage::Probe { number, view },
        ControlMessage::ProbeAnswer {
            number,
            view,
            read: Some(ReadAge { nanos: 3_000_000 }),
            progress: vec![1, u64::MAX],
            newer: Some(rows.clone()),
        },
        ControlMessage::Relay { number, target: cast::OTHER },
        ControlMessage::RelayAnswer { number, reached: Reached::No },
        ControlMessage::Newer(rows),
        ControlMessage::ReachBack { number, view },
        ControlMessage::ReachedBack { number, reached: Reached::Yes },
        ControlMessage::Goodbye,
    ]
}

const fn place() -> Place {
    let endpoint = Endpoint { silo: cast::PEER, shard: ShardIndex(1) };
    Place { endpoint, number: ActivationNumber { view: cast::VIEW, counter: 5 } }
}

fn items() -> Vec<Item> {
    let states = [
        ItemState::Registered,
        ItemState::Registering,
        ItemState::Claimed,
        ItemState::Claiming,
        ItemState::Released { left_ms: 2 },
    ];
    let item = |(key, state)| Item { key: Key(key), place: place(), attempt: 6, state };
    (1..).zip(states).map(item).collect()
}

/// One message of each word, so that every variant is found at once.
fn directory() -> Vec<DirectoryMessage> {
    let words = asks().into_iter().map(Word::Ask).chain(tells().into_iter().map(Word::Tell));
    let message = |word| DirectoryMessage { view: cast::VIEW, word };
    let mut messages: Vec<_> = words.map(message).collect();
    let origin = place().endpoint;
    let inner = messages[0].encode().as_slice().to_vec();
    messages.push(message(Word::Relay { origin, to: origin, message: inner }));
    messages
}

fn asks() -> Vec<Ask> {
    let (hash, attempt, span) = (AddressHash(7 << 64), 6, Span::WHOLE);
    let number = ClaimNumber { view: cast::VIEW, counter: 5 };
    let spans = vec![Span { first: 0, last: 9 }, Span { first: 20, last: u64::MAX }];
    let after = Some(Key(3));
    vec![
        Ask::Lookup { hash },
        Ask::Register { hash, attempt },
        Ask::Unregister { hash, attempt },
        Ask::Claim { hash, attempt, held: Some(number), take_over: TakeOver::Yes },
        Ask::Release { hash, attempt, number: Some(number) },
        Ask::Refused { hash, place: place() },
        Ask::Assert { items: items() },
        Ask::HandOverAsk { span, after },
        Ask::HandOverDone { spans: spans.clone() },
        Ask::Offer { spans: spans.clone() },
        Ask::RecoverAsk { recovery: 4, spans, after },
    ]
}

fn tells() -> Vec<Tell> {
    let (hash, attempt, span, place) = (AddressHash(7 << 64), 6, Span::WHOLE, place());
    let number = ClaimNumber { view: cast::VIEW, counter: 5 };
    let after = Some(Key(3));
    let last = Some(Summary { count: 4, hash: 99 });
    vec![
        Tell::Located { hash, place: Some(place) },
        Tell::Registered { hash, attempt, winner: place },
        Tell::Unregistered { hash, attempt },
        Tell::Claimed { hash, attempt, number },
        Tell::ClaimRefused { hash, attempt, holder: place },
        Tell::Released { hash, attempt },
        Tell::Moving { hash },
        Tell::Newer,
        Tell::Verify { hash, place, attempt },
        Tell::Verified { hash, place, holds: Holds::Yes },
        Tell::Evict { hash, attempt, number: place.number, winner: place },
        Tell::Evicted { hash, attempt },
        Tell::HandOverPiece { span, after, items: items(), last },
        Tell::HandOverNone { span },
        Tell::RecoverAnswer { recovery: 4, after, items: items(), rest: Rest::More },
    ]
}

fn extensions() -> Vec<Vec<u8>> {
    let stream = Address::parse("stream/chat/general").expect("an address");
    let event = EventInfo {
        stream,
        subscription: "room/1".into(),
        epoch: place().number,
        position: 9,
        missed: 1,
        attempt: 2,
        origin: 1 << 90,
        number: 4,
    };
    let envelope = Envelope {
        identity: Some("ada".into()),
        headers: vec![("tenant".into(), "north".into())],
        chain: vec![AddressHash(1), AddressHash(2)],
        trace: Some([7; 25]),
        event: Some(event.into()),
        idempotency: Some(Idempotency { key: 5, sending: Sending::Again(Some(place().number)) }),
    };
    let mut request = Vec::new();
    write_request(Some(std::time::Duration::from_secs(2)), Some(&envelope), &mut request);
    let mut failure = Vec::new();
    write_failure(Some(cast::VIEW), Some(place()), &mut failure);
    let mut strange = Vec::new();
    let mut writer = ExtensionWriter::new(&mut strange);
    writer.push(Tag::DeadlineMs, &[1]);
    writer.push(Tag::Header, &[200, b'x']);
    writer.finish();
    [request, failure, strange].iter().map(|block| without_length(block).to_vec()).collect()
}
