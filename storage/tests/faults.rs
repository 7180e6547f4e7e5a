//! What each store does when its ground gives way (FAULTS 36 to 50).
//!
//! Method: the fault is made on a real server or file; the answer must be the typed one, in time,
//! and the same store must go on afterwards by itself.

use std::sync::mpsc::channel;
use std::time::Duration;

use postgres::{Client, NoTls};
use siloring_core::event::Event;
use siloring_core::limits::{STORE_HANG_AFTER, STORE_LOCK_TIME_MAX, STORE_REQUEST_TIME_MAX};
use siloring_core::ports::registry::{DeadLetter, Subscription};
use siloring_core::ports::store::{Store, StoreAnswer, StoreError, StoreRequest, StoreResult};
use siloring_core::schema::Schema;
use siloring_core::{Generation, SiloStatus, ViewNumber};
use siloring_storage::{MemoryStore, OpenError, StoreClient, StoreThreads, check, migrate, open};

use crate::fixture::{
    cluster, fence, insert, is_refused, is_unavailable, load, new_server, postgres, record,
    registered, remove, replace, row, server, sqlite, state, subscription, subscriptions, table,
    write, write_row, written,
};

fn admin(url: &str) -> Client {
    Client::connect(url, NoTls).unwrap()
}

/// Submits and waits for the answer.
fn ask(client: &StoreClient, request: StoreRequest) -> StoreResult {
    let (sender, receiver) = channel();
    client.submit(request, move |result| sender.send(result).unwrap());
    receiver.recv_timeout(STORE_REQUEST_TIME_MAX + Duration::from_secs(5)).unwrap()
}

/// Asks until the store answers again, for a bounded number of times.
fn ask_until_up(client: &StoreClient) -> StoreResult {
    (0..100)
        .map(|_| ask(client, StoreRequest::ReadTable))
        .find(Result::is_ok)
        .unwrap_or(Err(StoreError::Unavailable { detail: "for too long".into() }))
}

#[test]
fn a_second_living_silo_on_the_memory_url_is_refused_with_the_remedy() {
    let mut store = open("memory:", &cluster("a")).unwrap();
    store.execute(&write_row(0, row("one", 1, SiloStatus::Active))).unwrap();
    let second = store.execute(&write_row(1, row("two", 2, SiloStatus::Joining)));
    let Err(StoreError::Refused { detail }) = second else { panic!("{second:?}") };
    assert!(detail.contains("cluster of one") && detail.contains("sqlite:PATH"), "{detail}");
    let again = store.execute(&write_row(1, row("one", 2, SiloStatus::Joining)));
    assert_eq!(again, Ok(StoreAnswer::Done), "the same silo, started again");
    for (view, generation) in [(2, 1), (3, 2)] {
        store.execute(&write_row(view, row("one", generation, SiloStatus::Dead))).unwrap();
    }
    let alone = store.execute(&write_row(4, row("two", 5, SiloStatus::Joining)));
    assert_eq!(alone, Ok(StoreAnswer::Done), "the first one is Dead");
    let mut other = open("memory:", &cluster("a")).unwrap();
    assert!(table(&mut *other).rows.is_empty(), "each URL opens a store of its own");
}

#[test]
fn a_memory_store_can_regress() {
    let store = MemoryStore::new(cluster("a"));
    let mut handle = store.clone();
    handle.execute(&write_row(0, row("one", 1, SiloStatus::Joining))).unwrap();
    let before = store.snapshot();
    handle.execute(&write_row(1, row("one", 1, SiloStatus::Active))).unwrap();
    store.restore(&before);
    assert_eq!(table(&mut handle).version.0, 1);
}

#[test]
fn a_server_whose_commits_are_not_durable_is_refused_unless_accepted() {
    let Some(url) = postgres() else { return };
    admin(&url)
        .batch_execute(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off',
             current_database()); END $$",
        )
        .unwrap();
    let error = check(&url).unwrap_err();
    assert!(matches!(error, OpenError::AsyncCommit { .. }), "{error}");
    assert!(error.to_string().contains("danger_async_commit=1"), "{error}");
    check(&format!("{url}&danger_async_commit=1")).unwrap();
}

