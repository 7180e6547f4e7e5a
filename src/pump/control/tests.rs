//! Whole control nodes against each other, on virtual time: bytes in order, a store that answers.

mod models;

use core::time::Duration;
use std::collections::BTreeMap;
use std::net::IpAddr;

use siloring_core::limits::{
    DIAL_BACKOFF_MAX, FRAME_BYTES_MAX, HANDSHAKE_TIME_MAX, HANDSHAKES_PENDING_MAX,
    HANDSHAKES_PER_SOURCE_MAX, LOG_WINDOW,
};
use siloring_core::ports::store::Store as _;
use siloring_core::wire::{FrameKind, Header};
use siloring_core::{ClusterId, MethodId, SiloName, ViewNumber};
use siloring_runtime::control::ControlConfig;
use siloring_runtime::directory::Word;
use siloring_storage::MemoryStore;
use siloring_testkit::certificates::{Authority, Validity};
use siloring_transport::{Link, Pem, Role, WireVersions};

use super::*;

const SHARDS: [u16; 3] = [2, 3, 1];

/// One end of a connection: whose, and under which name.
type End = (usize, ConnId);

struct World {
    now: Moment,
    nodes: Vec<ControlNode>,
    store: MemoryStore,
    /// Every connection under both of its ends.
    pipes: BTreeMap<End, End>,
    started: Vec<bool>,
    /// Nobody answers there.
    dead: Vec<usize>,
    /// Dials of Unix sockets, none of which is there.
    unix_dials: usize,
    hand_offs: Vec<(usize, ShardIndex, Role)>,
    mail: Vec<(usize, ShardIndex, ShardMail)>,
    events: Vec<(usize, Event)>,
}

fn address(node: usize) -> String {
    format!("10.0.0.{node}:7000")
}

fn source(number: u8) -> IpAddr {
    IpAddr::from([10, 0, 1, number])
}

impl World {
    fn new(count: usize) -> Self {
        Self::on_hosts(count, |index| format!("host-{index}"))
    }

    fn on_hosts(count: usize, host: impl Fn(usize) -> String) -> Self {
        let cluster = ClusterId::new("nodes").unwrap();
        let nodes = (0..count).map(|index| {
            let host = host(index);
            let name = SiloName::new(format!("pod-{index}")).unwrap();
            let shards = SHARDS[index];
            let config = ControlConfig::new(name, address(index), &*host, shards, Vec::new());
            let machine = Control::new(config, fastrand::Rng::with_seed(index as u64));
            let facts = LocalFacts {
                cluster: cluster.clone(),
                incarnation: None,
                shards,
                host,
                deadline_default: Duration::from_secs(30),
                frame_bytes_max: 1024 * 1024,
                secrets: Vec::new(),
                types: Vec::new(),
                wire: WireVersions::OURS,
                features: 0,
            };
            let mut counter = u8::try_from(index).unwrap();
            let nonces = Box::new(move || {
                counter = counter.wrapping_add(7);
                [counter; 32]
            });
            ControlNode::new(machine, facts, address(index), LinkMode::Auto, nonces)
        });
        Self {
            now: Moment::ZERO + Duration::from_secs(100),
            nodes: nodes.collect(),
            store: MemoryStore::new(cluster.clone()),
            pipes: BTreeMap::new(),
            started: vec![false; count],
            dead: Vec::new(),
            unix_dials: 0,
            hand_offs: Vec::new(),
            mail: Vec::new(),
            events: Vec::new(),
        }
    }

    /// A world whose silos, all started at once, are Active.
    fn active(count: usize) -> Self {
        let mut world = Self::new(count);
        world.start();
        world
    }

    fn start(&mut self) {
        for node in &mut self.nodes {
            node.start(self.now);
        }
        self.run_until("all are active", |world| world.started.iter().all(|started| *started));
    }

    fn generation(&self, node: usize) -> Generation {
        self.nodes[node].incarnation().unwrap().generation
    }

