//! One TLS connection, as a machine: ciphertext in, plaintext out, and the other way round.
//!
//! **Contract.** In: [`Session::receive_space`] with [`Session::received`], or [`Session::feed`];
//! then [`Session::open`] until it yields nothing. Out: [`Session::seal`], then the bytes of
//! [`Session::unsent`]; [`Session::sent`] says what that handed over. The handshake goes on by
//! itself inside `open`: what it wants to send is in `unsent`.
//!
//! **Positions.** A frame is handed over once the kernel has taken its first byte. Under TLS that
//! byte is in a record, and a record is useless in part; so all plaintext of a record counts as
//! handed over from the record's first byte on, which errs on the side of "may have run" only.
//!
//! **Which face of rustls.** The unbuffered one: it decrypts in place where the kernel has put the
//! bytes and gives the record out once, where the buffered one copies each ciphertext into a buffer
//! of its own and each plaintext into a second. Sealing costs the same either way.
//!
//! **Invariants.** Nothing is sealed before the peer's certificate has held. Records are sealed
//! when the ones before have left, so that what waits can still be taken back. After an error it
//! yields nothing more, but for the alert that tells the peer.
//!
//! **Bounds.** One buffer each way: a read chunk behind [`HANDSHAKE_FRAME_BYTES_MAX`] bytes, which
//! is as much as may wait to become whole; and [`TLS_SEAL_BYTES_MAX`] with its overhead.
//!
//! Deliberately absent: the alert that announces the end. Frames have a length, and a link that
//! ends is a lost link however it ends; so nobody wins anything by cutting one.

use core::fmt;
use std::collections::VecDeque;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{DnsName, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::{ClientConfig, Error, ServerConfig};

use siloring_core::limits::{
    HANDSHAKE_FRAME_BYTES_MAX, READ_CHUNK_BYTES, TLS_RECORD_BYTES_MAX, TLS_RECORD_OVERHEAD_BYTES,
    TLS_SEAL_BYTES_MAX,
};
use siloring_core::wire::{FrameKind, Header};

use super::{PeerNames, names_of};
use crate::refusal::{Refusal, RefusalKind, RefusedBy};

/// A read chunk behind what may wait.
const INCOMING_BYTES: usize = HANDSHAKE_FRAME_BYTES_MAX + READ_CHUNK_BYTES;
const _: () =
    assert!(RECORD_BYTES_MAX <= HANDSHAKE_FRAME_BYTES_MAX, "a record that is not whole may wait");
const RECORD_BYTES_MAX: usize = TLS_RECORD_BYTES_MAX + TLS_RECORD_OVERHEAD_BYTES;
const RECORDS_MAX: usize = TLS_SEAL_BYTES_MAX / TLS_RECORD_BYTES_MAX;
/// One record more than are sealed at a time: for what TLS says by itself.
const OUTGOING_BYTES: usize = (RECORDS_MAX + 1) * RECORD_BYTES_MAX;
/// Types of TLS records; a frame begins with a multiple of 16.
const RECORD_TYPES: core::ops::RangeInclusive<u8> = 20..=23;

/// Whether bytes of a peer are the beginning of TLS and not of a frame.
pub(crate) fn is_tls(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|first| RECORD_TYPES.contains(first))
}

/// Why a session yields nothing more: its connection is closed, after what is unsent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// We refuse the peer, or it refuses us.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The peer speaks no TLS. `answer` is what to send it without, and why.
    #[error("{answer}")]
    Plain {
        /// The refusal; by the peer, if that is what it sent.
        answer: Refusal,
    },
    /// The peer said that it closes.
    #[error("the peer closed it")]
    Closed,
}

impl SessionError {
    /// The refusal; `None` if the peer just closed.
    pub const fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) | Self::Plain { answer: refusal } => Some(refusal),
            Self::Closed => None,
        }
    }
}

/// See the module's head.
pub struct Session {
    side: Side,
    /// Grows to what comes: a peer that is not known yet says little.
    incoming: Vec<u8>,
    /// Ciphertext that waits.
    start: usize,
    end: usize,
    /// What of an opened record found no room yet.
    rest: Vec<u8>,
    outgoing: Outgoing,
    /// Whether anything has come yet.
    has_heard: bool,
    /// Why it yields nothing more.
    fault: Option<SessionError>,
}

