//! A network in the middle: a proxy for TCP that delays, slices, stalls and cuts.
//!
//! It listens where a silo advertises itself and connects to where the silo is bound. It moves
//! bytes and knows nothing of what they mean, so that a cut is anywhere in a frame. Bounds: two
//! threads for each of at most [`CONNECTIONS_MAX`] connections, [`CHUNK_BYTES`] each; more are
//! refused. Dropping it ends all of them.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Connections at a time: each pair of silos has a few.
pub const CONNECTIONS_MAX: usize = 64;
/// Read at once.
const CHUNK_BYTES: usize = 16 * 1024;
/// How long a thread of the proxy does not look at what is asked of it.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// What the proxy does to bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Moves them.
    #[default]
    Pass,
    /// Moves each by itself.
    Slice,
    /// Moves them later.
    Delay(Duration),
    /// Takes connections and moves nothing: the other end seems to be there.
    Stall,
}

/// How a connection is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// With a reset.
    Reset,
    /// With an end, as if the peer had nothing more to say.
    End,
}

/// What it did, in connections and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// Connections taken.
    pub connections: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Writes they were moved in.
    pub writes: u64,
    /// Connections cut.
    pub cuts: u64,
}

/// A proxy that runs.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Guards what is done to bytes from now on.
    mode: Mutex<Mode>,
    /// Counts up: each connection that sees a new number is cut within its next bytes.
    cut: AtomicU64,
    /// Whether that is with an end.
    ends: AtomicBool,
    is_over: AtomicBool,
    connections: AtomicU64,
    bytes: AtomicU64,
    writes: AtomicU64,
    cuts: AtomicU64,
}

