//! What the commands about subscriptions share: reading all of them, and judging who is left.

use anyhow::bail;
use siloring_core::ClusterId;
use siloring_core::limits::REGISTRY_PAGE_MAX;
use siloring_core::ports::registry::Subscription;
use siloring_core::ports::store::{Store, StoreAnswer, StoreRequest, Table};
use siloring_core::view::View;
use siloring_storage::{StoreUrl, open};

/// Which subscriptions a command is about.
#[derive(Debug, clap::Args)]
pub(crate) struct Registry {
    #[arg(
        env = "SILORING_STORE",
        hide_env_values = true,
        help = "The store: sqlite:PATH or postgres://USER@HOST/DB"
    )]
    url: String,

    /// Whose subscriptions: the cluster as its silos name it
    #[arg(long, value_name = "NAME", value_parser = crate::migrate::cluster_id)]
    pub(crate) cluster: ClusterId,
}

impl Registry {
    /// Opens the store as the cluster's silos do. A cluster without a view is most likely a typing
    /// error.
    pub(crate) fn open(&self) -> anyhow::Result<Box<dyn Store>> {
        let mut store = open(&self.url, &self.cluster)?;
        if read_table(&mut *store)? == Table::default() {
            let (cluster, url) = (&self.cluster, self.shown()?);
            bail!(
                "no silo of cluster {cluster} has ever joined in the store {url}: correct \
                 --cluster or the URL"
            );
        }
        Ok(store)
    }

    /// The URL without credentials.
    pub(crate) fn shown(&self) -> anyhow::Result<String> {
        Ok(StoreUrl::parse(&self.url)?.to_string())
    }
}

/// Whether a subscription's owner is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Liveness {
    /// It has none: it is a grain's, and grains are brought back anywhere.
    Grain,
    /// The owner is in the view and not Dead.
    Live,
    /// The owner is Dead, or absent, in a view that may judge it.
    Dead,
    /// The table is older than the subscription, so the store has lost versions: no judgement.
    Unknown,
}

impl Liveness {
    fn of(row: &Subscription, view: &View) -> Self {
        match row.owner {
            None => Self::Grain,
            Some(_) if view.number() < row.view => Self::Unknown,
            Some(owner) if view.is_gone(owner) => Self::Dead,
            Some(_) => Self::Live,
        }
    }

    /// Its name, for people and for `--json`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Grain => "-",
            Self::Live => "live",
            Self::Dead => "dead",
            Self::Unknown => "unknown",
        }
    }
}

/// How many subscriptions there are of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) grains: u64,
    pub(crate) live: u64,
    pub(crate) dead: u64,
    pub(crate) unknown: u64,
}

impl Counts {
    fn count(&mut self, liveness: Liveness) {
        match liveness {
            Liveness::Grain => self.grains += 1,
            Liveness::Live => self.live += 1,
            Liveness::Dead => self.dead += 1,
            Liveness::Unknown => self.unknown += 1,
        }
    }
}

/// Reads every subscription, a page at a time, and hands each on with its liveness. Returns the
/// counts and the newest view that was judged by.
///
/// The table is read after each page: who wrote a row had seen the row's view in the table before.
pub(crate) fn walk(
    store: &mut dyn Store,
    mut each: impl FnMut(&Subscription, Liveness) -> anyhow::Result<()>,
) -> anyhow::Result<(Counts, View)> {
    let (mut counts, mut after) = (Counts::default(), None);
    loop {
        let limit = REGISTRY_PAGE_MAX;
        let list = StoreRequest::ListSubscriptions { after, limit };
        let StoreAnswer::Subscriptions { rows, .. } = store.execute(&list)? else {
            bail!("the store did not answer a list with subscriptions");
        };
        let view = read_table(store)?.view();
        for row in &rows {
            let liveness = Liveness::of(row, &view);
            counts.count(liveness);
            each(row, liveness)?;
        }
        match rows.into_iter().next_back() {
            Some(row) => after = Some((row.stream, row.key)),
            None => return Ok((counts, view)),
        }
    }
}

/// Reads the membership table.
pub(crate) fn read_table(store: &mut dyn Store) -> anyhow::Result<Table> {
    let StoreAnswer::Table(table) = store.execute(&StoreRequest::ReadTable)? else {
        bail!("the store did not answer a read with a table");
    };
    Ok(table)
}