/// A connection keeps some hundreds of bytes of its own.
enum Side {
    Dialer(Box<UnbufferedClientConnection>),
    Acceptor(Box<UnbufferedServerConnection>),
}

impl Side {
    /// Whether rustls has bytes of its own to send.
    fn wants_write(&self) -> bool {
        match self {
            Self::Dialer(connection) => connection.wants_write(),
            Self::Acceptor(connection) => connection.wants_write(),
        }
    }
}

/// Ciphertext to send, and which plaintext it is.
struct Outgoing {
    /// Grows with what is sealed, up to [`OUTGOING_BYTES`].
    bytes: Vec<u8>,
    sent: usize,
    end: usize,
    /// Records with plaintext that counts, none of whose bytes have left.
    records: VecDeque<Record>,
    counts: bool,
}

#[derive(Clone, Copy)]
struct Record {
    at: usize,
    plain_bytes: usize,
}

impl Session {
    pub(super) fn dial(config: Arc<ClientConfig>) -> Self {
        // Neither sent nor compared: the handshake inside checks the name.
        let name = DnsName::try_from_str("siloring").expect("a host name");
        let connection = UnbufferedClientConnection::new(config, ServerName::DnsName(name))
            .expect("the configuration was checked when it was made");
        let mut session = Self::of(Side::Dialer(Box::new(connection)));
        session.open(&mut []).expect("nothing has come that could be wrong");
        session
    }

    pub(super) fn accept(config: Arc<ServerConfig>) -> Self {
        let connection = UnbufferedServerConnection::new(config)
            .expect("the configuration was checked when it was made");
        Self::of(Side::Acceptor(Box::new(connection)))
    }

    fn of(side: Side) -> Self {
        Self {
            side,
            incoming: Vec::new(),
            start: 0,
            end: 0,
            rest: Vec::new(),
            outgoing: Outgoing {
                bytes: Vec::new(),
                sent: 0,
                end: 0,
                records: VecDeque::with_capacity(RECORDS_MAX),
                counts: false,
            },
            has_heard: false,
            fault: None,
        }
    }

    /// Whether the peer's certificate has held: only then is anything sealed or opened.
    pub fn is_up(&self) -> bool {
        match &self.side {
            Side::Dialer(connection) => !connection.is_handshaking(),
            Side::Acceptor(connection) => !connection.is_handshaking(),
        }
    }

    /// The silos that the peer's certificate names; `None` before the session is up.
    pub fn peer_names(&self) -> Option<PeerNames> {
        let certificates = match &self.side {
            Side::Dialer(connection) => connection.peer_certificates(),
            Side::Acceptor(connection) => connection.peer_certificates(),
        };
        certificates.filter(|_| self.is_up())?.first().map(|own| names_of(own))
    }

    /// From now on [`Self::sent`] counts: what is sealed next is the first of the link's stream.
    pub fn start_counting(&mut self) {
        self.outgoing.records.clear();
        self.outgoing.counts = true;
    }

