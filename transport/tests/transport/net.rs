//! Sockets against the real kernel: TCP on loopback and abstract Unix sockets.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use siloring_core::limits::{LINK_KEEP_ALIVE_AFTER, LINK_SILENCE_MAX};
use siloring_core::{ClusterId, Generation};
use siloring_transport::net::{
    Accept, Dialed, Listener, Over, Received, Socket, TurnedAway, UnixName, resolve,
};
use socket2::SockRef;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Waits until the descriptor is ready: long enough for any machine.
fn wait(fd: impl AsFd, flags: PollFlags) {
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(&fd, flags)], Some(&limit)).unwrap();
    assert_eq!(ready, 1, "nothing happened for ten seconds");
}

fn accept(listener: &mut Listener) -> (Socket, Option<SocketAddr>) {
    wait(&*listener, PollFlags::IN);
    match listener.accept().unwrap() {
        Accept::Connection { socket, from } => (socket, from),
        other @ (Accept::Nothing | Accept::TurnedAway(_)) => panic!("{other:?}"),
    }
}

fn unix_name(test: &str) -> UnixName {
    let cluster = ClusterId::new(format!("test.{test}.{}", std::process::id())).unwrap();
    UnixName::of(&cluster, Generation(1), "127.0.0.1:7000")
}

fn tcp_pair() -> (Socket, Socket) {
    let mut listener = Listener::tcp(LOOPBACK).unwrap();
    let address = listener.local_address().unwrap().unwrap();
    let dialer = Socket::dial_tcp(address).unwrap();
    let (acceptor, from) = accept(&mut listener);
    wait(&dialer, PollFlags::OUT);
    assert_eq!(dialer.dialed().unwrap(), Dialed::Connected);
    assert_eq!(from.unwrap().ip(), address.ip());
    (dialer, acceptor)
}

fn unix_pair(test: &str) -> (Socket, Socket) {
    let name = unix_name(test);
    let mut listener = Listener::unix(&name).unwrap();
    let dialer = Socket::dial_unix(&name).unwrap();
    assert_eq!(dialer.dialed().unwrap(), Dialed::Connected);
    let (acceptor, from) = accept(&mut listener);
    assert_eq!(from, None);
    (dialer, acceptor)
}

fn assert_round_trip((dialer, acceptor): (Socket, Socket)) {
    let mut buffer = [0; 64];
    assert_eq!(acceptor.receive(&mut buffer).unwrap(), Received::Nothing);
    assert_eq!(dialer.send(b"ping").unwrap(), 4);
    wait(&acceptor, PollFlags::IN);
    assert_eq!(acceptor.receive(&mut []).unwrap(), Received::Nothing, "no room is not the end");
    assert_eq!(acceptor.receive(&mut buffer).unwrap(), Received::Bytes(4));
    assert_eq!(&buffer[..4], b"ping");
    // Half-closed: what was under way arrives, then the end; the other direction goes on.
    assert_eq!(dialer.send(b"last").unwrap(), 4);
    dialer.finish_sending().unwrap();
    wait(&acceptor, PollFlags::IN);
    assert_eq!(acceptor.receive(&mut buffer).unwrap(), Received::Bytes(4));
    wait(&acceptor, PollFlags::IN);
    assert_eq!(acceptor.receive(&mut buffer).unwrap(), Received::Closed);
    assert_eq!(acceptor.send(b"pong").unwrap(), 4);
    wait(&dialer, PollFlags::IN);
    assert_eq!(dialer.receive(&mut buffer).unwrap(), Received::Bytes(4));
    drop(acceptor);
    wait(&dialer, PollFlags::IN);
    assert_eq!(dialer.receive(&mut buffer).unwrap(), Received::Closed);
}

#[test]
fn bytes_pass_over_tcp_both_ways_and_past_a_half_close() {
    let pair = tcp_pair();
    assert_eq!((pair.0.over(), pair.1.over().name()), (Over::Tcp, "tcp"));
    assert_round_trip(pair);
}

