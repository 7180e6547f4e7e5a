//! A silo as a program of the world: the real nodes, moved by virtual time.
//!
//! The only file of the simulator that knows them. Part 0 is the control thread, the next parts are
//! the shards, the last one is the surrounding program. What the production drivers do with
//! sockets, mailboxes and clocks is done here with ends, inputs and the world's time; nothing is
//! decided.
//!
//! Checked here, at each step: the view of a silo never goes back (I4), no table of a shard
//! outgrows its bound (I13), and none gets an activation while it leaves (I16); [`super::checks`]
//! compares it with the others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use siloring::pump::{
    ControlNode, ControlNodeOutput, DialFault, LinkMode, NodeOutput, Route, ShardNode,
};
use siloring_core::event::Event;
use siloring_core::limits::{DEADLINE_DEFAULT, FRAME_BYTES_MAX, READ_CHUNK_BYTES};
use siloring_core::{ClusterId, Endpoint, Incarnation, Moment, ShardIndex, SiloName};
use siloring_pubsub::Streams;
use siloring_runtime::control::{Control, ControlConfig, StoreTicket};
use siloring_runtime::exec::local::Unpark;
use siloring_runtime::handle::{Handle, Post};
use siloring_runtime::host::HostFactory;
use siloring_runtime::mail::{ConnId, ControlMail, ShardMail};
use siloring_runtime::shard::ShardConfig;
use siloring_transport::net::UnixName;
use siloring_transport::{Established, LocalFacts, Secret};

use super::app::App;
use super::network::{DialFailure, EndId, Ending};
use super::node::{Mailboxes, Node, NodeSetup, SiloShared, Spawned};
use super::plan::Hosts;
use super::planted::Planted;
use super::release::Release;
use super::scene;
use super::sizes::Sizes;
use super::world::{Context, Input, Part, Program};

/// Runs of a shard's turns in one go: a shard that always has more must let time pass.
const ROUNDS_MAX: u32 = 64;

/// What a silo is started with.
pub(super) struct SiloSetup {
    pub(super) cluster: ClusterId,
    pub(super) node: NodeSetup,
    pub(super) name: String,
    pub(super) address: String,
    pub(super) shards: u16,
    pub(super) place: Hosts,
    pub(super) release: Release,
    pub(super) planted: Planted,
}

/// A shard's place: its node once the silo has its incarnation, and what waits for it.
#[derive(Default)]
struct Seat {
    node: Option<ShardNode>,
    handed: VecDeque<(EndId, Box<Established>)>,
    /// Ends with bytes that have not been read.
    readable: BTreeSet<EndId>,
    dirty: Vec<ConnId>,
    /// Ends whose last write was cut short.
    clogged: BTreeSet<EndId>,
    /// Once the shard drains: how many activations it may have. They only become fewer (I16).
    activations_max: Option<usize>,
    /// Whether a range was opened in this run.
    has_opened: bool,
    runs: u64,
    /// How many of the directory's faults it has had.
    #[cfg(feature = "planted")]
    faults: usize,
}

/// A silo in the world.
pub(super) struct Silo {
    setup: SiloSetup,
    shared: Rc<SiloShared>,
    handle: Handle,
    app: App,
    mailboxes: Arc<Mailboxes>,
    control: Option<ControlNode>,
    control_mail: VecDeque<ControlMail>,
    ends: BTreeMap<ConnId, EndId>,
    conns: BTreeMap<EndId, ConnId>,
    dirty: Vec<ConnId>,
    buffer: Vec<u8>,
    seats: Vec<Seat>,
    serve_until: Moment,
}

impl Silo {
    pub(super) fn new(setup: SiloSetup) -> (Self, Rc<SiloShared>) {
        let mailboxes = Mailboxes::new(setup.shards);
        let post: Arc<dyn Post> = mailboxes.clone();
        let handle = Handle::new(post);
        let app = App::new();
        let node = Node {
            handle: handle.clone(),
            streams: setup.release.streams.clone().build(setup.shards),
            clock: app.clock(),
            setup: setup.node.clone(),
            spawned: Rc::new(Spawned::default()),
        };
        let app_part = Part(setup.shards + 1);
        let shared = SiloShared::new(node, app_part);
        let silo = Self {
            shared: Rc::clone(&shared),
            handle,
            app,
            mailboxes,
            control: None,
            control_mail: VecDeque::new(),
            ends: BTreeMap::new(),
            conns: BTreeMap::new(),
            dirty: Vec::new(),
            buffer: vec![0; READ_CHUNK_BYTES.min(64 * 1024)],
            seats: (0..setup.shards).map(|_| Seat::default()).collect(),
            serve_until: Moment::ZERO,
            setup,
        };
        (silo, shared)
    }