    /// Room for ciphertext: a read chunk at least, once everything was opened.
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.move_to_front();
        grow(&mut self.incoming, INCOMING_BYTES);
        &mut self.incoming[self.end..]
    }

    fn move_to_front(&mut self) {
        if self.start > 0 {
            self.incoming.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// So many bytes were put into [`Self::receive_space`].
    ///
    /// # Panics
    /// If there was less room.
    pub fn received(&mut self, count: usize) {
        self.end += count;
        assert!(self.end <= self.incoming.len(), "more was received than fits");
    }

    /// Takes at most a read chunk of ciphertext; none any more after a fault.
    ///
    /// # Panics
    /// If there are more, or not everything was opened before.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.fault.is_some() {
            return;
        }
        self.move_to_front();
        let end = self.end + bytes.len();
        assert!(end <= INCOMING_BYTES, "{end} bytes wait");
        grow(&mut self.incoming, end);
        self.incoming[self.end..end].copy_from_slice(bytes);
        self.end = end;
    }

    /// Opens what has come into `space`; how many bytes. With none, more must come first.
    ///
    /// # Errors
    /// Once, and ever after, when everything before it has been given out.
    pub fn open(&mut self, space: &mut [u8]) -> Result<usize, SessionError> {
        self.check_first();
        let mut filled = take(&mut self.rest, space);
        while self.rest.is_empty() && self.fault.is_none() {
            let mut opened = Opened { space: &mut *space, filled, rest: &mut self.rest };
            let (discard, stepped) =
                step(&mut self.side, &mut self.incoming[self.start..self.end], |state| {
                    take_state(state, &mut self.outgoing, &mut opened)
                });
            filled = opened.filled;
            self.start += discard;
            match stepped {
                Ok(More::Yes) => {}
                Ok(More::No) => {
                    self.check_held();
                    break;
                }
                Err(error) => self.fail(error),
            }
        }
        match &self.fault {
            Some(fault) if filled == 0 && self.rest.is_empty() => Err(fault.clone()),
            Some(_) | None => Ok(filled),
        }
    }

    /// Seals the beginning of `plain`, if the records before have left; how many bytes.
    pub fn seal(&mut self, plain: &[u8]) -> usize {
        let may_seal = self.is_up() && self.fault.is_none() && self.outgoing.records.is_empty();
        if plain.is_empty() || !may_seal {
            return 0;
        }
        let mut sealed = 0;
        while self.fault.is_none() {
            let outgoing = &mut self.outgoing;
            // Without room of its own: whatever a step opens goes to the rest.
            let mut opened = Opened { space: &mut [], filled: 0, rest: &mut self.rest };
            let incoming = &mut self.incoming[self.start..self.end];
            let (discard, stepped) = step(&mut self.side, incoming, |state| match state {
                State::Ready(encrypt) => {
                    sealed = outgoing.seal(plain, encrypt);
                    Ok(More::No)
                }
                State::Record(_)
                | State::Encode(_)
                | State::Again
                | State::Blocked
                | State::Closed => take_state(state, outgoing, &mut opened),
            });
            self.start += discard;
            match stepped {
                Ok(More::Yes) => {}
                Ok(More::No) => break,
                Err(error) => self.fail(error),
            }
        }
        sealed
    }

    /// Everything that is unsent, and `last` behind it: for one last write.
    pub fn finish(&mut self, last: &[u8]) -> Vec<u8> {
        let (mut bytes, mut last) = (self.unsent().to_vec(), last);
        self.outgoing.clear();
        loop {
            let sealed = self.seal(last);
            if sealed == 0 {
                return bytes;
            }
            bytes.extend_from_slice(self.unsent());
            self.outgoing.clear();
            last = &last[sealed..];
        }
    }

    /// Ciphertext to send.
    pub fn unsent(&self) -> &[u8] {
        &self.outgoing.bytes[self.outgoing.sent..self.outgoing.end]
    }

    /// The kernel has taken the first `count` bytes of [`Self::unsent`]; how many bytes of
    /// plaintext that handed over.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn sent(&mut self, count: usize) -> usize {
        assert!(count <= self.unsent().len(), "more was sent than there was");
        let outgoing = &mut self.outgoing;
        outgoing.sent += count;
        let mut handed_over = 0;
        while let Some(record) = outgoing.records.pop_front_if(|record| record.at < outgoing.sent) {
            handed_over += record.plain_bytes;
        }
        if outgoing.sent == outgoing.end {
            outgoing.clear();
        }
        handed_over
    }

    /// Bytes that are held: such as wait to be opened, read or sent.
    pub fn held_bytes(&self) -> usize {
        self.end - self.start + self.rest.len() + self.outgoing.end - self.outgoing.sent
    }

    /// Whether the peer speaks TLS at all shows in its first byte.
    fn check_first(&mut self) {
        if self.has_heard || self.start == self.end {
            return;
        }
        self.has_heard = true;
        let bytes = &self.incoming[self.start..self.end];
        if is_tls(bytes) {
            return;
        }
        let answer = match &self.side {
            Side::Dialer(_) => refusal_in(bytes),
            Side::Acceptor(_) => None,
        };
        let answer = answer.unwrap_or_else(|| bad_credential(PLAIN_PEER));
        self.fault = Some(SessionError::Plain { answer });
    }

    /// Whether what could not be opened yet is within bounds.
    fn check_held(&mut self) {
        let held = self.end - self.start;
        if held > HANDSHAKE_FRAME_BYTES_MAX {
            let detail = format!("{held} bytes of TLS that are no whole message");
            self.fault = Some(Refusal::ours(RefusalKind::TooLarge, detail).into());
        }
    }

    /// Ends the session; the alert for the peer, if one is due, is in `unsent` then.
    fn fail(&mut self, error: SessionError) {
        self.fault = Some(error);
        let mut nothing = Opened { space: &mut [], filled: 0, rest: &mut Vec::new() };
        // What is left of the message at fault must stay: rustls still points into it.
        while self.side.wants_write() {
            let incoming = &mut self.incoming[self.start..self.end];
            let (discard, stepped) = step(&mut self.side, incoming, |state| {
                take_state(state, &mut self.outgoing, &mut nothing)
            });
            self.start += discard;
            if stepped.is_err() {
                return;
            }
        }
    }
}

