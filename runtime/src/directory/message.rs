//! What directories say to each other.
//!
//! A message carries its sender's view and one [`Word`]. Addresses travel as hashes: whoever asks
//! holds the text, and whoever answers needs none. Requests are idempotent: each may be sent again,
//! and each answer names what it answers, so that a late one is recognised.

use siloring_core::body::Undecodable;
use siloring_core::limits::HANDOVER_PIECE_BYTES_MAX;
use siloring_core::{ActivationNumber, AddressHash, Body, ClaimNumber, Endpoint, ViewNumber};

use super::claims::TakeOver;
use super::place::Place;
use super::span::{Key, Span, are_sound};

/// One message between two shards' directories.
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DirectoryMessage {
    /// The sender's view.
    pub view: ViewNumber,
    /// What it says.
    pub word: Word,
}

impl DirectoryMessage {
    /// The archive of the message, for a frame of the control lane.
    pub fn encode(&self) -> Body {
        Body::encode(self)
    }

    /// Reads a message, validated.
    pub fn decode(bytes: &[u8]) -> Result<Self, Undecodable> {
        Body::copy_of(bytes).decode()
    }
}

/// What a message says.
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Word {
    /// A request: handled once its receiver has the sender's view.
    Ask(Ask),
    /// An answer, or what can be handled in any view.
    Tell(Tell),
    /// Pass this on: the two of us cannot reach each other.
    Relay {
        /// Who says it.
        origin: Endpoint,
        /// To whom.
        to: Endpoint,
        /// The message, encoded.
        message: Vec<u8>,
    },
}

/// A request. Sender and receiver must have one view: an older sender is told so, an older receiver
/// lets it wait.
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Where is it?
    Lookup {
        /// Which address.
        hash: AddressHash,
    },
    /// Make me its home, unless it has one.
    Register {
        /// Which address.
        hash: AddressHash,
        /// Which registration of the asking shard.
        attempt: u64,
    },
    /// I am its home no more.
    Unregister {
        /// Which address.
        hash: AddressHash,
        /// Which registration it was.
        attempt: u64,
    },
    /// This hub is mine.
    Claim {
        /// Which address.
        hash: AddressHash,
        /// Which claim of the asking shard.
        attempt: u64,
        /// The number it already has: the claim is re-asserted.
        held: Option<ClaimNumber>,
        /// Whether a living holder is replaced.
        take_over: TakeOver,
    },
    /// This hub is closed.
    Release {
        /// Which address.
        hash: AddressHash,
        /// Which claim it was.
        attempt: u64,
        /// Its number, if it was ever told.
        number: Option<ClaimNumber>,
    },
    /// This home said that it does not have the address: ask it.
    Refused {
        /// Which address.
        hash: AddressHash,
        /// Who refused.
        place: Place,
    },
    /// These are mine: sent when their range has a new owner.
    Assert {
        /// What the sender holds.
        items: Vec<Item>,
    },
    /// Give me what you have in the span, behind a key.
    HandOverAsk {
        /// The span.
        span: Span,
        /// The last key already taken.
        after: Option<Key>,
    },
    /// I serve these spans: drop what you kept of them.
    HandOverDone {
        /// The spans.
        spans: Vec<Span>,
    },
    /// I still keep these spans for you.
    Offer {
        /// The spans.
        spans: Vec<Span>,
    },
    /// What do you hold in these spans? From your answer on you register there with me only.
    RecoverAsk {
        /// The asker's name for the recovery.
        recovery: u64,
        /// The spans.
        spans: Vec<Span>,
        /// The last key already told.
        after: Option<Key>,
    },
}

impl Ask {
    /// Whether its spans are some that a directory would name.
    pub(super) fn is_sound(&self) -> bool {
        match self {
            Self::HandOverAsk { span, .. } => are_sound(&[*span]),
            Self::HandOverDone { spans }
            | Self::Offer { spans }
            | Self::RecoverAsk { spans, .. } => are_sound(spans),
            Self::Lookup { .. }
            | Self::Register { .. }
            | Self::Unregister { .. }
            | Self::Claim { .. }
            | Self::Release { .. }
            | Self::Refused { .. }
            | Self::Assert { .. } => true,
        }
    }
}