impl Shared {
    fn mode(&self) -> Mode {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

impl Proxy {
    /// Listens on a free port of the loopback interface; connects to `target` for each connection.
    pub fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("proxy".to_owned());
        let thread = thread.spawn(move || listen(&listener, target, &of_thread))?;
        Ok(Self { address, shared, listener: Some(thread) })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Does this to bytes from now on.
    pub fn set(&self, mode: Mode) {
        *self.shared.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
    }

    /// Cuts each connection after half of the next bytes that it moves.
    pub fn cut(&self, how: Cut) {
        self.shared.ends.store(how == Cut::End, Ordering::Relaxed);
        self.shared.cut.fetch_add(1, Ordering::Relaxed);
    }

    /// What it did so far.
    pub fn moved(&self) -> Moved {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Moved {
            connections: count(&self.shared.connections),
            bytes: count(&self.shared.bytes),
            writes: count(&self.shared.writes),
            cuts: count(&self.shared.cuts),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let ended = self.listener.take().map(JoinHandle::join);
        debug_assert!(!matches!(ended, Some(Err(_))), "a proxy's threads do not panic");
    }
}

fn listen(listener: &TcpListener, target: SocketAddr, shared: &Arc<Shared>) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    while !shared.is_over() {
        let Ok((client, _)) = listener.accept() else {
            std::thread::sleep(LOOK_PERIOD / 10);
            continue;
        };
        threads.retain(|thread| !thread.is_finished());
        let has_room = threads.len() < 2 * CONNECTIONS_MAX;
        // Without a server, or room, the client's connection is closed as it is dropped.
        if let Some(Ok(server)) = has_room.then(|| TcpStream::connect(target)) {
            shared.connections.fetch_add(1, Ordering::Relaxed);
            threads.extend(both_ways(&client, &server, shared).into_iter().flatten());
        }
    }
    for thread in threads {
        thread.join().expect("a proxy's threads do not panic");
    }
}

/// The threads that move the bytes of a connection.
fn both_ways(
    client: &TcpStream,
    server: &TcpStream,
    shared: &Arc<Shared>,
) -> io::Result<[JoinHandle<()>; 2]> {
    for end in [client, server] {
        // An accepted socket is as its listener was on some systems.
        end.set_nonblocking(false)?;
        end.set_nodelay(true)?;
        end.set_read_timeout(Some(LOOK_PERIOD))?;
        end.set_write_timeout(Some(Duration::from_secs(10)))?;
    }
    let way = |from: &TcpStream, to: &TcpStream| {
        let (from, to, shared) = (from.try_clone()?, to.try_clone()?, Arc::clone(shared));
        let thread = std::thread::Builder::new().name("proxy way".to_owned());
        thread.spawn(move || move_bytes(&from, &to, &shared))
    };
    Ok([way(client, server)?, way(server, client)?])
}

fn move_bytes(mut from: &TcpStream, to: &TcpStream, shared: &Shared) {
    let seen = shared.cut.load(Ordering::Relaxed);
    let mut chunk = [0; CHUNK_BYTES];
    while !shared.is_over() {
        if shared.mode() == Mode::Stall {
            std::thread::sleep(LOOK_PERIOD);
            continue;
        }
        let count = match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if is_silence(&error) => continue,
            Err(_) => break,
        };
        let is_cut = shared.cut.load(Ordering::Relaxed) != seen;
        let bytes = if is_cut { &chunk[..count / 2] } else { &chunk[..count] };
        if write(to, bytes, shared).is_err() {
            break;
        }
        if is_cut {
            shared.cuts.fetch_add(1, Ordering::Relaxed);
            if shared.ends.load(Ordering::Relaxed) {
                break;
            }
            return reset(&[from, to]);
        }
    }
    // One end has closed: what it sent before was moved, and the other hears of it.
    drop(to.shutdown(Shutdown::Write));
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn write(mut to: &TcpStream, bytes: &[u8], shared: &Shared) -> io::Result<()> {
    shared.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    match shared.mode() {
        Mode::Slice => {
            shared.writes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            return bytes.iter().try_for_each(|byte| to.write_all(&[*byte]));
        }
        Mode::Delay(span) => std::thread::sleep(span),
        Mode::Pass | Mode::Stall => {}
    }
    shared.writes.fetch_add(1, Ordering::Relaxed);
    to.write_all(bytes)
}

/// Closes connections with a reset instead of an end.
fn reset(ends: &[&TcpStream]) {
    for end in ends {
        let lingers = rustix::net::sockopt::set_socket_linger(end, Some(Duration::ZERO));
        debug_assert!(lingers.is_ok(), "a socket takes the option: {lingers:?}");
        drop(end.shutdown(Shutdown::Both));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back what it hears, and its proxy.
    fn echo() -> (Proxy, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut chunk = [0; 64];
            while let Ok(count @ 1..) = stream.read(&mut chunk) {
                if stream.write_all(&chunk[..count]).is_err() {
                    return;
                }
            }
        });
        (Proxy::start(target).unwrap(), thread)
    }

    #[test]
    fn bytes_pass_sliced_or_not_and_stall() {
        let (proxy, server) = echo();
        let mut client = TcpStream::connect(proxy.address()).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        for mode in [Mode::Pass, Mode::Slice, Mode::Delay(Duration::from_millis(1))] {
            proxy.set(mode);
            client.write_all(b"hello").unwrap();
            let mut answer = [0; 5];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"hello");
        }
        let moved = proxy.moved();
        assert_eq!((moved.connections, moved.bytes, moved.cuts), (1, 30, 0));
        assert!(moved.writes >= 14, "ten of them by themselves: {moved:?}");
        proxy.set(Mode::Stall);
        std::thread::sleep(2 * LOOK_PERIOD);
        client.write_all(b"hello").unwrap();
        assert!(client.read(&mut [0; 5]).is_err(), "nothing comes");
        proxy.set(Mode::Pass);
        client.read_exact(&mut [0; 5]).unwrap();
        drop(client);
        server.join().unwrap();
    }

    #[test]
    fn a_cut_lets_half_of_the_bytes_through_and_resets() {
        let (proxy, server) = echo();
        let mut client = TcpStream::connect(proxy.address()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.write_all(b"hello").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
        proxy.cut(Cut::Reset);
        client.write_all(b"hello").unwrap();
        let mut rest = Vec::new();
        drop(client.read_to_end(&mut rest));
        assert!(rest.len() < 5, "{rest:?}");
        server.join().unwrap();
        assert!(proxy.moved().cuts >= 1);
    }
}