const PLAIN_PEER: &str = "the peer speaks no TLS and this silo nothing else: set tls on both";

impl Outgoing {
    fn clear(&mut self) {
        (self.sent, self.end) = (0, 0);
        self.records.clear();
    }

    /// Room for `count` bytes, as far as the bound goes.
    fn room(&mut self, count: usize) -> &mut [u8] {
        grow(&mut self.bytes, (self.end + count).min(OUTGOING_BYTES));
        &mut self.bytes[self.end..]
    }

    fn seal(&mut self, plain: &[u8], encrypt: &mut Encrypt<'_>) -> usize {
        let mut sealed = 0;
        for piece in plain.chunks(TLS_RECORD_BYTES_MAX).take(RECORDS_MAX) {
            // A key update may come before it.
            let needed = piece.len() + 2 * TLS_RECORD_OVERHEAD_BYTES;
            if OUTGOING_BYTES - self.end < needed {
                break;
            }
            let written = encrypt(piece, self.room(needed));
            if self.counts {
                self.records.push_back(Record { at: self.end, plain_bytes: piece.len() });
            }
            self.end += written;
            sealed += piece.len();
        }
        sealed
    }
}

/// Where opened bytes go: first into `space`, then into `rest`.
struct Opened<'a> {
    space: &'a mut [u8],
    filled: usize,
    rest: &'a mut Vec<u8>,
}

impl Opened<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(self.space.len() - self.filled);
        let (fits, rest) = bytes.split_at(count);
        self.space[self.filled..self.filled + count].copy_from_slice(fits);
        self.filled += count;
        self.rest.extend_from_slice(rest);
    }
}

fn grow(bytes: &mut Vec<u8>, length: usize) {
    if bytes.len() < length {
        bytes.resize(length, 0);
    }
}

/// Moves what fits from the rest into `space`; how much.
fn take(rest: &mut Vec<u8>, space: &mut [u8]) -> usize {
    let count = rest.len().min(space.len());
    space[..count].copy_from_slice(&rest[..count]);
    rest.drain(..count);
    count
}

enum More {
    Yes,
    No,
}

type Encrypt<'a> = dyn FnMut(&[u8], &mut [u8]) -> usize + 'a;

