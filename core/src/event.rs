//! The one list of events: the source of logs, metrics and what tests assert on.
//!
//! A machine returns events; drivers log and count them. Each is past tense, with fields, a level and
//! a counter of its own. No drop anywhere is without one.

use crate::address::{Address, AddressHash};
use crate::ids::{ActivationNumber, ClaimNumber, Generation, Incarnation, ShardIndex, ViewNumber};
use crate::outcome::DeliveryFailure;
use crate::view::SiloStatus;

/// How loud an event is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// Counted, not logged by default.
    Debug,
    /// A change that an operator may want to see.
    Info,
    /// Something that needs a look if it goes on.
    Warn,
    /// A promise is at stake, or the silo ends.
    Error,
}

macro_rules! events {
    ($($(#[$doc:meta])* $level:ident $variant:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty,)* })+) => {
        /// Something that happened.
        #[derive(Clone, PartialEq, Debug)]
        #[non_exhaustive]
        pub enum Event {
            $($(#[$doc])* $variant { $($(#[$fdoc])* $field: $type,)* },)+
        }

        impl Event {
            /// Names of all events, in order of declaration: the counters.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($variant)),+];

            /// How loud it is.
            pub const fn level(&self) -> Level {
                match self { $(Self::$variant { .. } => Level::$level,)+ }
            }

            /// Where its name stands in [`Event::NAMES`].
            pub const fn index(&self) -> usize {
                enum Index { $($variant),+ }
                match self { $(Self::$variant { .. } => Index::$variant as usize,)+ }
            }

            /// Its name.
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => stringify!($variant),)+ }
            }
        }

        impl core::fmt::Display for Event {
            fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self {
                    $(Self::$variant { $($field,)* } => {
                        out.write_str(stringify!($variant))?;
                        $(write!(out, concat!(" ", stringify!($field), "={:?}"), $field)?;)*
                        Ok(())
                    })+
                }
            }
        }
    };
}

