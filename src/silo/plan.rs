//! Settings, checked: what a silo will be started with.

use core::time::Duration;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use siloring_core::limits::{
    ACTIVATION_IDLE_MAX, DEADLINE_DEFAULT, FRAME_BYTES_MAX, OVERLOAD_DELAY, OVERLOAD_DELAY_MIN,
    RING_POINTS, SHARDS_MAX, VOTES_NEEDED,
};
use siloring_core::versions::Versions;
use siloring_core::{ClusterId, ShardIndex, SiloName};
use siloring_pubsub::Streams;
use siloring_runtime::control::ControlConfig;
use siloring_runtime::handle::Handle;
use siloring_runtime::host::HostFactory;
use siloring_runtime::shard::ShardConfig;
use siloring_storage::{RegistryWatch, StoreThreads};
use siloring_transport::net::host_identity;
use siloring_transport::{LocalFacts, Secret, WireVersions, silo_uri};

use crate::config::Settings;
use crate::driver::certificates::CertificateFiles;
use crate::driver::idle::Idle;
use crate::driver::reactor::Placement;
use crate::driver::shared::Shared;
use crate::pump::LinkMode;

use super::StartError;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) name: SiloName,
    pub(super) bind: SocketAddr,
    advertise: Option<String>,
    store: String,
    pub(super) shards: u16,
    cpus: Option<Vec<usize>>,
    pub(super) link: LinkMode,
    pub(super) idle: Idle,
    pub(super) deadline: Duration,
    pub(super) idle_after: Duration,
    pub(super) overload_delay: Duration,
    pub(super) hub_kinds: Vec<String>,
    pub(super) facts: LocalFacts,
    pub(super) certificates: Option<CertificateFiles>,
}

impl Plan {
    pub(super) fn of(
        settings: &Settings,
        hosts: &[HostFactory],
        types: &Versions,
        hub_kinds: &[String],
    ) -> Result<Self, StartError> {
        check_kinds(hosts)?;
        let cluster = settings.cluster.as_deref().unwrap_or("siloring");
        let cluster = ClusterId::new(cluster).map_err(|error| StartError::Name {
            setting: "cluster",
            text: cluster.to_owned(),
            error,
        })?;
        let name = settings.name.as_deref().unwrap_or("silo");
        let name = SiloName::new(name).map_err(|error| StartError::Name {
            setting: "name",
            text: name.to_owned(),
            error,
        })?;
        let allowed = allowed_cpus();
        let shards = settings.shards.unwrap_or_else(|| usable_cpus(allowed.len()));
        let bind = bind_address(settings)?;
        let deadline = settings.deadline.unwrap_or(DEADLINE_DEFAULT);
        let facts = LocalFacts {
            cluster,
            incarnation: None,
            shards,
            host: host_identity().map_err(StartError::System)?,
            deadline_default: deadline,
            frame_bytes_max: u32::try_from(FRAME_BYTES_MAX).expect("16 MiB fit"),
            secrets: secrets(settings)?,
            types: types.told(),
            wire: WireVersions::OURS,
            features: 0,
        };
        facts.check()?;
        if !(bind.ip().is_loopback() || settings.danger_insecure_network)
            && facts.secrets.is_empty()
            && settings.tls.is_none()
        {
            return Err(StartError::InsecureBind { bind });
        }
        let uri = silo_uri(&facts.cluster, &name);
        let certificates = settings.tls.clone().map(|tls| CertificateFiles::new(tls, uri));
        let fits = usize::from(shards) <= usize::from(usable_cpus(allowed.len()));
        Ok(Self {
            name,
            bind,
            advertise: advertised(settings, bind)?,
            store: settings.store.clone().unwrap_or_else(|| "memory:".to_owned()),
            shards,
            cpus: cpus(settings, shards, &allowed)?,
            link: settings.link.unwrap_or_default(),
            idle: settings.idle.unwrap_or(if fits { Idle::default() } else { Idle::Park }),
            deadline,
            idle_after: settings.idle_after.unwrap_or(ACTIVATION_IDLE_MAX),
            overload_delay: settings
                .overload_delay
                .map_or(OVERLOAD_DELAY, |delay| delay.max(OVERLOAD_DELAY_MIN)),
            hub_kinds: all_hub_kinds(hub_kinds),
            facts,
            certificates,
        })
    }

    /// Where others reach a silo that listens on `bound`.
    pub(super) fn advertised(&self, bound: SocketAddr) -> String {
        match &self.advertise {
            // A port of 0 stands for the one that was bound.
            Some(text) => match text.strip_suffix(":0") {
                Some(host) => format!("{host}:{}", bound.port()),
                None => text.clone(),
            },
            None => bound.to_string(),
        }
    }

    pub(super) fn placement(&self, shard: ShardIndex) -> Placement {
        match &self.cpus {
            Some(cpus) => Placement::Fixed(cpus[usize::from(shard.0)]),
            None => Placement::Unbound,
        }
    }