    /// The control thread, the shards, the program.
    pub(super) const fn parts(&self) -> u16 {
        self.setup.shards + 2
    }

    /// Wakes whoever got something to do in this run.
    fn wake_others(&self, context: &mut Context<'_>) {
        for (part, mailbox) in (1..).zip(&self.mailboxes.shards) {
            if mailbox.take_call() {
                context.wake(Part(part));
            }
        }
        if self.app.is_ready() || self.shared.has_spawned() {
            context.wake(self.shared.app_part());
        }
        if !self.control_mail.is_empty() {
            context.wake(Part(0));
        }
    }

    fn run_app(&mut self, now: Moment) -> Moment {
        loop {
            while let Some(future) = self.shared.next_spawned() {
                self.app.spawn(future);
            }
            let timer = self.app.run(now);
            if !self.shared.has_spawned() {
                return timer;
            }
        }
    }
}

impl Program for Silo {
    fn run(&mut self, part: Part, context: &mut Context<'_>) -> Moment {
        let deadline = if part == Part(0) {
            self.run_control(context)
        } else if part == self.shared.app_part() {
            self.run_app(context.now())
        } else {
            self.run_shard(part, context)
        };
        self.wake_others(context);
        deadline
    }
}

impl Drop for Silo {
    /// Its deliveries end with it: before the futures that wait for them are dropped.
    fn drop(&mut self) {
        self.mailboxes.stop();
        if let Some(process) = self.shared.process() {
            scene::with(|scene| scene.ledger.borrow_mut().process_ended(process));
        }
        if let Some(incarnation) = self.shared.incarnation() {
            scene::with(|scene| scene.checks.borrow_mut().ended(incarnation.generation));
        }
    }
}

/// The control thread.
impl Silo {
    fn make_control(&self, context: &mut Context<'_>) -> ControlNode {
        let name = SiloName::new(self.setup.name.as_str()).expect("slots have plain names");
        let address = self.setup.address.as_str();
        let (host, mode) = match self.setup.place {
            Hosts::Apart => (address, LinkMode::Tcp),
            Hosts::One => ("the-one-host", LinkMode::Auto),
        };
        let mut config = ControlConfig::new(name, address, host, self.setup.shards, Vec::new());
        config.stall_abort_after = None;
        let release = &self.setup.release;
        let facts = LocalFacts {
            cluster: self.setup.cluster.clone(),
            incarnation: None,
            shards: self.setup.shards,
            host: host.to_owned(),
            deadline_default: DEADLINE_DEFAULT,
            frame_bytes_max: u32::try_from(FRAME_BYTES_MAX).expect("a frame's length is a u32"),
            secrets: vec![Secret::new("simulated-secret").expect("long enough")],
            types: HostFactory::versions(&release.hosts, &release.messages).told(),
            wire: release.wire,
            features: 0,
        };
        let seeded = fastrand::Rng::with_seed(context.entropy());
        let machine = self.setup.planted.control(Control::new(config, seeded));
        let mut random = fastrand::Rng::with_seed(context.entropy());
        let nonces = Box::new(move || {
            let mut nonce = [0; 32];
            random.fill(&mut nonce);
            nonce
        });
        let mut node = ControlNode::new(machine, facts, address, mode, nonces);
        self.setup.planted.control_node(&mut node);
        node
    }

