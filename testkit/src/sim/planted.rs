//! Defects that a run can be planted with, by name.
//!
//! The switch itself is in the machines, under their feature `planted`; here a name is brought to
//! whichever machine has it. Without the feature only "none" is known.

use siloring::pump::ControlNode;
use siloring_pubsub::StreamsBuilder;
use siloring_runtime::control::Control;
use siloring_runtime::shard::ShardConfig;
use siloring_storage::MemoryStore;

#[cfg(feature = "planted")]
use siloring_pubsub as pubsub;
#[cfg(feature = "planted")]
use siloring_runtime::{control, directory, shard};

/// What one run is planted with.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Planted {
    #[cfg(feature = "planted")]
    defect: Option<Defect>,
}

#[cfg(feature = "planted")]
#[derive(Clone, Copy, Debug)]
enum Defect {
    Shard(shard::Planted),
    Directory(directory::Defect),
    Control(control::Defect),
    Streams(pubsub::Planted),
    /// A data link counts as up once it is connected.
    UpAtConnect,
    /// What the control thread sends waits behind the shards' bytes, and these speak for nobody:
    /// either rule alone keeps a busy silo alive.
    HeartbeatInDataQueue,
    /// Who listens for changes of the registry looks first and listens then.
    LooksBeforeListening,
    /// The store compares a fence by its view alone.
    FencesByView,
}

