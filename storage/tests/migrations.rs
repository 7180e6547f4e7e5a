//! Migrations and the refusal to run without them (SCENARIOS P1, P2; FAULTS 48).
//!
//! Method: bring a store into each state by hand, run `migrate`, and hold that it ends complete,
//! which [`check`] and a round trip confirm; hold also that `check` and `open` refuse it before.

use siloring_storage::{
    MigrateError, OpenError, Phase, PhaseOutcome, StoreThreads, check, migrate, open,
};

use crate::fixture::{
    cluster, fence, insert, load, registered, row, server, state, subscription, write_row,
};
use siloring_core::SiloStatus;
use siloring_core::ports::store::StoreAnswer;

/// A store without tables, and a way to run SQL in it by hand.
struct Bare {
    url: String,
    folder: Option<tempfile::TempDir>,
}

impl Bare {
    fn all() -> Vec<Self> {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("store.db").display());
        let mut all = vec![Self { url, folder: Some(folder) }];
        if let Some(server) = server() {
            all.push(Self { url: server.empty_database().unwrap(), folder: None });
        }
        all
    }

    fn run(&self, sql: &str) {
        if let Some(folder) = &self.folder {
            let path = folder.path().join("store.db");
            rusqlite::Connection::open(path).unwrap().execute_batch(sql).unwrap();
        } else {
            let mut client = postgres::Client::connect(&self.url, postgres::NoTls).unwrap();
            client.batch_execute(sql).unwrap();
        }
    }

    fn migrate(&self) -> Vec<PhaseOutcome> {
        migrate(&self.url).unwrap().phases.iter().map(|phase| phase.outcome).collect()
    }

    fn lacks(&self) -> String {
        match (check(&self.url), open(&self.url, &cluster("a")).map(drop)) {
            (Err(OpenError::NotMigrated { missing, url }), Err(second)) => {
                let text = second.to_string();
                assert!(text.contains(&format!("run `siloring migrate {url}`")), "{text}");
                missing
            }
            other => panic!("not refused: {other:?}"),
        }
    }

    fn assert_complete(&self) {
        check(&self.url).unwrap();
        let mut store = open(&self.url, &cluster("a")).unwrap();
        let joined = store.execute(&write_row(0, row("a", 1, SiloStatus::Joining)));
        assert_eq!(joined, Ok(StoreAnswer::Done));
        assert_eq!(store.execute(&load("g", fence(1, 1))), state(None, 0));
        registered(&store.execute(&insert(&subscription("s", "k"))));
        assert_eq!(self.migrate(), [PhaseOutcome::AlreadyComplete; 3], "and changes nothing again");
    }
}

#[test]
fn an_empty_store_is_refused_then_migrated_whole() {
    for bare in Bare::all() {
        let lacks = bare.lacks();
        assert!(lacks.contains("membership") || lacks.contains("file"), "{lacks}");
        assert_eq!(bare.migrate(), [PhaseOutcome::Applied; 3]);
        bare.assert_complete();
    }
}

/// Takes a phase away: its tables and its marker.
fn take_away(bare: &Bare, phase: &str, tables: &[&str]) {
    for table in tables {
        bare.run(&format!("DROP TABLE {table}"));
    }
    bare.run(&format!("DELETE FROM siloring_phase WHERE phase = '{phase}'"));
}

const STATE: &[&str] = &["siloring_state"];
const SUBSCRIPTIONS: &[&str] =
    &["siloring_registry", "siloring_subscription", "siloring_dead_letter"];

#[test]
fn a_store_with_the_first_phase_only_gets_the_others() {
    for bare in Bare::all() {
        bare.migrate();
        take_away(&bare, "grain_state", STATE);
        take_away(&bare, "subscriptions", SUBSCRIPTIONS);
        assert_eq!(bare.lacks(), "phase subscriptions, phase grain_state");
        let [done, applied] = [PhaseOutcome::AlreadyComplete, PhaseOutcome::Applied];
        assert_eq!(bare.migrate(), [done, applied, applied]);
        bare.assert_complete();
    }
}

#[test]
fn a_store_from_before_streams_is_refused_at_start_then_gets_their_phase() {
    for bare in Bare::all() {
        bare.migrate();
        take_away(&bare, "subscriptions", SUBSCRIPTIONS);
        assert_eq!(bare.lacks(), "phase subscriptions");
        let start = || StoreThreads::start(&bare.url, &cluster("a"), |_| {}).map(drop);
        let text = start().unwrap_err().to_string();
        assert!(text.contains("lacks phase subscriptions: run `siloring migrate"), "{text}");
        let done = PhaseOutcome::AlreadyComplete;
        assert_eq!(bare.migrate(), [done, PhaseOutcome::Applied, done]);
        start().unwrap();
        bare.assert_complete();
    }
}