events! {
    // ---- membership
    /// This silo wrote its Joining row.
    Info SiloJoining { /** Who. */ silo: Incarnation, /** The view it made. */ view: ViewNumber, }
    /// This silo's status changed.
    Info SiloStatusChanged { /** Who. */ silo: Incarnation, /** To what. */ status: SiloStatus, /** In which view. */ view: ViewNumber, }
    /// A newer view was taken up.
    Info ViewChanged { /** Its number. */ view: ViewNumber, /** Active silos in it. */ active_count: usize, }
    /// A vote was written against a silo.
    Warn SiloAccused { /** The accused. */ silo: Incarnation, /** Why. */ reason: &'static str, }
    /// A silo was declared Dead by this one.
    Warn SiloDeclaredDead { /** Who. */ silo: Incarnation, /** Why. */ reason: &'static str, }
    /// A silo answers a third silo but not this one: their network is cut in part.
    Warn ReachedByThirdOnly { /** Who. */ silo: Generation, }
    /// A probe went unanswered.
    Debug ProbeMissed { /** The probed. */ silo: Generation, /** Missed in a row. */ misses: u32, }
    /// The right to serve ran out: no new turns until the row has been read.
    Error Fenced { /** Why. */ reason: &'static str, }
    /// The right to serve is back.
    Warn Unfenced { /** Nanoseconds without it. */ fenced_ns: u64, }
    /// Our row is Dead or missing: the process exits with code 70.
    Error DeclaredDeadByOthers { /** Us. */ silo: Incarnation, /** In which view. */ view: ViewNumber, }
    /// The store shows an older view than one seen: a new lineage is started.
    Error StoreRegressed { /** What was seen. */ seen: ViewNumber, /** What the store shows. */ found: ViewNumber, }
    /// The store did not answer.
    Warn StoreUnavailable { /** What it said. */ detail: String, }
    /// The store answers again.
    Info StoreAvailable { }
    /// A shard makes no progress.
    Error ShardStalled { /** Which. */ shard: ShardIndex, /** What it runs. */ running: String, /** For how long. */ stalled_ms: u64, }

    // ---- links
    /// A link is up.
    Debug LinkUp { /** The peer. */ peer: Incarnation, /** `tcp` or `unix`. */ over: &'static str, }
    /// A link is gone.
    Info LinkDown { /** The peer. */ peer: Generation, /** Why. */ reason: String, }
    /// A handshake was refused, by us or by the peer.
    Debug HandshakeRefused { /** Who, as far as known. */ peer: String, /** Why. */ reason: String, }
    /// A connection was closed before its handshake was done: it took too long, or made room.
    Debug HandshakeUnfinished { /** Who, as far as known. */ peer: String, /** Why. */ reason: &'static str, }
    /// Handshakes come to nothing; further ones with that peer, for that reason, are counted only.
    Warn HandshakesFailed { /** Who, as far as known. */ peer: String, /** Why. */ reason: String, /** Like ones not logged since the last line. */ suppressed_count: u64, }
    /// The certificate files have changed: new links use what they hold now.
    Info CertificatesRenewed { }
    /// The certificate files have changed and cannot be used: new links use what they held before.
    Warn CertificatesKept { /** Which file, what is wrong, and the remedy. */ reason: String, }
    /// A peer sent bytes that are no frame: its link is closed.
    Warn FrameRefused { /** The peer. */ peer: Generation, /** Why. */ reason: String, }
    /// A control message was not sent: a timer of the control machine makes up for it.
    Debug ControlMessageDropped { /** To whom. */ peer: Generation, /** Why. */ reason: String, }
    /// A directory message was not sent or not passed on: its sender sends it again.
    Info DirectoryMessageDropped { /** To or from whom. */ peer: Generation, /** Why. */ reason: String, }
    /// A dial failed.
    Info DialFailed { /** The peer. */ peer: Generation, /** Why. */ reason: String, }

    // ---- directory and claims
    /// A range moved in and can be served.
    Debug RangeServed { /** In which view. */ view: ViewNumber, /** Entries in it. */ entries: usize, }
    /// A range is rebuilt from what the living silos hold.
    Info RangeRecovering { /** In which view. */ view: ViewNumber, }
    /// Two claims for one entry: the older one lost.
    Warn RegistrationLost { /** The address. */ address: Address, /** Who won. */ winner: Generation, }
    /// A hub's claim is held.
    Debug HubClaimed { /** The hub. */ address: Address, /** The claim. */ number: ClaimNumber, }
    /// A hub's claim was taken over by another process.
    Warn HubClaimLost { /** The hub. */ address: Address, /** By whom. */ holder: Generation, }
    /// A hub's claim was refused: another live process holds it.
    Warn HubClaimRefused { /** The hub. */ address: Address, /** Who holds it. */ holder: Generation, }
    /// A hub's claim, or its release, is sent again and again without an answer.
    Warn HubClaimUnanswered { /** The hub. */ address: Address, /** Sent how often. */ tries: u32, }
    /// More closed hubs than are remembered: the earliest made room.
    Warn TombstoneDropped { /** The hub. */ address: AddressHash, }
    /// A directory message from a silo that is gone, or one that nobody could have sent.
    Warn DirectoryRefused { /** From whom. */ peer: Generation, /** Why. */ reason: &'static str, }
    /// A hub sent before its own claim was held, after waiting for it as long as allowed.
    Warn HubSentUnclaimed { /** The hub. */ address: Address, }

    // ---- deliveries
    /// A delivery ended in a failure that nobody awaits, and no handler took it.
    Warn DeadLetter { /** Who sent it. */ source: Option<Address>, /** To whom. */ target: Address, /** Why. */ failure: DeliveryFailure, }
    /// A delivery ended in a failure, which its sender was told.
    Debug DeliveryFailed { /** Who sent it. */ source: Option<Address>, /** To whom. */ target: Address, /** Why. */ failure: DeliveryFailure, }
    /// Deliveries to a target end in failures; further ones in the window are counted only.
    Error DeliveriesFailed { /** To whom. */ target: Address, /** Why. */ failure: DeliveryFailure, /** Failures to that target not logged since the last line. */ suppressed_count: u64, }
    /// A turn was ended before it was done: what it did so far stands.
    Warn TurnCutOff { /** Whose. */ target: Address, /** Why. */ reason: String, }
    /// A reply has no way back: its caller was told when the link broke.
    Error ReplyOrphaned { /** Who answered. */ source: Address, /** Which request. */ correlation: u64, /** The first failure. */ failure: DeliveryFailure, }
    /// An outcome came for a delivery whose sender no longer waits.
    Debug LateReply { /** Which request. */ correlation: u64, }
    /// A request's deadline had passed before its turn began.
    Debug ExpiredUnstarted { /** To whom. */ target: Address, }
    /// A handler panicked: its activation ended.
    Error HandlerPanicked { /** Whose. */ target: Address, /** What it said. */ message: String, }
    /// A future of the program, or of a grain's timer, panicked on a shard: it has ended.
    Error FuturePanicked { /** What it said. */ message: String, }
    /// A future was not run: too many do, of this grain or of the shard.
    Error SpawnRefused { /** Whose; none for one of the program. */ by: Option<Address>, }
    /// What comes to a shard waits too long for it: new requests that do are refused from now on.
    Warn OverloadStarted { /** How long the one has waited that showed it. */ waited_us: u64, }
    /// A shard takes what comes in time again.
    Info OverloadEnded { /** Requests that it refused, ever. */ refused_count: u64, }
    /// A grain was activated.
    Debug GrainActivated { /** Which. */ address: Address, }
    /// A grain was deactivated.
    Debug GrainDeactivated { /** Which. */ address: Address, /** Why. */ reason: &'static str, }
    /// An event came that was handled before, or is being handled: it is not handled again.
    Debug EventDuplicate { /** Whose consumer. */ target: Address, /** Of which stream. */ stream: Address, /** The origin's number of it. */ number: u64, }
    /// An event came from an owner of its stream after a later owner had delivered.
    Warn StaleOwnerRefused { /** Whose consumer. */ target: Address, /** Of which stream. */ stream: Address, /** The owner's number. */ epoch: ActivationNumber, }
    /// An event came after a later one of its stream: its owner had given it up, and has told so.
    Warn LateEventRefused { /** Whose consumer. */ target: Address, /** Of which stream. */ stream: Address, /** Its position in the stream. */ position: u64, }
    /// A request came with a key that was used before, or again without being known.
    Debug KeyDuplicate { /** To whom. */ target: Address, }
    /// A request was refused by the silo's filter.
    Warn AccessDenied { /** To whom. */ target: Address, }

    // ---- streams
    /// A hub that consumed a stream is gone: its subscription was removed.
    Info SubscriberEvicted { /** The stream. */ stream: Address, /** The subscription. */ key: String, /** The hub. */ consumer: Address, }
    /// A consumer will not get an event any more: it is kept in the store.
    Error DeadLetterKept { /** The stream. */ stream: Address, /** Who. */ consumer: Address, /** Attempts that may have run. */ attempts: u8, /** The last failure. */ failure: DeliveryFailure, }
    /// A dead letter could not be written: only its publisher was told.
    Error DeadLetterLost { /** The stream. */ stream: Address, /** Who was to get it. */ consumer: Address, }
    /// A consumer was too slow for its stream: its next event says how many it lost.
    Warn ConsumerMissedEvents { /** The stream. */ stream: Address, /** Who. */ consumer: Address, /** How many. */ missed: u64, }
    /// The subscriber check forgot a stream for another: it is `Unknown` until it is published to.
    Debug CheckEntryEvicted { /** For which stream. */ stream: AddressHash, }
    /// Rows of silos that are gone were removed from the registry.
    Info SubscriptionsSwept { /** How many. */ count: u64, }

    // ---- leaving
    /// The drain began.
    Info DrainStarted { }
    /// A step of the drain ran out of its budget.
    Warn DrainOverran { /** Which. */ step: &'static str, }
    /// The drain is done.
    Info Drained { /** Turns cut off. */ unfinished_count: usize, }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_reads_as_a_log_line() {
        let event = Event::Fenced { reason: "clock gap" };
        assert_eq!(event.to_string(), "Fenced reason=\"clock gap\"");
        assert_eq!((event.level(), event.name()), (Level::Error, "Fenced"));
        assert!(Event::NAMES.contains(&"Fenced"));
    }
}
