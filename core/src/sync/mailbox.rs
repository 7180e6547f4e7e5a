//! A bounded mailbox: many threads send, one receives, and only a parked receiver is woken.
//!
//! Contract:
//! - *No lost wake.* A value sent before, or while, the receiver parks either is seen by
//!   [`Receiver::park`], which then refuses, or wakes it. The sender pushes, fences, reads the
//!   state; the receiver sets the state, fences, reads the queue: one of the two must see the other
//!   (loom-tested below).
//! - *One wake a park.* Whoever ends the parking wakes; an awake receiver costs a sender no call.
//! - *Nothing rests in a closed mailbox.* A value that was pushed while the receiver closed is
//!   dropped by one of the two, so that what its `Drop` has to tell is told.
//! - *Bounded.* A full mailbox gives the value back at once; nobody ever waits here.
//!
//! How a receiver sleeps and is woken is its [`Wake`]. Deliberately absent: blocking, async,
//! batching (a sender that has many values sends them one after the other; only the first can cost
//! a wake).

use core::{fmt, mem};
use std::sync::{Arc, PoisonError};

use crossbeam_utils::CachePadded;

use super::model::{AtomicU8, Mutex, Ordering, fence};
use super::queue::{Popper, Queue, queue};

/// Ends the sleep of a receiver, from any thread.
pub trait Wake: Send + Sync {
    /// Wakes it. A wake of a receiver that is awake makes its next sleep end at once, or nothing.
    fn wake(&self);
}

/// Why a value was not taken. Nothing was changed; the value is given back, so that it can be
/// refused.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError<T> {
    /// The mailbox is full: try again later.
    #[error("the mailbox is full")]
    Full(T),
    /// The receiver is gone for good.
    #[error("the mailbox is closed")]
    Closed(T),
}

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Closed(_) => "Closed(..)",
        })
    }
}

/// The receiver is awake.
const OPEN: u8 = 0;
/// The receiver sleeps, or is about to: the next send wakes it.
const PARKED: u8 = 1;
/// The receiver is gone.
const CLOSED: u8 = 2;

struct Shared<T> {
    queue: Arc<Queue<T>>,
    /// Apart from the queue's own lines: senders read it at every send.
    state: CachePadded<AtomicU8>,
    wake: Arc<dyn Wake>,
    /// Guards what the receiver leaves: the way out, for every sender that comes too late.
    left: Mutex<Option<Popper<T>>>,
}

impl<T> Shared<T> {
    /// Drops what is left in a closed mailbox. No value is dropped under the lock: its `Drop` may
    /// send.
    fn drop_all(&self) {
        while let Some(value) = self.take_left() {
            drop(value);
        }
    }

    /// The oldest value that is left, if the receiver has gone: else it is about to look.
    fn take_left(&self) -> Option<T> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).as_mut()?.pop()
    }
}

/// A mailbox for `capacity` values, whose receiver `wake` wakes.
///
/// # Panics
/// If `capacity` is not a power of two.
pub fn mailbox<T: Send>(capacity: usize, wake: Arc<dyn Wake>) -> (Sender<T>, Receiver<T>) {
    let state = CachePadded::new(AtomicU8::new(OPEN));
    let (queue, popper) = queue(capacity);
    let shared = Arc::new(Shared { queue, state, wake, left: Mutex::new(None) });
    (Sender { shared: Arc::clone(&shared) }, Receiver { shared, popper })
}

/// The side that any number of threads have.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Sender<T> {
    /// Puts `value` into the mailbox, and wakes the receiver if it sleeps.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        let shared = &self.shared;
        if shared.state.load(Ordering::Relaxed) == CLOSED {
            return Err(SendError::Closed(value));
        }
        shared.queue.push(value).map_err(SendError::Full)?;
        self.nudge();
        Ok(())
    }

    /// Wakes the receiver if it sleeps, though nothing is sent: after something else was put where
    /// it looks between [`Receiver::park`] and its sleep.
    pub fn nudge(&self) {
        let shared = &self.shared;
        // Orders what was put before the read of the state, against the fences in `park` and
        // `drop`.
        fence(Ordering::SeqCst);
        match shared.state.load(Ordering::Relaxed) {
            OPEN => {}
            PARKED => {
                let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
                if shared.state.compare_exchange(PARKED, OPEN, success, failure).is_ok() {
                    shared.wake.wake();
                }
            }
            // The receiver may have looked for the last time before the push.
            _ => shared.drop_all(),
        }
    }

    /// Values that wait; already past when read.
    pub fn len(&self) -> usize {
        self.shared.queue.len()
    }

    /// Whether none waits; already past when read.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Sender").field("len", &self.len()).finish()
    }
}

/// The side that one thread has. Dropping it closes the mailbox and drops what is in it.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    popper: Popper<T>,
}

impl<T> Receiver<T> {
    /// The oldest value, if there is one.
    #[inline]
    pub fn receive(&mut self) -> Option<T> {
        self.popper.pop()
    }

