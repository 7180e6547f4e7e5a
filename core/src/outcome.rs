//! The outcome of a delivery: the closed set of failure kinds, on two independent axes.
//!
//! *Certainty* is the shape: [`DeliveryFailure::Rejected`] did not run, [`DeliveryFailure::Failed`]
//! ran, [`DeliveryFailure::Indeterminate`] may have run. *Retry* is a property of a rejected kind.
//! Each kind has a stable code; failures travel as data and are never re-derived from text.

use core::convert::Infallible;
use core::fmt;

use crate::ids::ViewNumber;
use crate::limits::FAILURE_DETAIL_BYTES_MAX;

macro_rules! kinds {
    ($(#[$doc:meta])* $type:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum $type { $($(#[$vdoc])* $variant = $code,)+ }

        impl $type {
            /// Every kind, in the order of the codes.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The stable code.
            pub const fn code(self) -> u16 {
                self as u16
            }

            /// The kind's name, as used in logs and metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)+ }
            }

            const fn from_code(code: u16) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

kinds! {
    /// Why a delivery did not run.
    RejectedKind {
        /// The directory range, or the activation, is in transit; a newer view will say where.
        Moving = 0x0101,
        /// No link, or it broke before the first byte was handed over.
        ConnectionLost = 0x0102,
        /// The activation was ending; the next one may take the delivery.
        Deactivating = 0x0103,
        /// The silo is leaving.
        Draining = 0x0104,
        /// A bound was reached: a mailbox, a send buffer, a table.
        Overloaded = 0x0105,
        /// The store did not answer and the delivery needed it.
        RegistryUnavailable = 0x0106,
        /// Nobody is at this address in the view that the failure names.
        NotHere = 0x0181,
        /// The stream has no live subscriber.
        NoSubscriber = 0x0182,
        /// The target's silo is Dead and the delivery had not been handed over.
        IncarnationDead = 0x0183,
        /// No conversion exists between the two versions of the type.
        Incompatible = 0x0184,
        /// The frame would exceed the limit.
        TooLarge = 0x0185,
        /// The body is no valid archive of the type.
        RequestUndecodable = 0x0186,
        /// The silo's filter refused the caller.
        AccessDenied = 0x0187,
    }
}

kinds! {
    /// What went wrong in a delivery that ran.
    FailedKind {
        /// The handler panicked, or dropped the right to answer.
        HandlerFailed = 0x0201,
        /// The handler answered, but its reply cannot be read, or was too large to send.
        ReplyUndecodable = 0x0202,
        /// The call waits for itself: its chain holds an activation that is not reentrant.
        Deadlock = 0x0203,
    }
}

kinds! {
    /// Why nobody can say whether a delivery ran.
    IndeterminateKind {
        /// The deadline passed after the delivery had been handed over.
        TimedOut = 0x0301,
        /// The link or the silo was lost after the delivery had been handed over.
        LostAfterHandOver = 0x0302,
    }
}

impl RejectedKind {
    /// Whether the router tries again: at most [`ROUTER_ATTEMPTS_MAX`] times in about ten seconds,
    /// and within the deadline. What a caller hears of such a kind is the last refusal.
    ///
    /// Not so `Overloaded`, though it is transient: where there is too much to do a second try adds
    /// to it, so that an overload would keep itself up. It is told at once; its caller knows
    /// whether to try again, and whom else to spare.
    ///
    /// [`ROUTER_ATTEMPTS_MAX`]: crate::limits::ROUTER_ATTEMPTS_MAX
    pub const fn is_tried_again(self) -> bool {
        self.is_transient() && !matches!(self, Self::Overloaded)
    }

    /// Whether the same delivery may be taken later.
    pub const fn is_transient(self) -> bool {
        match self {
            Self::Moving
            | Self::ConnectionLost
            | Self::Deactivating
            | Self::Draining
            | Self::Overloaded
            | Self::RegistryUnavailable => true,
            Self::NotHere
            | Self::NoSubscriber
            | Self::IncarnationDead
            | Self::Incompatible
            | Self::TooLarge
            | Self::RequestUndecodable
            | Self::AccessDenied => false,
        }
    }

    /// Whether it may evict a subscriber, if it was decided in a view at least as new as the row's.
    pub const fn evicts_subscriber(self) -> bool {
        matches!(self, Self::NotHere | Self::NoSubscriber | Self::IncarnationDead)
    }
}

/// Why a delivery was not handled, and whether it may still have had an effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryFailure {
    /// The delivery did not run and never will. Nothing changed at the target.
    #[error("rejected as {}: {detail}", kind.name())]
    Rejected {
        /// Why.
        kind: RejectedKind,
        /// The view in which it was decided, where a view decided it.
        view: Option<ViewNumber>,
        /// For people; bounded, not API.
        detail: Box<str>,
    },
    /// The delivery ran and went wrong. Its effects up to that point stand.
    #[error("failed as {}: {detail}", kind.name())]
    Failed {
        /// How.
        kind: FailedKind,
        /// For people; bounded, not API.
        detail: Box<str>,
    },
    /// The delivery may have run. Only an idempotent request should be sent again.
    #[error("indeterminate, {}: {detail}", kind.name())]
    Indeterminate {
        /// Why nobody knows.
        kind: IndeterminateKind,
        /// For people; bounded, not API.
        detail: Box<str>,
    },
    /// A newer silo sent a code that this version does not know. Treated as indeterminate.
    #[error("unknown failure code {code:#06x}: {detail}")]
    Unknown {
        /// The code as received.
        code: u16,
        /// For people; bounded, not API.
        detail: Box<str>,
    },
}

fn bounded(detail: impl Into<String>) -> Box<str> {
    let mut detail = detail.into();
    if detail.len() > FAILURE_DETAIL_BYTES_MAX {
        let end = (0..=FAILURE_DETAIL_BYTES_MAX).rev().find(|&at| detail.is_char_boundary(at));
        detail.truncate(end.unwrap_or(0));
    }
    detail.into_boxed_str()
}

impl DeliveryFailure {
    /// A rejection that no view decided.
    pub fn rejected(kind: RejectedKind, detail: impl Into<String>) -> Self {
        Self::Rejected { kind, view: None, detail: bounded(detail) }
    }

    /// A rejection decided in `view`.
    pub fn rejected_in(kind: RejectedKind, view: ViewNumber, detail: impl Into<String>) -> Self {
        Self::Rejected { kind, view: Some(view), detail: bounded(detail) }
    }

    /// A failure of a delivery that ran.
    pub fn failed(kind: FailedKind, detail: impl Into<String>) -> Self {
        Self::Failed { kind, detail: bounded(detail) }
    }

    /// An outcome nobody can be sure of.
    pub fn indeterminate(kind: IndeterminateKind, detail: impl Into<String>) -> Self {
        Self::Indeterminate { kind, detail: bounded(detail) }
    }

    /// Builds a failure from its code, as received.
    pub fn from_code(code: u16, view: Option<ViewNumber>, detail: impl Into<String>) -> Self {
        let detail = bounded(detail);
        if let Some(kind) = RejectedKind::from_code(code) {
            return Self::Rejected { kind, view, detail };
        }
        if let Some(kind) = FailedKind::from_code(code) {
            return Self::Failed { kind, detail };
        }
        match IndeterminateKind::from_code(code) {
            Some(kind) => Self::Indeterminate { kind, detail },
            None => Self::Unknown { code, detail },
        }
    }

    /// The stable code.
    pub const fn code(&self) -> u16 {
        match self {
            Self::Rejected { kind, .. } => kind.code(),
            Self::Failed { kind, .. } => kind.code(),
            Self::Indeterminate { kind, .. } => kind.code(),
            Self::Unknown { code, .. } => *code,
        }
    }

    /// The kind's name, as used in logs and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Rejected { kind, .. } => kind.name(),
            Self::Failed { kind, .. } => kind.name(),
            Self::Indeterminate { kind, .. } => kind.name(),
            Self::Unknown { .. } => "Unknown",
        }
    }

    /// The text for people.
    pub const fn detail(&self) -> &str {
        match self {
            Self::Rejected { detail, .. }
            | Self::Failed { detail, .. }
            | Self::Indeterminate { detail, .. }
            | Self::Unknown { detail, .. } => detail,
        }
    }

    /// The view in which it was decided, where a view decided it.
    pub const fn view(&self) -> Option<ViewNumber> {
        match self {
            Self::Rejected { view, .. } => *view,
            Self::Failed { .. } | Self::Indeterminate { .. } | Self::Unknown { .. } => None,
        }
    }

    /// The kind, if the delivery certainly did not run.
    pub const fn rejected_kind(&self) -> Option<RejectedKind> {
        match self {
            Self::Rejected { kind, .. } => Some(*kind),
            Self::Failed { .. } | Self::Indeterminate { .. } | Self::Unknown { .. } => None,
        }
    }

    /// Whether the same delivery may be taken later: see [`RejectedKind::is_transient`].
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Rejected { kind, .. } => kind.is_transient(),
            Self::Failed { .. } | Self::Indeterminate { .. } | Self::Unknown { .. } => false,
        }
    }

    /// Whether the router tried again before it told: see [`RejectedKind::is_tried_again`].
    pub const fn is_tried_again(&self) -> bool {
        match self {
            Self::Rejected { kind, .. } => kind.is_tried_again(),
            Self::Failed { .. } | Self::Indeterminate { .. } | Self::Unknown { .. } => false,
        }
    }
}