fn letter() -> DeadLetter {
    DeadLetter {
        stream: subscription("s", "k").stream,
        key: "k".into(),
        consumer: subscription("s", "k").consumer,
        origin: 1,
        number: 1,
        attempts: 1,
        reason: "it did not answer".into(),
        schema: Schema { type_id: 1, version: 1, fingerprint: 1 },
        body: bytes::Bytes::from_static(b"x"),
        view: ViewNumber(1),
    }
}

#[test]
fn a_silo_needs_no_right_to_make_tables() {
    let Some(url) = postgres() else { return };
    admin(&url)
        .batch_execute(
            "DROP ROLE IF EXISTS silo_run; CREATE ROLE silo_run LOGIN;
             REVOKE CREATE ON SCHEMA public FROM PUBLIC;
             GRANT SELECT ON siloring_phase TO silo_run;
             GRANT SELECT, INSERT, UPDATE, DELETE ON siloring_cluster, siloring_silo,
                 siloring_setting, siloring_registry, siloring_subscription,
                 siloring_dead_letter, siloring_state TO silo_run",
        )
        .unwrap();
    let run = url.replace("user=postgres", "user=silo_run");
    assert!(admin(&run).batch_execute("CREATE TABLE x ()").is_err(), "it has no DDL rights");
    let mut store = open(&run, &cluster("a")).unwrap();
    store.execute(&write_row(0, row("a", 1, SiloStatus::Dead))).unwrap();
    store.execute(&StoreRequest::Heartbeat { generation: Generation(1), counter: 1 }).unwrap();
    store.execute(&StoreRequest::Settings { ours: vec![("a".into(), "b".into())] }).unwrap();
    let (expected, next) = (ViewNumber(1), ViewNumber(2));
    let generations = vec![Generation(1)];
    store.execute(&StoreRequest::RemoveDead { expected, next, generations }).unwrap();
    store.execute(&load("g", fence(1, 1))).unwrap();
    assert_eq!(store.execute(&write("g", fence(1, 1), 0, Some(record("x")))), written(1));
    let row = subscription("s", "k");
    let version = registered(&store.execute(&insert(&row)));
    registered(&store.execute(&remove(&Subscription { version, ..row.clone() })));
    registered(&store.execute(&insert(&row)));
    let gone = row.owner.into_iter().collect();
    let swept = store.execute(&StoreRequest::SweepSubscriptions { gone, view: row.view });
    assert_eq!(swept, Ok(StoreAnswer::Swept { count: 1 }));
    assert_eq!(store.execute(&StoreRequest::WriteDeadLetter(letter())), Ok(StoreAnswer::Done));
    admin(&url).batch_execute("REVOKE UPDATE ON siloring_state FROM silo_run").unwrap();
    assert!(is_refused(&store.execute(&write("g", fence(1, 1), 1, None))), "a missing right");
}

#[test]
fn an_operators_hand_cannot_bring_back_the_dead_or_an_older_view() {
    let Some(url) = postgres() else { return };
    let mut store = open(&url, &cluster("a")).unwrap();
    store.execute(&write_row(0, row("a", 1, SiloStatus::Active))).unwrap();
    store.execute(&write_row(1, row("a", 1, SiloStatus::Dead))).unwrap();
    let mut by_hand = admin(&url);
    assert!(by_hand.batch_execute("UPDATE siloring_silo SET status = 'active'").is_err());
    assert!(by_hand.batch_execute("UPDATE siloring_cluster SET view_number = 1").is_err());
    let (file, _folder) = sqlite();
    let mut store = open(&file, &cluster("a")).unwrap();
    store.execute(&write_row(0, row("a", 1, SiloStatus::Dead))).unwrap();
    let by_hand = rusqlite::Connection::open(file.trim_start_matches("sqlite:")).unwrap();
    assert!(by_hand.execute_batch("UPDATE siloring_silo SET status = 'active'").is_err());
    assert!(by_hand.execute_batch("UPDATE siloring_cluster SET view_number = 1").is_err());
}

#[test]
fn a_cut_connection_is_an_unknown_outcome_and_the_next_request_connects_anew() {
    let Some(url) = postgres() else { return };
    let mut store = open(&url, &cluster("cut")).unwrap();
    store.execute(&load("g", fence(1, 1))).unwrap();
    admin(&url)
        .batch_execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'siloring cut'",
        )
        .unwrap();
    let cut = store.execute(&write("g", fence(1, 1), 0, Some(record("x"))));
    assert!(is_unavailable(&cut), "{cut:?}");
    let Ok(StoreAnswer::State { etag, .. }) = store.execute(&load("g", fence(1, 1))) else {
        panic!("it reads again before it writes")
    };
    let again = store.execute(&write("g", fence(1, 1), etag.0, Some(record("x"))));
    assert_eq!(again, written(etag.0 + 1));
}

