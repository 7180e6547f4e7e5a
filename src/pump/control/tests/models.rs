//! The control lane of two silos, dialled by either or both, every order of steps.
//!
//! **State.** Two whole control nodes, Active, without a lane, as the product runs them; the
//! connections between them, each with what is on it. **Steps.** A node wants a lane; a shard of it
//! has something to say; a dial connects; what one end has written arrives, up to its end if it was
//! closed; a connection is reset, with all that is on it. **Bounds.** [`Plan`]. **Abstracted
//! away.** Time stands still (no dial and no handshake takes too long, nobody probes); bytes arrive
//! in the portions in which they were written.

use std::fmt::{self, Write};

use siloring_core::AddressHash;
use siloring_explore::{Mark, Rule, explore, is_long, refute};
use siloring_runtime::directory::{Ask, Word};

use super::super::lanes::LaneDefect;
use super::*;

const ONE_LANE: &str = "when nothing more can happen both have one lane, and it is the same";
const IN_ORDER: &str = "what one says arrives once, in order";
const NOTHING_LOST: &str = "what one says on the pair's only connection arrives";

/// How much may happen.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Which want a lane.
    want: [bool; 2],
    /// Messages of each.
    words: [u64; 2],
    resets: u8,
    defect: Option<LaneDefect>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Want(usize),
    Say(usize),
    Connect(End),
    Arrive(End),
    Reset(End),
}

struct Lanes {
    plan: Plan,
    world: World,
    wanted: [bool; 2],
    said: [u64; 2],
    heard: [Vec<u64>; 2],
    dropped: [usize; 2],
    dials: Vec<(End, usize)>,
    /// The last words of ends that their nodes have closed.
    last: BTreeMap<End, Vec<u8>>,
    resets: u8,
    /// Connections made: as many as come and go while the last word of the lane that survives is on
    /// its way.
    connects: usize,
    superseded: bool,
    is_over: bool,
}

impl Lanes {
    fn take_outputs(&mut self) {
        for node in 0..2 {
            while let Some(output) = self.world.nodes[node].poll_output() {
                self.take_output(node, output);
            }
        }
    }

    fn take_output(&mut self, node: usize, output: ControlNodeOutput) {
        match output {
            ControlNodeOutput::Dial { conn, route: Route::Tcp(_) } => {
                self.dials.push(((node, conn), 1 - node));
            }
            ControlNodeOutput::Close(conn) => {
                let end = (node, conn);
                let unsent = self.world.nodes[node].unsent(conn).to_vec();
                self.world.nodes[node].forget(conn);
                if self.world.pipes.contains_key(&end) {
                    self.last.insert(end, unsent);
                } else {
                    self.dials.retain(|(dial, _)| *dial != end);
                }
            }
            ControlNodeOutput::Shard(_, ShardMail::Directory { message, .. }) => {
                let Word::Ask(Ask::Lookup { hash }) = message.word else { panic!("{message:?}") };
                self.heard[node].push(u64::try_from(hash.0).unwrap());
            }
            ControlNodeOutput::Event(event) => {
                self.dropped[node] += usize::from(event.name() == "DirectoryMessageDropped");
            }
            ControlNodeOutput::Shard(..)
            | ControlNodeOutput::ServeUntil(_)
            | ControlNodeOutput::Store(..) => {}
            ControlNodeOutput::Dial { .. }
            | ControlNodeOutput::HandOff { .. }
            | ControlNodeOutput::Named(_)
            | ControlNodeOutput::Started
            | ControlNodeOutput::JoinFailed { .. }
            | ControlNodeOutput::Stalled { .. }
            | ControlNodeOutput::Abort(_)
            | ControlNodeOutput::Left { .. }
            | ControlNodeOutput::Exit(_) => panic!("{output:?}"),
        }
    }

    fn say(&mut self, node: usize) {
        self.said[node] += 1;
        let (now, view) = (self.world.now, self.world.nodes[node].view.number());
        let to = Endpoint { silo: self.world.generation(1 - node), shard: ShardIndex(0) };
        let hash = AddressHash(u128::from(self.said[node]));
        let message = DirectoryMessage { view, word: Word::Ask(Ask::Lookup { hash }) };
        let mail = ControlMail::Directory { from: ShardIndex(0), to, message };
        self.world.nodes[node].mail(now, mail);
    }