/// What rustls wants next, for both sides alike.
enum State<'a> {
    /// An opened record.
    Record(&'a [u8]),
    /// Bytes of its own to be sent, by this.
    Encode(&'a mut dyn FnMut(&mut [u8]) -> Option<usize>),
    /// It goes on by itself.
    Again,
    /// More must come.
    Blocked,
    /// More may come, and this seals.
    Ready(&'a mut Encrypt<'a>),
    /// The peer sends no more.
    Closed,
}

fn step(
    side: &mut Side,
    incoming: &mut [u8],
    take: impl FnMut(State<'_>) -> Result<More, SessionError>,
) -> (usize, Result<More, SessionError>) {
    match side {
        Side::Dialer(connection) => step_status(connection.process_tls_records(incoming), take),
        Side::Acceptor(connection) => step_status(connection.process_tls_records(incoming), take),
    }
}

fn step_status<D>(
    status: UnbufferedStatus<'_, '_, D>,
    mut take: impl FnMut(State<'_>) -> Result<More, SessionError>,
) -> (usize, Result<More, SessionError>) {
    let UnbufferedStatus { mut discard, state } = status;
    let state = match state {
        Ok(state) => state,
        Err(error) => return (discard, Err(refusal_of(&error).into())),
    };
    let more = match state {
        ConnectionState::ReadTraffic(mut traffic) => {
            let mut more = Ok(More::Yes);
            while let Some(record) = traffic.next_record() {
                more = match record {
                    Ok(record) => {
                        discard += record.discard;
                        take(State::Record(record.payload))
                    }
                    Err(error) => Err(refusal_of(&error).into()),
                };
            }
            more
        }
        ConnectionState::EncodeTlsData(mut data) => {
            take(State::Encode(&mut |out| data.encode(out).ok()))
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            take(State::Again)
        }
        ConnectionState::BlockedHandshake => take(State::Blocked),
        ConnectionState::WriteTraffic(mut traffic) => take(State::Ready(&mut |plain, out| {
            traffic.encrypt(plain, out).expect("there is room, and keys are renewed in time")
        })),
        ConnectionState::PeerClosed | ConnectionState::Closed => take(State::Closed),
        // The first is forbidden by the configuration; the rest a later rustls may add.
        ConnectionState::ReadEarlyData(_) | _ => {
            Err(Refusal::ours(RefusalKind::ProtocolViolation, "TLS in a way not agreed").into())
        }
    };
    (discard, more)
}

fn take_state(
    state: State<'_>,
    outgoing: &mut Outgoing,
    opened: &mut Opened<'_>,
) -> Result<More, SessionError> {
    match state {
        State::Record(payload) => {
            opened.put(payload);
            Ok(More::Yes)
        }
        State::Encode(encode) => {
            let Some(count) = encode(outgoing.room(RECORD_BYTES_MAX)) else {
                let detail = "the peer takes no answers and asks for more";
                return Err(Refusal::ours(RefusalKind::ProtocolViolation, detail).into());
            };
            outgoing.end += count;
            Ok(More::Yes)
        }
        State::Again => Ok(More::Yes),
        State::Blocked | State::Ready(_) => Ok(More::No),
        State::Closed => Err(SessionError::Closed),
    }
}

/// The reason that a peer without TLS gives, if it is whole.
fn refusal_in(bytes: &[u8]) -> Option<Refusal> {
    let layout = Header::decode(bytes, HANDSHAKE_FRAME_BYTES_MAX).ok()??;
    if layout.header.kind != FrameKind::Refuse {
        return None;
    }
    let (body, _extensions) = layout.split(bytes.get(..layout.frame_bytes)?).ok()?;
    Some(Refusal::from_frame(&layout.header, body))
}

fn bad_credential(detail: impl Into<String>) -> Refusal {
    Refusal::ours(RefusalKind::BadCredential, detail)
}

fn refusal_of(error: &Error) -> Refusal {
    if let Error::InvalidCertificate(fault) = error {
        bad_credential(format!("the peer's certificate: {fault}"))
    } else if let Error::AlertReceived(alert) = error {
        let told = bad_credential(format!("the peer ends TLS with the alert {alert:?}"));
        Refusal { by: RefusedBy::Peer, ..told }
    } else if *error == Error::NoCertificatesPresented {
        bad_credential("the peer shows no certificate")
    } else {
        Refusal::ours(RefusalKind::ProtocolViolation, format!("TLS: {error}"))
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Session")
            .field("is_up", &self.is_up())
            .field("waiting_bytes", &(self.end - self.start))
            .field("unsent_bytes", &self.unsent().len())
            .finish_non_exhaustive()
    }
}
