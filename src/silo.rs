//! A silo: built, started, drained.
//!
//! [`SiloBuilder::start`] returns when the silo is Active, or says what is wrong and what to do
//! about it before anything has been left behind. The order: settings, this machine, the port, the
//! store, the shards' executors, the control thread, joining. A [`Silo`] owns its threads; dropping
//! it drains.
//!
//! Deliberately absent: what runs on the threads ([`crate::driver`]).

mod error;
mod metrics;
mod plan;

use core::any::Any;
use core::fmt;
use core::time::Duration;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use siloring_core::event::Event;
use siloring_core::outcome::DeliveryFailure;
use siloring_core::schema::Message;
use siloring_core::sync::mailbox::{SendError, Sender};
use siloring_core::versions::BodyType;
use siloring_core::{Address, AddressError, Endpoint, Generation, Incarnation, ShardIndex};
use siloring_pubsub::{Stream, StreamPolicy, Streams, StreamsBuilder};
use siloring_runtime::control::Control;
use siloring_runtime::filter::Filter;
use siloring_runtime::grain::{EventMethod, Grain};
use siloring_runtime::handle::{Handle, Post as Mailboxes, PostError};
use siloring_runtime::host::HostFactory;
use siloring_runtime::mail::{ControlMail, ShardMail};
use siloring_runtime::shard::ShardConfig;
use siloring_storage::{RegistryWatch, StoreThreads};
use siloring_transport::Certificates;
use siloring_transport::net::{Listener, UnixName, nonce};

use crate::config::Settings;
use crate::driver::certificates::{CertificateFiles, Tls};
use crate::driver::control::{self, ControlLetterbox, ControlParts, Notice};
use crate::driver::node::WakeShard;
use crate::driver::shard::{self, Letterbox, Parts, Post};
use crate::driver::shared::{OnFailure, Shared};
use crate::driver::{check, clock, signals};
use crate::pump::{ControlNode, LinkMode, ShardNode};

pub use crate::driver::idle::Idle;

pub use self::error::{DrainError, StartError};
pub use self::metrics::Metrics;
use self::plan::Plan;
#[cfg(feature = "fuzz")]
pub use self::plan::check_config;

/// Builds a [`Silo`]. Every setting has a default that is safe; see each method.
#[must_use = "a builder does nothing until it is started"]
#[derive(Default)]
pub struct SiloBuilder {
    settings: Settings,
    files: Vec<PathBuf>,
    hosts: Vec<HostFactory>,
    messages: Vec<BodyType>,
    hub_kinds: Vec<String>,
    streams: StreamsBuilder,
    filter: Option<Arc<dyn Filter>>,
    on_failure: Option<OnFailure>,
}

impl fmt::Debug for SiloBuilder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SiloBuilder")
            .field("cluster", &self.settings.cluster)
            .field("name", &self.settings.name)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

impl SiloBuilder {
    /// The cluster's name. Silos with one name and one store are one cluster. Default: `siloring`.
    pub fn cluster(mut self, cluster: impl Into<String>) -> Self {
        self.settings.cluster = Some(cluster.into());
        self
    }

