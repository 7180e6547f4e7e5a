//! A cluster at rest: nothing is asked of it any more, and nothing is left of what was.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use super::super::plan::{Options, Plan};
use super::super::sizes::{Sizes, is_union};
use super::{Cluster, Failure, LOOK_PERIOD};

/// What was asked of the cluster is over by then: idle grains of the load, a claim's lease.
const REST_MAX: Duration = Duration::from_secs(40);
/// The bytes of a cluster at rest are counted for so long.
const WINDOW: Duration = Duration::from_secs(10);
/// A cluster that has just started is at rest by then.
const SETTLED: Duration = Duration::from_secs(10);

thread_local! {
    /// Bytes that a calm cluster of so many silos and shards writes in a window.
    static IDLE: RefCell<BTreeMap<(u16, u16), u64>> = const { RefCell::new(BTreeMap::new()) };
}

impl Cluster {
    /// Checks that nothing is left over of a load that has ended: no table holds what nobody waits
    /// for, the directory is the union of what lives, and silos say at most twice as much to each
    /// other as in a cluster that never did anything.
    ///
    /// # Errors
    /// The first check that did not hold.
    pub fn check_rest(&mut self) -> Result<(), Failure> {
        let end = self.world.now() + REST_MAX;
        while let Err(text) = self.is_at_rest() {
            if self.world.now() >= end {
                self.world.violate("nothing is left at rest", text);
            }
            self.advance(self.world.now() + LOOK_PERIOD)?;
        }
        let before = self.world.bytes_written();
        self.run_for(WINDOW)?;
        let written = self.world.bytes_written() - before;
        let idle = idle_bytes(&self.options)?;
        if written > 2 * idle {
            let text = format!("{written} bytes in {WINDOW:?}, {idle} by a calm cluster");
            self.world.violate("what silos say at rest is back at its baseline", text);
        }
        self.run_for(Duration::ZERO)
    }

    fn is_at_rest(&self) -> Result<(), String> {
        let mut all = Vec::new();
        for slot in self.slots() {
            let Some(silo) = self.silo(slot) else { return Err(format!("{slot} is empty")) };
            let sizes = silo.sizes();
            if let Some(left) = sizes.iter().find_map(Sizes::left_over) {
                return Err(format!("{slot}: {left}"));
            }
            all.extend(sizes);
        }
        is_union(&all)
    }
}

/// Bytes that a calm cluster of this size writes in a window.
fn idle_bytes(options: &Options) -> Result<u64, Failure> {
    let size = (options.silos, options.shards);
    if let Some(known) = IDLE.with_borrow(|idle| idle.get(&size).copied()) {
        return Ok(known);
    }
    let mut calm = Options::new(1);
    (calm.silos, calm.shards, calm.load_per_second) = (options.silos, options.shards, 0);
    let mut cluster = Cluster::builder().plan(Plan::calm(calm)).build();
    cluster.start()?;
    cluster.run_for(SETTLED)?;
    let before = cluster.world().bytes_written();
    cluster.run_for(WINDOW)?;
    let written = cluster.world().bytes_written() - before;
    IDLE.with_borrow_mut(|idle| idle.insert(size, written));
    Ok(written)
}