    fn run_control(&mut self, context: &mut Context<'_>) -> Moment {
        let now = context.now();
        let mut control = match self.control.take() {
            Some(control) => control,
            None => self.begin(now, context),
        };
        while let Some(input) = context.next_input() {
            self.control_input(&mut control, input, context);
            self.follow(&mut control, context);
        }
        while let Some(mail) = self.control_mail.pop_front() {
            if self.setup.planted.queues_heartbeats() && matches!(mail, ControlMail::Heard(_)) {
                continue;
            }
            control.mail(now, mail);
            self.follow(&mut control, context);
        }
        if control.next_deadline() <= now {
            let progress: Vec<u64> =
                self.seats.iter().map(|seat| seat.runs + now.as_nanos()).collect();
            control.progress(now, &progress);
            control.tick(now);
            self.follow(&mut control, context);
        }
        // The lane and the links are connections of their own: nothing waits, unless that is
        // planted.
        if !(self.setup.planted.queues_heartbeats() && self.has_unsent()) {
            self.flush_control(&mut control, context);
        }
        let deadline = control.next_deadline();
        self.control = Some(control);
        deadline
    }

    /// Whether any shard has bytes that the kernel has not taken.
    fn has_unsent(&self) -> bool {
        self.seats.iter().any(|seat| !seat.clogged.is_empty())
    }

    fn begin(&self, now: Moment, context: &mut Context<'_>) -> ControlNode {
        let mut control = self.make_control(context);
        for make in &self.setup.release.early_programs {
            self.shared.spawn(make(self.shared.node()));
        }
        control.start(now);
        control
    }

    fn control_input(
        &mut self,
        control: &mut ControlNode,
        input: Input,
        context: &mut Context<'_>,
    ) {
        let now = context.now();
        match input {
            // The simulated network has no addresses of dialers.
            Input::Accepted { end } => {
                let conn = control.accepted(now, context.way(end), None);
                self.bind(conn, end);
            }
            Input::Connected { end } => {
                if let Some(conn) = self.conns.get(&end) {
                    control.connected(now, *conn);
                }
            }
            Input::DialFailed { end, failure } => {
                if let Some(conn) = self.unbind(end) {
                    let (fault, reason) = match failure {
                        DialFailure::Refused => (DialFault::Refused, "refused"),
                        DialFailure::Unreachable => (DialFault::Silent, "no such host"),
                    };
                    control.dial_failed(now, conn, fault, reason);
                }
            }
            Input::Readable { end } => self.read_control(control, end, context),
            Input::Writable { end } => self.dirty.extend(self.conns.get(&end)),
            Input::Closed { end, ending } => {
                if let Some(conn) = self.unbind(end) {
                    control.closed(now, conn, reason(ending));
                    control.forget(conn);
                }
            }
            Input::Store { ticket, result } => control.stored(now, StoreTicket(ticket), result),
            Input::Drain => control.mail(now, ControlMail::Drain),
        }
    }

    /// Reads until nothing is left, or the connection has become a shard's.
    fn read_control(&mut self, control: &mut ControlNode, end: EndId, context: &mut Context<'_>) {
        let now = context.now();
        while let Some(conn) = self.conns.get(&end).copied() {
            let count = context.read(end, &mut self.buffer);
            if count == 0 {
                return;
            }
            control.receive(now, conn, &self.buffer[..count]);
            self.follow(control, context);
        }
    }

    fn bind(&mut self, conn: ConnId, end: EndId) {
        self.ends.insert(conn, end);
        self.conns.insert(end, conn);
    }

    fn unbind(&mut self, end: EndId) -> Option<ConnId> {
        let conn = self.conns.remove(&end)?;
        self.ends.remove(&conn);
        Some(conn)
    }

    fn flush_control(&mut self, control: &mut ControlNode, context: &mut Context<'_>) {
        control.take_dirty(&mut self.dirty);
        self.dirty.sort_unstable();
        self.dirty.dedup();
        while let Some(conn) = self.dirty.pop() {
            self.write_control(control, conn, context);
        }
    }

    fn write_control(&self, control: &mut ControlNode, conn: ConnId, context: &mut Context<'_>) {
        let Some(end) = self.ends.get(&conn).copied() else { return };
        let unsent = control.unsent(conn);
        if !unsent.is_empty() {
            let taken = context.write(end, unsent);
            control.sent(conn, taken);
        }
    }