/// Ends the session of cluster `name` once it waits for `what`.
fn cut_while_it_waits(watcher: &mut Client, name: &str, what: &str) {
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = $1 AND wait_event = $2";
    let name = format!("siloring {name}");
    let is_cut = (0..100_000).any(|_| !watcher.query(cut, &[&name, &what]).unwrap().is_empty());
    assert!(is_cut, "it comes to {what}");
}

#[test]
fn a_subscriber_whose_answer_was_lost_learns_by_its_operation_whether_it_is_in() {
    let Some(server) = new_server("answers lost after the commit") else {
        return;
    };
    let url = server.database(|url| migrate(url).map(drop).map_err(|error| error.to_string()));
    let url = url.unwrap();
    let mut store = open(&url, &cluster("cut")).unwrap();
    let first = Subscription { operation: 100, ..subscription("s", "k") };
    let mut held = registered(&store.execute(&insert(&first)));
    let mut watcher = admin(&url);
    watcher.batch_execute("SET synchronous_commit = local").unwrap();

    // Cut before the commit: another session has the lock.
    let mut holder = admin(&url);
    let mut lock = holder.transaction().unwrap();
    lock.batch_execute("SELECT FROM siloring_registry FOR UPDATE").unwrap();
    let second = Subscription { operation: 200, ..first };
    let mut lost = |store: &mut dyn Store, what, expected| {
        std::thread::scope(|scope| {
            let answer = scope.spawn(|| store.execute(&replace(&second, expected)));
            cut_while_it_waits(&mut watcher, "cut", what);
            answer.join().unwrap()
        })
    };
    let result = lost(&mut *store, "transactionid", held);
    assert!(is_unavailable(&result), "{result:?}");
    drop(lock);
    let (rows, _) = subscriptions(&mut *store, "s");
    assert_eq!((rows[0].operation, rows[0].version), (100, held), "it is not in");

    // Cut after the commit: the server waits for a standby that does not exist, then tells nobody.
    set_standby(&url, "nobody");
    let result = lost(&mut *store, "SyncRep", held);
    assert!(is_unavailable(&result), "{result:?}");
    set_standby(&url, "");
    let (rows, newest) = subscriptions(&mut *store, "s");
    assert_eq!((rows.len(), rows[0].operation), (1, 200), "it is in");
    assert!(rows[0].version > held && newest >= rows[0].version);
    let again = store.execute(&replace(&second, held));
    assert_eq!(again, Err(StoreError::Conflict), "blindly repeated it is refused");
    held = registered(&store.execute(&replace(&second, rows[0].version)));
    assert!(held > rows[0].version);
    server.stop().unwrap();
}

fn set_standby(url: &str, name: &str) {
    let mut client = admin(url);
    client.batch_execute("SET synchronous_commit = local").unwrap();
    client
        .batch_execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'"))
        .unwrap();
    client.batch_execute("SELECT pg_reload_conf()").unwrap();
    let is_set = (0..100_000).any(|_| {
        let mut fresh = admin(url);
        let row = fresh.query_one("SELECT current_setting('synchronous_standby_names')", &[]);
        row.unwrap().get::<_, String>(0) == name
    });
    assert!(is_set, "the server reads its settings again");
}

#[test]
fn a_lock_held_by_another_session_bounds_the_wait() {
    let Some(url) = postgres() else { return };
    let mut store = open(&url, &cluster("a")).unwrap();
    store.execute(&write_row(0, row("a", 1, SiloStatus::Joining))).unwrap();
    let mut holder = admin(&url);
    let mut lock = holder.transaction().unwrap();
    lock.batch_execute("SELECT FROM siloring_cluster FOR UPDATE").unwrap();
    let waited = store.execute(&write_row(1, row("a", 1, SiloStatus::Active)));
    assert!(is_unavailable(&waited), "after {STORE_LOCK_TIME_MAX:?}: {waited:?}");
    assert_eq!(table(&mut *store).version.0, 1, "reads are not held up");
    drop(lock);
    let after = store.execute(&write_row(1, row("a", 1, SiloStatus::Active)));
    assert_eq!(after, Ok(StoreAnswer::Done));
}

