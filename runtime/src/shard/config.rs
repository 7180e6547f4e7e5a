//! What a shard is configured with.

use core::any::Any;
use core::time::Duration;
use std::sync::Arc;

use siloring_core::ids::Endpoint;
use siloring_core::limits::{ACTIVATION_IDLE_MAX, DEADLINE_DEFAULT, OVERLOAD_DELAY};
use siloring_core::sync::running::Running;
use siloring_core::versions::BodyType;

use crate::filter::Filter;
use crate::host::HostFactory;

/// Defects that tests plant, to see that the checks find them. Absent from release builds.
#[cfg(feature = "planted")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Planted {
    /// None.
    #[default]
    None,
    /// A view change, or a broken link, does not end the calls that were open to the silo.
    OpenCallsSurviveTheirSilo,
    /// Refusals of deliveries are dropped instead of answered.
    RefusalsSwallowed,
    /// Every delivery is refused.
    EverythingRefused,
    /// A hub's outbound does not wait for its claim.
    NoOutboundGate,
    /// A request that a link brings to a draining shard is dropped.
    InboundDroppedAtStop,
    /// The drain is noticed only after an activation was made.
    DrainAfterActivation,
    /// An orphaned reply leaves a trace only.
    OrphansUntold,
    /// A draining silo's refusal ends the delivery instead of sending it elsewhere.
    DrainIsFinal,
    /// Requests for grains are sent to silos that leave.
    LeaversCalled,
    /// A silo that leaves does not wait for its callers.
    CallersNotAwaited,
    /// Requests for a hub that is not here end with the first refusal, untold.
    DeactivateOnRefusal,
    /// The death of a silo ends what is idle on the others.
    DeathDeactivates,
    /// A redirect is followed and not remembered.
    RedirectUnlearnt,
    /// A delivery waits for the one that was sent before it.
    OneLegAtATime,
    /// Every failure is logged.
    EveryFailureLogged,
    /// What timed out is sent once more.
    ResentAtDeadline,
    /// A chain that waits for itself is not looked for.
    DeadlockUndiagnosed,
    /// Nobody knows the keys of the requests that it has handled.
    KeysUnknown,
    /// An event that comes again is handled again.
    EventsUnknown,
    /// A request that is sent again is taken for a new one.
    AgainIsAnew,
    /// What a hub of this shard had not read when it ended is not brought to who has it now.
    EndedHubIsFinal,
    /// A grain hears owners of streams that it knows to be old.
    StaleOwnersHeard,
    /// What was answered to an event is not known when it comes again.
    AnswersForgotten,
    /// What comes in another version is read as if it were the present one.
    VersionsUnread,
    /// An older silo gets what a newer one would.
    NothingHandedDown,
}

/// What a shard is configured with.
#[derive(Debug)]
pub struct ShardConfig {
    /// Which shard of which silo.
    pub me: Endpoint,
    /// How many shards the silo has.
    pub shards: u16,
    /// The grain types it hosts.
    pub hosts: Vec<HostFactory>,
    /// Messages that travel to hubs and over streams, beside what the grain types take.
    pub messages: Vec<BodyType>,
    /// The kinds of hub addresses.
    pub hub_kinds: Vec<String>,
    /// Deadline of a request that names none.
    pub deadline_default: Duration,
    /// An activation idle for this long is collected, unless its type says otherwise.
    pub idle_after: Duration,
    /// What comes may wait this long for the shard before it counts as overloaded.
    pub overload_delay: Duration,
    /// May refuse calls.
    pub filter: Option<Arc<dyn Filter>>,
    /// What the surrounding program shares with the futures of its shards, found by type.
    pub shared: Vec<Arc<dyn Any + Send + Sync>>,
    /// Where the shard shows what it runs, for who watches its progress.
    pub running: Arc<Running>,
    /// Seeds the shard's draws.
    pub seed: u64,
    /// A defect to plant.
    #[cfg(feature = "planted")]
    pub planted: Planted,
    /// A defect to plant into the shard's directory.
    #[cfg(feature = "planted")]
    pub planted_directory: crate::directory::Planted,
}

impl ShardConfig {
    /// The hub kinds that every silo knows.
    pub const HUB_KINDS: [&'static str; 5] = ["mesh", "portal", "client", "cache", "import"];

    /// A shard with everything at its default.
    pub fn new(me: Endpoint, shards: u16, seed: u64) -> Self {
        Self {
            me,
            shards,
            hosts: Vec::new(),
            messages: Vec::new(),
            hub_kinds: Self::HUB_KINDS.map(str::to_owned).to_vec(),
            deadline_default: DEADLINE_DEFAULT,
            idle_after: ACTIVATION_IDLE_MAX,
            overload_delay: OVERLOAD_DELAY,
            filter: None,
            shared: Vec::new(),
            running: Arc::default(),
            seed,
            #[cfg(feature = "planted")]
            planted: Planted::None,
            #[cfg(feature = "planted")]
            planted_directory: crate::directory::Planted::NONE,
        }
    }
}