    fn run_until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let end = self.now + Duration::from_mins(1);
        while !holds(self) {
            assert!(self.now < end, "{what}: not within a minute; {:#?}", self.nodes);
            self.settle();
            let next = self.nodes.iter().map(ControlNode::next_deadline).min().unwrap();
            self.now = next.max(self.now + Duration::from_millis(1));
            for node in &mut self.nodes {
                node.tick(self.now);
            }
        }
    }

    /// Moves everything until nothing moves.
    fn settle(&mut self) {
        while self.take_outputs() | self.move_bytes() {}
    }

    fn take_outputs(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.nodes.len() {
            while let Some(output) = self.nodes[index].poll_output() {
                any = true;
                self.take_output(index, output);
            }
        }
        any
    }

    fn take_output(&mut self, index: usize, output: ControlNodeOutput) {
        let now = self.now;
        match output {
            ControlNodeOutput::Dial { conn, route } => self.dial((index, conn), &route),
            ControlNodeOutput::Close(conn) => {
                self.push_bytes((index, conn));
                self.nodes[index].forget(conn);
                if let Some(peer) = self.pipes.remove(&(index, conn)) {
                    self.pipes.remove(&peer);
                    self.nodes[peer.0].closed(now, peer.1, "closed");
                    self.nodes[peer.0].forget(peer.1);
                }
            }
            ControlNodeOutput::HandOff { conn, shard, established, session } => {
                self.hand_offs.push((index, shard, established.role));
                let own = Link::new(&established).unsent().to_vec();
                let own = session.map_or(own.clone(), |mut session| session.finish(&own));
                if let Some(peer) = self.pipes.remove(&(index, conn)) {
                    self.nodes[peer.0].receive(now, peer.1, &own);
                }
            }
            ControlNodeOutput::Store(ticket, request) => {
                let result = self.store.execute(&request);
                self.nodes[index].stored(now, ticket, result);
            }
            ControlNodeOutput::Shard(shard, mail) => self.mail.push((index, shard, mail)),
            ControlNodeOutput::Started => self.started[index] = true,
            ControlNodeOutput::Event(event) => self.events.push((index, event)),
            ControlNodeOutput::ServeUntil(_) | ControlNodeOutput::Named(_) => {}
            ControlNodeOutput::JoinFailed { .. }
            | ControlNodeOutput::Stalled { .. }
            | ControlNodeOutput::Abort(_)
            | ControlNodeOutput::Left { .. }
            | ControlNodeOutput::Exit(_) => panic!("{output:?}"),
        }
    }

    fn dial(&mut self, from: End, route: &Route) {
        let Route::Tcp(to) = route else {
            self.unix_dials += 1;
            let node = &mut self.nodes[from.0];
            return node.dial_failed(self.now, from.1, DialFault::Refused, "nobody listens there");
        };
        let target = (0..self.nodes.len()).find(|node| address(*node) == *to).unwrap();
        if self.dead.contains(&target) {
            let node = &mut self.nodes[from.0];
            return node.dial_failed(self.now, from.1, DialFault::Refused, "refused");
        }
        let source = source(u8::try_from(from.0).unwrap());
        let conn = self.nodes[target].accepted(self.now, "tcp", Some(source));
        let node = &mut self.nodes[from.0];
        self.pipes.insert(from, (target, conn));
        self.pipes.insert((target, conn), from);
        node.connected(self.now, from.1);
    }

    fn move_bytes(&mut self) -> bool {
        let ends: Vec<End> = self.pipes.keys().copied().collect();
        ends.into_iter().fold(false, |any, end| self.push_bytes(end) | any)
    }

    /// Moves what one end has to send. Half of it at a time, to cut frames.
    fn push_bytes(&mut self, end: End) -> bool {
        let mut any = false;
        while let Some(&peer) = self.pipes.get(&end) {
            let unsent = self.nodes[end.0].unsent(end.1).to_vec();
            if unsent.is_empty() {
                break;
            }
            let part = &unsent[..unsent.len().div_ceil(2)];
            self.nodes[end.0].sent(end.1, part.len());
            self.nodes[peer.0].receive(self.now, peer.1, part);
            any = true;
        }
        any
    }

    fn lanes_of(&self, node: usize) -> Vec<(Generation, Generation)> {
        self.nodes[node].lanes.iter().map(|(peer, lane)| (*peer, lane.dialer)).collect()
    }

    fn count(&self, node: usize, name: &str) -> usize {
        self.events.iter().filter(|(at, event)| *at == node && event.name() == name).count()
    }
}