/// Lets each store run its request up to a lock that `holder` holds, then lets go: so all have read
/// the same before any has written.
fn race(
    url: &str,
    lock: &str,
    contenders: Vec<(Box<dyn Store>, StoreRequest)>,
) -> Vec<StoreResult> {
    let mut holder = admin(url);
    let mut watcher = admin(url);
    let mut held = holder.transaction().unwrap();
    held.batch_execute(lock).unwrap();
    let count = i64::try_from(contenders.len()).unwrap();
    std::thread::scope(|scope| {
        let run = |(mut store, request): (Box<dyn Store>, StoreRequest)| store.execute(&request);
        let results: Vec<_> =
            contenders.into_iter().map(|contender| scope.spawn(move || run(contender))).collect();
        let blocked = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let all = (0..100_000)
            .any(|_| watcher.query_one(blocked, &[]).unwrap().get::<_, i64>(0) == count);
        assert!(all, "every contender comes to the lock");
        drop(held);
        results.into_iter().map(|result| result.join().unwrap()).collect()
    })
}

#[test]
fn of_writers_that_have_read_the_same_version_one_wins_also_without_the_trigger() {
    let Some(url) = postgres() else { return };
    let mut first = open(&url, &cluster("a")).unwrap();
    first.execute(&write_row(0, row("a", 1, SiloStatus::Joining))).unwrap();
    let contender = |name: &str, next: u64| {
        let (expected, next) = (ViewNumber(1), ViewNumber(next));
        let row = row(name, next.0, SiloStatus::Joining);
        (open(&url, &cluster("a")).unwrap(), StoreRequest::WriteRow { expected, next, row })
    };
    let contenders = vec![contender("b", 2), contender("c", 3), contender("d", 4)];
    admin(&url)
        .batch_execute("DROP TRIGGER siloring_cluster_view_rises ON siloring_cluster")
        .unwrap();
    let results = race(&url, "SELECT FROM siloring_cluster FOR UPDATE", contenders);
    let won = results.iter().filter(|result| **result == Ok(StoreAnswer::Done)).count();
    let lost = results.iter().filter(|result| **result == Err(StoreError::Conflict)).count();
    assert_eq!((won, lost), (1, 2), "{results:?}");
    assert_eq!(table(&mut *first).rows.len(), 2);
}

#[test]
fn of_first_writers_of_settings_that_have_read_nothing_one_wins_whole() {
    let Some(url) = postgres() else { return };
    let contender = |name: &str| {
        let ours = vec![(name.to_owned(), "x".to_owned())];
        (open(&url, &cluster("a")).unwrap(), StoreRequest::Settings { ours })
    };
    let contenders = vec![contender("a"), contender("b"), contender("c")];
    let results = race(&url, "LOCK TABLE siloring_setting IN SHARE MODE", contenders);
    let Ok(StoreAnswer::Settings(held)) = &results[0] else { panic!("{results:?}") };
    assert_eq!(held.len(), 1, "{results:?}");
    assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
}

#[test]
fn of_subscribers_that_have_seen_the_same_version_one_wins_also_when_all_wait_for_one_lock() {
    let Some(url) = postgres() else { return };
    let mut first = open(&url, &cluster("a")).unwrap();
    let row = subscription("s", "k");
    let held = registered(&first.execute(&insert(&row)));
    let mut contenders = Vec::new();
    for operation in 2..6 {
        let by = Subscription { operation, ..row.clone() };
        contenders.push((open(&url, &cluster("a")).unwrap(), replace(&by, held)));
    }
    let leave = remove(&Subscription { version: held, ..row });
    contenders.push((open(&url, &cluster("a")).unwrap(), leave));
    let results = race(&url, "SELECT FROM siloring_registry FOR UPDATE", contenders);
    let won = results.iter().filter(|result| result.is_ok()).count();
    let lost = results.iter().filter(|result| **result == Err(StoreError::Conflict)).count();
    assert_eq!((won, lost), (1, 4), "{results:?}");
}

