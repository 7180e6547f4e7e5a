//! What happens to the cluster, and when: one time line for the models and for the real silos.
//!
//! Three processes: the sender's, the hub's, and the silo that holds the list of who is to get the
//! hub's replies. The sender lives through everything.

/// Between two replies.
pub(crate) const REPLY_PERIOD_MS: u64 = 100;
/// How many replies there are: enough for any of the troubles to begin and to end.
pub(crate) const REPLIES: u64 = 60;
/// The trouble comes with this reply.
pub(crate) const TROUBLE_AT_REPLY: u64 = 15;

/// In the models, from a kill until the cluster knows: what real silos here take. Systems of the
/// older kind take 15 s and more by default; the models are given ours.
pub(crate) const DETECTED_AFTER_MS: u64 = 3_000;
/// In the models, from when the list's place is known to be free until a successor answers: it is
/// placed, started, and reads what its store has, each for the first time.
pub(crate) const LIST_COLD_MS: u64 = 1_000;
/// The step of the models' time.
const STEP_MS: u64 = 10;
/// The models go on for so long after the last reply, so that everything that is still under way
/// ends: a minute is how long a delivery is retried.
const AFTERMATH_MS: u64 = 60_000;

/// What happens to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A newcomer joins, and the silo that holds the list leaves in order.
    Roll,
    /// The silo that holds the list is killed.
    KillList,
    /// The hub's process is killed, and does not come back.
    KillHub,
}

impl Trouble {
    pub(crate) const ALL: [Self; 3] = [Self::Roll, Self::KillList, Self::KillHub];

    /// In words.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Roll => "the list's silo is rolled",
            Self::KillList => "kill -9 of the list's silo",
            Self::KillHub => "kill -9 of the hub's process",
        }
    }
}

/// A model's cluster at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    trouble: Trouble,
    pub(crate) ms: u64,
}

impl Moment {
    /// All of them, from the beginning to the end.
    pub(crate) fn all(trouble: Trouble) -> impl Iterator<Item = Self> {
        let end_ms = REPLIES * REPLY_PERIOD_MS + AFTERMATH_MS;
        (0..end_ms / STEP_MS).map(move |step| Self { trouble, ms: step * STEP_MS })
    }

    /// The reply that is due, if one is.
    pub(crate) fn reply(self) -> Option<u64> {
        let number = self.ms / REPLY_PERIOD_MS;
        (self.ms.is_multiple_of(REPLY_PERIOD_MS) && number < REPLIES).then_some(number)
    }

    fn since_trouble_ms(self) -> Option<u64> {
        self.ms.checked_sub(TROUBLE_AT_REPLY * REPLY_PERIOD_MS)
    }

    /// Whether the hub's process lives.
    pub(crate) fn hub_lives(self) -> bool {
        self.trouble != Trouble::KillHub || self.since_trouble_ms().is_none()
    }

    /// Whether the cluster knows of the death of the hub's process.
    pub(crate) fn hub_is_known_dead(self) -> bool {
        let since_ms = self.since_trouble_ms().filter(|_| self.trouble == Trouble::KillHub);
        since_ms.is_some_and(|ms| ms >= DETECTED_AFTER_MS)
    }

    /// Whether this is when the list's silo goes, with all that it holds in memory.
    pub(crate) fn list_is_lost(self) -> bool {
        self.trouble != Trouble::KillHub && self.since_trouble_ms() == Some(0)
    }

    /// Whether the list, or its successor on another silo, answers.
    pub(crate) fn list_answers(self) -> bool {
        let Some(since_ms) = self.since_trouble_ms() else { return true };
        match self.trouble {
            Trouble::Roll => since_ms >= LIST_COLD_MS,
            Trouble::KillList => since_ms >= DETECTED_AFTER_MS + LIST_COLD_MS,
            Trouble::KillHub => true,
        }
    }
}