#[test]
fn bytes_pass_over_unix_both_ways_and_past_a_half_close() {
    let pair = unix_pair("round-trip");
    assert_eq!((pair.0.over(), pair.1.over().name()), (Over::Unix, "unix"));
    assert_round_trip(pair);
}

#[test]
fn a_socket_is_handed_to_another_thread() {
    let (dialer, acceptor) = tcp_pair();
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || dialer.send(b"x").unwrap());
        wait(&acceptor, PollFlags::IN);
        assert_eq!(sender.join().unwrap(), 1);
    });
}

#[test]
fn a_clogged_link_takes_what_fits_and_never_blocks() {
    for (dialer, acceptor) in [tcp_pair(), unix_pair("clogged")] {
        let bytes = vec![7; 1 << 20];
        let mut sent_bytes = 0;
        loop {
            match dialer.send(&bytes).unwrap() {
                0 => break,
                count => sent_bytes += count,
            }
            assert!(sent_bytes < 1 << 30, "the kernel has no bound");
        }
        let mut buffer = vec![0; 1 << 20];
        let mut received_bytes = 0;
        while received_bytes < sent_bytes {
            wait(&acceptor, PollFlags::IN);
            match acceptor.receive(&mut buffer).unwrap() {
                Received::Bytes(count) => received_bytes += count,
                Received::Nothing => {}
                Received::Closed => panic!("nobody closed"),
            }
        }
        assert_eq!(received_bytes, sent_bytes);
    }
}