#[test]
fn of_the_lanes_that_both_dial_the_lower_generations_survives() {
    let mut world = World::active(2);
    let (one, two) = (world.generation(0), world.generation(1));
    // Both ask at the same time, on lanes that are gone.
    for (node, peer) in [(0, two), (1, one)] {
        if let Some(lane) = world.nodes[node].lanes.remove(&peer) {
            world.nodes[node].close(lane.conn);
        }
    }
    world.settle();
    let now = world.now;
    world.nodes[0].connect(now, two, address(1));
    world.nodes[1].connect(now, one, address(0));
    world.settle();
    assert_eq!(world.lanes_of(0), [(two, one.min(two))]);
    assert_eq!(world.lanes_of(1), [(one, one.min(two))]);
    assert_eq!(world.pipes.len(), 2, "one connection is left, with two ends");
    // A dial of the higher one's comes late.
    let higher = usize::from(two > one);
    let (lower_generation, lower) = if higher == 1 { (one, 0) } else { (two, 1) };
    let route = Route::Tcp(address(lower));
    world.nodes[higher].dial(now, Wanted::Lane(lower_generation), route);
    world.settle();
    assert_eq!(world.lanes_of(higher), [(lower_generation, lower_generation)]);
    assert_eq!(world.pipes.len(), 2, "the late one is closed");
}

#[test]
fn a_link_lands_on_the_shard_that_its_index_selects() {
    let mut world = World::active(2);
    let (peer, now) = (world.generation(0), world.now);
    let from = ShardIndex(2);
    world.nodes[1].mail(now, ControlMail::OpenLink { from, peer });
    world.nodes[1].mail(now, ControlMail::OpenLink { from, peer });
    world.settle();
    let mut hand_offs = world.hand_offs.clone();
    hand_offs.sort_unstable();
    assert_eq!(
        hand_offs,
        [(0, ShardIndex(0), Role::Acceptor), (1, ShardIndex(2), Role::Dialer)],
        "2 mod 2 shards; asked twice, dialled once"
    );
}

#[test]
fn a_link_that_cannot_be_had_is_told_to_its_shard_each_time() {
    let mut world = World::active(2);
    let peer = world.generation(1);
    world.dead.push(1);
    for _ in 0..2 {
        let now = world.now;
        world.nodes[0].mail(now, ControlMail::OpenLink { from: ShardIndex(1), peer });
        world.settle();
    }
    let unknown = Generation(9_999);
    let now = world.now;
    world.nodes[0].mail(now, ControlMail::OpenLink { from: ShardIndex(1), peer: unknown });
    world.settle();
    let failed = world.mail.iter().filter(|(node, shard, mail)| {
        (*node, *shard) == (0, ShardIndex(1)) && matches!(mail, ShardMail::LinkFailed { .. })
    });
    assert_eq!(failed.count(), 3);
    assert_eq!(world.count(0, "DialFailed"), 1, "the second came within the back-off");
}

#[test]
fn a_flood_of_silent_dialers_is_bounded_and_passes() {
    let mut world = World::active(1);
    let now = world.now;
    let first = world.nodes[0].accepted(now, "tcp", Some(source(200)));
    for _ in 1..1_000 {
        world.nodes[0].accepted(now, "tcp", Some(source(200)));
    }
    let told = Header::decode(world.nodes[0].unsent(first), FRAME_BYTES_MAX).unwrap().unwrap();
    let code = MethodId(RefusalKind::Busy.code().into());
    assert_eq!((told.header.kind, told.header.method), (FrameKind::Refuse, code), "it hears why");
    world.settle();
    assert_eq!(world.nodes[0].conns.len(), HANDSHAKES_PER_SOURCE_MAX);
    let evicted = 1_000 - HANDSHAKES_PER_SOURCE_MAX;
    assert_eq!(world.count(0, "HandshakeUnfinished"), evicted, "each is counted");
    assert_eq!(world.count(0, "HandshakesFailed"), 1, "and one line tells of them");
    world.nodes[0].tick(now + HANDSHAKE_TIME_MAX);
    world.settle();
    assert_eq!(world.nodes[0].conns.len(), 0, "the silent ones are forgotten");
    assert_eq!(world.count(0, "HandshakeUnfinished"), 1_000);
}

#[test]
fn a_silo_is_linked_with_at_once_while_a_flood_of_silent_dialers_goes_on() {
    let mut world = World::active(2);
    let (peer, now) = (world.generation(0), world.now);
    let flood = |world: &mut World| {
        for number in 0..HANDSHAKES_PENDING_MAX - 1 {
            let source = source(u8::try_from(100 + number).unwrap());
            world.nodes[0].accepted(now, "tcp", Some(source));
        }
    };
    flood(&mut world);
    flood(&mut world);
    let mail = ControlMail::OpenLink { from: ShardIndex(2), peer };
    world.nodes[1].mail(now, mail);
    world.take_outputs();
    // It is connected and has not spoken yet when others come.
    flood(&mut world);
    world.settle();
    assert_eq!(world.hand_offs.len(), 2, "both ends of the link are handed over");
    assert_eq!(world.count(1, "DialFailed"), 0);
}