    /// The silo's name, unique in its cluster. Default: `silo`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = Some(name.into());
        self
    }

    /// Where to listen: `ip:port`; port 0 takes any. Default: `127.0.0.1:0`.
    pub fn bind(mut self, address: impl Into<String>) -> Self {
        self.settings.bind = Some(address.into());
        self
    }

    /// Where other silos reach this one: `host:port`. Default: the bound address.
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.settings.advertise = Some(address.into());
        self
    }

    /// The store's URL: `memory:` (a cluster of one), `sqlite:PATH`, `postgres://…`. Default:
    /// `memory:`.
    pub fn store(mut self, url: impl Into<String>) -> Self {
        self.settings.store = Some(url.into());
        self
    }

    /// How many shards. Default: one for each processor that this process may use.
    pub fn shards(mut self, count: u16) -> Self {
        self.settings.shards = Some(count);
        self
    }

    /// Pins shard `i` to the `i`-th of these processors. Default: shards are pinned when they are
    /// as many as the processors this process may use, so that there is nothing to choose; a silo
    /// that has a part of a machine is told which part here, or by its affinity mask.
    pub fn cpus(mut self, cpus: impl Into<Vec<usize>>) -> Self {
        self.settings.cpus = Some(cpus.into());
        self
    }

    /// Which sockets connect silos. Default: [`LinkMode::Auto`].
    pub fn link(mut self, mode: LinkMode) -> Self {
        self.settings.link = Some(mode);
        self
    }

    /// What shards do while they have nothing to do. Default: adaptive, or parking when there are
    /// more shards than processors.
    pub fn idle(mut self, idle: Idle) -> Self {
        self.settings.idle = Some(idle);
        self
    }

    /// Adds a cluster secret: the first signs, all verify, so that a roll can change it.
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.settings.secrets.push(secret.into());
        self
    }

    /// Links with other silos over TCP are inside TLS, and each side's certificate names its silo.
    /// Set it on all silos of a cluster, or on none. The files are looked at each second: new links
    /// use what they hold then, old ones live on. With a secret too, both are checked.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.settings.tls = Some(tls);
        self
    }

    /// Lets a silo without TLS or a secret listen beyond the loopback interface: whoever reaches
    /// the port can then call everything.
    pub fn danger_insecure_network(mut self, allowed: bool) -> Self {
        self.settings.danger_insecure_network = allowed;
        self
    }

    /// The deadline of calls that name none. Default: 30 s.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = Some(deadline);
        self
    }

    /// An activation idle for this long is collected. Default: 15 min.
    pub fn idle_after(mut self, idle_after: Duration) -> Self {
        self.settings.idle_after = Some(idle_after);
        self
    }

    /// What comes to a shard may wait this long for it. Once it has waited for longer for a tenth
    /// of a second without a break, the shard is overloaded: what has is refused, as `Overloaded`
    /// and at once, until that is the exception again. It counts for new requests, not for replies,
    /// and not for what the shard's own turns ask for. Slow turns stretch it, to sixteen of them.
    ///
    /// A longer one takes longer bursts, a shorter one keeps those that are taken faster. Default:
    /// 5 ms; at least 2 ms.
    pub fn overload_delay(mut self, delay: Duration) -> Self {
        self.settings.overload_delay = Some(delay);
        self
    }

    /// Reads settings from a TOML file when the silo starts. Later files win over earlier ones, and
    /// files over what the builder was told.
    #[cfg(feature = "config-file")]
    pub fn config_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.files.push(path.into());
        self
    }

    /// Hosts a grain type.
    pub fn host<G: Grain>(mut self) -> Self {
        self.hosts.push(HostFactory::of::<G>());
        self
    }

    /// Names a message that travels to hubs or over streams, so that peers hear of the versions in
    /// which this silo has it: an older silo gets it as it has it. What the methods of hosted grain
    /// types take and give is named by them.
    pub fn message<M: Message>(mut self) -> Self {
        self.messages.push(BodyType::of::<M>());
        self
    }

    /// Adds a kind of hub addresses to those every silo knows. Equal on all silos of a cluster.
    pub fn hub_kind(mut self, kind: impl Into<String>) -> Self {
        self.hub_kinds.push(kind.into());
        self
    }

    /// Sets how the streams of a namespace treat slow and failing consumers. Equal on all silos of
    /// a cluster.
    pub fn stream_policy(mut self, namespace: impl Into<String>, policy: StreamPolicy) -> Self {
        self.streams.policy(namespace, policy);
        self
    }

    /// Makes each grain of `G` a consumer of the stream of the namespace that has its key, without
    /// a subscription. Equal on all silos of a cluster.
    pub fn implicit_subscription<G: Grain, M: Message>(
        mut self,
        namespace: impl Into<String>,
        handler: EventMethod<G, M>,
    ) -> Self {
        self.streams.implicit(namespace, handler);
        self
    }

    /// How many streams each shard's part of the subscriber check holds: 64 bytes each. Default:
    /// 16 384. A stream that has no room there is `Unknown`, which costs nothing but the check.
    pub fn check_entries(mut self, count: usize) -> Self {
        self.streams.check_entries(count);
        self
    }

    /// Lets deliveries to hubs of a kind take the stream leg: see [`Streams::route`]. Equal on all
    /// silos of a cluster.
    pub fn add_stream_routed_kind(mut self, kind: impl Into<String>) -> Self {
        self.streams.stream_routed_kind(kind);
        self
    }

    /// Adds a filter that subscriptions may name, as `name` or `name:argument`; an event goes to
    /// such a consumer only if `wants` says so. Called on the shards. Equal on all silos of a
    /// cluster: one that does not know a filter lets every event pass.
    pub fn stream_filter<M: Message>(
        mut self,
        name: impl Into<String>,
        wants: impl Fn(&crate::Archived<M>, &str) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.streams.filter::<M>(name, wants);
        self.message::<M>()
    }

    /// Plants the silo's streams with a defect, to see that a test finds it.
    #[cfg(feature = "planted")]
    pub const fn planted(mut self, defect: siloring_pubsub::Planted) -> Self {
        self.streams.planted(defect);
        self
    }

    /// Sees every delivery before its turn and may refuse it. Called on the shards.
    pub fn filter(mut self, filter: impl Filter + 'static) -> Self {
        self.filter = Some(Arc::new(filter));
        self
    }

    /// Hears of one-way deliveries that failed and have no handler of their own: sender, target,
    /// failure. Called on the silo's threads: it must not block.
    pub fn on_failure(
        mut self,
        sink: impl Fn(Option<&Address>, &Address, &DeliveryFailure) + Send + Sync + 'static,
    ) -> Self {
        self.on_failure = Some(Box::new(sink));
        self
    }

    /// Starts the silo. Returns when it is Active; blocks until then, at most a minute.
    ///
    /// # Errors
    /// Each names what is wrong and ends with the remedy. Nothing runs then.
    pub fn start(mut self) -> Result<Silo, StartError> {
        self.read_files()?;
        self.hosts.extend(Streams::hosts());
        let types = HostFactory::versions(&self.hosts, &self.messages);
        let mut plan = Plan::of(&self.settings, &self.hosts, &types, &self.hub_kinds)?;
        let certificates = plan.certificates.as_mut().map(CertificateFiles::read).transpose()?;
        check::machine(plan.shards)?;
        let claim = plan.claim_memory()?;
        let listener = Listener::tcp(plan.bind).map_err(|error| plan.bind_refused(&error))?;
        let bound = listener.local_address().map_err(StartError::System)?;
        let bound = bound.expect("a TCP listener has an address");
        let shared = Arc::new(Shared::new(plan.shards, self.on_failure.take()));
        let store = plan.open_store(&shared)?;
        let streams = core::mem::take(&mut self.streams).build(plan.shards);
        let starting =
            Starting { plan, certificates, builder: self, streams, shared, bound, store, claim };
        starting.start(listener)
    }

    #[cfg(feature = "config-file")]
    fn read_files(&mut self) -> Result<(), StartError> {
        for path in &self.files {
            self.settings.read_file(path)?;
        }
        Ok(())
    }

    #[cfg(not(feature = "config-file"))]
    #[expect(clippy::unnecessary_wraps, reason = "the form with the feature reads files")]
    fn read_files(&mut self) -> Result<(), StartError> {
        assert!(self.files.is_empty(), "files are added by the feature only");
        Ok(())
    }
}

