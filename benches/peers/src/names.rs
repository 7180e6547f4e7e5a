//! What cases and rows are called: the peer, and how it was loaded.

/// One load of one peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// The case that measures it.
    pub(crate) case: &'static str,
    /// The row that compares Siloring with it.
    pub(crate) row: &'static str,
}

/// Every load of one peer between two processes. Its role is its name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names {
    /// Its name.
    pub(crate) peer: &'static str,
    /// One in flight.
    pub(crate) one: Load,
    /// 64 in flight.
    pub(crate) few: Load,
    /// 1024 in flight.
    pub(crate) many: Load,
    /// 1024 in flight, a kilobyte each.
    pub(crate) large: Load,
}

/// Every load of one peer inside one process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalNames {
    /// Caller and actor on one thread.
    pub(crate) same: Load,
    /// Caller and actor on two threads.
    pub(crate) across: Load,
}

/// The name of one load.
macro_rules! load {
    ($peer:literal, $load:literal) => {
        $crate::names::Load {
            case: concat!($peer, ", ", $load),
            row: concat!("against ", $peer, ", ", $load),
        }
    };
}

/// The names of a peer's loads between two processes.
macro_rules! names {
    ($peer:literal) => {
        $crate::names::Names {
            peer: $peer,
            one: $crate::names::load!($peer, "1 in flight"),
            few: $crate::names::load!($peer, "64 in flight"),
            many: $crate::names::load!($peer, "1024 in flight"),
            large: $crate::names::load!($peer, "1024 in flight of 1 KiB"),
        }
    };
}

/// The names of a peer's loads inside one process.
macro_rules! local_names {
    ($peer:literal) => {
        $crate::names::LocalNames {
            same: $crate::names::load!($peer, "same thread"),
            across: $crate::names::load!($peer, "across threads"),
        }
    };
}

pub(crate) use {load, local_names, names};
