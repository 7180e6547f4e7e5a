//! Membership: who is alive, who may serve, and how soon everybody knows.

use std::time::Duration;

use siloring_core::SiloStatus;
use siloring_testkit::sim::{Cluster, Fault, Life, Slot};

use super::scenario::{
    DETECTED, Echo, New, Outcome, S1, S2, S3, SECOND, check, ensure, note, serve_hub, up,
};
use super::scenario::{Note, Opening};

/// Whether the silo in `slot` has everybody else's status as `expected`, by name.
fn status_in(cluster: &Cluster, observer: Slot, of: &str) -> Option<SiloStatus> {
    let view = cluster.silo(observer)?.view();
    let row = view.rows().iter().rev().find(|row| row.incarnation.name.as_str() == of);
    row.map(|row| row.status)
}

fn is_dead_for(cluster: &Cluster, observer: Slot, of: &str) -> bool {
    matches!(status_in(cluster, observer, of), Some(SiloStatus::Dead) | None)
}

/// M2. A silo that falls silent is Dead after the due votes, within the bound, not before a miss.
#[test]
fn a_silent_silo_is_dead_within_the_bound_and_not_before() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new())?;
        cluster.run_for(5 * SECOND)?;
        cluster.inflict(Fault::Vanish(S3));
        cluster.run_for(Duration::from_millis(1_400))?;
        ensure!(!is_dead_for(&cluster, S1, "s3"), "Dead before its lease can have ended");
        cluster.run_until(DETECTED, "it is Dead for both", |cluster| {
            is_dead_for(cluster, S1, "s3") && is_dead_for(cluster, S2, "s3")
        })?;
        Ok(())
    }
    check(scenario, &["ignores-own-death-of-nobody"]);
}