    pub(super) fn bind_refused(&self, error: &io::Error) -> StartError {
        let bind = self.bind;
        if error.kind() == io::ErrorKind::AddrInUse {
            return StartError::PortTaken { bind };
        }
        StartError::Bind { bind, error: io::Error::new(error.kind(), error.to_string()) }
    }

    pub(super) fn open_store(&self, shared: &Arc<Shared>) -> Result<StoreThreads, StartError> {
        let shared = Arc::clone(shared);
        let on_event = move |event| shared.record(&event);
        Ok(StoreThreads::start(&self.store, &self.facts.cluster, on_event)?)
    }

    /// Lets the silo's streams hear when somebody changes subscriptions in the store.
    pub(super) fn watch_registry(&self, handle: &Handle) -> RegistryWatch {
        let handle = handle.clone();
        let on_hint = move |hint| Streams::hinted(&handle, hint);
        RegistryWatch::start(&self.store, &self.facts.cluster, on_hint)
            .expect("the store was opened by this URL")
    }

    /// Takes the one place that a cluster on `memory:` has in this process.
    pub(super) fn claim_memory(&self) -> Result<Option<MemoryClaim>, StartError> {
        if self.store.trim_end_matches('/') != "memory:" {
            return Ok(None);
        }
        let cluster = self.facts.cluster.to_string();
        let mut taken = TAKEN.lock().expect("no holder of the lock panics");
        if !taken.insert(cluster.clone()) {
            return Err(StartError::SecondOnMemory { cluster });
        }
        Ok(Some(MemoryClaim(cluster)))
    }

    pub(super) fn control_config(&self, advertised: &str) -> ControlConfig {
        let settings = vec![
            ("ring.points".to_owned(), RING_POINTS.to_string()),
            ("ring.hash".to_owned(), "xxh3".to_owned()),
            ("votes.needed".to_owned(), VOTES_NEEDED.to_string()),
            ("hub.kinds".to_owned(), self.hub_kinds.join(" ")),
        ];
        let host = self.facts.host.clone();
        ControlConfig::new(self.name.clone(), advertised, host, self.shards, settings)
    }
}

/// Reads a configuration and checks it as a silo that starts does, and starts nothing: what fuzz
/// targets give a text to.
#[cfg(feature = "fuzz")]
pub fn check_config(text: &str) -> Result<(), StartError> {
    let mut settings = Settings::default();
    settings.read_text(text)?;
    Plan::of(&settings, &[], &Versions::default(), &[]).map(drop)
}

/// Clusters on `memory:` that run in this process. Guarded: taken and given back by
/// [`MemoryClaim`].
static TAKEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// The place of a cluster on `memory:`; given back when dropped.
#[derive(Debug)]
pub(super) struct MemoryClaim(String);

impl Drop for MemoryClaim {
    fn drop(&mut self) {
        TAKEN.lock().expect("no holder of the lock panics").remove(&self.0);
    }
}

/// The processors that this process may use.
fn allowed_cpus() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect(),
        Err(_) => Vec::new(),
    }
}

/// How many processors this process may use, its share of their time considered.
fn usable_cpus(allowed: usize) -> u16 {
    let parallel = std::thread::available_parallelism().map_or(1, usize::from);
    u16::try_from(parallel.min(allowed.max(1))).unwrap_or(SHARDS_MAX).clamp(1, SHARDS_MAX)
}

fn cpus(
    settings: &Settings,
    shards: u16,
    allowed: &[usize],
) -> Result<Option<Vec<usize>>, StartError> {
    let Some(cpus) = &settings.cpus else {
        return Ok((allowed.len() == usize::from(shards)).then(|| allowed.to_vec()));
    };
    if cpus.len() < usize::from(shards) {
        return Err(StartError::CpuCount { cpus: cpus.len(), shards });
    }
    match cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        Some(&cpu) => Err(StartError::Cpu { cpu, allowed: allowed.to_vec() }),
        None => Ok(Some(cpus.clone())),
    }
}

fn bind_address(settings: &Settings) -> Result<SocketAddr, StartError> {
    let text = settings.bind.as_deref().unwrap_or("127.0.0.1:0");
    text.parse().map_err(|error: std::net::AddrParseError| StartError::Address {
        setting: "bind",
        text: text.to_owned(),
        detail: error.to_string(),
        wanted: "ip:port, such as 127.0.0.1:7000 or [::1]:7000",
    })
}

fn advertised(settings: &Settings, bind: SocketAddr) -> Result<Option<String>, StartError> {
    let Some(text) = &settings.advertise else {
        if bind.ip().is_unspecified() {
            return Err(StartError::AdvertiseMissing { bind });
        }
        return Ok(None);
    };
    let is_sound = text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok() && text.len() <= ADVERTISED_BYTES_MAX
    });
    if is_sound {
        return Ok(Some(text.clone()));
    }
    Err(StartError::Address {
        setting: "advertise",
        text: text.clone(),
        detail: "no host and port".to_owned(),
        wanted: "host:port, such as pod-a.example:7000",
    })
}

