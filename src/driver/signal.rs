//! The wake of a thread that sleeps on a [`Readiness`](super::readiness::Readiness) set: an
//! eventfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use siloring_core::sync::mailbox::Wake;

/// A descriptor that becomes readable, anew at every wake, for who watches it edge by edge.
#[derive(Debug)]
pub(crate) struct Signal(OwnedFd);

impl Signal {
    /// An unsignalled one.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }
}

impl Wake for Signal {
    fn wake(&self) {
        // Any value but 0 counts, in any byte order. It fails only when 2^64 - 2 have been counted;
        // the descriptor is readable then too.
        let _counted = rustix::io::write(&self.0, &1u64.to_le_bytes());
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
