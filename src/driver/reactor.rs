//! The seam to glommio: everything that names it. Another engine stands in by replacing this file.
//!
//! A shard needs of its engine: an executor on this thread ([`run`]), and a trip through it now and
//! then ([`Engine::trip`]), which serves whatever else is on it. All bytes move through the shard's
//! own calls on non-blocking sockets, and it sleeps in a wait of its own, so that the engine is on
//! no message's path.
//!
//! Both published glommios can park for ever with runnable tasks when their pre-emption timer fires
//! at the wrong moment. Two measures, each enough by itself in a starvation test, are taken here:
//! the timer is set to an hour, and a ticker task ends every sleep of the executor.

use core::time::Duration;
use std::io;

use glommio::{GlommioError, LocalExecutorBuilder, ReactorErrorKind, Task};
use siloring_core::limits::LEDGER_TICK;

/// Never reached in practice: see the module's head.
const PREEMPT_AFTER: Duration = Duration::from_hours(1);
/// Registered buffers serve files only; the default of 10 MiB would be pinned for nothing.
const IO_MEMORY_BYTES: usize = 64 * 1024;
/// The ring carries two timers and their cancellations.
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

/// The executor that a pump runs on, as the pump sees it.
pub(crate) struct Engine {
    ticker: Task<()>,
}

impl Engine {
    /// Called inside [`run`].
    pub(crate) fn new() -> Self {
        Self { ticker: glommio::spawn_local(tick()) }
    }

    /// Passes through the executor and its ring once. Cancel safety: cancelling it loses nothing.
    pub(crate) async fn trip(&self) {
        glommio::timer::sleep(TRIP).await;
    }

    /// Ends the ticker. An engine that is only dropped would leave it to the executor's end.
    pub(crate) async fn close(self) {
        self.ticker.cancel().await;
    }
}

/// See the module's head.
async fn tick() {
    loop {
        glommio::timer::sleep(LEDGER_TICK).await;
    }
}
