//! A shard node and the other ends of its links, byte by byte.

use core::time::Duration;

use siloring_core::address::Address;
use siloring_core::ids::{CorrelationId, Endpoint, Incarnation, SiloName};
use siloring_core::limits::{FRAME_BYTES_MAX, HEARD_PERIOD, OVERLOAD_INTERVAL, TURNS_PER_LOOK_MAX};
use siloring_core::outcome::RejectedKind;
use siloring_core::view::{SiloRow, SiloStatus, View};
use siloring_core::wire::{Header, VERSION};
use siloring_runtime::handle::{Post, PostError};
use siloring_testkit::certificates::{Authority, Validity};
use siloring_transport::{Certificates, LinkError, Pem, Purpose};

use super::*;

const PEER: Generation = Generation(2);
const CONN: ConnId = ConnId(1);

#[derive(Debug)]
struct Nowhere;

impl Post for Nowhere {
    fn post(&self, _shard: ShardIndex, mail: ShardMail) -> Result<(), PostError> {
        Err(PostError::Stopped(mail))
    }

    fn shards(&self) -> u16 {
        1
    }
}

impl Unpark for Nowhere {
    fn unpark(&self) {}
}

fn incarnation(generation: u64) -> Incarnation {
    let name = SiloName::new(format!("pod-{generation}")).unwrap();
    Incarnation { name, generation: Generation(generation) }
}

fn view(number: u64, peer: SiloStatus) -> Arc<View> {
    let row = |generation, status| SiloRow {
        incarnation: incarnation(generation),
        status,
        advertised: format!("10.0.0.{generation}:7000"),
        host: "host".into(),
        shards: 1,
        votes: Vec::new(),
        changed_in: ViewNumber(number),
    };
    Arc::new(View::new(ViewNumber(number), vec![row(1, SiloStatus::Active), row(2, peer)]))
}

fn established(role: Role) -> Established {
    Established {
        peer: Some(incarnation(PEER.0)),
        peer_shards: 1,
        peer_host: "host".into(),
        peer_types: Vec::new(),
        peer_deadline_default: Duration::from_secs(30),
        peer_frame_bytes_max: u32::try_from(FRAME_BYTES_MAX).unwrap(),
        frame_bytes_max: u32::try_from(FRAME_BYTES_MAX).unwrap(),
        version: VERSION,
        features: 0,
        purpose: Purpose::Shard { from: ShardIndex(0), to: ShardIndex(0) },
        role,
        unsent: Vec::new(),
        leftover: Vec::new(),
    }
}

struct World {
    now: Moment,
    node: ShardNode,
    /// The peer's end of the link.
    peer: Link,
    /// And of its TLS, if it has any.
    session: Option<Session>,
}

/// Two sessions that are up: of the side that dialled, and of the other.
fn sessions() -> [Session; 2] {
    let authority = Authority::new("ca");
    let [dialer, acceptor] = ["dialer", "acceptor"].map(|name| {
        let uri = format!("siloring://pair/{name}");
        let issued = authority.issue(&[&uri], Validity::Now);
        let (ca, certificate) = (issued.ca.as_bytes(), issued.certificate.as_bytes());
        let pem = Pem { ca, certificate, key: issued.key.as_bytes() };
        Certificates::new(pem, &uri, || Duration::from_secs(1_780_000_000)).unwrap()
    });
    let mut sessions = [dialer.dial(), acceptor.accept()];
    for from in [0, 1].repeat(4) {
        let bytes = sessions[from].unsent().to_vec();
        sessions[from].sent(bytes.len());
        sessions[1 - from].feed(&bytes);
        assert_eq!(sessions[1 - from].open(&mut [0]), Ok(0));
    }
    sessions
}

impl World {
    /// A shard with one link, which it dialled or accepted.
    fn linked(role: Role) -> Self {
        Self::linked_over(role, None)
    }

    /// The same, inside TLS.
    fn sealed(role: Role) -> Self {
        Self::linked_over(role, Some(sessions()))
    }

