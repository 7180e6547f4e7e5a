//! Dictionary frames: the strings of addresses, told once per link and direction.
//!
//! Headers name addresses by 128-bit hashes. Before a link's first frame that names one, its sender
//! sends the string. Both ends hold at most [`LINK_DICTIONARY_MAX`] of them: at the bound the
//! sender starts anew and says so, and both ends forget all at the same place in the stream.
//!
//! An entry is the hash (16 bytes), the length of the text (`u16`), the text. The receiver hashes
//! the text itself: an entry that claims another hash would let one address answer for another.

use core::str;

use siloring_core::hash::{HashMap, HashSet};
use siloring_core::limits::{FRAME_ALIGN, HEADER_BYTES, LINK_DICTIONARY_MAX};
use siloring_core::wire::{FrameKind, Header, frame_bytes};
use siloring_core::{Address, AddressHash, MethodId};

/// Value of a dictionary frame's method field: its entries are added.
const ADD: MethodId = MethodId(0);
/// Value of a dictionary frame's method field: what was told before is forgotten first.
const START_ANEW: MethodId = MethodId(1);
/// Bytes of an entry before its text.
const ENTRY_HEAD_BYTES: usize = 18;

/// Why a dictionary frame was refused. The link is closed: its peer is broken or hostile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DictionaryError {
    /// Neither of the two ways to add entries.
    #[error("dictionary mode {found} is unknown")]
    Mode {
        /// What stood there.
        found: u32,
    },
    /// An entry that ends behind the frame.
    #[error("a dictionary entry exceeds its frame")]
    Truncated,
    /// A text that is no address.
    #[error("a dictionary entry is no address")]
    Malformed,
    /// A text that does not have the hash it came with.
    #[error("a dictionary entry claims {claimed:?}, which is not its hash")]
    Hash {
        /// The hash it came with.
        claimed: AddressHash,
    },
    /// More entries than both ends agreed to remember.
    #[error("more than {LINK_DICTIONARY_MAX} addresses in one dictionary")]
    Full,
}

/// The addresses that a peer has named on this link.
#[derive(Debug, Default)]
pub struct Names {
    known: HashMap<AddressHash, Address>,
}

impl Names {
    /// The address with this hash, if the peer has named it. Asked while the frame that carries the
    /// hash is at hand: the peer may start anew at any later frame.
    #[inline]
    pub fn get(&self, hash: AddressHash) -> Option<&Address> {
        self.known.get(&hash)
    }

    /// How many addresses are known: at most [`LINK_DICTIONARY_MAX`].
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Takes in the entries of a dictionary frame.
    pub(crate) fn handle_frame(
        &mut self,
        header: &Header,
        mut body: &[u8],
    ) -> Result<(), DictionaryError> {
        match header.method {
            ADD => {}
            START_ANEW => self.known.clear(),
            MethodId(found) => return Err(DictionaryError::Mode { found }),
        }
        while !body.is_empty() {
            let (address, rest) = read_entry(body)?;
            if self.known.len() == LINK_DICTIONARY_MAX && !self.known.contains_key(&address.hash())
            {
                return Err(DictionaryError::Full);
            }
            let _known_before = self.known.insert(address.hash(), address);
            body = rest;
        }
        Ok(())
    }
}

#[expect(clippy::map_err_ignore, reason = "what exactly is malformed would echo the peer's bytes")]
fn read_entry(bytes: &[u8]) -> Result<(Address, &[u8]), DictionaryError> {
    let (hash, rest) = bytes.split_first_chunk::<16>().ok_or(DictionaryError::Truncated)?;
    let (length, rest) = rest.split_first_chunk::<2>().ok_or(DictionaryError::Truncated)?;
    let length = usize::from(u16::from_le_bytes(*length));
    let (text, rest) = rest.split_at_checked(length).ok_or(DictionaryError::Truncated)?;
    let text = str::from_utf8(text).map_err(|_| DictionaryError::Malformed)?;
    let address = Address::parse(text).map_err(|_| DictionaryError::Malformed)?;
    let claimed = AddressHash(u128::from_le_bytes(*hash));
    if address.hash() != claimed {
        return Err(DictionaryError::Hash { claimed });
    }
    Ok((address, rest))
}