    /// Whether nothing waits; already past when read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.popper.is_empty()
    }

    /// Announces that this side is about to sleep. If it refuses, something has come meanwhile: do
    /// not sleep. If it agrees, the next send calls [`Wake::wake`].
    #[must_use]
    pub fn park(&mut self) -> Parking {
        self.shared.state.store(PARKED, Ordering::Relaxed);
        // Orders the state before the read of the queue, against the sender's fence in `send`.
        fence(Ordering::SeqCst);
        if self.is_empty() {
            Parking::Agreed
        } else {
            self.unpark();
            Parking::Refused
        }
    }

    /// Ends the announcement: called after every sleep.
    pub fn unpark(&mut self) {
        self.shared.state.store(OPEN, Ordering::Relaxed);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.state.store(CLOSED, Ordering::Relaxed);
        // Orders the state before the last look at the queue, against the sender's fence in `send`.
        fence(Ordering::SeqCst);
        let (_, nothing) = queue(1);
        let popper = mem::replace(&mut self.popper, nothing);
        *self.shared.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(popper);
        self.shared.drop_all();
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Receiver").field("len", &self.shared.queue.len()).finish_non_exhaustive()
    }
}

/// Whether a receiver may sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parking {
    /// It may: the next send wakes it.
    Agreed,
    /// It must not: a value waits.
    Refused,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn counted<T: Send>(capacity: usize) -> (Arc<Counted>, Sender<T>, Receiver<T>) {
        let wakes = Arc::new(Counted::default());
        let (sender, receiver) = mailbox(capacity, Arc::<Counted>::clone(&wakes) as Arc<dyn Wake>);
        (wakes, sender, receiver)
    }

    #[test]
    fn a_full_mailbox_gives_the_value_back() {
        let (_, sender, mut receiver) = counted(1);
        assert_eq!(sender.send(1), Ok(()));
        assert_eq!(sender.send(2), Err(SendError::Full(2)));
        assert_eq!((receiver.receive(), receiver.receive()), (Some(1), None));
        assert_eq!(sender.send(2), Ok(()));
    }

    #[test]
    fn only_the_first_send_to_a_parked_receiver_wakes_it() {
        let (wakes, sender, mut receiver) = counted(8);
        sender.send(1).unwrap();
        assert_eq!(receiver.park(), Parking::Refused);
        assert_eq!(receiver.receive(), Some(1));
        assert_eq!(receiver.park(), Parking::Agreed);
        sender.send(2).unwrap();
        sender.send(3).unwrap();
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        receiver.unpark();
        sender.send(4).unwrap();
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_closed_mailbox_gives_values_back_and_keeps_none() {
        let (_, sender, receiver) = counted(8);
        let told = Arc::new(());
        sender.send(Arc::clone(&told)).unwrap();
        drop(receiver);
        assert_eq!(Arc::strong_count(&told), 1, "dropped with the receiver");
        assert!(matches!(sender.send(told), Err(SendError::Closed(_))));
    }
}

/// `cargo xtask test` runs these; by hand: `RUSTFLAGS="--cfg loom" cargo test --target-dir
/// target/loom -p siloring-core --release --lib loom_tests`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    struct Signal(loom::sync::atomic::AtomicUsize);

    impl Wake for Signal {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Three preemptions reach every ordering of the two fences; more take minutes.
    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    #[test]
    fn a_value_sent_while_the_receiver_parks_is_seen_or_wakes_it() {
        check(|| {
            let signal = Arc::new(Signal(loom::sync::atomic::AtomicUsize::new(0)));
            let wake = Arc::<Signal>::clone(&signal) as Arc<dyn Wake>;
            let (sender, mut receiver) = mailbox(4, wake);
            let senders: Vec<_> = (0..2u32)
                .map(|value| {
                    let sender = sender.clone();
                    loom::thread::spawn(move || sender.send(value).unwrap())
                })
                .collect();
            let parking = receiver.park();
            for sender in senders {
                sender.join().unwrap();
            }
            let wakes = signal.0.load(Ordering::SeqCst);
            match parking {
                Parking::Agreed => assert_eq!(wakes, 1, "asleep: woken exactly once"),
                Parking::Refused => assert!(receiver.receive().is_some(), "awake: has a value"),
            }
        });
    }

    #[test]
    fn what_was_put_elsewhere_before_a_nudge_is_seen_or_wakes_the_receiver() {
        check(|| {
            let signal = Arc::new(Signal(loom::sync::atomic::AtomicUsize::new(0)));
            let wake = Arc::<Signal>::clone(&signal) as Arc<dyn Wake>;
            let (sender, mut receiver) = mailbox::<u32>(4, wake);
            let elsewhere = Arc::new(loom::sync::atomic::AtomicBool::new(false));
            let putting = Arc::clone(&elsewhere);
            let thread = loom::thread::spawn(move || {
                putting.store(true, Ordering::Relaxed);
                sender.nudge();
            });
            assert_eq!(receiver.park(), Parking::Agreed, "the mailbox itself is empty");
            let is_seen = elsewhere.load(Ordering::Relaxed);
            thread.join().unwrap();
            let wakes = signal.0.load(Ordering::SeqCst);
            assert!(is_seen || wakes == 1, "asleep: woken");
        });
    }

    #[test]
    fn values_sent_while_the_receiver_closes_are_dropped_or_given_back() {
        check(|| {
            let signal = Arc::new(Signal(loom::sync::atomic::AtomicUsize::new(0)));
            let (sender, receiver) = mailbox(4, signal as Arc<dyn Wake>);
            let told = Arc::new(());
            let sending = || {
                let (sender, value) = (sender.clone(), Arc::clone(&told));
                loom::thread::spawn(move || drop(sender.send(value)))
            };
            let threads = [sending(), sending()];
            drop(receiver);
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(sender.is_empty());
            assert_eq!(Arc::strong_count(&told), 1);
        });
    }
}