    fn linked_over(role: Role, sessions: Option<[Session; 2]>) -> Self {
        let [own, session] = sessions.map_or([None, None], |sessions| sessions.map(Some));
        let me = Endpoint { silo: Generation(1), shard: ShardIndex(0) };
        let now = Moment::ZERO + Duration::from_secs(100);
        let handle = Handle::new(Arc::new(Nowhere));
        let config = ShardConfig::new(me, 1, 7);
        let mut node = ShardNode::new(now, config, Arc::new(Nowhere), handle);
        node.set_lease(Moment::NEVER);
        node.mail(now, ShardMail::View(view(3, SiloStatus::Active)));
        node.attach(now, CONN, &established(role), own.map(Box::new));
        let other = match role {
            Role::Dialer => Role::Acceptor,
            Role::Acceptor => Role::Dialer,
        };
        let mut world = Self { now, node, peer: Link::new(&established(other)), session };
        world.outputs();
        world
    }

    fn outputs(&mut self) -> Vec<NodeOutput> {
        core::iter::from_fn(|| self.node.poll_output()).collect()
    }

    /// The kernel takes what the link has to send.
    fn flush(&mut self) {
        let unsent = self.node.unsent(CONN).to_vec();
        self.node.sent(CONN, unsent.len());
        self.hand_to_peer(&unsent);
    }

    fn hand_to_peer(&mut self, bytes: &[u8]) {
        let mut opened = bytes.to_vec();
        if let Some(session) = &mut self.session {
            session.feed(bytes);
            let count = session.open(&mut opened).unwrap();
            opened.truncate(count);
        }
        let bytes = &opened;
        self.peer.receive_space()[..bytes.len()].copy_from_slice(bytes);
        self.peer.received(bytes.len());
    }

    fn receive(&mut self, bytes: &[u8]) {
        match &mut self.session {
            None => self.receive_raw(bytes),
            Some(session) => {
                let sealed = session.finish(bytes);
                self.receive_raw(&sealed);
            }
        }
    }

    fn receive_raw(&mut self, bytes: &[u8]) {
        let space = self.node.receive_space(self.now, CONN).expect("it may be read");
        space[..bytes.len()].copy_from_slice(bytes);
        self.node.received(self.now, CONN, bytes.len());
        while self.node.take_frames(self.now, CONN) == Unread::Some {}
    }

    /// Takes the last bytes of the one close among the outputs to the peer; what the peer reads.
    fn close(&mut self) -> Option<LinkError> {
        let mut closes = Vec::new();
        for output in self.outputs() {
            if let NodeOutput::Close { conn, last } = output {
                closes.push((conn, last));
            }
        }
        let [(CONN, last)] = &closes[..] else { panic!("{closes:?}") };
        self.hand_to_peer(last);
        self.peer.next_frame().map(|frame| assert!(frame.is_none(), "{frame:?}")).err()
    }
}

fn refused_as(error: Option<LinkError>) -> Option<RefusalKind> {
    let error = error?;
    let LinkError::Refused(refusal) = error else { panic!("{error}") };
    Some(refusal.kind)
}

#[test]
fn a_peer_whose_bytes_are_no_frame_is_told_why_its_link_closes() {
    for role in [Role::Acceptor, Role::Dialer] {
        for mut world in [World::linked(role), World::sealed(role)] {
            world.flush();
            world.receive(&[0xff; 128]);
            assert_eq!(refused_as(world.close()), Some(RefusalKind::ProtocolViolation), "{role:?}");
            assert_eq!(world.node.conn_count(), 0);
        }
    }
}

#[test]
fn a_peer_that_is_gone_in_the_view_is_told_so() {
    let mut world = World::linked(Role::Acceptor);
    world.flush();
    world.node.mail(world.now, ShardMail::View(view(4, SiloStatus::Dead)));
    assert_eq!(refused_as(world.close()), Some(RefusalKind::IncarnationDead));
}