/// Every name, and the defect behind it.
#[cfg(feature = "planted")]
const DEFECTS: &[(&str, Defect)] = &[
    ("up-at-connect", Defect::UpAtConnect),
    ("heartbeat-in-data-queue", Defect::HeartbeatInDataQueue),
    ("looks-before-listening", Defect::LooksBeforeListening),
    ("fences-by-view", Defect::FencesByView),
    ("open-calls-survive-their-silo", Defect::Shard(shard::Planted::OpenCallsSurviveTheirSilo)),
    ("refusals-swallowed", Defect::Shard(shard::Planted::RefusalsSwallowed)),
    ("everything-refused", Defect::Shard(shard::Planted::EverythingRefused)),
    ("no-outbound-gate", Defect::Shard(shard::Planted::NoOutboundGate)),
    ("inbound-dropped-at-stop", Defect::Shard(shard::Planted::InboundDroppedAtStop)),
    ("drain-after-activation", Defect::Shard(shard::Planted::DrainAfterActivation)),
    ("orphans-untold", Defect::Shard(shard::Planted::OrphansUntold)),
    ("drain-is-final", Defect::Shard(shard::Planted::DrainIsFinal)),
    ("leavers-called", Defect::Shard(shard::Planted::LeaversCalled)),
    ("callers-not-awaited", Defect::Shard(shard::Planted::CallersNotAwaited)),
    ("deactivate-on-refusal", Defect::Shard(shard::Planted::DeactivateOnRefusal)),
    ("death-deactivates", Defect::Shard(shard::Planted::DeathDeactivates)),
    ("redirect-unlearnt", Defect::Shard(shard::Planted::RedirectUnlearnt)),
    ("one-leg-at-a-time", Defect::Shard(shard::Planted::OneLegAtATime)),
    ("every-failure-logged", Defect::Shard(shard::Planted::EveryFailureLogged)),
    ("resent-at-deadline", Defect::Shard(shard::Planted::ResentAtDeadline)),
    ("deadlock-undiagnosed", Defect::Shard(shard::Planted::DeadlockUndiagnosed)),
    ("keys-unknown", Defect::Shard(shard::Planted::KeysUnknown)),
    ("again-is-anew", Defect::Shard(shard::Planted::AgainIsAnew)),
    ("ended-hub-is-final", Defect::Shard(shard::Planted::EndedHubIsFinal)),
    ("stale-owners-heard", Defect::Shard(shard::Planted::StaleOwnersHeard)),
    ("answers-forgotten", Defect::Shard(shard::Planted::AnswersForgotten)),
    ("versions-unread", Defect::Shard(shard::Planted::VersionsUnread)),
    ("nothing-handed-down", Defect::Shard(shard::Planted::NothingHandedDown)),
    ("open-before-all-answers", Defect::Directory(directory::Defect::OpenBeforeAllAnswers)),
    ("cache-kept-on-refusal", Defect::Directory(directory::Defect::CacheKeptOnRefusal)),
    ("claim-gives-up", Defect::Directory(directory::Defect::ClaimGivesUp)),
    ("single-attach", Defect::Directory(directory::Defect::SingleAttach)),
    ("claim-before-active", Defect::Directory(directory::Defect::ClaimBeforeActive)),
    ("claim-once-only", Defect::Directory(directory::Defect::ClaimOnceOnly)),
    ("no-switch", Defect::Directory(directory::Defect::NoSwitch)),
    ("address-only", Defect::Directory(directory::Defect::AddressOnly)),
    ("no-tombstone", Defect::Directory(directory::Defect::NoTombstone)),
    ("last-writer-wins", Defect::Directory(directory::Defect::LastWriterWins)),
    ("given-twice", Defect::Directory(directory::Defect::GivenTwice)),
    ("memory-registry", Defect::Directory(directory::Defect::MemoryRegistry)),
    ("range-kept", Defect::Directory(directory::Defect::RangeKept)),
    ("asked-twice", Defect::Directory(directory::Defect::AskedTwice)),
    ("refusal-retried", Defect::Directory(directory::Defect::RefusalRetried)),
    ("oldest-wins", Defect::Directory(directory::Defect::OldestWins)),
    ("numbers-repeat", Defect::Directory(directory::Defect::NumbersRepeat)),
    ("ends-untold", Defect::Directory(directory::Defect::EndsUntold)),
    ("losers-untold", Defect::Directory(directory::Defect::LosersUntold)),
    ("no-incarnation", Defect::Directory(directory::Defect::NoIncarnation)),
    ("absent-while-moving", Defect::Directory(directory::Defect::AbsentWhileMoving)),
    ("ring-of-order", Defect::Directory(directory::Defect::RingOfOrder)),
    ("late-timers-trusted", Defect::Control(control::Defect::LateTimersTrusted)),
    ("unknown-commit-assumed", Defect::Control(control::Defect::UnknownCommitAssumed)),
    ("votes-never-expire", Defect::Control(control::Defect::VotesNeverExpire)),
    ("bytes-forbid-nothing", Defect::Control(control::Defect::BytesForbidNothing)),
    ("no-third", Defect::Control(control::Defect::NoThird)),
    ("serves-forever", Defect::Control(control::Defect::ServesForever)),
    ("ignores-own-death", Defect::Control(control::Defect::IgnoresOwnDeath)),
    ("view-goes-back", Defect::Control(control::Defect::ViewGoesBack)),
    ("joins-unproven", Defect::Control(control::Defect::JoinsUnproven)),
    ("one-miss-suffices", Defect::Control(control::Defect::OneMissSuffices)),
    ("never-votes", Defect::Control(control::Defect::NeverVotes)),
    ("votes-fixed", Defect::Control(control::Defect::VotesFixed)),
    ("old-row-kept", Defect::Control(control::Defect::OldRowKept)),
    ("store-alone-renews", Defect::Control(control::Defect::StoreAloneRenews)),
    ("stale-rows-kept", Defect::Control(control::Defect::StaleRowsKept)),
    ("stream-events-unknown", Defect::Shard(shard::Planted::EventsUnknown)),
    ("stream-check-trusted", Defect::Streams(pubsub::Planted::CheckTrusted)),
    ("stream-memory-registry", Defect::Streams(pubsub::Planted::MemoryRegistry)),
    ("stream-registry-trusted", Defect::Streams(pubsub::Planted::RegistryTrusted)),
    ("stream-unconfirmed", Defect::Streams(pubsub::Planted::Unconfirmed)),
    ("stream-no-window", Defect::Streams(pubsub::Planted::NoWindow)),
    ("stream-rows-without-incarnation", Defect::Streams(pubsub::Planted::RowsWithoutIncarnation)),
    ("stream-evict-on-transient", Defect::Streams(pubsub::Planted::EvictOnTransient)),
    ("stream-attempt-after-send", Defect::Streams(pubsub::Planted::AttemptAfterSend)),
    ("stream-one-cold-blocks-all", Defect::Streams(pubsub::Planted::OneColdBlocksAll)),
    ("stream-slow-blocks-all", Defect::Streams(pubsub::Planted::SlowBlocksAll)),
    ("stream-refusal-blocks-all", Defect::Streams(pubsub::Planted::RefusalBlocksAll)),
    ("stream-release-by-key-only", Defect::Streams(pubsub::Planted::ReleaseByKeyOnly)),
    ("stream-judged-in-any-view", Defect::Streams(pubsub::Planted::JudgedInAnyView)),
    ("stream-write-assumed", Defect::Streams(pubsub::Planted::WriteAssumed)),
    ("stream-cursor-after-answer", Defect::Streams(pubsub::Planted::CursorAfterAnswer)),
    ("stream-failure-counts", Defect::Streams(pubsub::Planted::FailureCounts)),
    ("stream-no-dead-letters", Defect::Streams(pubsub::Planted::NoDeadLetters)),
    ("stream-gap-untold", Defect::Streams(pubsub::Planted::GapUntold)),
    ("stream-nobody-suffices", Defect::Streams(pubsub::Planted::NobodySuffices)),
    ("stream-publisher-rows", Defect::Streams(pubsub::Planted::PublisherRows)),
    ("stream-only-active", Defect::Streams(pubsub::Planted::OnlyActive)),
    ("stream-unsubscribes-all", Defect::Streams(pubsub::Planted::UnsubscribesAll)),
    ("stream-unread-means-none", Defect::Streams(pubsub::Planted::UnreadMeansNone)),
    ("stream-owner-stays", Defect::Streams(pubsub::Planted::OwnerStays)),
    ("stream-writes-forgotten", Defect::Streams(pubsub::Planted::WritesForgotten)),
    ("stream-store-not-retold", Defect::Streams(pubsub::Planted::StoreNotRetold)),
    ("stream-lanes-unordered", Defect::Streams(pubsub::Planted::LanesUnordered)),
    ("stream-evicts-any-row", Defect::Streams(pubsub::Planted::EvictsAnyRow)),
];