    /// Does what the control node wants done.
    fn follow(&mut self, control: &mut ControlNode, context: &mut Context<'_>) {
        while let Some(output) = control.poll_output() {
            match output {
                ControlNodeOutput::Dial { conn, route } => self.dial(conn, &route, context),
                ControlNodeOutput::Close(conn) => {
                    self.write_control(control, conn, context);
                    control.forget(conn);
                    if let Some(end) = self.ends.get(&conn).copied() {
                        self.unbind(end);
                        context.close(end);
                    }
                }
                ControlNodeOutput::HandOff { conn, shard, established, session: _ } => {
                    self.hand_off(conn, shard, established, context);
                }
                ControlNodeOutput::Shard(shard, mail) => self.mail_shard(shard, mail, context),
                ControlNodeOutput::Store(ticket, request) => context.submit(ticket.0, request),
                ControlNodeOutput::ServeUntil(until) => self.serve_until(until, context),
                ControlNodeOutput::Named(incarnation) => self.named(incarnation, context),
                ControlNodeOutput::Started => self.start_programs(context),
                ControlNodeOutput::JoinFailed { error, .. } => {
                    context.note(|| format!("join failed: {error}"));
                    self.shared.join_failed(error.to_string());
                    self.exit(1, context);
                }
                ControlNodeOutput::Stalled { shard, stalled } => {
                    context.tell(Event::ShardStalled {
                        shard,
                        running: String::new(),
                        stalled_ms: u64::try_from(stalled.as_millis()).unwrap_or(u64::MAX),
                    });
                }
                ControlNodeOutput::Abort(shard) => {
                    context.violate("no shard is stuck for ever", format!("{shard:?}"));
                }
                ControlNodeOutput::Left { .. } => self.exit(0, context),
                ControlNodeOutput::Exit(code) => self.exit(i32::from(code), context),
                ControlNodeOutput::Event(event) => context.tell(event),
            }
        }
    }

    fn exit(&self, code: i32, context: &mut Context<'_>) {
        self.mailboxes.stop();
        context.exit(code);
    }

    fn dial(&mut self, conn: ConnId, route: &Route, context: &mut Context<'_>) {
        let end = match route {
            Route::Tcp(address) => context.dial(address),
            Route::Unix(name) => context.dial(name.as_str()),
        };
        self.bind(conn, end);
    }

    fn hand_off(
        &mut self,
        conn: ConnId,
        shard: ShardIndex,
        established: Box<Established>,
        context: &mut Context<'_>,
    ) {
        let Some(end) = self.ends.get(&conn).copied() else { return };
        self.unbind(end);
        self.shared.agreed(established.version);
        let part = Part(shard.0 + 1);
        self.seats[usize::from(shard.0)].handed.push_back((end, established));
        context.hand_over(end, part);
        context.wake(part);
    }

    fn mail_shard(&self, shard: ShardIndex, mail: ShardMail, context: &mut Context<'_>) {
        if let ShardMail::View(view) = &mail
            && shard == ShardIndex(0)
        {
            let before = self.shared.seen(Arc::clone(view));
            if before.number() > view.number() {
                let text = format!("{} after {}", view.number(), before.number());
                context.violate("I4 a silo's view never goes back", text);
            }
            context.check("I4 equal views have equal content", |checks| checks.view(view));
            context.note(|| format!("view {} of {}", view.number(), self.setup.name));
        }
        self.mailboxes.shards[usize::from(shard.0)].push(mail);
    }

    fn serve_until(&mut self, until: Moment, context: &mut Context<'_>) {
        let fenced = context.now() > self.serve_until;
        self.serve_until = until;
        if fenced {
            for part in 1..=self.setup.shards {
                context.wake(Part(part));
            }
        }
    }