    fn connect(&mut self, from: End) {
        self.connects += 1;
        self.dials.retain(|(dial, _)| *dial != from);
        let (now, target) = (self.world.now, 1 - from.0);
        let conn = self.world.nodes[target].accepted(now, "tcp", Some(source(9)));
        self.world.pipes.insert(from, (target, conn));
        self.world.pipes.insert((target, conn), from);
        self.world.nodes[from.0].connected(now, from.1);
    }

    fn waits_at(&self, end: End) -> bool {
        let conn = self.world.nodes[end.0].conns.get(&end.1);
        self.last.contains_key(&end) || conn.is_some_and(|conn| !conn.plain().is_empty())
    }

    fn arrive(&mut self, end: End) {
        let (now, peer) = (self.world.now, self.world.pipes[&end]);
        let closed = self.last.remove(&end);
        let is_closed = closed.is_some();
        let bytes = closed.unwrap_or_else(|| {
            let unsent = self.world.nodes[end.0].unsent(end.1).to_vec();
            self.world.nodes[end.0].sent(end.1, unsent.len());
            unsent
        });
        if self.last.contains_key(&peer) {
            // The peer has closed too: nobody reads this.
        } else {
            self.world.nodes[peer.0].receive(now, peer.1, &bytes);
        }
        if is_closed {
            self.world.pipes.remove(&end);
            self.end(peer, "closed");
        }
    }

    /// The other end is gone: what an end that is open hears.
    fn end(&mut self, end: End, reason: &str) {
        let now = self.world.now;
        // Its own close may just have been asked for.
        self.take_outputs();
        self.world.pipes.remove(&end);
        if self.last.remove(&end).is_none() {
            self.world.nodes[end.0].closed(now, end.1, reason);
            self.world.nodes[end.0].forget(end.1);
        }
    }

    fn has_one_lane(&self) -> bool {
        let lane = |node: usize| {
            let mut lanes = self.world.nodes[node].lanes.values();
            let lane = lanes.next().map(|lane| (node, lane.conn));
            lane.filter(|_| lanes.next().is_none())
        };
        let (Some(one), Some(other)) = (lane(0), lane(1)) else { return false };
        self.world.pipes.get(&one) == Some(&other) && self.world.pipes.len() == 2
    }

    fn is_in_order(&self) -> bool {
        self.heard.iter().all(|heard| heard.windows(2).all(|pair| pair[0] < pair[1]))
    }

    fn is_all_there(&self) -> bool {
        let arrived = |node: usize| self.heard[1 - node].len() + self.dropped[node];
        (0..2).all(|node| arrived(node) == usize::try_from(self.said[node]).unwrap())
    }
}

