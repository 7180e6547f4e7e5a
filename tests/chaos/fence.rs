//! Effects outside of the silo's stores: a register that is handed `ctx.fence()` refuses a zombie.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::run::{AWAKENING_TIME_MAX, DEAD, DETECTION_TIME_MAX, Run, until};

/// A woken silo may end before it has written: it sleeps again then.
const TRIES: usize = 3;

/// A write, as it came.
#[derive(Clone, Copy, Debug)]
struct Written {
    fence: (u64, u64),
    value: u64,
    accepted: bool,
}

/// A system of somebody else's: it knows no silos, only that fences rise.
#[derive(Default)]
struct Register {
    /// Guards what was written, and who may write.
    book: Mutex<Book>,
    changed: Condvar,
}

#[derive(Default)]
struct Book {
    highest: (u64, u64),
    fenced: u64,
    /// What would be there without a look at the fence.
    unfenced: u64,
    writes: Vec<Written>,
    waiting: usize,
    /// Writers that are kept waiting.
    is_held: bool,
}

impl Register {
    fn open() -> (Arc<Self>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let register = Arc::new(Self::default());
        let serving = Arc::clone(&register);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let register = Arc::clone(&serving);
                std::thread::spawn(move || register.serve(&stream));
            }
        });
        (register, address)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a writer leave once nobody is held, then takes its write. `None`: it is gone.
    fn serve(&self, mut stream: &TcpStream) -> Option<()> {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines.next()?;
        let mut book = self.book();
        book.waiting += 1;
        while book.is_held {
            book = self.changed.wait(book).unwrap_or_else(PoisonError::into_inner);
        }
        drop(book);
        writeln!(stream, "go").ok()?;
        let line = lines.next()?;
        let words: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [view, counter, value] = words[..] else { return None };
        let accepted = self.write((view, counter), value);
        writeln!(stream, "{}", if accepted { "accepted" } else { "refused" }).ok()
    }

    fn write(&self, fence: (u64, u64), value: u64) -> bool {
        let mut book = self.book();
        let accepted = fence >= book.highest;
        if accepted {
            (book.highest, book.fenced) = (fence, value);
        }
        book.unfenced = value;
        book.writes.push(Written { fence, value, accepted });
        accepted
    }

    fn hold(&self, is_held: bool) {
        self.book().is_held = is_held;
        self.changed.notify_all();
    }
}

/// M4, and FAULTS P2 for effects outside of our stores.
#[test]
fn a_register_elsewhere_refuses_what_a_sleeper_had_begun_by_its_fence() {
    let (register, address) = Register::open();
    let mut run = Run::new("fenced");
    run.begin(&["ann", "carl"]);
    for attempt in 0..TRIES {
        let key = format!("register-{attempt}");
        let (stale, fresh) = (10 + attempt as u64, 20 + attempt as u64);
        let bob = run.start(&format!("bob-{attempt}"));
        let waiting = register.book().waiting;
        register.hold(true);
        run.silos[bob].ask(&format!("register {address} {key} {stale} 40000"));
        until("its turn waits", DETECTION_TIME_MAX, || register.book().waiting > waiting);
        run.silos[bob].pause();
        run.await_death(bob);
        // The sleeper's leave lies in its socket; the successor asks for its own.
        register.hold(false);
        let answer = run.silos[0].get(&format!("register {address} {key} {fresh} 20000"));
        assert_eq!(answer["value"], 1, "the successor's write is accepted: {answer}");
        run.silos[bob].resume();
        run.fault("asleep in a write");
        assert_eq!(run.silos[bob].wait_exit(AWAKENING_TIME_MAX), Some(DEAD));
        let late = |written: &&Written| written.value == stale;
        let Some(zombie) = register.book().writes.iter().find(late).copied() else { continue };
        let book = register.book();
        assert!(!zombie.accepted && zombie.fence < book.highest, "{:?}", book.writes);
        assert_eq!(book.fenced, fresh, "the successor's value stays");
        assert_eq!(book.unfenced, stale, "and would be lost without the fence");
        drop(book);
        return run.end();
    }
    panic!("no sleeper wrote before it ended: {:?}", register.book().writes);
}