/// The names of all defects that a run can be planted with.
#[cfg(feature = "planted")]
pub fn defects() -> impl Iterator<Item = &'static str> {
    DEFECTS.iter().map(|(name, _)| *name)
}

/// The defect of this name, if it is one of streams: silos that are processes have these only.
#[cfg(feature = "planted")]
pub fn stream_defect(name: &str) -> Option<pubsub::Planted> {
    DEFECTS.iter().find_map(|(known, defect)| match defect {
        Defect::Streams(defect) if *known == name => Some(*defect),
        Defect::Streams(_)
        | Defect::Shard(_)
        | Defect::Directory(_)
        | Defect::Control(_)
        | Defect::UpAtConnect
        | Defect::HeartbeatInDataQueue
        | Defect::LooksBeforeListening
        | Defect::FencesByView => None,
    })
}

impl Planted {
    /// The defect of this name.
    ///
    /// # Panics
    /// If no machine has it, or this build has none.
    pub(super) fn named(name: Option<&str>) -> Self {
        let Some(name) = name else { return Self::default() };
        Self::find(name)
    }

    #[cfg(feature = "planted")]
    fn find(name: &str) -> Self {
        let found = DEFECTS.iter().find(|(known, _)| *known == name);
        let Some((_, defect)) = found else { panic!("no defect is called {name}") };
        Self { defect: Some(*defect) }
    }

    #[cfg(not(feature = "planted"))]
    fn find(name: &str) -> Self {
        panic!("defect {name}: build the testkit with its feature `planted`")
    }

    /// The control machine, planted if the defect is one of its.
    #[cfg(feature = "planted")]
    pub(super) fn control(self, mut machine: Control) -> Control {
        if let Some(Defect::Control(defect)) = self.defect {
            machine.plant(defect);
        }
        machine
    }