impl siloring_explore::World for Lanes {
    type Setup = Plan;
    type Step = Step;
    const NAME: &'static str = "control lane";
    const RULES: &'static [Rule<Self>] = &[
        Rule { name: ONE_LANE, holds: |lanes| !lanes.is_over || lanes.has_one_lane() },
        Rule { name: IN_ORDER, holds: Self::is_in_order },
        Rule {
            name: NOTHING_LOST,
            holds: |lanes| !lanes.is_over || lanes.connects > 1 || lanes.is_all_there(),
        },
    ];
    const MARKS: &'static [Mark<Self>] = &[
        Mark { name: OVER, holds: |lanes| lanes.is_over },
        Mark { name: SUPERSEDED, holds: |lanes| lanes.superseded },
        Mark { name: LOWER, holds: |lanes| lanes.is_over && lanes.dialer() == Some(0) },
        Mark { name: LOST, holds: |lanes| lanes.is_over && !lanes.is_all_there() },
        Mark { name: HIGHER, holds: |lanes| lanes.is_over && lanes.dialer() == Some(1) },
    ];

    fn new(plan: &Plan) -> Self {
        let mut world = World::active(2);
        assert!(world.generation(0) < world.generation(1), "the first is the lower one");
        for node in 0..2 {
            let peer = world.generation(1 - node);
            let node = &mut world.nodes[node];
            node.lane_defect = plan.defect;
            if let Some(lane) = node.lanes.remove(&peer) {
                node.close(lane.conn);
            }
        }
        world.settle();
        Self {
            plan: *plan,
            world,
            wanted: plan.want.map(|wants| !wants),
            said: [0; 2],
            heard: [Vec::new(), Vec::new()],
            dropped: [0; 2],
            dials: Vec::new(),
            last: BTreeMap::new(),
            resets: plan.resets,
            connects: 0,
            superseded: false,
            is_over: false,
        }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for node in 0..2 {
            steps.extend((!self.wanted[node]).then_some(Step::Want(node)));
            steps.extend((self.said[node] < self.plan.words[node]).then_some(Step::Say(node)));
        }
        steps.extend(self.dials.iter().map(|(dial, _)| Step::Connect(*dial)));
        let ends = self.world.pipes.keys().copied();
        steps.extend(ends.clone().filter(|end| self.waits_at(*end)).map(Step::Arrive));
        if self.resets > 0 {
            let one = ends.filter(|end| *end < self.world.pipes[end]);
            steps.extend(one.map(Step::Reset));
        }
        steps
    }

    fn take(&mut self, step: &Step) {
        let now = self.world.now;
        match *step {
            Step::Want(node) => {
                self.wanted[node] = true;
                let peer = self.world.generation(1 - node);
                self.world.nodes[node].connect(now, peer, address(1 - node));
                self.world.nodes[node].follow(now);
            }
            Step::Say(node) => self.say(node),
            Step::Connect(end) => self.connect(end),
            Step::Arrive(end) => self.arrive(end),
            Step::Reset(end) => {
                self.resets -= 1;
                let peer = self.world.pipes[&end];
                self.end(end, "reset");
                self.end(peer, "reset");
            }
        }
        self.take_outputs();
        let lanes = self.world.nodes.iter().any(|node| {
            let shaking = |conn: &Conn| matches!(conn.state, State::Shaking(_));
            !node.lanes.is_empty() && node.conns.values().any(shaking)
        });
        self.superseded |= lanes;
        self.is_over = self.steps().is_empty();
    }

    fn print(&self, out: &mut dyn Write) -> fmt::Result {
        write!(out, "{:?}{:?}{:?}{:?}", self.wanted, self.said, self.heard, self.dropped)?;
        write!(out, "{:?}{:?}{:?}", self.dials, self.last, self.world.pipes)?;
        write!(out, "{}{}", self.resets, self.connects.min(2))?;
        write!(out, "{}{}", self.superseded, self.is_over)?;
        for node in &self.world.nodes {
            write!(out, "{:?}{:?}{:?}", node.lanes, node.dials, node.waiting)?;
            write!(out, "{:?}", node.machine)?;
            for (conn, found) in &node.conns {
                write!(out, "{conn:?}{:?}{:?}", found, found.plain())?;
            }
        }
        Ok(())
    }
}

impl Lanes {
    fn dialer(&self) -> Option<usize> {
        let lane = self.world.nodes[0].lanes.values().next()?;
        (0..2).find(|node| self.world.generation(*node) == lane.dialer)
    }
}

const OVER: &str = "nothing more can happen";
const SUPERSEDED: &str = "a lane is up while another shakes hands";
const LOWER: &str = "the lane is the lower one's";
const HIGHER: &str = "the lane is the higher one's";

/// By contract: the directory asks again. The loser of two lanes takes with it what was on it.
const LOST: &str = "what one said was lost with a connection";

const PLAN: Plan = Plan { want: [true, true], words: [0, 0], resets: 0, defect: None };
const ONE: Plan = Plan { want: [true, false], words: [2, 0], ..PLAN };

fn depth(usual: usize) -> usize {
    if is_long() { usual + 4 } else { usual }
}

#[test]
fn of_two_dials_one_lane_survives() {
    explore::<Lanes>(PLAN, depth(30), 1_000, &[LOST]);
}

#[test]
fn what_is_said_on_the_only_lane_arrives_in_order() {
    explore::<Lanes>(ONE, 60, 90, &[SUPERSEDED, LOST, HIGHER]);
}

#[test]
fn of_two_dials_one_lane_survives_though_a_connection_is_reset() {
    explore::<Lanes>(Plan { resets: 1, ..PLAN }, depth(16), 9_000, &[LOST]);
}

#[test]
fn what_is_said_while_both_dial_arrives_once_or_not_at_all() {
    explore::<Lanes>(Plan { words: [0, 1], ..PLAN }, depth(16), 3_300, &[]);
}

#[test]
fn each_rule_of_the_lane_breaks_without_what_holds_it() {
    let of = |plan: Plan, defect| Plan { defect: Some(defect), ..plan };
    refute::<Lanes>(of(PLAN, LaneDefect::BothSurvive), 30, ONE_LANE);
    refute::<Lanes>(of(ONE, LaneDefect::WaitingForgotten), 30, NOTHING_LOST);
    let again = Plan { words: [1, 0], resets: 1, ..ONE };
    refute::<Lanes>(of(again, LaneDefect::WaitingKept), 30, IN_ORDER);
}
