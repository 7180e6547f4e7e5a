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

mod seat;

use seat::Seat;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use siloring::pump::{ControlNode, ControlNodeOutput, DialFault, LinkMode, Route, ShardNode};
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
use super::mail::Letters;
use super::network::{DialFailure, EndId, Ending};
use super::node::{Letter, Mailboxes, Node, NodeSetup, SiloShared, Spawned};
use super::plan::Hosts;
use super::planted::Planted;
use super::random::stream;
use super::release::Release;
use super::scene;

use super::world::{Context, Input, Part, Program};

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

/// A silo in the world.
pub(super) struct Silo {
    setup: SiloSetup,
    shared: Rc<SiloShared>,
    handle: Handle,
    app: App,
    mailboxes: Arc<Mailboxes>,
    control: Option<ControlNode>,
    control_mail: Letters<ControlMail>,
    ends: BTreeMap<ConnId, EndId>,
    conns: BTreeMap<EndId, ConnId>,
    dirty: Vec<ConnId>,
    buffer: Vec<u8>,
    seats: Vec<Seat>,
    serve_until: Moment,
}

impl Silo {
    pub(super) fn new(setup: SiloSetup) -> (Self, Rc<SiloShared>) {
        let mailboxes = Mailboxes::new(setup.shards, &setup.node);
        let delay = setup.node.mail_delay;
        let control_mail = Letters::new(delay, stream(setup.node.seed, "mail"));
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
            control_mail,
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
        let now = context.world_now();
        let mut wake = |part: Part, at: Moment| {
            if at <= now {
                context.wake(part);
            } else if at != Moment::NEVER {
                context.wake_at(part, at);
            }
        };
        for (part, mailbox) in (1..).zip(&self.mailboxes.shards) {
            let at = if mailbox.take_call() { now } else { mailbox.next() };
            wake(Part(part), at);
        }
        wake(Part(0), self.control_mail.next());
        if self.app.is_ready() || self.shared.has_spawned() {
            context.wake(self.shared.app_part());
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
        self.mailboxes.runs(part);
        let deadline = if part == Part(0) {
            self.run_control(context)
        } else if part == self.shared.app_part() {
            while let Some(input) = context.next_input() {
                let Input::Hint(hint) = input else { unreachable!("a thread's: {input:?}") };
                Streams::hinted(&self.handle, hint);
            }
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
        if self.setup.planted.ticks_first() && control.next_deadline() <= now {
            control.tick(now);
            self.follow(&mut control, context);
        }
        while let Some(input) = context.next_input() {
            self.control_input(&mut control, input, context);
            self.follow(&mut control, context);
        }
        while let Some(mail) = self.control_mail.pop() {
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
                        DialFailure::NoFiles => (DialFault::Silent, "no descriptor is left"),
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
            Input::TurnedAway => {
                control.turned_away(now, "unknown".to_owned(), "no descriptor is left");
            }
            Input::Drain => control.mail(now, ControlMail::Drain),
            Input::Hint(_) => unreachable!("the surrounding program's: {input:?}"),
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
        let index = usize::from(shard.0);
        self.seats[index].coming.insert(end, None);
        context.hand_over(end, part);
        self.mailboxes.shards[index].push(Part(0), Letter::Link(end, established));
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
        self.mailboxes.shards[usize::from(shard.0)].push(Part(0), Letter::Mail(mail));
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
        context.listen_to_registry(self.shared.app_part());
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
