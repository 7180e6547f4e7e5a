//! Processes that die while they write, and disks that are full (SCENARIOS P4; FAULTS 37, 41, 50).
//!
//! Method: this test binary starts itself as a writer that acknowledges each write on standard
//! output, and kills it (`kill -9`) after a number of acknowledgements drawn from a printed seed.
//! Then the store must be whole: each row of one write, none older than its acknowledgement.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use siloring_core::limits::STORE_STATEMENT_TIME_MAX;
use siloring_core::ports::registry::{SetVersion, Subscription};
use siloring_core::ports::store::{StateRecord, Store, StoreAnswer, StoreRequest};
use siloring_core::{Address, Generation, SiloRow, SiloStatus};
use siloring_storage::open;

use crate::fixture::{
    cluster, fence, is_unavailable, load, postgres, record, registered, row, sqlite, subscription,
    subscriptions, table, write, write_row,
};

/// Names the store to the writer process; without it the writer is an ordinary, empty test.
const STORE: &str = "SILORING_TEST_WRITER_STORE";
/// Large enough to span pages, so that a torn row would show.
const STATE_BYTES: usize = 20_000;
/// Keys of subscriptions that a writer goes around, each written, then removed.
const KEYS: u64 = 3;
/// Writers killed per store.
const KILLS: u64 = 12;

/// The writer process: writes for ever, each write telling by every byte which it is.
#[test]
fn writer_process() {
    let Some(url) = std::env::var_os(STORE) else {
        return;
    };
    let mut store = open(url.to_str().unwrap(), &cluster("a")).unwrap();
    let mut view = table(&mut *store).version.0;
    let Ok(StoreAnswer::State { etag, .. }) = store.execute(&load("g", fence(1, 1))) else {
        panic!("the state loads")
    };
    let mut etag = etag.0;
    let mut change = newest_change(&mut *store);
    loop {
        store.execute(&write("g", fence(1, 1), etag, Some(numbered(etag + 1)))).unwrap();
        etag += 1;
        store.execute(&write_row(view, numbered_row(view + 1))).unwrap();
        view += 1;
        change_subscription(&mut *store, change + 1);
        change += 1;
        let line = format!("acknowledged {etag} {view} {change}\n");
        std::io::stdout().write_all(line.as_bytes()).unwrap();
    }
}

/// Writes or replaces the subscription of change `change`, and every fifth time removes it instead.
fn change_subscription(store: &mut dyn Store, change: u64) {
    let row = numbered_subscription(change);
    let (held, _) = subscriptions(store, "s");
    let held = held.iter().find(|held| held.key == row.key);
    let request = match held {
        Some(held) if change.is_multiple_of(5) => StoreRequest::RemoveSubscription {
            stream: held.stream.clone(),
            key: held.key.clone(),
            owner: held.owner,
            version: held.version,
        },
        Some(_) | None => {
            StoreRequest::WriteSubscription { row, expected: held.map(|held| held.version) }
        }
    };
    registered(&store.execute(&request));
}

/// Telling in every field of which change it is.
fn numbered_subscription(change: u64) -> Subscription {
    Subscription {
        consumer: Address::of("portal", &format!("{change}:").repeat(20)).unwrap(),
        owner: Some(Generation(change)),
        filter: format!("{change}:").repeat(200),
        operation: change.into(),
        ..subscription("s", &(change % KEYS).to_string())
    }
}

/// The change that a store has seen last: each is one write, so one version.
fn newest_change(store: &mut dyn Store) -> u64 {
    subscriptions(store, "s").1.0
}

fn numbered(number: u64) -> StateRecord {
    record(number.to_le_bytes().repeat(STATE_BYTES / 8))
}

/// The only silo's row: joined at view 1, changed ever since.
fn numbered_row(view: u64) -> SiloRow {
    let text = format!("{view}:").repeat(40);
    SiloRow { advertised: text.clone(), host: text, ..row("a", 1, SiloStatus::Joining) }
}