/// An answer, or what can be handled in any view.
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Tell {
    /// It is there, or nowhere.
    Located {
        /// Which address.
        hash: AddressHash,
        /// Its home.
        place: Option<Place>,
    },
    /// Who is its home.
    Registered {
        /// Which address.
        hash: AddressHash,
        /// Which registration is answered.
        attempt: u64,
        /// The home: the asker, or who was first.
        winner: Place,
    },
    /// Forgotten.
    Unregistered {
        /// Which address.
        hash: AddressHash,
        /// Which registration.
        attempt: u64,
    },
    /// The claim holds.
    Claimed {
        /// Which address.
        hash: AddressHash,
        /// Which claim is answered.
        attempt: u64,
        /// Its number.
        number: ClaimNumber,
    },
    /// Another holds it.
    ClaimRefused {
        /// Which address.
        hash: AddressHash,
        /// Which claim is answered.
        attempt: u64,
        /// Who holds it.
        holder: Place,
    },
    /// The release is done.
    Released {
        /// Which address.
        hash: AddressHash,
        /// Which claim.
        attempt: u64,
    },
    /// Not now, and the owner cannot keep the request: ask again.
    Moving {
        /// Which address.
        hash: AddressHash,
    },
    /// The request is of an older view than the message's: get that view, then ask again.
    Newer,
    /// Do you hold it?
    Verify {
        /// Which address.
        hash: AddressHash,
        /// As what.
        place: Place,
        /// Which registration or claim.
        attempt: u64,
    },
    /// Whether it is held.
    Verified {
        /// Which address.
        hash: AddressHash,
        /// As what.
        place: Place,
        /// The answer.
        holds: Holds,
    },
    /// Your registration or claim is superseded.
    Evict {
        /// Which address.
        hash: AddressHash,
        /// Which registration or claim.
        attempt: u64,
        /// Its number.
        number: ActivationNumber,
        /// Who holds it now.
        winner: Place,
    },
    /// Understood.
    Evicted {
        /// Which address.
        hash: AddressHash,
        /// Which registration or claim.
        attempt: u64,
    },
    /// A piece of it.
    HandOverPiece {
        /// The span.
        span: Span,
        /// Which piece is answered.
        after: Option<Key>,
        /// The entries.
        items: Vec<Item>,
        /// With the last piece: what all pieces together must be.
        last: Option<Summary>,
    },
    /// I do not have it whole.
    HandOverNone {
        /// The span.
        span: Span,
    },
    /// A piece of what is held.
    RecoverAnswer {
        /// The asker's name for the recovery.
        recovery: u64,
        /// Which piece is answered.
        after: Option<Key>,
        /// The items.
        items: Vec<Item>,
        /// Whether more follows.
        rest: Rest,
    },
}

impl Tell {
    /// Whether its span is one that a directory would name.
    pub(super) fn is_sound(&self) -> bool {
        match self {
            Self::HandOverPiece { span, .. } | Self::HandOverNone { span } => are_sound(&[*span]),
            Self::Located { .. }
            | Self::Registered { .. }
            | Self::Unregistered { .. }
            | Self::Claimed { .. }
            | Self::ClaimRefused { .. }
            | Self::Released { .. }
            | Self::Moving { .. }
            | Self::Newer
            | Self::Verify { .. }
            | Self::Verified { .. }
            | Self::Evict { .. }
            | Self::Evicted { .. }
            | Self::RecoverAnswer { .. } => true,
        }
    }
}

/// Whether a home holds an address.
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holds {
    /// It does, or is about to.
    Yes,
    /// It does not, and never will under that number.
    No,
}

/// Whether an answer is the last.
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// That was all.
    None,
    /// Ask for more behind the last key.
    More,
}

/// An entry on its way.
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item {
    /// Of which address.
    pub key: Key,
    /// Its home.
    pub place: Place,
    /// Which registration or claim of that shard.
    pub attempt: u64,
    /// How firmly.
    pub state: ItemState,
}

/// How firmly an address is held.
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ItemState {
    /// An activation is registered.
    Registered,
    /// A registration waits for its answer; the number means nothing.
    Registering,
    /// A hub is claimed.
    Claimed,
    /// A claim waits for its answer; the number means nothing.
    Claiming,
    /// A hub was closed; the entry is remembered.
    Released {
        /// For how much longer.
        left_ms: u64,
    },
}

/// What the pieces of a hand-over must add up to. Released entries are not counted: they may expire
/// on the way.
#[derive(
    rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, Copy, PartialEq, Eq, Default, Debug,
)]
pub struct Summary {
    /// How many entries.
    pub count: u64,
    /// The sum of their hashes.
    pub hash: u64,
}

impl Summary {
    /// Counts one more entry.
    pub(super) fn add(&mut self, item: &Item) {
        if matches!(item.state, ItemState::Released { .. }) {
            return;
        }
        let mut bytes = [0; 48];
        bytes[..16].copy_from_slice(&item.key.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&item.place.endpoint.silo.0.to_le_bytes());
        bytes[24..26].copy_from_slice(&item.place.endpoint.shard.0.to_le_bytes());
        bytes[26..34].copy_from_slice(&item.place.number.view.0.to_le_bytes());
        bytes[34..42].copy_from_slice(&item.place.number.counter.to_le_bytes());
        self.count += 1;
        self.hash = self.hash.wrapping_add(siloring_core::hash::stable_u64(&bytes));
    }
}