#[test]
fn a_refused_dial_and_a_reset_are_errors() {
    let free = Listener::tcp(LOOPBACK).unwrap().local_address().unwrap().unwrap();
    let refused = Socket::dial_tcp(free).and_then(|dialer| {
        wait(&dialer, PollFlags::OUT);
        dialer.dialed()
    });
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    let nobody = Socket::dial_unix(&unix_name("nobody"));
    assert_eq!(nobody.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    let (dialer, acceptor) = tcp_pair();
    SockRef::from(&acceptor).set_linger(Some(Duration::ZERO)).unwrap();
    drop(acceptor);
    wait(&dialer, PollFlags::IN);
    let reset = dialer.receive(&mut [0; 8]).unwrap_err();
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(dialer.send(b"x").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
}

#[test]
fn both_ends_of_a_tcp_link_break_when_the_other_falls_silent() {
    let (dialer, acceptor) = tcp_pair();
    for socket in [dialer, acceptor] {
        let fd = OwnedFd::from(socket);
        let options = SockRef::from(&fd);
        assert!(options.tcp_nodelay().unwrap());
        assert_eq!(options.tcp_user_timeout().unwrap(), Some(LINK_SILENCE_MAX));
        assert!(options.keepalive().unwrap());
        assert_eq!(options.tcp_keepalive_time().unwrap(), LINK_KEEP_ALIVE_AFTER);
        assert!(options.nonblocking().unwrap());
    }
}

#[test]
fn a_name_or_port_in_use_is_refused() {
    let name = unix_name("in-use");
    let _held = Listener::unix(&name).unwrap();
    assert_eq!(Listener::unix(&name).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    let held = Listener::tcp(LOOPBACK).unwrap();
    let address = held.local_address().unwrap().unwrap();
    assert_eq!(Listener::tcp(address).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn a_literal_address_resolves_and_nonsense_does_not() {
    let address: SocketAddr = "127.0.0.1:7000".parse().unwrap();
    assert_eq!(resolve("127.0.0.1:7000").unwrap(), [address]);
    assert!(resolve("127.0.0.1").is_err());
}

/// Environment variable by which a test calls its own binary as another process.
const CHILD: &str = "SILORING_TRANSPORT_TEST_CHILD";

fn run_child(test: &str, uid: Option<u32>, argument: &str) -> bool {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, argument);
    if let Some(uid) = uid {
        command.uid(uid);
    }
    command.status().unwrap().success()
}

/// Method: the test's own binary, as another user, dials and listens; a root silo trusts neither.
/// Needs root to become another user; without it nobody else can be tried.
#[test]
fn another_user_is_turned_away_on_either_end_of_a_unix_link() {
    const TEST: &str = "net::another_user_is_turned_away_on_either_end_of_a_unix_link";
    const NOBODY: u32 = 65_534;
    let name = |side: &str, pid: u32| {
        let cluster = ClusterId::new(format!("test.{side}.{pid}")).unwrap();
        UnixName::of(&cluster, Generation(1), "-")
    };
    if let Ok(argument) = std::env::var(CHILD) {
        let (side, pid) = argument.split_once(' ').unwrap();
        let name = name(side, pid.parse().unwrap());
        if side == "dials" {
            // A root listener is trusted by everybody; it is the listener who refuses.
            let dialer = Socket::dial_unix(&name).unwrap();
            wait(&dialer, PollFlags::IN);
            assert_eq!(dialer.receive(&mut [0; 8]).unwrap(), Received::Closed);
        } else {
            let mut listener = Listener::unix(&name).unwrap();
            // The parent dials as root and turns away: what is accepted is closed unread.
            let (socket, _) = accept(&mut listener);
            wait(&socket, PollFlags::IN);
            assert_eq!(socket.receive(&mut [0; 8]).unwrap(), Received::Closed);
        }
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let pid = std::process::id();
    std::thread::scope(|scope| {
        let mut listener = Listener::unix(&name("dials", pid)).unwrap();
        let child = scope.spawn(move || run_child(TEST, Some(NOBODY), &format!("dials {pid}")));
        wait(&listener, PollFlags::IN);
        let Accept::TurnedAway(why) = listener.accept().unwrap() else {
            panic!("another user was let in");
        };
        assert_eq!(why, TurnedAway::ForeignUser { uid: NOBODY });
        assert!(child.join().unwrap());
    });
    std::thread::scope(|scope| {
        let child = scope.spawn(move || run_child(TEST, Some(NOBODY), &format!("listens {pid}")));
        let refused = loop {
            match Socket::dial_unix(&name("listens", pid)) {
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                    assert!(!child.is_finished(), "the child never listened");
                    std::thread::yield_now();
                }
                other => break other,
            }
        };
        assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
        assert!(child.join().unwrap());
    });
}

/// Method: the test's own binary lowers its limit of descriptors, so that no other test feels it.
#[test]
fn a_listener_without_descriptors_closes_who_waits_and_goes_on() {
    const TEST: &str = "net::a_listener_without_descriptors_closes_who_waits_and_goes_on";
    if std::env::var(CHILD).is_err() {
        assert!(run_child(TEST, None, "-"));
        return;
    }
    let mut listener = Listener::tcp(LOOPBACK).unwrap();
    let address = listener.local_address().unwrap().unwrap();
    let first = Socket::dial_tcp(address).unwrap();
    let second = Socket::dial_tcp(address).unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
    let mut hoard = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        hoard.push(file);
        assert!(hoard.len() <= 64, "the limit holds");
    }
    wait(&listener, PollFlags::IN);
    let turned = listener.accept().unwrap();
    assert!(matches!(turned, Accept::TurnedAway(TurnedAway::OutOfDescriptors)), "{turned:?}");
    wait(&first, PollFlags::IN);
    assert!(!matches!(first.receive(&mut [0; 8]), Ok(Received::Nothing)), "closed, not left");
    drop(hoard);
    let (served, _) = accept(&mut listener);
    assert_eq!(served.send(b"x").unwrap(), 1);
    wait(&second, PollFlags::IN);
    assert_eq!(second.receive(&mut [0; 8]).unwrap(), Received::Bytes(1));
}
