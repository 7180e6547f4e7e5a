//! Stores that are killed, stopped, cut off, full, locked, edited or moved in time, under load.

use std::time::Duration;

use postgres::{Client, NoTls};
use siloring_testkit::postgres::{Installation, PrivatePostgres, find_server};
use siloring_testkit::process::skip;

use crate::run::{DEAD, DETECTION_TIME_MAX, JOIN_TIME_MAX, Run, go_on, until};

/// How long what is undisturbed runs between two faults.
const CALM: Duration = Duration::from_secs(2);
/// Every session of the silos.
const TERMINATE: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                         WHERE pid <> pg_backend_pid() AND datname = current_database()";

fn installed(test: &str) -> Option<Installation> {
    let installation = find_server();
    if installation.is_none() {
        skip(test, "no PostgreSQL server is installed");
    }
    installation
}

fn begun(name: &'static str, server: &PrivatePostgres) -> Run {
    let mut run = Run::on_postgres(name, server);
    run.begin(&["ann", "bob", "carl"]);
    go_on(CALM);
    run
}

fn on_server(test: &str, name: &'static str) -> Option<(Run, PrivatePostgres)> {
    let server = PrivatePostgres::start(&installed(test)?);
    let server = server.unwrap_or_else(|error| panic!("{error}"));
    Some((begun(name, &server), server))
}

fn session(run: &Run) -> Client {
    Client::connect(&run.store, NoTls).unwrap_or_else(|error| panic!("{error}"))
}

/// FAULTS 36, 37, 39, 42, 44: nobody dies of the store, and nothing that it said is lost.
#[test]
fn a_store_that_is_killed_cut_off_or_silent_kills_nobody_and_loses_nothing() {
    const NAME: &str = "a_store_that_is_killed_cut_off_or_silent_kills_nobody_and_loses_nothing";
    let Some((mut run, server)) = on_server(NAME, "store-killed") else { return };
    server.kill().expect("it runs");
    until("it refuses", DETECTION_TIME_MAX, || server.execute("SELECT 1").is_err());
    run.fault("store killed");
    go_on(CALM);
    server.start_again().unwrap_or_else(|error| panic!("{error}"));
    go_on(CALM);
    for _ in 0..10 {
        let cut = session(&run).query(TERMINATE, &[]).expect("it answers").len();
        assert!(cut > 0, "there were sessions");
        run.fault("sessions cut");
        go_on(CALM / 10);
    }
    let paused = server.pause().expect("it runs");
    go_on(2 * CALM);
    drop(paused);
    run.fault("store silent");
    until("it answers", DETECTION_TIME_MAX, || server.execute("SELECT 1").is_ok());
    go_on(CALM);
    assert_eq!(run.deaths(), 0, "nobody is dead");
    run.end();
}

/// FAULTS 47.
#[test]
fn a_silo_whose_row_an_operator_takes_away_ends() {
    let mut run = Run::new("row-gone");
    run.begin(&["ann", "bob", "carl"]);
    let path = run.store.strip_prefix("sqlite:").expect("a file").to_owned();
    let file = rusqlite::Connection::open(path).expect("the store opens");
    file.busy_timeout(DETECTION_TIME_MAX).expect("a time");
    // By hand, and told to nobody: found by whoever reads the table next.
    let generation = run.silos[1].generation;
    let taken =
        file.execute_batch(&format!("DELETE FROM siloring_silo WHERE generation = {generation}"));
    taken.expect("an operator may");
    let left: u32 = file
        .query_row("SELECT count(*) FROM siloring_silo", [], |row| row.get(0))
        .expect("a count");
    assert_eq!(left, 2, "the row is gone");
    run.fault("row taken away");
    assert_eq!(run.silos[1].wait_exit(JOIN_TIME_MAX / 3), Some(DEAD));
    go_on(CALM);
    run.end();
}

mod long {
    //! What takes its place in `cargo xtask prove`.

    use std::time::Duration;

    use siloring_testkit::postgres::{PrivatePostgres, Surroundings};
    use siloring_testkit::process::{WallClock, skip};

    use super::{CALM, begun, installed, on_server, session};
    use crate::run::{DETECTION_TIME_MAX, JOIN_TIME_MAX, Run, go_on, until};

    /// A disk for a server: its files and little more.
    const DISK_BYTES: u64 = 160 << 20;