/// They count as never sent and may be sent elsewhere: the peer must not get them after all.
#[test]
fn nothing_is_told_behind_what_a_dialled_link_has_not_sent() {
    for mut world in [World::linked(Role::Dialer), World::sealed(Role::Dialer)] {
        assert!(!world.node.unsent(CONN).is_empty(), "the view");
        world.receive(&[0xff; 128]);
        assert_eq!(world.close(), None);
    }
}

#[test]
fn a_sealed_link_reads_what_was_sealed_and_closes_for_anything_else() {
    let mut world = World::sealed(Role::Acceptor);
    world.flush();
    assert_eq!(world.peer.next_frame().map(|frame| frame.is_none()), Ok(true));
    assert_eq!(world.peer.peer_view(), ViewNumber(3));
    world.peer.push_view(ViewNumber(9));
    let view = world.peer.unsent().to_vec();
    world.receive(&view);
    let wanted = |output: &NodeOutput| {
        matches!(output, NodeOutput::Control(ControlMail::ViewWanted(ViewNumber(9))))
    };
    assert!(world.outputs().iter().any(wanted), "the frame was read");
    // The same frame again, outside TLS.
    world.receive_raw(&view);
    let outputs = world.outputs();
    let is_it = |event: &Event| event.name() == "FrameRefused";
    let is_refused = |output: &NodeOutput| matches!(output, NodeOutput::Event(e) if is_it(e));
    assert!(outputs.iter().any(is_refused), "{outputs:?}");
    assert_eq!(world.node.conn_count(), 0);
}

/// Records that the kernel has not begun to take are not handed over, although they are sealed.
#[test]
fn what_is_sealed_waits_until_the_kernel_takes_it() {
    let mut world = World::sealed(Role::Acceptor);
    let waiting = world.node.backlog_bytes(CONN);
    let sealed = world.node.unsent(CONN).len();
    assert!(sealed > waiting, "a record is longer than what is in it");
    assert_eq!(world.node.backlog_bytes(CONN), sealed, "nothing is counted twice");
    let written =
        |world: &World| world.node.shard.links.conns.get(CONN).unwrap().outbound.written();
    assert_eq!(written(&world), 0);
    world.node.sent(CONN, 1);
    assert_eq!(written(&world), waiting as u64, "all that is in the record");
    world.node.sent(CONN, sealed - 1);
    assert_eq!((written(&world), world.node.backlog_bytes(CONN)), (waiting as u64, 0));
}

#[test]
fn what_an_accepted_link_has_not_sent_goes_before_the_reason() {
    for mut world in [World::linked(Role::Acceptor), World::sealed(Role::Acceptor)] {
        assert!(!world.node.unsent(CONN).is_empty(), "the view");
        world.receive(&[0xff; 128]);
        assert_eq!(refused_as(world.close()), Some(RefusalKind::ProtocolViolation));
        assert_eq!(world.peer.peer_view(), ViewNumber(3));
    }
}

#[test]
fn a_link_closed_by_its_peer_is_no_fault_of_the_peers_bytes() {
    let mut world = World::linked(Role::Acceptor);
    world.receive(&Refusal::ours(RefusalKind::Leaving, "bye").to_frame());
    let outputs = world.outputs();
    let count = |name: &str| {
        let is_it = |event: &Event| event.name() == name;
        let events = outputs.iter();
        events.filter(|output| matches!(output, NodeOutput::Event(event) if is_it(event))).count()
    };
    assert_eq!((count("LinkDown"), count("FrameRefused")), (1, 0), "{outputs:?}");
}

#[test]
fn bytes_on_a_link_are_told_to_the_detector_now_and_then() {
    let mut world = World::linked(Role::Acceptor);
    world.peer.push_view(ViewNumber(3));
    let byte = world.peer.unsent()[..1].to_vec();
    let mut told = 0;
    for _ in 0..10 {
        world.receive(&byte[..1]);
        world.now += HEARD_PERIOD / 5;
        let heard =
            |output: &NodeOutput| matches!(output, NodeOutput::Control(ControlMail::Heard(PEER)));
        told += world.outputs().iter().filter(|output| heard(output)).count();
    }
    assert_eq!(told, 2, "ten reads in two periods");
}