    fn named(&mut self, incarnation: Incarnation, context: &mut Context<'_>) {
        context.note(|| format!("{:?} is {incarnation}", context_process(&self.shared)));
        let silo = incarnation.generation;
        let process = context.process();
        context.check("an incarnation is named once", |checks| checks.named(process, silo));
        if !context.was_written(silo) {
            let text = format!("{incarnation} is in no table");
            context.violate("an incarnation is named by a write that was made", text);
        }
        let name = UnixName::of(&self.setup.cluster, silo, &self.setup.address);
        context.listen(name.as_str());
        self.shared.named(incarnation);
        for index in 0..self.setup.shards {
            let me = Endpoint { silo, shard: ShardIndex(index) };
            let mut config = ShardConfig::new(me, self.setup.shards, context.entropy());
            config.hosts.clone_from(&self.setup.release.hosts);
            config.messages.clone_from(&self.setup.release.messages);
            config.shared.push(self.shared.streams());
            self.setup.planted.shard(&mut config);
            let unpark: Arc<dyn Unpark> = self.mailboxes.shards[usize::from(index)].clone();
            let node = ShardNode::new(context.now(), config, unpark, self.handle.clone());
            self.seats[usize::from(index)].node = Some(node);
            context.wake(Part(index + 1));
        }
    }

    fn start_programs(&self, context: &mut Context<'_>) {
        Streams::start(&self.handle).expect("a silo that has just started takes mail");
        context.note(|| format!("{} is Active", self.setup.name));
        for make in &self.setup.release.programs {
            self.shared.spawn(make(self.shared.node()));
        }
    }
}

fn context_process(shared: &SiloShared) -> Option<super::world::ProcessId> {
    shared.process()
}

const fn reason(ending: Ending) -> &'static str {
    match ending {
        Ending::Finished => "closed by the peer",
        Ending::Reset => "reset",
        Ending::TimedOut => "no acknowledgement in time",
    }
}

/// The connection of a shard's end: a shard's connections are named after their ends.
fn conn_of(end: EndId) -> ConnId {
    ConnId(u64::from(end.0))
}

fn end_of(conn: ConnId) -> EndId {
    EndId(u32::try_from(conn.0).expect("named after an end"))
}

/// A shard's thread.
impl Silo {
    fn run_shard(&mut self, part: Part, context: &mut Context<'_>) -> Moment {
        let index = usize::from(part.0) - 1;
        let Some(mut node) = self.seats[index].node.take() else {
            return Moment::NEVER;
        };
        let now = context.now();
        let seat = &mut self.seats[index];
        seat.runs += 1;
        node.set_lease(self.serve_until);
        #[cfg(feature = "planted")]
        for fault in self.shared.faults.borrow().iter().skip(seat.faults) {
            seat.faults += 1;
            node.plant_fault(*fault);
        }
        let known = node.directory().view();
        let mut lost = Vec::new();
        while let Some(input) = context.next_input() {
            shard_input(&mut node, seat, input, &mut lost, context);
        }
        while let Some((end, established)) = seat.handed.pop_front() {
            node.attach(now, conn_of(end), &established, None);
        }
        while let Some(mail) = self.mailboxes.shards[index].pop() {
            if matches!(mail, ShardMail::BeginDrain) {
                seat.activations_max = Some(node.sizes().activations);
            }
            node.mail(now, mail);
        }
        read_links(&mut node, seat, context);
        for (end, ending) in lost {
            seat.readable.remove(&end);
            seat.clogged.remove(&end);
            node.closed(now, conn_of(end), reason(ending));
        }
        let more = self.work(&mut node, index, context);
        let clogged = self.seats[index].clogged.len();
        let sizes = Sizes { shard: node.sizes(), directory: node.directory().usage(), clogged };
        check_sizes(sizes, &mut self.seats[index], context);
        self.shared.measured(index, sizes);
        if std::mem::take(&mut self.seats[index].has_opened) || node.directory().view() != known {
            check_serving(&node, index, context);
        }
        let deadline = if more { now } else { node.next_deadline() };
        self.seats[index].node = Some(node);
        deadline
    }

    /// Lets the node work and does what it wants done; whether it has more to do.
    fn work(&mut self, node: &mut ShardNode, index: usize, context: &mut Context<'_>) -> bool {
        let now = context.now();
        if node.next_deadline() <= now {
            node.tick(now);
            let next = node.next_deadline();
            if next <= now {
                context.violate("I14 no timer is overdue after its tick", format!("{next:?}"));
            }
        }
        let mut more = true;
        let mut rounds = 0;
        while more && rounds < ROUNDS_MAX {
            more = node.run(now);
            rounds += 1;
            self.take_outputs(node, index, context);
        }
        let seat = &mut self.seats[index];
        let mut dirty = std::mem::take(&mut seat.dirty);
        node.take_dirty(&mut dirty);
        for conn in dirty.drain(..) {
            write_link(node, &mut seat.clogged, conn, context);
        }
        seat.dirty = dirty;
        more
    }

