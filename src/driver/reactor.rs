//! The seam to glommio: everything that names it. Another engine stands in by replacing this file.
//!
//! A shard needs of its engine: an executor on this thread ([`run`]), a sleep that ends when a
//! descriptor is readable or a tick has passed ([`Parker::park`]), and a trip through the engine
//! while there is no time to sleep ([`Parker::trip`]). All bytes move through the shard's own calls
//! on non-blocking sockets, so that the engine is on no message's path.
//!
//! Both published glommios can park for ever with runnable tasks when their pre-emption timer fires
//! at the wrong moment. Two measures, each enough by itself in a starvation test, are taken here:
//! the timer is set to an hour, and a ticker task wakes every executor all the time.

use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use glommio::io::{PollState, PollableFd};
use glommio::{GlommioError, LocalExecutorBuilder, ReactorErrorKind, Task};

/// Never reached in practice: see the module's head.
const PREEMPT_AFTER: Duration = Duration::from_hours(1);
/// Registered buffers serve files only; the default of 10 MiB would be pinned for nothing.
const IO_MEMORY_BYTES: usize = 64 * 1024;
/// The ring carries one poll, one timer and their cancellations.
const RING_DEPTH: usize = 128;
/// Long enough to be suspended for, so that the trip is real.
const TRIP: Duration = Duration::from_micros(1);

/// Where a shard's thread runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Placement {
    /// On this processor only.
    Fixed(usize),
    /// Wherever the kernel puts it.
    Unbound,
}

/// Why no executor can be made here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReactorError {
    /// The limit on locked memory is too low.
    #[error("the limit on locked memory is {limit_bytes} bytes, {needed_bytes} are needed")]
    Memlock {
        /// What is allowed.
        limit_bytes: u64,
        /// What is needed.
        needed_bytes: u64,
    },
    /// The kernel does not let this process use `io_uring`.
    #[error("io_uring cannot be used: {0}")]
    Forbidden(io::Error),
    /// The thread could not be bound to its processor, or another refusal of the engine.
    #[error("the executor cannot be made: {0}")]
    Refused(String),
}

impl From<GlommioError<()>> for ReactorError {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a foreign enum with a case for each of its APIs"
    )]
    fn from(error: GlommioError<()>) -> Self {
        match error {
            GlommioError::ReactorError(ReactorErrorKind::MemLockLimit(
                limit_bytes,
                needed_bytes,
            )) => Self::Memlock { limit_bytes, needed_bytes },
            GlommioError::IoError(error) => Self::Forbidden(error),
            other => Self::Refused(other.to_string()),
        }
    }
}

fn builder(placement: Placement) -> LocalExecutorBuilder {
    let placement = match placement {
        Placement::Fixed(cpu) => glommio::Placement::Fixed(cpu),
        Placement::Unbound => glommio::Placement::Unbound,
    };
    LocalExecutorBuilder::new(placement)
        .io_memory(IO_MEMORY_BYTES)
        .ring_depth(RING_DEPTH)
        .preempt_timer(PREEMPT_AFTER)
        .spin_before_park(Duration::ZERO)
}

/// Makes an executor and throws it away: whether one can be made.
pub(crate) fn probe() -> Result<(), ReactorError> {
    builder(Placement::Unbound).make().map(drop).map_err(ReactorError::from)
}

/// Makes an executor on this thread, tells `made` about it, and runs `future` on it to its end.
pub(crate) fn run<F: Future>(
    placement: Placement,
    made: impl FnOnce(Result<(), ReactorError>),
    future: F,
) -> Option<F::Output> {
    match builder(placement).make() {
        Ok(executor) => {
            made(Ok(()));
            Some(executor.run(future))
        }
        Err(error) => {
            made(Err(error.into()));
            None
        }
    }
}

/// What the parker and its ticker share.
struct Tick {
    period: Cell<Duration>,
    /// Passed since the last sleep ended.
    passed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Tick {
    async fn run(self: Rc<Self>) {
        loop {
            glommio::timer::sleep(self.period.get()).await;
            self.passed.set(true);
            if let Some(waker) = self.waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }
}

/// Lets the pump sleep in the ring.
pub(crate) struct Parker {
    watched: PollableFd<OwnedFd>,
    /// The poll in the ring; stays there over ticks.
    poll: PollState,
    tick: Rc<Tick>,
    ticker: Task<()>,
}

impl Parker {
    /// A parker whose sleep ends when `watched` is readable. Called inside [`run`].
    pub(crate) fn new(watched: OwnedFd, period: Duration) -> Result<Self, ReactorError> {
        let tick = Rc::new(Tick {
            period: Cell::new(period),
            passed: Cell::new(false),
            waker: RefCell::new(None),
        });
        let ticker = glommio::spawn_local(Rc::clone(&tick).run());
        Ok(Self { watched: PollableFd::new(watched)?, poll: PollState::new(), tick, ticker })
    }

    /// Sleeps until the watched descriptor is readable or a tick has passed. Cancel safety:
    /// cancelling it loses nothing.
    pub(crate) async fn park(&mut self, period: Duration) -> io::Result<()> {
        self.tick.period.set(period);
        poll_fn(|context| self.poll_woken(context)).await
    }

    fn poll_woken(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(result) = self.watched.poll_readable(context, &mut self.poll) {
            return Poll::Ready(result.map_err(io::Error::from));
        }
        if self.tick.passed.replace(false) {
            return Poll::Ready(Ok(()));
        }
        *self.tick.waker.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }

    /// Sleeps until a tick has passed, whatever is readable.
    pub(crate) async fn rest(&mut self, period: Duration) {
        self.tick.period.set(period);
        poll_fn(|context| {
            if self.tick.passed.replace(false) {
                return Poll::Ready(());
            }
            *self.tick.waker.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Passes through the ring once without sleeping, so that the ticker is served under full load.
    pub(crate) async fn trip(&mut self) {
        glommio::timer::sleep(TRIP).await;
    }

    /// Ends the ticker. A parker that is only dropped would leave it to the executor's end.
    pub(crate) async fn close(self) {
        self.ticker.cancel().await;
    }
}