/// The longest host name, a colon and a port.
const ADVERTISED_BYTES_MAX: usize = 253 + 6;

fn secrets(settings: &Settings) -> Result<Vec<Secret>, StartError> {
    settings.secrets.iter().map(|bytes| Ok(Secret::new(bytes.clone())?)).collect()
}

/// No two grain types have one name.
fn check_kinds(hosts: &[HostFactory]) -> Result<(), StartError> {
    let mut kinds = BTreeSet::new();
    for host in hosts {
        if !kinds.insert(host.kind()) {
            return Err(StartError::TypeTwice { kind: host.kind().to_owned() });
        }
    }
    Ok(())
}

fn all_hub_kinds(added: &[String]) -> Vec<String> {
    let known = ShardConfig::HUB_KINDS.map(str::to_owned);
    let all: BTreeSet<String> = known.into_iter().chain(added.iter().cloned()).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use siloring_transport::FactsError;

    use super::*;
    use crate::driver::certificates::Tls;

    fn plan(change: impl FnOnce(&mut Settings)) -> Result<Plan, StartError> {
        let mut settings = Settings { shards: Some(1), ..Settings::default() };
        change(&mut settings);
        Plan::of(&settings, &[], &Versions::default(), &[])
    }

    #[test]
    fn malformed_settings_are_named_with_their_remedy() {
        let error = plan(|settings| settings.name = Some("pod a".into())).unwrap_err().to_string();
        assert!(error.contains("pod a") && error.ends_with("a-z A-Z 0-9 . _ -"), "{error}");
        let error = plan(|settings| settings.bind = Some("localhost".into())).unwrap_err();
        assert!(error.to_string().contains("ip:port"), "{error}");
        let error = plan(|settings| settings.advertise = Some("nowhere".into())).unwrap_err();
        assert!(error.to_string().contains("host:port"), "{error}");
        let error = plan(|settings| settings.shards = Some(0)).unwrap_err();
        assert!(matches!(error, StartError::Facts(FactsError::Shards { found: 0 })));
        let error = plan(|settings| settings.secrets = vec![b"short".to_vec()]).unwrap_err();
        assert!(matches!(error, StartError::Secret(_)));
    }

    #[test]
    fn a_port_that_others_reach_needs_a_secret_or_tls_or_the_danger_taken() {
        let open = |settings: &mut Settings| {
            settings.bind = Some("0.0.0.0:7000".into());
            settings.advertise = Some("pod-a:7000".into());
        };
        assert!(matches!(plan(open), Err(StartError::InsecureBind { .. })));
        let secret = |settings: &mut Settings| {
            open(settings);
            settings.secrets = vec![vec![7; 32]];
        };
        assert!(plan(secret).is_ok());
        let tls = |settings: &mut Settings| {
            open(settings);
            let [ca, certificate, key] = ["ca", "certificate", "key"].map(Into::into);
            settings.tls = Some(Tls { ca, certificate, key });
        };
        assert!(plan(tls).is_ok());
        let danger = |settings: &mut Settings| {
            open(settings);
            settings.danger_insecure_network = true;
        };
        assert!(plan(danger).is_ok());
    }

    #[test]
    fn a_silo_on_all_interfaces_must_say_where_it_is_reached() {
        let result = plan(|settings| {
            settings.bind = Some("0.0.0.0:7000".into());
            settings.danger_insecure_network = true;
        });
        assert!(matches!(result, Err(StartError::AdvertiseMissing { .. })));
    }

    #[test]
    fn memory_takes_one_silo_a_cluster_until_it_ends() {
        let plan = plan(|settings| settings.cluster = Some("plan-test".into())).unwrap();
        let claim = plan.claim_memory().unwrap();
        assert!(matches!(plan.claim_memory(), Err(StartError::SecondOnMemory { .. })));
        drop(claim);
        assert!(plan.claim_memory().is_ok());
    }

    #[test]
    fn shards_are_pinned_where_there_is_nothing_to_choose_or_as_told() {
        let settings = |cpus| Settings { cpus, ..Settings::default() };
        assert_eq!(cpus(&settings(None), 2, &[4, 5]).unwrap(), Some(vec![4, 5]));
        assert_eq!(cpus(&settings(None), 1, &[4, 5]).unwrap(), None);
        assert_eq!(cpus(&settings(Some(vec![5])), 1, &[4, 5]).unwrap(), Some(vec![5]));
        let few = cpus(&settings(Some(vec![5])), 2, &[4, 5]);
        assert!(matches!(few, Err(StartError::CpuCount { .. })));
        let foreign = cpus(&settings(Some(vec![9])), 1, &[4, 5]);
        assert!(matches!(foreign, Err(StartError::Cpu { cpu: 9, .. })));
    }

    #[test]
    fn an_advertised_port_of_zero_is_the_bound_one() {
        let bound = "127.0.0.1:7007".parse().unwrap();
        let plan = plan(|settings| settings.advertise = Some("pod-a:0".into())).unwrap();
        assert_eq!(plan.advertised(bound), "pod-a:7007");
    }
}
