//! A release of a program: what its silos host, say of themselves, and do.
//!
//! A cluster begins with one. Another one is what silos are started with once a plan says
//! `version 2`: then a roll brings it in, and after `version 1` another roll takes it back.

use std::fmt;
use std::future::Future;
use std::rc::Rc;

use siloring_core::schema::Message;
use siloring_core::versions::BodyType;
use siloring_pubsub::{Streams, StreamsBuilder};
use siloring_runtime::grain::Grain;
use siloring_runtime::host::HostFactory;
use siloring_transport::WireVersions;

use super::cluster::MakeProgram;
use super::node::Node;

/// What the silos of one release are.
#[derive(Clone)]
pub struct Release {
    pub(super) hosts: Vec<HostFactory>,
    pub(super) messages: Vec<BodyType>,
    pub(super) programs: Vec<MakeProgram>,
    pub(super) early_programs: Vec<MakeProgram>,
    pub(super) streams: StreamsBuilder,
    pub(super) wire: WireVersions,
}

impl fmt::Debug for Release {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hosts, messages, wire) = (&self.hosts, &self.messages, self.wire);
        write!(out, "Release({hosts:?}, {messages:?}, {wire:?})")
    }
}

impl Release {
    /// One that hosts nothing but what every silo does.
    pub(super) fn new() -> Self {
        // A silo is started hundreds of times in a run: its streams are small.
        let mut streams = StreamsBuilder::default();
        streams.check_entries(256);
        Self {
            hosts: Streams::hosts().to_vec(),
            messages: Vec::new(),
            programs: Vec::new(),
            early_programs: Vec::new(),
            streams,
            wire: WireVersions::OURS,
        }
    }

    /// Every silo hosts this grain type.
    #[must_use]
    pub fn host<G: Grain>(mut self) -> Self {
        self.hosts.push(HostFactory::of::<G>());
        self
    }

    /// Names a message that travels to hubs or over streams.
    #[must_use]
    pub fn message<M: Message>(mut self) -> Self {
        self.messages.push(BodyType::of::<M>());
        self
    }

    /// Changes the settings of every silo's streams.
    #[must_use]
    pub fn streams(mut self, change: impl FnOnce(&mut StreamsBuilder)) -> Self {
        change(&mut self.streams);
        self
    }

    /// Every silo's process runs this program, from the moment the silo is Active until it ends.
    #[must_use]
    pub fn program<F>(mut self, make: impl Fn(Node) -> F + 'static) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        self.programs.push(Rc::new(move |node| Box::pin(make(node))));
        self
    }

    /// Every silo's process runs this program too, from its start on: before the silo has joined.
    #[must_use]
    pub fn early_program<F>(mut self, make: impl Fn(Node) -> F + 'static) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        self.early_programs.push(Rc::new(move |node| Box::pin(make(node))));
        self
    }

    /// It speaks this wire version too, beyond those of this build. The version adds nothing but
    /// its number: what is tested is that a roll agrees on one.
    #[must_use]
    pub const fn wire_version(mut self, highest: u8) -> Self {
        self.wire.highest = highest;
        self
    }
}