/// The mailboxes of a silo's shards, for handles.
#[derive(Debug)]
struct ShardMailboxes(Vec<Sender<Post<ShardNode>>>);

impl Mailboxes for ShardMailboxes {
    fn post(&self, shard: ShardIndex, mail: ShardMail) -> Result<(), PostError> {
        match self.0[usize::from(shard.0)].send(Post::Mail(mail)) {
            Ok(()) => Ok(()),
            Err(SendError::Full(Post::Mail(mail))) => Err(PostError::Full(mail)),
            Err(SendError::Closed(Post::Mail(mail))) => Err(PostError::Stopped(mail)),
            Err(
                SendError::Full(Post::Link(_) | Post::Stop)
                | SendError::Closed(Post::Link(_) | Post::Stop),
            ) => unreachable!("refused mail comes back"),
        }
    }

    fn shards(&self) -> u16 {
        u16::try_from(self.0.len()).expect("at most SHARDS_MAX")
    }
}

/// A silo on its way up.
struct Starting {
    plan: Plan,
    certificates: Option<Certificates>,
    builder: SiloBuilder,
    streams: Arc<Streams>,
    shared: Arc<Shared>,
    bound: SocketAddr,
    store: StoreThreads,
    claim: Option<plan::MemoryClaim>,
}

