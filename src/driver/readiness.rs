//! Which of many descriptors are ready: one kernel set a thread.
//!
//! A thread asks it without sleeping, at the cost of one system call for any number of idle
//! sockets, or sleeps on it, in the same call. Registrations stay from one sleep to the next.

use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::thread::nanosleep;

/// Events taken in one look; what is beyond comes with the next one.
const EVENTS_PER_LOOK: usize = 256;

/// What a descriptor is watched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interest {
    /// That it can be read.
    Read,
    /// That it can be written: a connection under way, or input that is held back.
    Write,
    /// Either.
    Both,
    /// Nothing: it stays in the set and says nothing.
    Nothing,
    /// That it was signalled since the last look; never read, so never reset.
    Signal,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Read => epoll::EventFlags::IN,
            Self::Write => epoll::EventFlags::OUT,
            Self::Both => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            Self::Nothing => epoll::EventFlags::empty(),
            Self::Signal => epoll::EventFlags::IN | epoll::EventFlags::ET,
        }
    }
}

/// A descriptor that is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ready {
    /// The token it was registered with.
    pub(crate) token: u64,
    /// Whether a read would tell something: bytes, the end, or an error.
    pub(crate) readable: bool,
    /// Whether a write would tell something.
    pub(crate) writable: bool,
}

/// A set of watched descriptors.
pub(crate) struct Readiness {
    set: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Readiness {
    /// An empty set.
    pub(crate) fn new() -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { set, events: Vec::with_capacity(EVENTS_PER_LOOK) })
    }

    /// Watches a descriptor, until it is closed or removed.
    pub(crate) fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.set, fd, epoll::EventData::new_u64(token), interest.flags())?)
    }

    /// Watches a descriptor of the set for something else.
    pub(crate) fn change(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.set, fd, epoll::EventData::new_u64(token), interest.flags())?)
    }

    /// Forgets a descriptor.
    pub(crate) fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.set, fd)?)
    }

    /// Looks what is ready, sleeping for at most `wait`.
    pub(crate) fn look(&mut self, wait: Duration) -> io::Result<()> {
        self.events.clear();
        match epoll::wait(&self.set, spare_capacity(&mut self.events), Some(&timespec(wait))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// What the last look found.
    pub(crate) fn found(&self) -> impl Iterator<Item = Ready> + '_ {
        let ended = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        self.events.iter().map(move |event| {
            // The kernel's structure is packed: its fields are copied, not referred to.
            let (flags, data) = (event.flags, event.data);
            Ready {
                token: data.u64(),
                readable: flags.intersects(epoll::EventFlags::IN | ended),
                writable: flags.intersects(epoll::EventFlags::OUT | ended),
            }
        })
    }
}

/// Sleeps for at most `wait`, whatever is ready.
pub(crate) fn rest(wait: Duration) {
    let _interrupted = nanosleep(&timespec(wait));
}

fn timespec(wait: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    }
}