#[test]
fn silos_that_change_the_same_subscriptions_in_opposite_orders_do_not_block_each_other() {
    let Some(url) = postgres() else { return };
    let rows: Vec<_> = (0..200).map(|key| subscription("s", &format!("{key:03}"))).collect();
    let work = |is_backwards: bool| {
        let mut store = open(&url, &cluster("a")).unwrap();
        let mut answered = 0;
        for _ in 0..20 {
            let (held, _) = subscriptions(&mut *store, "s");
            let mut group: Vec<_> = if held.is_empty() {
                rows.iter().map(insert).collect()
            } else {
                held.iter().map(|row| replace(row, row.version)).collect()
            };
            if is_backwards {
                group.reverse();
            }
            for result in store.execute_group(&group) {
                assert!(result.is_ok() || result == Err(StoreError::Conflict), "{result:?}");
                answered += 1;
            }
        }
        answered
    };
    let answered: usize = std::thread::scope(|scope| {
        let silos: Vec<_> = (0..4).map(|silo| scope.spawn(move || work(silo % 2 == 0))).collect();
        silos.into_iter().map(|silo| silo.join().unwrap()).sum()
    });
    assert_eq!(answered, 4 * 20 * 200);
}

#[test]
fn a_thousand_subscriptions_that_wait_at_once_are_a_few_commits() {
    const COUNT: usize = 1_000;
    let Some(url) = postgres() else { return };
    let threads = StoreThreads::start(&url, &cluster("a"), |_| {}).unwrap();
    let client = threads.client();
    let submit = |requests: Vec<StoreRequest>| {
        let (sender, receiver) = channel();
        for request in requests {
            let sender = sender.clone();
            client.submit(request, move |result| sender.send(registered(&result)).unwrap());
        }
        drop(sender);
        receiver.iter().count()
    };
    let row = |index: usize| subscription(&(index % 50).to_string(), &index.to_string());
    assert_eq!(submit((0..COUNT).map(|index| insert(&row(index))).collect()), COUNT);
    let mut counter = admin(&url);
    // Each transaction leaves its number in the rows that it wrote.
    let mut commits = || {
        let sql = "SELECT count(DISTINCT xmin::text) FROM siloring_subscription";
        counter.query_one(sql, &[]).unwrap().get::<_, i64>(0)
    };
    let inserted = commits();
    let mut store = open(&url, &cluster("a")).unwrap();
    let held = (0..50).flat_map(|of| subscriptions(&mut *store, &of.to_string()).0);
    assert_eq!(submit(held.map(|row| replace(&row, row.version)).collect()), COUNT);
    let replaced = commits();
    show_commits(COUNT, inserted, replaced);
    assert!(inserted <= 50 && replaced <= 50, "{inserted} and {replaced} commits");
}

#[test]
fn a_group_of_mixed_writes_is_a_statement_a_table() {
    let Some(url) = postgres() else { return };
    let mut store = open(&url, &cluster("a")).unwrap();
    let ids: Vec<_> = (0..300).map(|id| id.to_string()).collect();
    let loads: Vec<_> = ids.iter().map(|id| load(id, fence(1, 1))).collect();
    assert!(store.execute_group(&loads).iter().all(Result::is_ok));
    let writes = ids.iter().enumerate().flat_map(|(number, id)| {
        let letter = DeadLetter { number: number as u64, ..letter() };
        let state = write(id, fence(1, 1), 0, Some(record("x")));
        [state, insert(&subscription("s", id)), StoreRequest::WriteDeadLetter(letter)]
    });
    let results = store.execute_group(&writes.collect::<Vec<_>>());
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let commits = "SELECT count(DISTINCT xmin::text), count(*) FROM (
        SELECT xmin FROM siloring_state UNION ALL SELECT xmin FROM siloring_subscription
        UNION ALL SELECT xmin FROM siloring_dead_letter) written";
    let row = admin(&url).query_one(commits, &[]).unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (3, 900));
}

#[expect(clippy::print_stdout, reason = "what was measured is shown")]
fn show_commits(count: usize, inserted: i64, replaced: i64) {
    println!("{count} subscriptions: {inserted} commits; {count} replacements: {replaced} commits");
}