/// A shard's thread, and the way to tell it whose shard it is.
struct ShardThread {
    thread: JoinHandle<()>,
    named: mpsc::SyncSender<Generation>,
}

impl Starting {
    fn start(mut self, listener: Listener) -> Result<Silo, StartError> {
        let boxes = (0..self.plan.shards).map(|_| Letterbox::<ShardNode>::new());
        let boxes: Vec<_> = boxes.collect::<Result<_, _>>().map_err(StartError::System)?;
        let (senders, letterboxes): (Vec<_>, Vec<_>) = boxes.into_iter().unzip();
        let handle = Handle::new(Arc::new(ShardMailboxes(senders.clone())));
        let (control, control_box) = ControlLetterbox::new().map_err(StartError::System)?;
        let mut shards = Vec::new();
        for (index, letterbox) in (0..self.plan.shards).map(ShardIndex).zip(letterboxes) {
            let parts = Parts {
                index,
                letterbox,
                shards: senders.clone(),
                control: control.clone(),
                store: self.ask_store(),
                shared: Arc::clone(&self.shared),
                idle: self.plan.idle,
            };
            // Threads of shards started before a failure end when their names never come.
            shards.push(self.start_shard(parts, &senders[usize::from(index.0)], &handle)?);
        }
        let (notices, heard) = mpsc::sync_channel(4);
        let (named, mut threads): (Vec<_>, Vec<_>) =
            shards.into_iter().map(|shard| (shard.named, shard.thread)).unzip();
        let parts = self.control_parts(listener, control_box, senders, named, notices)?;
        threads.push(control::start(parts).map_err(StartError::System)?);
        let incarnation = match heard.recv().expect("the control thread tells before it ends") {
            Notice::Started(incarnation) => incarnation,
            Notice::JoinFailed { error, refusal } => {
                join_all(threads);
                return Err(StartError::of_join(error, refusal));
            }
            Notice::Left { .. } => {
                unreachable!("nobody else can drain a silo that has not started")
            }
        };
        let advertised = self.plan.advertised(self.bound);
        let watch = self.plan.watch_registry(&handle);
        if let Err(failure) = Streams::start(&handle) {
            tracing::warn!(target: "siloring", %failure, "a silo stopped while it started");
        }
        Ok(Silo {
            handle,
            streams: self.streams,
            incarnation,
            advertised,
            bound: self.bound,
            control,
            shared: self.shared,
            notices: heard,
            threads,
            store: Some(self.store),
            watch: Some(watch),
            claim: self.claim.take(),
        })
    }

    fn ask_store(&self) -> shard::AskStore {
        let store = self.store.client();
        Box::new(move |ticket, request, answers| {
            // The pump asks for no more than its answers' mailbox holds.
            store.submit(request, move |result| drop(answers.send((ticket, result))));
        })
    }

    fn start_shard(
        &self,
        parts: Parts<ShardNode>,
        own: &Sender<Post<ShardNode>>,
        handle: &Handle,
    ) -> Result<ShardThread, StartError> {
        let (named, name) = mpsc::sync_channel(1);
        let index = parts.index;
        let me = Endpoint { silo: Generation::NONE, shard: index };
        let mut config = ShardConfig::new(me, self.plan.shards, seed()?);
        config.hosts.clone_from(&self.builder.hosts);
        config.messages.clone_from(&self.builder.messages);
        config.hub_kinds.clone_from(&self.plan.hub_kinds);
        config.deadline_default = self.plan.deadline;
        config.idle_after = self.plan.idle_after;
        config.overload_delay = self.plan.overload_delay;
        config.filter.clone_from(&self.builder.filter);
        config.running = self.shared.running_of(index);
        config.shared.push(Arc::clone(&self.streams) as Arc<dyn Any + Send + Sync>);
        let unpark = Arc::new(WakeShard(own.clone()));
        let handle = handle.clone();
        let make = move || {
            config.me.silo = name.recv().ok()?;
            Some(ShardNode::new(clock::now(), config, unpark, handle))
        };
        let thread = shard::start(self.plan.placement(index), parts, make)?;
        Ok(ShardThread { thread, named })
    }