#[test]
fn handshakes_refused_by_the_thousand_are_each_counted_and_logged_once() {
    let mut world = World::active(1);
    let now = world.now;
    let garbage = |world: &mut World, now: Moment, number: u8| {
        let conn = world.nodes[0].accepted(now, "tcp", Some(source(number)));
        world.nodes[0].receive(now, conn, &[0xff; 64]);
        world.settle();
    };
    for _ in 0..10_000 {
        garbage(&mut world, now, 200);
    }
    garbage(&mut world, now, 201);
    assert_eq!(world.count(0, "HandshakeRefused"), 10_001);
    assert_eq!(world.count(0, "HandshakesFailed"), 2, "one a peer and reason");
    garbage(&mut world, now + LOG_WINDOW, 200);
    let Some((_, Event::HandshakesFailed { suppressed_count, .. })) = world.events.last() else {
        panic!("{:?}", world.events.last());
    };
    assert_eq!(*suppressed_count, 9_999, "and the next line says how many had none");
}

#[test]
fn silos_of_one_host_whose_unix_sockets_cannot_be_reached_link_over_tcp() {
    let mut world = World::on_hosts(2, |_| "one host".to_owned());
    world.start();
    assert!(world.unix_dials > 0, "that is what they try first");
    let mut over = Vec::new();
    for (_, event) in &world.events {
        if let Event::LinkUp { over: kind, .. } = event {
            over.push(*kind);
        }
    }
    assert!(!over.is_empty() && over.iter().all(|over| *over == "tcp"), "{over:?}");
}

#[test]
fn garbage_on_a_lane_closes_that_lane_and_nothing_else() {
    let mut world = World::active(3);
    let peer = world.generation(1);
    let now = world.now;
    for other in [1, 2] {
        let (to, at) = (world.generation(other), address(other));
        world.nodes[0].connect(now, to, at);
    }
    world.settle();
    let lanes = world.nodes[0].lanes.clone();
    world.nodes[0].receive(now, lanes[&peer].conn, &[0xff; 200]);
    world.settle();
    assert_eq!(world.count(0, "FrameRefused"), 1);
    assert_eq!(world.count(0, "LinkDown"), 1);
    let told = world.events.iter().any(|(node, event)| {
        *node == 1
            && matches!(event, Event::LinkDown { reason, .. }
                if reason.starts_with("refused by the peer as ProtocolViolation"))
    });
    assert!(told, "the peer hears why: {:?}", world.events);
    assert_eq!(world.count(1, "FrameRefused"), 0, "which is no fault of ours");
    let third = world.generation(2);
    assert_eq!(world.nodes[0].lanes[&third].conn, lanes[&third].conn, "the other lane stands");
    world.run_until("the lane is dialled anew", |world| {
        world.nodes[0].lanes.len() == 2 && world.nodes[1].lanes.len() == 2
    });
}

#[test]
fn a_directory_message_waits_for_its_lane_and_reaches_its_shard() {
    let mut world = World::active(2);
    let to = Endpoint { silo: world.generation(1), shard: ShardIndex(2) };
    let now = world.now;
    if let Some(lane) = world.nodes[0].lanes.remove(&to.silo) {
        world.nodes[0].close(lane.conn);
    }
    let message = DirectoryMessage {
        view: ViewNumber(7),
        word: Word::Relay { origin: to, to, message: vec![1, 2, 3] },
    };
    let mail = ControlMail::Directory { from: ShardIndex(1), to, message: message.clone() };
    world.nodes[0].mail(now, mail);
    world.settle();
    let sender = Endpoint { silo: world.generation(0), shard: ShardIndex(1) };
    let arrived = world.mail.iter().any(|(node, shard, mail)| {
        (*node, *shard) == (1, ShardIndex(2))
            && matches!(mail, ShardMail::Directory { from, message: got }
                if *from == sender && *got == message)
    });
    assert!(arrived);
}

// ---- inside TLS

/// Certificates of that CA for the silo of that name.
fn certificates(authority: &Authority, name: &str) -> Certificates {
    let uri = format!("siloring://nodes/{name}");
    let issued = authority.issue(&[&uri], Validity::Now);
    let (ca, certificate) = (issued.ca.as_bytes(), issued.certificate.as_bytes());
    let pem = Pem { ca, certificate, key: issued.key.as_bytes() };
    Certificates::new(pem, &uri, || Duration::from_secs(1_780_000_000)).unwrap()
}