/// Bytes of an archived item.
const ITEM_BYTES: usize = size_of::<ArchivedItem>();
/// Bytes of a piece that are no items.
const PIECE_HEAD_BYTES: usize = 1024;
/// Items of one piece, of a hand-over and of a recovery's answer.
pub(super) const PIECE_ITEMS_MAX: usize =
    (HANDOVER_PIECE_BYTES_MAX - PIECE_HEAD_BYTES) / ITEM_BYTES;

const _: () = assert!(PIECE_ITEMS_MAX >= 1024, "a piece must be worth its round trip");

#[cfg(test)]
mod tests {
    use super::*;
    use siloring_core::{Generation, ShardIndex};

    fn item(key: u128, state: ItemState) -> Item {
        let endpoint = Endpoint { silo: Generation(3), shard: ShardIndex(1) };
        let number = ActivationNumber { view: ViewNumber(4), counter: 5 };
        Item { key: Key(key), place: Place { endpoint, number }, attempt: 6, state }
    }

    fn message(word: Word) -> DirectoryMessage {
        DirectoryMessage { view: ViewNumber(9), word }
    }

    #[test]
    fn the_largest_piece_fits_its_bound() {
        let items = vec![item(1, ItemState::Released { left_ms: 2 }); PIECE_ITEMS_MAX];
        let (span, last) = (Span::WHOLE, Some(Summary::default()));
        let piece = Tell::HandOverPiece { span, after: Some(Key(1)), items, last };
        let bytes = message(Word::Tell(piece)).encode();
        assert!(bytes.len() <= HANDOVER_PIECE_BYTES_MAX, "{} bytes", bytes.len());
    }

    #[test]
    fn a_message_is_read_as_it_was_written_and_garbage_is_refused() {
        let ask = Ask::Assert { items: vec![item(7, ItemState::Claimed)] };
        let written = message(Word::Ask(ask));
        let bytes = written.encode();
        assert_eq!(DirectoryMessage::decode(bytes.as_slice()), Ok(written));
        assert!(DirectoryMessage::decode(&bytes.as_slice()[1..]).is_err());
        assert!(DirectoryMessage::decode(&[]).is_err());
    }

    /// Whoever looks for the keys of such spans would panic, or look through one span many times.
    #[test]
    fn spans_that_no_directory_names_are_not_sound() {
        let span = |first, last| Span { first, last };
        let offer = |spans: &[Span]| Ask::Offer { spans: spans.to_vec() }.is_sound();
        assert!(offer(&[]) && offer(&[span(1, 1), span(3, u64::MAX)]));
        assert!(offer(&[span(3, 4), span(1, 2)]), "in any order");
        assert!(!offer(&[span(2, 1)]) && !offer(&[span(3, 4), span(1, 3)]));
        assert!(!offer(&[Span::WHOLE, Span::WHOLE]));
        assert!(!Ask::HandOverAsk { span: span(2, 1), after: None }.is_sound());
        assert!(!Tell::HandOverNone { span: span(2, 1) }.is_sound());
    }

    fn unhex(text: &str) -> Vec<u8> {
        let digits = text.as_bytes().chunks(2).map(|pair| core::str::from_utf8(pair).unwrap());
        digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    /// A layout that changes makes silos of two versions misread each other: it needs a new
    /// protocol version. The bytes were written once; what is padding in them means nothing.
    #[test]
    fn messages_written_by_the_first_version_are_still_read() {
        let hash = AddressHash(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        let claim = Ask::Claim { hash, attempt: 1, held: None, take_over: TakeOver::Yes };
        let claim_bytes = concat!(
            "09000000000000000000000000000000000000000000000000000000000000000300000000000000",
            "00000000000000007766554433221100efcdab896745230101000000000000000000000000000000",
            "00000000000000000000000000000000010000000000000000000000000000000000000000000000",
            "0000000000000000",
        );
        let assert = Ask::Assert { items: vec![item(7, ItemState::Claimed)] };
        let assert_bytes = concat!(
            "07000000000000000000000000000000030000000000000001000000000000000400000000000000",
            "05000000000000000600000000000000020000000000000000000000000000000000000000000000",
            "0900000000000000000000000000000000000000000000000000000000000000060000008cffffff",
            "01000000000000000000000000000000000000000000000000000000000000000000000000000000",
            "00000000000000000000000000000000000000000000000000000000000000000000000000000000",
            "0000000000000000",
        );
        for (ask, bytes) in [(claim, claim_bytes), (assert, assert_bytes)] {
            let written = message(Word::Ask(ask));
            assert_eq!(DirectoryMessage::decode(&unhex(bytes)).as_ref(), Ok(&written));
            assert_eq!(written.encode().len(), unhex(bytes).len());
        }
    }
}