    fn control_parts(
        &mut self,
        listener: Listener,
        letterbox: ControlLetterbox,
        shards: Vec<Sender<Post<ShardNode>>>,
        named: Vec<mpsc::SyncSender<Generation>>,
        notices: mpsc::SyncSender<Notice>,
    ) -> Result<ControlParts, StartError> {
        let advertised = self.plan.advertised(self.bound);
        let machine =
            Control::new(self.plan.control_config(&advertised), fastrand::Rng::with_seed(seed()?));
        let facts = self.plan.facts.clone();
        let nonces = Box::new(|| nonce().expect("the system has entropy"));
        let mut node = ControlNode::new(machine, facts, &*advertised, self.plan.link, nonces);
        if let Some(certificates) = self.certificates.take() {
            node.set_certificates(certificates);
        }
        let cluster = self.plan.facts.cluster.clone();
        let unix = move |us: &Incarnation| UnixName::of(&cluster, us.generation, &advertised);
        let unix: Box<dyn Fn(&Incarnation) -> UnixName + Send> = Box::new(unix);
        Ok(ControlParts {
            node,
            letterbox,
            listener,
            unix: (self.plan.link != LinkMode::Tcp).then_some(unix),
            shards,
            store: self.store.client(),
            shared: Arc::clone(&self.shared),
            named: Box::new(move |us| {
                for shard in named {
                    shard.send(us.generation).expect("a shard waits for its name");
                }
            }),
            notices,
            certificates: self.plan.certificates.take(),
        })
    }
}

/// Unpredictable, so that silos started together do not draw alike.
fn seed() -> Result<u64, StartError> {
    let bytes = nonce().map_err(StartError::System)?;
    Ok(u64::from_le_bytes(*bytes.first_chunk().expect("a nonce has 32 bytes")))
}

fn join_all(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("a thread that panics aborts the process");
    }
}

/// A running silo. It owns its threads; dropping it drains it, which blocks.
///
/// # When it ends the process
/// - A silo that learns that it is Dead in the cluster (it slept, or was cut off for longer than
///   its lease) exits with code 70: what it holds has new owners.
/// - A shard that stands still for 30 s, because a handler blocks, aborts the process, as does a
///   panic in the silo's own threads: peers learn at once, instead of waiting for a dead core.
///
/// # Events
/// Each event is logged through `tracing`, target `siloring`, and counted: install a subscriber to
/// see them, read the counters with [`Silo::metrics_text`].
pub struct Silo {
    handle: Handle,
    streams: Arc<Streams>,
    incarnation: Incarnation,
    advertised: String,
    bound: SocketAddr,
    control: Sender<ControlMail>,
    shared: Arc<Shared>,
    notices: mpsc::Receiver<Notice>,
    threads: Vec<JoinHandle<()>>,
    store: Option<StoreThreads>,
    watch: Option<RegistryWatch>,
    claim: Option<plan::MemoryClaim>,
}

impl fmt::Debug for Silo {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Silo")
            .field("incarnation", &self.incarnation)
            .field("advertised", &self.advertised)
            .finish_non_exhaustive()
    }
}

impl Silo {
    /// Begins to build a silo.
    pub fn builder() -> SiloBuilder {
        SiloBuilder::default()
    }

    /// Begins to build a cluster of one in this process, with one shard: for programs that need no
    /// more, and for examples.
    pub fn local() -> LocalSilo {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let cluster = format!("local-{}-{count}", std::process::id());
        LocalSilo(Self::builder().cluster(cluster).store("memory:").shards(1))
    }

    /// Calls grains and opens hubs, from any thread.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// The stream `key` of a namespace.
    ///
    /// # Errors
    /// If they make no address.
    pub fn stream<M: Message>(
        &self,
        namespace: &str,
        key: &str,
    ) -> Result<Stream<M>, AddressError> {
        Stream::new(&self.handle, &self.streams, namespace, key)
    }

    /// What makes streams where only a handle is at hand: see [`Stream::new`].
    pub const fn streams(&self) -> &Arc<Streams> {
        &self.streams
    }

    /// Who this silo is.
    pub const fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    /// Where other silos reach it: `host:port`.
    pub fn address(&self) -> &str {
        &self.advertised
    }

    /// Where it listens.
    pub const fn bound(&self) -> SocketAddr {
        self.bound
    }

    /// Everything that is counted, as Prometheus text.
    pub fn metrics_text(&self) -> String {
        self.shared.metrics_text()
    }