#[test]
fn a_link_that_comes_up_to_a_silo_that_leaves_is_parted_with() {
    let mut world = World::linked(Role::Acceptor);
    world.node.mail(world.now, ShardMail::View(view(4, SiloStatus::Draining)));
    world.now += Duration::from_millis(20);
    world.node.tick(world.now);
    let late = ConnId(2);
    world.node.attach(world.now, late, &established(Role::Dialer), None);
    world.outputs();
    let mut closed = false;
    for _ in 0..500 {
        world.now += Duration::from_millis(10);
        world.node.tick(world.now);
        let is_close =
            |output: &NodeOutput| matches!(output, NodeOutput::Close { conn, .. } if *conn == late);
        closed |= world.outputs().iter().any(is_close);
    }
    assert!(closed, "five seconds later the idle link to the leaver is still open");
}

/// Requests for a hub that is not here: of those that are taken in, the caller hears so.
fn requests(world: &mut World, count: u64) -> Vec<u8> {
    let target = Address::parse("portal/nobody").unwrap();
    for correlation in 0..count {
        let header = Header {
            correlation: CorrelationId(correlation),
            target: target.hash(),
            ..Header::new(FrameKind::Request)
        };
        let pushed = world.peer.push(&header, None, Some(&target), &[], &[], Class::Request);
        assert!(pushed.is_ok(), "{pushed:?}");
    }
    let bytes = world.peer.unsent().to_vec();
    world.peer.sent(bytes.len());
    bytes
}

impl World {
    /// The codes of the failures that the peer has heard since.
    fn heard(&mut self) -> Vec<u16> {
        self.flush();
        let mut codes = Vec::new();
        while let Some(frame) = self.peer.next_frame().unwrap() {
            assert_eq!(frame.header.kind, FrameKind::Failure);
            codes.push(u16::try_from(frame.header.method.0).unwrap());
        }
        codes
    }
}

/// Method: what comes has waited for half of the interval after which refusing begins.
#[test]
fn a_request_that_has_waited_too_long_is_refused_on_the_link_that_brought_it() {
    let [not_here, overloaded] =
        [RejectedKind::NotHere, RejectedKind::Overloaded].map(RejectedKind::code);
    for mut world in [World::linked(Role::Acceptor), World::sealed(Role::Acceptor)] {
        world.flush();
        for round in 0..3 {
            world.node.set_came_after(world.now);
            world.now += OVERLOAD_INTERVAL / 2;
            let bytes = requests(&mut world, 10);
            world.receive(&bytes);
            let expected = if round < 2 { not_here } else { overloaded };
            assert_eq!(world.heard(), [expected; 10], "round {round}");
        }
        assert_eq!(world.node.refused_count(), 10);
        world.node.set_came_after(world.now);
        let bytes = requests(&mut world, 10);
        world.receive(&bytes);
        assert_eq!(world.heard(), [not_here; 10], "these have not waited");
    }
}

#[test]
fn frames_are_taken_in_parts_so_that_the_time_can_be_read_in_between() {
    for mut world in [World::linked(Role::Acceptor), World::sealed(Role::Acceptor)] {
        world.flush();
        let bytes = requests(&mut world, 2 * TURNS_PER_LOOK_MAX as u64);
        let sealed = world.session.as_mut().map(|session| session.finish(&bytes));
        let bytes = sealed.unwrap_or(bytes);
        let space = world.node.receive_space(world.now, CONN).expect("it may be read");
        space[..bytes.len()].copy_from_slice(&bytes);
        world.node.received(world.now, CONN, bytes.len());
        assert_eq!(world.heard().len(), 0, "nothing is taken before it is asked for");
        let (mut heard, mut parts) = (0, 1);
        while world.node.take_frames(world.now, CONN) == Unread::Some {
            parts += 1;
            let part = world.heard().len();
            assert!(part <= TURNS_PER_LOOK_MAX, "{part} at once");
            heard += part;
        }
        heard += world.heard().len();
        assert_eq!(heard, 2 * TURNS_PER_LOOK_MAX);
        assert!(parts >= 2, "{parts} parts");
    }
}