#[test]
fn half_of_the_subscriptions_phase_is_completed_with_and_without_its_marker() {
    for bare in Bare::all() {
        bare.migrate();
        let done = PhaseOutcome::AlreadyComplete;
        bare.run("DROP TABLE siloring_dead_letter");
        assert_eq!(bare.lacks(), "table siloring_dead_letter of phase subscriptions");
        assert_eq!(bare.migrate(), [done, PhaseOutcome::Completed, done]);
        take_away(&bare, "subscriptions", &["siloring_subscription"]);
        assert_eq!(bare.lacks(), "phase subscriptions");
        assert_eq!(bare.migrate(), [done, PhaseOutcome::Completed, done]);
        bare.assert_complete();
    }
}

fn completed_first() -> [PhaseOutcome; 3] {
    let done = PhaseOutcome::AlreadyComplete;
    [PhaseOutcome::Completed, done, done]
}

#[test]
fn half_of_a_phase_is_completed_with_and_without_its_marker() {
    for bare in Bare::all() {
        bare.migrate();
        bare.run("DROP TABLE siloring_setting");
        assert_eq!(bare.lacks(), "table siloring_setting of phase membership");
        assert_eq!(bare.migrate(), completed_first());
        bare.run("DROP TABLE siloring_silo; DELETE FROM siloring_phase WHERE phase = 'membership'");
        assert_eq!(bare.lacks(), "phase membership");
        assert_eq!(bare.migrate(), completed_first());
        bare.assert_complete();
    }
}

#[test]
fn a_dropped_trigger_is_missed_and_made_again() {
    for bare in Bare::all() {
        bare.migrate();
        let of_table = if bare.folder.is_some() { "" } else { " ON siloring_silo" };
        bare.run(&format!("DROP TRIGGER siloring_silo_dead_stays_dead{of_table}"));
        assert!(bare.lacks().contains("trigger siloring_silo_dead_stays_dead"));
        assert_eq!(bare.migrate()[0], PhaseOutcome::Completed);
        bare.assert_complete();
    }
}

#[test]
fn runners_at_once_end_complete_and_one_of_them_applies() {
    for bare in Bare::all() {
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let runners: Vec<_> = (0..6).map(|_| scope.spawn(|| bare.migrate())).collect();
            runners.into_iter().map(|runner| runner.join().unwrap()).collect()
        });
        for phase in 0..3 {
            let applied = outcomes.iter().filter(|all| all[phase] == PhaseOutcome::Applied);
            assert_eq!(applied.count(), 1, "{outcomes:?}");
        }
        bare.assert_complete();
    }
}

#[test]
fn a_phase_of_another_version_is_refused_in_both_directions() {
    for bare in Bare::all() {
        bare.migrate();
        bare.run("UPDATE siloring_phase SET checksum = 'other' WHERE phase = 'membership'");
        for error in [check(&bare.url), open(&bare.url, &cluster("a")).map(drop)] {
            assert!(matches!(
                error,
                Err(OpenError::SchemaDiffers { phase: Phase::Membership, found, .. })
                    if found == "other"
            ));
        }
        let error = migrate(&bare.url);
        assert!(matches!(error, Err(MigrateError::Open(OpenError::SchemaDiffers { .. }))));
    }
}

#[test]
fn a_table_of_that_name_with_other_columns_is_named_and_nothing_is_changed() {
    for bare in Bare::all() {
        bare.run("CREATE TABLE siloring_state (cluster text)");
        match migrate(&bare.url) {
            Err(MigrateError::StillMissing { phase: Phase::GrainState, missing, .. }) => {
                assert!(missing.contains("column siloring_state.etag"), "{missing}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(bare.lacks(), "phase grain_state", "the phases before are done and stay");
        bare.run("DROP TABLE siloring_state");
        let done = PhaseOutcome::AlreadyComplete;
        assert_eq!(bare.migrate(), [done, done, PhaseOutcome::Applied]);
        bare.assert_complete();
    }
}

#[test]
fn a_silo_does_not_start_before_the_migration_and_starts_after_it() {
    for bare in Bare::all() {
        let start = || StoreThreads::start(&bare.url, &cluster("a"), |_| {}).map(drop);
        let text = start().unwrap_err().to_string();
        assert!(text.contains("lacks") && text.contains("siloring migrate"), "{text}");
        bare.migrate();
        start().unwrap();
    }
}

#[test]
fn memory_needs_no_migration() {
    let report = migrate("memory:").unwrap();
    assert!(report.phases.iter().all(|phase| phase.outcome == PhaseOutcome::NotNeeded));
    check("memory:").unwrap();
}
