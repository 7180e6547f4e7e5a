//! Why a silo did not start, or did not end as it should.

use std::io;
use std::net::SocketAddr;

use siloring_core::ids::NameError;
use siloring_runtime::control::JoinError;
use siloring_storage::OpenError;
use siloring_transport::{FactsError, Refusal, RefusalKind, SecretError};

use crate::config::ConfigError;
use crate::driver::certificates::TlsError;
use crate::driver::check;
use crate::driver::shard::ShardError;

/// Why a silo did not start. Nothing of it runs; each text ends with the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration file is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A cluster or silo name is none.
    #[error("{setting} {text:?} is no name ({error}): use 1 to 63 of a-z A-Z 0-9 . _ -")]
    Name {
        /// `cluster` or `name`.
        setting: &'static str,
        /// What was given.
        text: String,
        /// What is wrong with it.
        error: NameError,
    },
    /// An address is none.
    #[error("{setting} {text:?} is no address ({detail}): write {wanted}")]
    Address {
        /// `bind` or `advertise`.
        setting: &'static str,
        /// What was given.
        text: String,
        /// What is wrong with it.
        detail: String,
        /// The form it has.
        wanted: &'static str,
    },
    /// The silo listens on all interfaces, so that nobody knows where to dial it.
    #[error(
        "a silo that listens on {bind} must say where others reach it: set advertise to host:port"
    )]
    AdvertiseMissing {
        /// Where it listens.
        bind: SocketAddr,
    },
    /// Anybody who reaches the port could call everything.
    #[error(
        "{bind} is reachable from other hosts and neither tls nor a secret is set: set one, bind a \
         loopback address, or accept the risk with danger_insecure_network"
    )]
    InsecureBind {
        /// Where it would listen.
        bind: SocketAddr,
    },
    /// A cluster secret is too short.
    #[error("{0}: generate one with `head -c 32 /dev/urandom | base64`")]
    Secret(SecretError),
    /// The certificates for TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A setting is out of its bounds.
    #[error("{0}: change that setting")]
    Facts(FactsError),
    /// Two hosted grain types have one name.
    #[error("two hosted grain types are called {kind:?}: give one another type name")]
    TypeTwice {
        /// The name.
        kind: String,
    },
    /// A processor was named that this process may not use.
    #[error("cpus names {cpu}, which this process may not use: use some of {allowed:?}")]
    Cpu {
        /// Which.
        cpu: usize,
        /// Those it may use.
        allowed: Vec<usize>,
    },
    /// Fewer processors were named than there are shards.
    #[error("cpus names {cpus} processors for {shards} shards: name as many as there are shards")]
    CpuCount {
        /// How many were named.
        cpus: usize,
        /// How many shards there are.
        shards: u16,
    },
    /// This process may not use `io_uring`.
    #[error("io_uring cannot be used here ({detail}): {remedy}")]
    IoUring {
        /// What the system said.
        detail: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The kernel has no wait of nanoseconds, or this process may not use it.
    #[error(
        "epoll_pwait2 cannot be used here ({detail}): use Linux 5.11 or later, and in a container \
         a seccomp profile that allows it"
    )]
    Sleep {
        /// What the system said.
        detail: String,
    },
    /// Too little memory may be locked.
    #[error(
        "the limit on locked memory is {limit_bytes} bytes and {needed_bytes} are needed: raise it \
         with `ulimit -l`, LimitMEMLOCK= or --ulimit memlock="
    )]
    Memlock {
        /// What is allowed.
        limit_bytes: u64,
        /// What is needed.
        needed_bytes: u64,
    },
    /// Too few descriptors may be open.
    #[error(
        "the limit on open files is {limit} and {needed} are needed: raise it with `ulimit -n`, \
         LimitNOFILE= or --ulimit nofile="
    )]
    Files {
        /// What is allowed.
        limit: u64,
        /// What is needed.
        needed: u64,
    },
    /// Another process listens there.
    #[error("{bind} is taken by another process: stop that one, or bind another port")]
    PortTaken {
        /// Where.
        bind: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("{bind} cannot be listened on ({error}): bind an address of this host")]
    Bind {
        /// Where.
        bind: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// `memory:` is a cluster of one, and it has its one silo.
    #[error(
        "cluster {cluster:?} runs on memory: already, which takes one silo: use sqlite:PATH for \
         several silos on one host, postgres://… for several hosts"
    )]
    SecondOnMemory {
        /// Which cluster.
        cluster: String,
    },
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// A silo of this store belongs to another cluster.
    #[error(
        "a silo that this store lists is of another cluster ({detail}): correct cluster or store"
    )]
    ForeignCluster {
        /// What it said.
        detail: String,
    },
    /// Silos of the cluster refuse this one, or it refuses them.
    #[error("a silo of the cluster cannot be linked with ({detail}): {remedy}")]
    PeerRefused {
        /// What was said.
        detail: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The cluster was not joined.
    #[error("{0}")]
    Join(JoinError),
    /// The system refused a thread or a descriptor.
    #[error("the system refused a thread or descriptor ({0}): raise its limits")]
    System(io::Error),
}

impl From<SecretError> for StartError {
    fn from(error: SecretError) -> Self {
        Self::Secret(error)
    }
}

impl From<FactsError> for StartError {
    fn from(error: FactsError) -> Self {
        Self::Facts(error)
    }
}

impl From<ShardError> for StartError {
    fn from(error: ShardError) -> Self {
        match error {
            ShardError::System(error) => Self::System(error),
            ShardError::Reactor(error) => check::refusal(error),
        }
    }
}

impl StartError {
    /// A join that failed; `refusal` is what a peer or we said last, and often the cause.
    pub(super) fn of_join(error: JoinError, refusal: Option<Refusal>) -> Self {
        let Some(refusal) = refusal.filter(|_| is_of_links(&error)) else {
            return Self::Join(error);
        };
        let detail = refusal.to_string();
        let remedy = match refusal.kind {
            RefusalKind::ForeignCluster => return Self::ForeignCluster { detail },
            RefusalKind::BadCredential => {
                "set tls on both, with certificates of CAs that both trust, or on neither, and on \
                 both set the cluster's secret"
            }
            RefusalKind::LayoutChanged => "raise the version of the type whose fields changed",
            RefusalKind::VersionUnsupported => "run releases that share a wire version",
            RefusalKind::IdentityMismatch
            | RefusalKind::IncarnationDead
            | RefusalKind::UnexpectedIncarnation
            | RefusalKind::TooLarge
            | RefusalKind::ProtocolViolation
            | RefusalKind::NotJoined
            | RefusalKind::Superseded
            | RefusalKind::Leaving
            | RefusalKind::Busy
            | RefusalKind::Unknown(_) => return Self::Join(error),
        };
        Self::PeerRefused { detail, remedy }
    }
}

/// Whether links that did not come up can be why the join failed.
fn is_of_links(error: &JoinError) -> bool {
    matches!(
        error,
        JoinError::Unreachable { .. } | JoinError::NotReachedBack { .. } | JoinError::Cancelled
    )
}

/// A drain that cut something off. The silo has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{unfinished_count} turns or deliveries were cut off when their time was up")]
pub struct DrainError {
    /// Turns and deliveries that had not ended.
    pub unfinished_count: usize,
}