/// Starts a writer, kills it after `acknowledged` writes and returns the last one it told of.
fn write_and_kill(url: &str, acknowledged: u64) -> [u64; 3] {
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::writer_process", "--nocapture"])
        .env(STORE, url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut last = [0; 3];
    let mut left = acknowledged;
    for line in BufReader::new(writer.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let Some((_, numbers)) = line.split_once("acknowledged ") else {
            continue;
        };
        let numbers: Vec<u64> = numbers.split(' ').map(|it| it.parse().unwrap()).collect();
        last = numbers.try_into().unwrap();
        left = left.saturating_sub(1);
        if left == 0 {
            // Between two acknowledgements, wherever the writer is; what it told meanwhile counts.
            writer.kill().unwrap();
        }
    }
    writer.wait().unwrap();
    last
}

fn assert_whole(store: &mut dyn Store, acknowledged: [u64; 3]) {
    let table = table(store);
    let version = table.version.0;
    let [last_etag, last_view, last_change] = acknowledged;
    assert!(version >= last_view && version <= last_view + 1, "{acknowledged:?}");
    let expected = SiloRow { changed_in: table.version, ..numbered_row(version) };
    assert_eq!(table.rows[0].row, expected, "row and version are of one write");
    let Ok(StoreAnswer::State { record, etag }) = store.execute(&load("g", fence(1, 1))) else {
        panic!("the state loads")
    };
    assert!(etag.0 >= last_etag && etag.0 <= last_etag + 1, "{acknowledged:?}");
    assert_eq!(record, Some(numbered(etag.0)), "state and etag are of one write");
    let (rows, newest) = subscriptions(store, "s");
    assert!(newest.0 >= last_change && newest.0 <= last_change + 1, "{acknowledged:?}");
    for row in rows {
        let change = u64::try_from(row.operation).unwrap();
        let version = SetVersion(change);
        let whole = Subscription { version, ..numbered_subscription(change) };
        assert_eq!(row, whole, "row and version are of one write");
    }
}

fn survive_kills(url: &str, seed: u64, check: impl Fn()) {
    // Shown when the test fails.
    println_seed(seed);
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..KILLS {
        let acknowledged = write_and_kill(url, random.u64(1..40));
        check();
        assert_whole(&mut *open(url, &cluster("a")).unwrap(), acknowledged);
    }
}

#[expect(clippy::print_stdout, reason = "a failing test shows its seed")]
fn println_seed(seed: u64) {
    println!("seed {seed}");
}

#[test]
fn killed_writers_leave_no_torn_row_in_sqlite() {
    let (url, folder) = sqlite();
    let path = folder.path().join("store.db");
    survive_kills(&url, 11, || {
        let connection = rusqlite::Connection::open(&path).unwrap();
        let verdict: String =
            connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(verdict, "ok");
    });
}

#[test]
fn killed_writers_leave_no_torn_row_in_postgres() {
    let Some(url) = postgres() else { return };
    survive_kills(&url, 12, || {});
}

#[test]
fn a_full_disk_is_unavailable_and_what_was_written_stays() {
    let (url, _folder) = sqlite();
    // The shell ignores SIGXFSZ for the child, so that the limit is an error and not a death.
    let script = "trap '' XFSZ; ulimit -f 600; exec \"$@\"";
    let output = Command::new("sh")
        .args(["-c", script, "limited"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "crash::full_disk_process", "--nocapture"])
        .env(STORE, &url)
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}");
    let last: u64 =
        printed.lines().find_map(|line| line.split_once("full after ")?.1.parse().ok()).unwrap();
    let mut store = open(&url, &cluster("a")).unwrap();
    let Ok(StoreAnswer::State { record, etag }) = store.execute(&load("g", fence(1, 1))) else {
        panic!("the state loads")
    };
    assert_eq!((record, etag.0), (Some(numbered(last)), last));
    let next = store.execute(&write("g", fence(1, 1), last, None));
    assert!(next.is_ok(), "with room again it goes on: {next:?}");
}

/// The process on the full disk: writes until the store says that it cannot.
#[test]
fn full_disk_process() {
    let Some(url) = std::env::var_os(STORE) else {
        return;
    };
    let mut store = open(url.to_str().unwrap(), &cluster("a")).unwrap();
    // A reader that keeps its snapshot: the write-ahead log cannot be reused and must grow.
    let path = url.to_str().unwrap().trim_start_matches("sqlite:").to_owned();
    let reader = rusqlite::Connection::open(path).unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM siloring_phase").unwrap();
    store.execute(&load("g", fence(1, 1))).unwrap();
    for etag in 0..1_000 {
        let result = store.execute(&write("g", fence(1, 1), etag, Some(numbered(etag + 1))));
        if result.is_err() {
            assert!(is_unavailable(&result), "{result:?}");
            let line = format!("full after {etag}\n");
            return std::io::stdout().write_all(line.as_bytes()).unwrap();
        }
    }
    panic!("the disk was never full");
}

#[test]
fn a_file_that_another_process_has_locked_bounds_the_wait() {
    let (url, folder) = sqlite();
    let mut store = open(&url, &cluster("a")).unwrap();
    let other = rusqlite::Connection::open(folder.path().join("store.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let waited = store.execute(&write_row(0, row("a", 1, SiloStatus::Joining)));
    assert!(is_unavailable(&waited), "within {STORE_STATEMENT_TIME_MAX:?}: {waited:?}");
    assert_eq!(table(&mut *store).version.0, 0, "reads are not held up");
    assert_eq!(subscriptions(&mut *store, "s").1, SetVersion(0), "nor are those of subscriptions");
    other.execute_batch("ROLLBACK").unwrap();
    store.execute(&write_row(0, row("a", 1, SiloStatus::Joining))).unwrap();
}

#[test]
fn a_file_that_is_no_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    std::fs::write(&path, "nothing of the kind ".repeat(1000)).unwrap();
    let url = format!("sqlite:{}", path.display());
    let error = open(&url, &cluster("a")).map(drop).unwrap_err();
    assert!(matches!(error, siloring_storage::OpenError::Refused { .. }), "{error}");
}