#[test]
fn a_dropped_table_is_named_with_the_command_that_mends_it() {
    let Some(url) = postgres() else { return };
    let (file, _folder) = sqlite();
    let drop_table = "DROP TABLE siloring_state";
    let mut stores = [open(&url, &cluster("a")).unwrap(), open(&file, &cluster("a")).unwrap()];
    admin(&url).batch_execute(drop_table).unwrap();
    let path = file.trim_start_matches("sqlite:");
    rusqlite::Connection::open(path).unwrap().execute_batch(drop_table).unwrap();
    for store in &mut stores {
        let result = store.execute(&load("g", fence(1, 1)));
        let Err(error @ StoreError::NotMigrated { .. }) = result else { panic!("{result:?}") };
        assert!(error.to_string().contains("siloring migrate"), "{error}");
    }
}

#[test]
fn a_server_that_is_not_there_is_named_without_its_password() {
    let url = "postgres://ada:s3cret@localhost:1/app?host=/nonexistent";
    for text in [check(url).unwrap_err().to_string(), migrate(url).unwrap_err().to_string()] {
        assert!(text.contains("cannot be reached") && !text.contains("s3cret"), "{text}");
    }
}

#[test]
fn acknowledged_writes_survive_a_killed_server_and_the_threads_come_back_by_themselves() {
    let Some(server) = new_server("a killed Postgres") else {
        return;
    };
    let url = server.database(|url| migrate(url).map(drop).map_err(|error| error.to_string()));
    let (events, heard) = channel();
    let threads = StoreThreads::start(&url.unwrap(), &cluster("a"), move |event| {
        events.send(event).unwrap();
    })
    .unwrap();
    let client = threads.client();
    ask(&client, load("g", fence(1, 1))).unwrap();
    for etag in 0..20 {
        assert_eq!(
            ask(&client, write("g", fence(1, 1), etag, Some(record("x")))),
            written(etag + 1)
        );
    }
    server.kill().unwrap();
    let down = (0..100).map(|_| ask(&client, StoreRequest::ReadTable)).find(Result::is_err);
    assert!(is_unavailable(&down.unwrap()));
    server.start_again().unwrap();
    assert!(ask_until_up(&client).is_ok());
    assert_eq!(ask_until_loaded(&client), state(Some(record("x")), 20));
    drop(threads);
    let names: Vec<_> = heard.iter().map(|event| event.name()).collect();
    assert_eq!(names.first(), Some(&"StoreUnavailable"), "{names:?}");
    assert_eq!(names.last(), Some(&"StoreAvailable"), "{names:?}");
    server.stop().unwrap();
}

fn ask_until_loaded(client: &StoreClient) -> StoreResult {
    (0..100)
        .map(|_| ask(client, load("g", fence(1, 1))))
        .find(Result::is_ok)
        .unwrap_or(Err(StoreError::Fenced))
}

#[test]
fn a_server_that_accepts_and_says_nothing_costs_no_request_its_answer() {
    let Some(server) = new_server("a hanging Postgres") else {
        return;
    };
    let url = server.database(|url| migrate(url).map(drop).map_err(|error| error.to_string()));
    let url = url.unwrap();
    let (events, heard) = channel();
    let threads = StoreThreads::start(&url, &cluster("a"), move |event| {
        events.send(event).unwrap();
    })
    .unwrap();
    let client = threads.client();
    ask(&client, StoreRequest::ReadTable).unwrap();
    let paused = server.pause().unwrap();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let requests = [StoreRequest::ReadTable, load("g", fence(1, 1)), StoreRequest::ReadTable];
        let asked = requests.map(|request| scope.spawn(|| ask(&client, request)));
        asked.into_iter().map(|answer| answer.join().unwrap()).collect()
    });
    assert!(answers.iter().all(is_unavailable), "{answers:?}");
    let detail = match heard.recv_timeout(STORE_HANG_AFTER) {
        Ok(Event::StoreUnavailable { detail }) => detail,
        other => panic!("{other:?}"),
    };
    assert!(detail.contains("no answer within"), "{detail}");
    drop(paused);
    assert!(ask_until_up(&client).is_ok());
    drop(threads);
}

#[test]
fn two_servers_of_one_test_run_are_apart() {
    // The fixture itself: a server of a test's own is not the binary's.
    let (Some(ours), Some(other)) = (server(), new_server("the fixture")) else {
        return;
    };
    assert_ne!(ours.url("x"), other.url("x"));
}