    /// FAULTS 38, shortened: beyond every period and back-off that has to do with the store.
    #[test]
    fn a_store_that_is_away_for_a_minute_kills_nobody() {
        const NAME: &str = "a_store_that_is_away_for_a_minute_kills_nobody";
        let Some((mut run, server)) = on_server(NAME, "store-away") else { return };
        server.stop().expect("it runs");
        assert!(server.execute("SELECT 1").is_err(), "it refuses");
        go_on(Duration::from_mins(1));
        assert_eq!(run.deaths(), 0, "nobody is dead");
        run.fault("store away");
        server.start_again().unwrap_or_else(|error| panic!("{error}"));
        let silo = run.start("dora");
        run.load(silo);
        go_on(CALM);
        assert_eq!(run.deaths(), 0, "nobody is dead");
        run.end();
    }

    /// FAULTS 41.
    #[test]
    fn a_store_whose_disk_is_full_kills_nobody_and_loses_nothing() {
        const NAME: &str = "a_store_whose_disk_is_full_kills_nobody_and_loses_nothing";
        let Some(installation) = installed(NAME) else { return };
        let surroundings = Surroundings { disk_bytes: Some(DISK_BYTES), ..Surroundings::default() };
        let server = match PrivatePostgres::start_in(&installation, surroundings) {
            Ok(server) => server,
            Err(error) => return skip(NAME, &error.to_string()),
        };
        let mut run = begun("store-full", &server);
        let full = server.fill_disk().unwrap_or_else(|error| panic!("{error}"));
        let bulk = "CREATE TABLE bulk AS SELECT generate_series(1, 1000000) AS number";
        assert!(server.execute(bulk).is_err(), "nothing can be written");
        // Of the log a piece is there already: the silos go on until it is full.
        let full_log = || server.execute("SELECT pg_switch_wal(); CHECKPOINT").is_err();
        until("its log is full", DETECTION_TIME_MAX, full_log);
        let told = || run.silos.iter().all(|silo| silo.lines("StoreUnavailable") > 0);
        until("the silos have noticed", DETECTION_TIME_MAX, told);
        go_on(2 * CALM);
        drop(full);
        run.fault("disk full");
        // It may have ended itself.
        until("it answers", JOIN_TIME_MAX, || {
            server.execute("SELECT 1").is_ok() || server.start_again().is_ok()
        });
        go_on(2 * CALM);
        assert_eq!(run.deaths(), 0, "nobody is dead");
        run.end();
    }

    /// FAULTS 46.
    #[test]
    fn nobody_notices_that_the_stores_clock_jumps_an_hour() {
        const NAME: &str = "nobody_notices_that_the_stores_clock_jumps_an_hour";
        let Some(installation) = installed(NAME) else { return };
        let Some(clock) = WallClock::find() else {
            return skip(NAME, "libfaketime is not installed");
        };
        clock.open_to_all().expect("the folder is ours");
        let environment = clock.environment().to_vec();
        let surroundings = Surroundings { environment, ..Surroundings::default() };
        let server = PrivatePostgres::start_in(&installation, surroundings);
        let server = server.unwrap_or_else(|error| panic!("{error}"));
        let mut run = begun("store-clock", &server);
        let hour = |run: &Run| {
            let asked = session(run).query_one("SELECT extract(epoch FROM now())::bigint", &[]);
            asked.expect("it answers").get::<_, i64>(0)
        };
        for ahead_s in [3_600, -3_600, 0] {
            let before = hour(&run);
            clock.jump_to(ahead_s).expect("the clock's file can be written");
            assert!((hour(&run) - before).abs() > 3_000, "its clock jumped");
            run.fault("the store's clock an hour off");
            go_on(2 * CALM);
        }
        assert_eq!(run.deaths(), 0, "nobody is dead");
        run.end();
    }

    /// FAULTS 49: writes wait behind a lock; heartbeats have a connection of their own.
    #[test]
    fn a_lock_on_the_stored_state_kills_nobody() {
        const NAME: &str = "a_lock_on_the_stored_state_kills_nobody";
        let Some((mut run, _server)) = on_server(NAME, "store-locked") else { return };
        let mut other = session(&run);
        let mut locked = other.transaction().expect("a transaction");
        locked.batch_execute("LOCK TABLE siloring_state IN ACCESS EXCLUSIVE MODE").expect("a lock");
        go_on(3 * CALM);
        let waiting = session(&run)
            .query("SELECT 1 FROM pg_locks WHERE NOT granted", &[])
            .expect("it answers")
            .len();
        assert!(waiting > 0, "silos wait for it");
        locked.rollback().expect("an end");
        run.fault("state locked");
        go_on(CALM);
        assert_eq!(run.deaths(), 0, "nobody is dead");
        run.end();
    }
}