/// The addresses that we have named to the peer on this link.
#[derive(Debug, Default)]
pub(crate) struct Told {
    known: HashSet<AddressHash>,
    /// The last pair that was looked up: a conversation repeats it.
    last: [AddressHash; 2],
}

/// The addresses that one frame needs named before it.
#[derive(Debug)]
pub(crate) struct Fresh<'a> {
    addresses: [Option<&'a Address>; 2],
    starts_anew: bool,
}

impl Fresh<'_> {
    /// Bytes of the dictionary frame; 0 if none is needed.
    pub(crate) fn frame_bytes(&self) -> usize {
        match self.body_bytes() {
            0 => 0,
            body_bytes => frame_bytes(body_bytes, 0),
        }
    }

    fn body_bytes(&self) -> usize {
        self.addresses
            .iter()
            .flatten()
            .map(|address| ENTRY_HEAD_BYTES + address.as_str().len())
            .sum()
    }
}

impl Told {
    /// Which of a frame's two addresses the peer does not know. Changes nothing that the peer can
    /// see.
    #[inline]
    pub(crate) fn fresh<'a>(
        &mut self,
        source: Option<&'a Address>,
        target: Option<&'a Address>,
    ) -> Fresh<'a> {
        let pair = [hash_of(source), hash_of(target)];
        if pair == self.last {
            return Fresh { addresses: [None, None], starts_anew: false };
        }
        let unknown = |address: &&Address| !self.known.contains(&address.hash());
        let source_fresh = source.filter(unknown);
        let target_fresh = target.filter(unknown).filter(|_| pair[0] != pair[1]);
        let fresh_count = usize::from(source_fresh.is_some()) + usize::from(target_fresh.is_some());
        if self.known.len() + fresh_count > LINK_DICTIONARY_MAX {
            let target = target.filter(|_| pair[0] != pair[1]);
            return Fresh { addresses: [source, target], starts_anew: true };
        }
        if fresh_count == 0 {
            self.last = pair;
        }
        Fresh { addresses: [source_fresh, target_fresh], starts_anew: false }
    }

    /// Writes the dictionary frame and remembers what it tells.
    pub(crate) fn tell(&mut self, fresh: &Fresh<'_>, out: &mut Vec<u8>) {
        let body_bytes = fresh.body_bytes();
        let mut header = Header::new(FrameKind::Dictionary);
        header.method = ADD;
        if fresh.starts_anew {
            header.method = START_ANEW;
            self.known.clear();
            self.last = [AddressHash::NONE; 2];
        }
        let start = out.len();
        out.extend_from_slice(&header.encode(body_bytes, 0));
        for address in fresh.addresses.iter().flatten() {
            let text = address.as_str();
            let length = u16::try_from(text.len()).expect("at most ADDRESS_BYTES_MAX");
            out.extend_from_slice(&address.hash().0.to_le_bytes());
            out.extend_from_slice(&length.to_le_bytes());
            out.extend_from_slice(text.as_bytes());
            let new = self.known.insert(address.hash());
            assert!(new, "an address is told once");
        }
        out.resize(start + HEADER_BYTES + body_bytes.next_multiple_of(FRAME_ALIGN), 0);
    }
}

fn hash_of(address: Option<&Address>) -> AddressHash {
    address.map_or(AddressHash::NONE, Address::hash)
}

