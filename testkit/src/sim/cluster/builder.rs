//! What a cluster is built of.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use siloring_core::schema::Message;
use siloring_core::{ClusterId, Moment};
use siloring_pubsub::StreamsBuilder;
use siloring_runtime::grain::Grain;
use siloring_storage::MemoryStore;

use super::super::node::Node;
use super::super::plan::{Options, Plan};
use super::super::planted::Planted;
use super::super::release::Release;
use super::super::trace::TraceSink;
use super::super::watches::Watches;
use super::super::world::{World, WorldSettings};
use super::{Cluster, SlotState, Tally};

/// Builds a [`Cluster`].
pub struct ClusterBuilder {
    plan: Plan,
    first: Release,
    later: Vec<Release>,
    sink: Option<TraceSink>,
    world: WorldSettings,
}

impl std::fmt::Debug for ClusterBuilder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ClusterBuilder").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl ClusterBuilder {
    /// Every silo hosts this grain type.
    #[must_use]
    pub fn host<G: Grain>(mut self) -> Self {
        self.first = self.first.host::<G>();
        self
    }

    /// Names a message that travels to hubs or over streams.
    #[must_use]
    pub fn message<M: Message>(mut self) -> Self {
        self.first = self.first.message::<M>();
        self
    }

    /// Another release of the program: the second, then the third. Silos are started with it after
    /// [`Fault::Version`](super::Fault::Version). What the first one hosts and does it does not.
    #[must_use]
    pub fn later(mut self, make: impl FnOnce(Release) -> Release) -> Self {
        self.later.push(make(Release::new()));
        self
    }

    /// Changes the settings of every silo's streams.
    #[must_use]
    pub fn streams(mut self, change: impl FnOnce(&mut StreamsBuilder)) -> Self {
        self.first = self.first.streams(change);
        self
    }

    /// Every silo's process runs this program, from the moment the silo is Active until it ends.
    #[must_use]
    pub fn program<F>(mut self, make: impl Fn(Node) -> F + 'static) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        self.first = self.first.program(make);
        self
    }

    /// Every silo's process runs this program too, from its start on: before the silo has joined.
    #[must_use]
    pub fn early_program<F>(mut self, make: impl Fn(Node) -> F + 'static) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        self.first = self.first.early_program(make);
        self
    }

    /// What happens to it.
    #[must_use]
    pub fn plan(mut self, plan: Plan) -> Self {
        let Options { seed, pipe_bytes, latency, store_latency, wake, .. } = plan.options;
        let Options { drift_ppm, hints, rare_per_mille, .. } = plan.options;
        self.world.seed = seed;
        self.world.network.pipe_bytes_max = pipe_bytes as usize;
        self.world.network.latency_max = latency;
        self.world.network.latency_min = latency / 10;
        self.world.network.latency_tail = 10 * latency;
        self.world.store.latency_max = store_latency;
        self.world.store.latency_min = store_latency / 15;
        self.world.wake_latency_max = wake;
        self.world.clock_drift_ppm_max = i32::try_from(drift_ppm).unwrap_or(i32::MAX);
        self.world.hints = hints;
        self.world.rare_per_mille = rare_per_mille;
        self.world.ends_per_mille = plan.options.ends_per_mille;
        self.plan = plan;
        self
    }

    /// Changes what happens to it.
    #[must_use]
    pub fn planned(self, change: impl FnOnce(Plan) -> Plan) -> Self {
        let plan = change(self.plan.clone());
        self.plan(plan)
    }

    /// Tells every step of the run to `sink`.
    #[must_use]
    pub fn trace(mut self, sink: impl FnMut(&str) + 'static) -> Self {
        self.sink = Some(Box::new(sink));
        self
    }

    /// Keeps the events that silos tell, for [`Cluster::world`].
    #[must_use]
    pub const fn keep_events(mut self) -> Self {
        self.world.keep_events = true;
        self
    }

    /// Changes the settings of the world.
    #[must_use]
    pub fn world(mut self, change: impl FnOnce(&mut WorldSettings)) -> Self {
        change(&mut self.world);
        self
    }

    /// The cluster, with every slot empty.
    ///
    /// # Panics
    /// If the plan's options name an unknown defect.
    pub fn build(self) -> Cluster {
        let id = ClusterId::new("sim").expect("a plain name");
        let memory = MemoryStore::new(id.clone());
        let mut world = World::new(self.world, Box::new(memory.clone()), self.sink);
        let slots = (1..=self.plan.options.silos)
            .map(|number| SlotState {
                name: format!("s{number}"),
                host: world.add_host(),
                current: None,
                leaving: Vec::new(),
                generation_count: 0,
                restart_at: Moment::NEVER,
                down_on_purpose: false,
            })
            .collect();
        let steps = self.plan.steps.iter().copied().collect();
        let planted = Planted::named(self.plan.options.defect.as_deref());
        planted.store(&memory);
        world.core().listeners.looks_first = planted.looks_first();
        let mut releases = self.later;
        releases.insert(0, self.first);
        for release in &mut releases {
            planted.streams(&mut release.streams);
        }
        Cluster {
            id,
            world,
            memory,
            replica: None,
            options: self.plan.options.clone(),
            steps,
            releases,
            release: 0,
            planted,
            slots,
            silos: BTreeMap::new(),
            active: Vec::new(),
            touched: BTreeSet::new(),
            roll: None,
            began: Moment::ZERO,
            tally: Tally::default(),
            watches: Watches::default(),
            seen_active: BTreeSet::new(),
            plan: self.plan,
        }
    }
}

impl Cluster {
    /// A builder of a cluster with the usual options.
    pub fn builder() -> ClusterBuilder {
        let plan = Plan::calm(Options::new(1));
        ClusterBuilder {
            world: WorldSettings::new(plan.options.seed),
            plan,
            first: Release::new(),
            later: Vec::new(),
            sink: None,
        }
    }
}