    /// How often an event of that name has happened, as in [`Event::NAMES`]; `None`: no such event.
    pub fn event_count(&self, name: &str) -> Option<u64> {
        self.shared.count(name)
    }

    /// What reads the counters from any thread, also while [`Self::wait`] blocks.
    pub fn metrics(&self) -> Metrics {
        Metrics::of(&self.shared)
    }

    /// Leaves in order: takes nothing new, finishes turns, hands over, closes hubs. Blocks for at
    /// most 25 s: give an orchestrator's grace period more than that.
    ///
    /// The program goes on to read its hubs until they end, or closes them first: a delivery that
    /// nobody reads is refused only when the hub closes.
    ///
    /// # Errors
    /// If turns or deliveries were cut off when their time was up; the silo has left all the same.
    pub fn drain(mut self) -> Result<(), DrainError> {
        self.leave()
    }

    /// Serves until `SIGTERM` or `SIGINT`, then drains. A second signal ends the process at once.
    /// The exit code is 0 after an orderly drain, 1 if something was cut off.
    ///
    /// # Panics
    /// If the process cannot handle signals.
    pub fn wait(mut self) -> ExitCode {
        let control = self.control.clone();
        signals::on_first(move || drop(control.send(ControlMail::Drain)))
            .expect("signals can be handled");
        match self.hear_end() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::warn!(target: "siloring", %error, "the drain is done");
                ExitCode::FAILURE
            }
        }
    }

    fn leave(&mut self) -> Result<(), DrainError> {
        // A full mailbox is emptied within a loop of the control thread.
        while let Err(SendError::Full(_)) = self.control.send(ControlMail::Drain) {
            std::thread::yield_now();
        }
        self.hear_end()
    }

    /// Waits for the silo's end, which it has been told of or comes to by itself.
    fn hear_end(&mut self) -> Result<(), DrainError> {
        let notice = self.notices.recv().expect("the control thread tells before it ends");
        join_all(core::mem::take(&mut self.threads));
        drop(self.watch.take());
        drop(self.store.take());
        drop(self.claim.take());
        match notice {
            Notice::Left { unfinished_count: 0 } => Ok(()),
            Notice::Left { unfinished_count } => Err(DrainError { unfinished_count }),
            Notice::Started(_) | Notice::JoinFailed { .. } => unreachable!("it has started once"),
        }
    }
}

impl Drop for Silo {
    fn drop(&mut self) {
        if !self.threads.is_empty()
            && let Err(error) = self.leave()
        {
            tracing::warn!(target: "siloring", %error, "a silo was dropped");
        }
    }
}

/// Builds a silo that is a cluster of one, for the length of one future.
#[must_use = "a builder does nothing until it is run"]
#[derive(Debug)]
pub struct LocalSilo(SiloBuilder);

impl LocalSilo {
    /// Hosts a grain type.
    pub fn host<G: Grain>(self) -> Self {
        Self(self.0.host::<G>())
    }

    /// How many shards. Default: 1.
    pub fn shards(self, count: u16) -> Self {
        Self(self.0.shards(count))
    }

    /// Starts the silo, runs the future on this thread, and drains.
    ///
    /// # Errors
    /// If the silo does not start.
    pub fn run<T>(self, body: impl AsyncFnOnce(Handle) -> T) -> Result<T, StartError> {
        let silo = self.0.start()?;
        let result = block_on(body(silo.handle()));
        if let Err(error) = silo.drain() {
            tracing::warn!(target: "siloring", %error, "the local silo has ended");
        }
        Ok(result)
    }
}

/// Wakes the thread that waits for a future.
struct WakeThread {
    thread: std::thread::Thread,
    woken: AtomicBool,
}

impl std::task::Wake for WakeThread {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Runs a future on this thread, which sleeps while it waits.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = core::pin::pin!(future);
    let thread = std::thread::current();
    let wake = Arc::new(WakeThread { thread, woken: AtomicBool::new(false) });
    let waker = std::task::Waker::from(Arc::clone(&wake));
    let mut context = core::task::Context::from_waker(&waker);
    loop {
        if let core::task::Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return result;
        }
        while !wake.woken.swap(false, Ordering::Acquire) {
            std::thread::park();
        }
    }
}

/// The names of all events that [`Silo::event_count`] knows.
pub const EVENT_NAMES: &[&str] = Event::NAMES;

#[cfg(test)]
mod tests;