#[cfg(test)]
mod tests {
    use siloring_core::limits::FRAME_BYTES_MAX;

    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text).unwrap()
    }

    fn take(names: &mut Names, frame: &[u8]) -> Result<(), DictionaryError> {
        let layout = Header::decode(frame, FRAME_BYTES_MAX).unwrap().unwrap();
        let (body, _) = layout.split(frame).unwrap();
        names.handle_frame(&layout.header, body)
    }

    #[test]
    fn each_address_is_told_once_and_known_afterwards() {
        let (mut told, mut names) = (Told::default(), Names::default());
        let (ada, room) = (address("portal/ada"), address("chat.room/general"));
        let fresh = told.fresh(Some(&ada), Some(&room));
        let mut out = Vec::new();
        told.tell(&fresh, &mut out);
        assert_eq!(out.len(), fresh.frame_bytes());
        take(&mut names, &out).unwrap();
        assert_eq!(names.get(ada.hash()), Some(&ada));
        assert_eq!(names.get(room.hash()), Some(&room));
        assert_eq!(told.fresh(Some(&ada), Some(&room)).frame_bytes(), 0);
        assert_eq!(told.fresh(Some(&room), None).frame_bytes(), 0);
    }

    #[test]
    fn one_address_in_both_places_is_told_once() {
        let mut told = Told::default();
        let ada = address("portal/ada");
        let fresh = told.fresh(Some(&ada), Some(&ada));
        assert_eq!(fresh.body_bytes(), ENTRY_HEAD_BYTES + ada.as_str().len());
        told.tell(&fresh, &mut Vec::new());
    }

    #[test]
    fn at_the_bound_both_ends_start_anew() {
        let (mut told, mut names) = (Told::default(), Names::default());
        for number in 0..=LINK_DICTIONARY_MAX {
            let address = address(&format!("chat.room/{number}"));
            let fresh = told.fresh(None, Some(&address));
            let mut out = Vec::new();
            told.tell(&fresh, &mut out);
            take(&mut names, &out).unwrap();
            assert_eq!(names.get(address.hash()), Some(&address));
            assert!(names.len() <= LINK_DICTIONARY_MAX);
        }
        assert_eq!((names.len(), told.known.len()), (1, 1));
        assert!(told.fresh(None, Some(&address("chat.room/5"))).frame_bytes() > 0);
    }

    /// A pair of which one is known straddles the bound: both must be told again.
    #[test]
    fn starting_anew_tells_the_known_half_of_a_pair_again() {
        let (mut told, mut names) = (Told::default(), Names::default());
        let ada = address("portal/ada");
        let mut tell = |told: &mut Told, source: Option<&Address>, target: &Address| {
            let fresh = told.fresh(source, Some(target));
            let mut out = Vec::new();
            told.tell(&fresh, &mut out);
            take(&mut names, &out).unwrap();
        };
        tell(&mut told, None, &ada);
        for number in 1..LINK_DICTIONARY_MAX {
            tell(&mut told, None, &address(&format!("chat.room/{number}")));
        }
        let last = address("chat.room/last");
        tell(&mut told, Some(&ada), &last);
        assert_eq!(names.len(), 2);
        assert_eq!(names.get(ada.hash()), Some(&ada));
        assert_eq!(names.get(last.hash()), Some(&last));
    }

    #[test]
    fn a_peer_that_tells_more_than_agreed_is_refused() {
        let mut names = Names::default();
        for number in 0..=LINK_DICTIONARY_MAX {
            let address = address(&format!("chat.room/{number}"));
            let mut out = Vec::new();
            // A new sender each time: it does not know the bound is near.
            let mut told = Told::default();
            let fresh = told.fresh(None, Some(&address));
            told.tell(&fresh, &mut out);
            let taken = take(&mut names, &out);
            let expected = number < LINK_DICTIONARY_MAX;
            assert_eq!(taken.is_ok(), expected, "{number}");
        }
    }

    #[test]
    fn a_false_entry_is_refused_by_its_fault() {
        let mut told = Told::default();
        let mut good = Vec::new();
        let fresh_address = address("chat.room/general");
        let fresh = told.fresh(None, Some(&fresh_address));
        told.tell(&fresh, &mut good);
        let with = |at: usize, value: u8| {
            let mut bad = good.clone();
            bad[at] = value;
            take(&mut Names::default(), &bad)
        };
        assert!(take(&mut Names::default(), &good).is_ok());
        assert!(matches!(with(HEADER_BYTES, 0), Err(DictionaryError::Hash { .. })));
        assert_eq!(with(HEADER_BYTES + 16, 200), Err(DictionaryError::Truncated));
        assert_eq!(with(HEADER_BYTES + 17, 200), Err(DictionaryError::Truncated));
        assert_eq!(with(HEADER_BYTES + 18, b'\n'), Err(DictionaryError::Malformed));
        assert_eq!(with(HEADER_BYTES + 18, 0xff), Err(DictionaryError::Malformed));
        assert_eq!(with(12, 9), Err(DictionaryError::Mode { found: 9 }));
    }
}