    fn take_outputs(&mut self, node: &mut ShardNode, index: usize, context: &mut Context<'_>) {
        while let Some(output) = node.poll_output() {
            match output {
                NodeOutput::Shard(shard, mail) => {
                    self.mailboxes.shards[usize::from(shard.0)].push(mail);
                }
                NodeOutput::Control(mail) => self.control_mail.push_back(mail),
                NodeOutput::Store { ticket, request } => context.submit(ticket, request),
                NodeOutput::Close { conn, last } => {
                    let end = end_of(conn);
                    context.write(end, &last);
                    self.seats[index].clogged.remove(&end);
                    self.seats[index].readable.remove(&end);
                    context.close(end);
                }
                NodeOutput::Event(event) => {
                    self.seats[index].has_opened |= matches!(event, Event::RangeServed { .. });
                    check_claim(&event, context);
                    context.tell(event);
                }
            }
        }
    }
}

fn check_claim(event: &Event, context: &mut Context<'_>) {
    if let Event::HubClaimed { address, number } = event {
        let process = context.process();
        context.check("I12 a claim's number is one silo's", |checks| {
            checks.claimed(process, address, *number)
        });
    }
}

fn check_serving(node: &ShardNode, index: usize, context: &mut Context<'_>) {
    let shard = ShardIndex(u16::try_from(index).expect("counted from a u16"));
    let shard = Endpoint { silo: node.silo(), shard };
    let (view, spans) = (node.directory().view(), node.directory().serving());
    context.check("I6 one shard serves a position in a view", |checks| {
        checks.serving(shard, view, spans)
    });
}

fn shard_input(
    node: &mut ShardNode,
    seat: &mut Seat,
    input: Input,
    lost: &mut Vec<(EndId, Ending)>,
    context: &mut Context<'_>,
) {
    match input {
        Input::Readable { end } => {
            seat.readable.insert(end);
        }
        Input::Writable { end } => write_link(node, &mut seat.clogged, conn_of(end), context),
        // After what has arrived before it was read.
        Input::Closed { end, ending } => lost.push((end, ending)),
        Input::Store { ticket, result } => {
            node.mail(context.now(), ShardMail::Store { ticket, result });
        }
        Input::Accepted { .. }
        | Input::Connected { .. }
        | Input::DialFailed { .. }
        | Input::Drain => unreachable!("the control thread's: {input:?}"),
    }
}

/// Reads every link that has bytes; while the silo is fenced, none.
fn read_links(node: &mut ShardNode, seat: &mut Seat, context: &mut Context<'_>) {
    let now = context.now();
    let mut drained = Vec::new();
    for end in &seat.readable {
        while let Some(space) = node.receive_space(now, conn_of(*end)) {
            let count = context.read(*end, space);
            if count == 0 {
                drained.push(*end);
                break;
            }
            node.received(now, conn_of(*end), count);
        }
    }
    for end in drained {
        seat.readable.remove(&end);
    }
}

fn write_link(
    node: &mut ShardNode,
    clogged: &mut BTreeSet<EndId>,
    conn: ConnId,
    context: &mut Context<'_>,
) {
    let end = end_of(conn);
    let unsent = node.unsent(conn);
    if unsent.is_empty() {
        return;
    }
    let (taken, wanted) = (context.write(end, unsent), unsent.len());
    if taken < wanted {
        clogged.insert(end);
    } else {
        clogged.remove(&end);
    }
    node.sent(conn, taken);
}

fn check_sizes(sizes: Sizes, seat: &mut Seat, context: &mut Context<'_>) {
    if let Some(text) = sizes.beyond_bounds() {
        context.violate("I13 every table is at most its bound", text);
    }
    let Some(most) = &mut seat.activations_max else { return };
    let activations = sizes.shard.activations;
    if activations > *most {
        let text = format!("{activations} activations after {most}");
        context.violate("I16 no activation is made after Draining", text);
    }
    *most = activations;
}
