//! Peers that say nothing, say nonsense, or die in the middle of a word.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use siloring_testkit::process::Stream;

use crate::silo::Cluster;

/// Connections that send nothing; each costs this process a descriptor too.
const SILENT_COUNT: usize = 10_000;
/// What they may cost the silo in memory.
const GROWTH_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Silent connections that are open at a time during a flood: more than a silo lets wait.
const FLOOD_WIDTH: usize = 256;
/// Between two of them.
const FLOOD_PERIOD: Duration = Duration::from_micros(100);
/// A silo joins within this although others flood the one that it joins: less than a silent
/// connection is waited for.
const JOIN_UNDER_FLOOD_TIME_MAX: Duration = Duration::from_millis(2500);

#[test]
fn connections_that_send_nothing_disturb_nobody() {
    let cluster = Cluster::new("silent");
    let (mut ann, mut bob) = (cluster.start("ann"), cluster.start("bob"));
    assert_eq!(bob.outcome("call counter 10000").value, Some(1));
    let before = bob.process.resident_bytes();
    // One after the other; the silo closes those that exceed what it lets wait.
    let mut silent = Vec::new();
    for _ in 0..SILENT_COUNT {
        silent.push(TcpStream::connect(&bob.address).expect("the silo goes on accepting"));
    }
    let answered = ann.outcome("call counter 10000");
    assert_eq!(answered.value, Some(2), "{answered:?}");
    let growth = bob.process.resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_BYTES_MAX, "{growth} bytes for connections that said nothing");
    drop(silent);
    let late = cluster.start("late");
    assert_eq!(bob.outcome("call counter 10000").value, Some(3), "and newcomers get in");
    drop(late);
}

/// Connections that send nothing, one after the other, until it is ended; tells how many.
struct Flood {
    goes_on: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Flood {
    fn start(address: &str) -> Self {
        let goes_on = Arc::new(AtomicBool::new(true));
        let (address, going_on) = (address.to_owned(), Arc::clone(&goes_on));
        let thread = std::thread::spawn(move || {
            let (mut open, mut count) = (VecDeque::new(), 0);
            while going_on.load(Ordering::Relaxed) {
                open.push_back(TcpStream::connect(&address).expect("the silo goes on accepting"));
                count += 1;
                if open.len() > FLOOD_WIDTH {
                    open.pop_front();
                }
                std::thread::sleep(FLOOD_PERIOD);
            }
            count
        });
        Self { goes_on, thread }
    }

    fn end(self) -> usize {
        self.goes_on.store(false, Ordering::Relaxed);
        self.thread.join().expect("the flood does not panic")
    }
}

#[test]
fn a_silo_joins_at_once_while_a_flood_of_silent_connections_goes_on() {
    let cluster = Cluster::new("flooded");
    let mut ann = cluster.start_with("ann", &["--link", "tcp"]);
    let flood = Flood::start(&ann.address);
    // Long enough that whatever has room for them is full.
    std::thread::sleep(Duration::from_millis(500));
    for (name, link) in [("over-tcp", "tcp"), ("by-itself", "auto")] {
        let began = Instant::now();
        let mut late = cluster.start_with(name, &["--link", link]);
        let took = began.elapsed();
        assert!(took < JOIN_UNDER_FLOOD_TIME_MAX, "{name} joined after {took:?}");
        assert_eq!(ann.outcome("call counter 10000").how, "handled");
        assert_eq!(late.outcome("call counter 10000").how, "handled");
    }
    let count = flood.end();
    assert!(count > 1_000, "{count} connections are no flood");
    let lines = ann.process.line_count(Stream::Error, "Handshake");
    assert!(lines <= 3, "{lines} lines for {count} connections:\n{}", ann.process.log_text());
}

#[test]
fn a_peer_that_dies_in_the_middle_of_a_frame_disturbs_nobody() {
    let cluster = Cluster::new("mid-frame");
    let (mut ann, mut bob) = (cluster.start("ann"), cluster.start("bob"));
    let mut carl = cluster.start("carl");
    assert_eq!(bob.hub("portal/bob", "claim"), "claimed");
    assert_eq!(carl.outcome("send portal/bob 10000 64").how, "handled");
    // Fifteen of the sixteen megabytes that a frame may have: carl dies while it is on its way.
    for _ in 0..4 {
        carl.ask("send portal/bob 10000 15000000");
    }
    carl.process.kill().unwrap();
    for _ in 0..50 {
        let answered = ann.outcome("send portal/bob 10000 64");
        assert_eq!(answered.how, "handled", "{answered:?}");
    }
    assert!(!bob.process.has_ended());
}

#[test]
fn garbage_closes_its_connection_and_nothing_else() {
    let cluster = Cluster::new("garbage");
    let (mut ann, bob) = (cluster.start("ann"), cluster.start("bob"));
    assert_eq!(ann.outcome("call counter 10000").value, Some(1));
    for byte in [0x00, 0xff, 0x47] {
        let mut stream = TcpStream::connect(&bob.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // The silo may close before all of it is written.
        let written = stream.write_all(&[byte; 4096]);
        let mut rest = Vec::new();
        let read = stream.read_to_end(&mut rest);
        let closed = read.is_ok() || read.is_err_and(|error| error.raw_os_error() == Some(104));
        assert!(closed, "the connection stays open; writing gave {written:?}");
    }
    assert_eq!(ann.outcome("call counter 10000").value, Some(2));
}