/// A world whose first silos have certificates of that CA.
fn sealed(count: usize, authority: &Authority) -> World {
    let mut world = World::new(2);
    for (index, node) in world.nodes.iter_mut().enumerate().take(count) {
        node.set_certificates(certificates(authority, &format!("pod-{index}")));
    }
    world
}

/// Lets a silo dial a data link to the other one; why it failed, if it did.
fn dial_link(world: &mut World, from: usize) -> Option<String> {
    let peer = world.generation(1 - from);
    let (now, known) = (world.now, world.mail.len());
    world.nodes[from].mail(now, ControlMail::OpenLink { from: ShardIndex(0), peer });
    world.settle();
    world.mail[known..].iter().find_map(|(_, _, mail)| {
        if let ShardMail::LinkFailed { reason, .. } = mail { Some(reason.clone()) } else { None }
    })
}

/// What the silos say of handshakes that were refused.
fn refusals(world: &World, node: usize) -> String {
    let of_node = world.events.iter().filter(|(at, _)| *at == node);
    let refused = of_node.filter(|(_, event)| event.name() == "HandshakeRefused");
    refused.map(|(_, event)| event.to_string()).collect()
}

#[test]
fn silos_with_certificates_join_and_link_and_renew_them_without_a_break() {
    let old = Authority::new("old");
    let mut world = sealed(2, &old);
    world.start();
    let lanes = world.lanes_of(0);
    assert_eq!((lanes.len(), dial_link(&mut world, 0)), (1, None));
    assert_eq!(world.hand_offs.len(), 2);
    let new = Authority::new("new");
    for index in 0..2 {
        let renewed = certificates(&new, &format!("pod-{index}"));
        world.nodes[index].set_certificates(renewed);
    }
    assert_eq!((world.lanes_of(0), dial_link(&mut world, 1)), (lanes, None), "new and old");
    assert_eq!(world.hand_offs.len(), 4);
}

#[test]
fn silos_of_which_one_has_certificates_tell_each_other() {
    for from in [0, 1] {
        let mut world = World::active(2);
        world.nodes[0].set_certificates(certificates(&Authority::new("ca"), "pod-0"));
        let failed = dial_link(&mut world, from).expect("it fails");
        assert!(failed.contains("BadCredential"), "{failed}");
        for node in [0, 1] {
            let told = refusals(&world, node);
            assert!(told.contains("set tls on both"), "{node}, dialled by {from}: {told}");
        }
        assert!(world.hand_offs.is_empty());
    }
}

#[test]
fn a_silo_with_the_certificate_of_another_is_refused_as_such_by_both() {
    for from in [0, 1] {
        let authority = Authority::new("ca");
        let mut world = sealed(2, &authority);
        world.start();
        world.nodes[1].set_certificates(certificates(&authority, "pod-9"));
        let failed = dial_link(&mut world, from).expect("it fails");
        assert!(failed.contains("IdentityMismatch"), "{failed}");
        for node in [0, 1] {
            let told = refusals(&world, node);
            assert!(told.contains("siloring://nodes/pod-9"), "{node}: {told}");
        }
        // The dialer's link may be up before it hears: it is closed with that reason.
        world.nodes[1].set_certificates(certificates(&authority, "pod-1"));
        world.now += DIAL_BACKOFF_MAX;
        assert_eq!(dial_link(&mut world, from), None, "as itself it is let in");
    }
}

#[test]
fn a_dialer_that_begins_tls_and_falls_silent_is_closed_in_time() {
    let authority = Authority::new("ca");
    let mut world = sealed(2, &authority);
    world.start();
    let now = world.now;
    for spoken_bytes in [0, 1, 100, usize::MAX] {
        let before = (world.nodes[0].conns.len(), world.count(0, "HandshakeUnfinished"));
        let conn = world.nodes[0].accepted(now, "tcp", Some(source(200)));
        let hello = certificates(&authority, "pod-5").dial().unsent().to_vec();
        world.nodes[0].receive(now, conn, &hello[..spoken_bytes.min(hello.len())]);
        world.settle();
        assert_eq!(world.nodes[0].conns.len(), before.0 + 1, "it is waited for");
        let until = world.nodes[0].conns[&conn].until;
        assert_eq!(until, now + HANDSHAKE_TIME_MAX);
        world.nodes[0].time_out(now, conn);
        world.settle();
        let after = (world.nodes[0].conns.len(), world.count(0, "HandshakeUnfinished"));
        assert_eq!(after, (before.0, before.1 + 1));
    }
}