/// What the caller of a method that returns `Result<_, E>` hears when it does not hear a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError<E = Infallible> {
    /// The handler ran and answered with its own error.
    Handler(E),
    /// The delivery failed.
    Delivery(DeliveryFailure),
}

impl<E> CallError<E> {
    /// The failure of the delivery, if that is what it is.
    pub const fn delivery(&self) -> Option<&DeliveryFailure> {
        match self {
            Self::Handler(_) => None,
            Self::Delivery(failure) => Some(failure),
        }
    }
}

impl<E> From<DeliveryFailure> for CallError<E> {
    fn from(failure: DeliveryFailure) -> Self {
        Self::Delivery(failure)
    }
}

impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handler(error) => error.fmt(out),
            Self::Delivery(failure) => failure.fmt(out),
        }
    }
}

impl<E: core::error::Error> core::error::Error for CallError<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes are on the wire: this table changes only by growing.
    #[test]
    fn codes_are_stable() {
        let rejected: Vec<u16> = RejectedKind::ALL.iter().map(|k| k.code()).collect();
        assert_eq!(
            rejected,
            [
                0x0101, 0x0102, 0x0103, 0x0104, 0x0105, 0x0106, 0x0181, 0x0182, 0x0183, 0x0184,
                0x0185, 0x0186, 0x0187
            ]
        );
        let failed: Vec<u16> = FailedKind::ALL.iter().map(|k| k.code()).collect();
        assert_eq!(failed, [0x0201, 0x0202, 0x0203]);
        let indeterminate: Vec<u16> = IndeterminateKind::ALL.iter().map(|k| k.code()).collect();
        assert_eq!(indeterminate, [0x0301, 0x0302]);
    }

    #[test]
    fn every_code_survives_the_wire_and_unknown_ones_are_kept() {
        for kind in RejectedKind::ALL {
            let sent = DeliveryFailure::rejected_in(*kind, ViewNumber(9), "x");
            assert_eq!(DeliveryFailure::from_code(sent.code(), sent.view(), "x"), sent);
        }
        let unknown = DeliveryFailure::from_code(0x7777, None, "?");
        assert_eq!(unknown.code(), 0x7777);
        assert!(!unknown.is_transient(), "an unknown code may have run");
    }

    #[test]
    fn transient_kinds_never_evict() {
        for kind in RejectedKind::ALL {
            assert!(!(kind.is_transient() && kind.evicts_subscriber()), "{kind:?}");
            assert_eq!(kind.is_transient(), kind.code() < 0x0180, "{kind:?}");
        }
    }

    #[test]
    fn details_are_cut_at_a_character() {
        let failure = DeliveryFailure::rejected(RejectedKind::NotHere, "ä".repeat(400));
        assert_eq!(failure.detail().len(), FAILURE_DETAIL_BYTES_MAX);
    }
}