    /// The control machine as it is.
    #[cfg(not(feature = "planted"))]
    #[expect(clippy::unused_self, reason = "one call site for all builds")]
    pub(super) const fn control(self, machine: Control) -> Control {
        machine
    }

    /// Plants the control node, if the defect is one of its.
    #[cfg(feature = "planted")]
    pub(super) const fn control_node(self, node: &mut ControlNode) {
        if matches!(self.defect, Some(Defect::UpAtConnect)) {
            node.plant_up_at_connect();
        }
    }

    /// Leaves the control node as it is.
    #[cfg(not(feature = "planted"))]
    #[expect(clippy::unused_self, reason = "one call site for all builds")]
    pub(super) const fn control_node(self, _node: &mut ControlNode) {}

    /// Whether what the control thread sends waits behind the shards' bytes.
    #[cfg(feature = "planted")]
    pub(super) const fn queues_heartbeats(self) -> bool {
        matches!(self.defect, Some(Defect::HeartbeatInDataQueue))
    }

    /// Whether it does: never, in this build.
    #[cfg(not(feature = "planted"))]
    #[expect(clippy::unused_self, reason = "one call site for all builds")]
    pub(super) const fn queues_heartbeats(self) -> bool {
        false
    }

    /// Whether the control thread acts on what is due before it looks at what has come.
    #[cfg(feature = "planted")]
    pub(super) const fn ticks_first(self) -> bool {
        matches!(self.defect, Some(Defect::Control(control::Defect::LateTimersTrusted)))
    }

    /// Whether it does: never, in this build.
    #[cfg(not(feature = "planted"))]
    #[expect(clippy::unused_self, reason = "one call site for all builds")]
    pub(super) const fn ticks_first(self) -> bool {
        false
    }

    /// Plants the store, if the defect is one of its.
    #[cfg(feature = "planted")]
    pub(super) fn store(self, store: &MemoryStore) {
        if matches!(self.defect, Some(Defect::FencesByView)) {
            store.plant_fences_by_view();
        }
    }

    /// Leaves the store as it is.
    #[cfg(not(feature = "planted"))]
    #[expect(clippy::unused_self, reason = "one call site for all builds")]
    pub(super) const fn store(self, _store: &MemoryStore) {}

    /// Whether who listens for changes looks first.
    #[cfg(feature = "planted")]
    pub(super) const fn looks_first(self) -> bool {
        matches!(self.defect, Some(Defect::LooksBeforeListening))
    }

    /// Whether who listens looks first: never, in this build.
    #[cfg(not(feature = "planted"))]
    #[expect(clippy::unused_self, reason = "one call site for all builds")]
    pub(super) const fn looks_first(self) -> bool {
        false
    }

    /// Plants the silo's streams, if the defect is one of theirs.
    #[cfg(feature = "planted")]
    pub(super) const fn streams(self, streams: &mut StreamsBuilder) {
        if let Some(Defect::Streams(defect)) = self.defect {
            streams.planted(defect);
        }
    }

    /// Leaves the streams as they are.
    #[cfg(not(feature = "planted"))]
    #[expect(clippy::unused_self, reason = "one call site for all builds")]
    pub(super) const fn streams(self, _streams: &mut StreamsBuilder) {}

    /// Plants the shard, or its directory, if the defect is one of theirs.
    #[cfg(feature = "planted")]
    pub(super) fn shard(self, config: &mut ShardConfig) {
        match self.defect {
            Some(Defect::Shard(defect)) => config.planted = defect,
            Some(Defect::Directory(defect)) => {
                config.planted_directory = directory::Planted::with(defect);
            }
            Some(
                Defect::Control(_)
                | Defect::Streams(_)
                | Defect::UpAtConnect
                | Defect::HeartbeatInDataQueue
                | Defect::LooksBeforeListening
                | Defect::FencesByView,
            )
            | None => {}
        }
    }

    /// Leaves the shard as it is.
    #[cfg(not(feature = "planted"))]
    #[expect(clippy::unused_self, reason = "one call site for all builds")]
    pub(super) const fn shard(self, _config: &mut ShardConfig) {}
}
