//! The contract of the store port, held against memory, SQLite and Postgres alike.
//!
//! Method: each case is one function on a fresh store; the macro at the end makes a test of it for
//! each kind. What a case asserts is in the documentation of `siloring_core::ports::store`.

use siloring_core::ids::ViewNumber;
use siloring_core::limits::{BODY_BYTES_MAX, STORE_GROUP_MAX};
use siloring_core::ports::store::{StoreAnswer, StoreError, StoreRequest};
use siloring_core::view::Vote;
use siloring_core::{Generation, SiloRow, SiloStatus};

use crate::fixture::{
    Fixture, Kind, fence, is_refused, key, load, record, row, state, table, write, write_row,
    written,
};

const JOINING: SiloStatus = SiloStatus::Joining;
const ACTIVE: SiloStatus = SiloStatus::Active;
const DRAINING: SiloStatus = SiloStatus::Draining;
const DEAD: SiloStatus = SiloStatus::Dead;

fn an_empty_store_shows_view_zero_without_rows(fixture: &Fixture) {
    let table = table(&mut *fixture.open());
    assert_eq!((table.version, table.rows.len()), (ViewNumber::ZERO, 0));
}

fn a_row_comes_back_as_written_with_the_view_of_its_change(fixture: &Fixture) {
    let mut store = fixture.open();
    let votes = vec![Vote { by: Generation(9), heartbeat: u64::MAX }, vote(8, 3)];
    let mut first = SiloRow { votes, host: "h\u{f6}st ' \" \\".into(), ..row("a", 1, JOINING) };
    assert_eq!(store.execute(&write_row(0, first.clone())), Ok(StoreAnswer::Done));
    assert_eq!(store.execute(&write_row(1, row("b", 2, JOINING))), Ok(StoreAnswer::Done));
    let table = table(&mut *fixture.open());
    first.changed_in = ViewNumber(1);
    assert_eq!((table.version, table.rows.len()), (ViewNumber(2), 2));
    assert_eq!((&table.rows[0].row, table.rows[0].heartbeat), (&first, 0));
    assert_eq!(table.rows[1].row.changed_in, ViewNumber(2));
}

fn vote(by: u64, heartbeat: u64) -> Vote {
    Vote { by: Generation(by), heartbeat }
}

fn a_wrong_version_changes_nothing(fixture: &Fixture) {
    let mut store = fixture.open();
    assert_eq!(store.execute(&write_row(4, row("a", 5, JOINING))), Err(StoreError::Conflict));
    assert_eq!(table(&mut *store).version, ViewNumber::ZERO);
    store.execute(&write_row(0, row("a", 1, JOINING))).unwrap();
    for wrong in [0, 2, 9] {
        let late = write_row(wrong, row("b", wrong + 1, JOINING));
        assert_eq!(store.execute(&late), Err(StoreError::Conflict), "{wrong}");
    }
    let table = table(&mut *store);
    assert_eq!((table.version, table.rows.len()), (ViewNumber(1), 1));
}

fn a_view_that_does_not_rise_is_refused(fixture: &Fixture) {
    let mut store = fixture.open();
    store.execute(&write_row(0, row("a", 1, JOINING))).unwrap();
    let (expected, next) = (ViewNumber(1), ViewNumber(1));
    let same = StoreRequest::WriteRow { expected, next, row: row("a", 1, ACTIVE) };
    assert!(is_refused(&store.execute(&same)));
    assert!(is_refused(&store.execute(&StoreRequest::RemoveDead {
        expected,
        next,
        generations: vec![]
    })));
}

fn thirty_parallel_updaters_make_one_winner_a_version(fixture: &Fixture) {
    const UPDATERS: u64 = 30;
    const VERSIONS: u64 = 60;
    fixture.open().execute(&write_row(0, row("seed", 1, JOINING))).unwrap();
    let update = || {
        let mut store = fixture.open();
        let mut won = Vec::new();
        loop {
            let version = table(&mut *store).version.0;
            if version >= VERSIONS {
                return won;
            }
            match store.execute(&write_row(version, row("x", version + 1, JOINING))) {
                Ok(StoreAnswer::Done) => won.push(version + 1),
                Err(StoreError::Conflict) => {}
                other => panic!("neither won nor lost: {other:?}"),
            }
        }
    };
    let mut won: Vec<u64> = std::thread::scope(|scope| {
        let updaters: Vec<_> = (0..UPDATERS).map(|_| scope.spawn(update)).collect();
        updaters.into_iter().flat_map(|updater| updater.join().unwrap()).collect()
    });
    won.sort_unstable();
    assert_eq!(won, (2..=VERSIONS).collect::<Vec<_>>(), "each version was won once");
    assert_eq!(table(&mut *fixture.open()).rows.len() as u64, VERSIONS);
}

fn heartbeats_move_no_version_and_never_go_back(fixture: &Fixture) {
    let mut store = fixture.open();
    let beat = |generation, counter| StoreRequest::Heartbeat {
        generation: Generation(generation),
        counter,
    };
    store.execute(&write_row(0, row("a", 1, JOINING))).unwrap();
    for counter in [4, 7, 5] {
        assert_eq!(store.execute(&beat(1, counter)), Ok(StoreAnswer::Done));
    }
    assert_eq!(store.execute(&beat(99, 1)), Ok(StoreAnswer::Done), "the row is gone");
    let found = table(&mut *store);
    assert_eq!((found.version, found.heartbeat(Generation(1))), (ViewNumber(1), Some(7)));
    store.execute(&write_row(1, row("a", 1, ACTIVE))).unwrap();
    assert_eq!(table(&mut *store).heartbeat(Generation(1)), Some(7), "a write keeps it");
}

fn dead_stays_dead(fixture: &Fixture) {
    let mut store = fixture.open();
    store.execute(&write_row(0, row("a", 1, ACTIVE))).unwrap();
    store.execute(&write_row(1, row("a", 1, DEAD))).unwrap();
    for status in [JOINING, ACTIVE, DRAINING] {
        let back = store.execute(&write_row(2, row("a", 1, status)));
        assert_eq!(back, Err(StoreError::DeadStaysDead));
    }
    let group = [write_row(2, row("a", 1, ACTIVE)), write_row(2, row("b", 3, JOINING))];
    let results = store.execute_group(&group);
    assert_eq!(results, vec![Err(StoreError::DeadStaysDead), Ok(StoreAnswer::Done)]);
    let again = store.execute(&write_row(3, row("a", 1, DEAD)));
    assert_eq!(again, Ok(StoreAnswer::Done), "Dead may be written again");
}

fn a_status_moves_to_the_right_only(fixture: &Fixture) {
    let mut store = fixture.open();
    store.execute(&write_row(0, row("a", 1, JOINING))).unwrap();
    store.execute(&write_row(1, row("a", 1, DRAINING))).unwrap();
    assert!(is_refused(&store.execute(&write_row(2, row("a", 1, ACTIVE)))));
    assert_eq!(table(&mut *store).version, ViewNumber(2));
}

fn removed_rows_never_return_but_a_new_lineage_may_write_them(fixture: &Fixture) {
    let mut store = fixture.open();
    store.execute(&write_row(0, row("a", 1, ACTIVE))).unwrap();
    store.execute(&write_row(1, row("b", 2, ACTIVE))).unwrap();
    store.execute(&write_row(2, row("a", 1, DEAD))).unwrap();
    let remove = |expected| StoreRequest::RemoveDead {
        expected: ViewNumber(expected),
        next: ViewNumber(expected + 1),
        generations: vec![Generation(1), Generation(2), Generation(77)],
    };
    assert_eq!(store.execute(&remove(1)), Err(StoreError::Conflict));
    assert_eq!(store.execute(&remove(3)), Ok(StoreAnswer::Done));
    let found = table(&mut *store);
    assert_eq!((found.version, found.rows.len()), (ViewNumber(4), 1), "the living one stays");
    let zombie = store.execute(&write_row(4, row("a", 1, ACTIVE)));
    assert_eq!(zombie, Err(StoreError::DeadStaysDead));
    let reborn = StoreRequest::WriteRow {
        expected: ViewNumber(4),
        next: ViewNumber::new(1, 5),
        row: row("survivor", 3, ACTIVE),
    };
    assert_eq!(store.execute(&reborn), Ok(StoreAnswer::Done), "the store had lost its row");
    assert_eq!(table(&mut *store).version, ViewNumber::new(1, 5));
}

fn the_first_writer_of_settings_wins_whole(fixture: &Fixture) {
    let ours = |name: &str, value: &str| StoreRequest::Settings {
        ours: vec![(name.into(), value.into()), ("ring.points".into(), "30".into())],
    };
    let mut store = fixture.open();
    let none = store.execute(&StoreRequest::Settings { ours: vec![] });
    assert_eq!(none, Ok(StoreAnswer::Settings(vec![])), "an empty set is not written");
    let first = vec![("ring.points".to_owned(), "30".to_owned()), ("votes".into(), "2".into())];
    assert_eq!(store.execute(&ours("votes", "2")), Ok(StoreAnswer::Settings(first.clone())));
    let second = fixture.open().execute(&ours("hubs", "mesh"));
    assert_eq!(second, Ok(StoreAnswer::Settings(first)));
    let twice = vec![("a".into(), "1".into()), ("a".into(), "2".into())];
    assert!(is_refused(&store.execute(&StoreRequest::Settings { ours: twice })));
}

fn of_two_first_writers_of_settings_one_wins_whole(fixture: &Fixture) {
    let write = |index: usize| {
        let ours = vec![(format!("name-{index}"), "x".to_owned())];
        match fixture.open().execute(&StoreRequest::Settings { ours }) {
            Ok(StoreAnswer::Settings(held)) => held,
            other => panic!("not settings: {other:?}"),
        }
    };
    let held: Vec<_> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8).map(|index| scope.spawn(move || write(index))).collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert_eq!(held[0].len(), 1, "{held:?}");
    assert!(held.iter().all(|one| *one == held[0]), "{held:?}");
}

fn a_state_is_absent_then_written_changed_and_removed(fixture: &Fixture) {
    let mut store = fixture.open();
    let ours = fence(3, 1);
    assert_eq!(store.execute(&load("g", ours)), state(None, 0));
    let first = record(vec![0, 255, 7]);
    assert_eq!(store.execute(&write("g", ours, 0, Some(first.clone()))), written(1));
    assert_eq!(store.execute(&load("g", ours)), state(Some(first), 1));
    assert_eq!(store.execute(&write("g", ours, 1, Some(record(vec![])))), written(2));
    assert_eq!(store.execute(&load("g", ours)), state(Some(record(vec![])), 2), "empty is a state");
    assert_eq!(store.execute(&write("g", ours, 2, None)), written(3));
    assert_eq!(store.execute(&load("g", ours)), state(None, 3), "the etag never repeats");
    assert_eq!(store.execute(&write("g", ours, 3, Some(record("x")))), written(4));
}

fn a_write_needs_the_etag_last_seen(fixture: &Fixture) {
    let mut store = fixture.open();
    let ours = fence(3, 1);
    store.execute(&load("g", ours)).unwrap();
    store.execute(&write("g", ours, 0, Some(record("a")))).unwrap();
    for wrong in [0, 2] {
        let late = store.execute(&write("g", ours, wrong, Some(record("b"))));
        assert_eq!(late, Err(StoreError::Conflict));
    }
    assert_eq!(store.execute(&load("g", ours)), state(Some(record("a")), 1));
}

fn a_later_activations_load_refuses_the_earlier_ones_write(fixture: &Fixture) {
    let (early, late) = (fence(3, 9), fence(4, 1));
    let mut store = fixture.open();
    let mut other = fixture.open();
    store.execute(&load("g", early)).unwrap();
    store.execute(&write("g", early, 0, Some(record("early")))).unwrap();
    assert_eq!(other.execute(&load("g", late)), state(Some(record("early")), 1));
    let stale = store.execute(&write("g", early, 1, Some(record("stale"))));
    assert_eq!(stale, Err(StoreError::Fenced));
    assert_eq!(store.execute(&load("g", early)), Err(StoreError::Fenced));
    assert_eq!(store.execute(&load("g", fence(4, 0))), Err(StoreError::Fenced));
    assert_eq!(other.execute(&write("g", late, 1, Some(record("late")))), written(2));
    let unloaded = other.execute(&write("g", fence(5, 0), 2, None));
    assert_eq!(unloaded, Err(StoreError::Fenced), "exactly the fence it was loaded with");
    let never = other.execute(&write("never loaded", late, 0, Some(record("x"))));
    assert_eq!(never, Err(StoreError::Fenced));
}

fn removing_a_state_keeps_its_fence(fixture: &Fixture) {
    let mut store = fixture.open();
    store.execute(&load("g", fence(4, 0))).unwrap();
    store.execute(&write("g", fence(4, 0), 0, None)).unwrap();
    assert_eq!(store.execute(&load("g", fence(3, 0))), Err(StoreError::Fenced));
}

fn names_of_records_and_addresses_are_data(fixture: &Fixture) {
    let mut store = fixture.open();
    let ours = fence(1, 1);
    for id in ["x'; DROP TABLE siloring_state; --", "%", "\u{1f600}", "a/b/c", "$1", "\\"] {
        assert_eq!(store.execute(&load(id, ours)), state(None, 0));
        assert_eq!(store.execute(&write(id, ours, 0, Some(record(id)))), written(1));
        assert_eq!(store.execute(&load(id, ours)), state(Some(record(id)), 1));
    }
    let mut other = key("g");
    other.name = "second".into();
    let second = StoreRequest::LoadState { key: other, fence: ours };
    assert_eq!(store.execute(&second), state(None, 0), "records of one grain are apart");
}

fn a_group_is_answered_one_by_one_in_order(fixture: &Fixture) {
    let mut store = fixture.open();
    let (ours, theirs) = (fence(2, 1), fence(3, 1));
    let loads: Vec<_> = ["a", "b", "c"].into_iter().map(|id| load(id, ours)).collect();
    assert_eq!(store.execute_group(&loads), vec![state(None, 0); 3]);
    store.execute(&load("b", theirs)).unwrap();
    let results = store.execute_group(&[
        write("a", ours, 0, Some(record("1"))),
        write("b", ours, 0, Some(record("1"))),
        write("c", ours, 5, Some(record("1"))),
        write("a", ours, 1, Some(record("2"))),
        load("a", ours),
        load("b", ours),
        StoreRequest::ReadTable,
        write("a", ours, 2, None),
    ]);
    assert_eq!(results[..2], [written(1), Err(StoreError::Fenced)]);
    assert_eq!(results[2..4], [Err(StoreError::Conflict), written(2)]);
    assert_eq!(results[4..6], [state(Some(record("2")), 2), Err(StoreError::Fenced)]);
    assert!(matches!(results[6], Ok(StoreAnswer::Table(_))));
    assert_eq!(results[7..], [written(3)]);
    assert!(store.execute_group(&[]).is_empty());
}

fn the_largest_group_and_the_largest_state_go_through(fixture: &Fixture) {
    let mut store = fixture.open();
    let ours = fence(2, 1);
    let ids: Vec<String> = (0..STORE_GROUP_MAX).map(|index| format!("g{index}")).collect();
    let loads: Vec<_> = ids.iter().map(|id| load(id, ours)).collect();
    assert!(store.execute_group(&loads).iter().all(|one| *one == state(None, 0)));
    let writes: Vec<_> =
        ids.iter().map(|id| write(id, ours, 0, Some(record(id.as_str())))).collect();
    assert!(store.execute_group(&writes).iter().all(|one| *one == written(1)));
    let again = store.execute_group(&loads);
    let expected = ids.iter().map(|id| state(Some(record(id.as_str())), 1));
    assert!(again.into_iter().eq(expected), "each answer is its own request's");
    let largest = record(vec![7; BODY_BYTES_MAX]);
    assert_eq!(store.execute(&write("g0", ours, 1, Some(largest.clone()))), written(2));
    assert_eq!(store.execute(&load("g0", ours)), state(Some(largest), 2));
    let larger = record(vec![7; BODY_BYTES_MAX + 1]);
    assert!(is_refused(&store.execute(&write("g0", ours, 2, Some(larger)))));
}

fn what_no_store_could_keep_is_refused_and_undoes_nothing(fixture: &Fixture) {
    let mut store = fixture.open();
    let ours = fence(1, 1);
    let mut long = key("g");
    long.name = "x".repeat(300);
    let bad = StoreRequest::LoadState { key: long, fence: ours };
    let far = load("g", fence(1, u64::MAX));
    let results = store.execute_group(&[load("a", ours), bad, far, load("b", ours)]);
    assert_eq!((&results[0], &results[3]), (&state(None, 0), &state(None, 0)));
    assert!(is_refused(&results[1]) && is_refused(&results[2]), "{results:?}");
    let future = write_row(0, row("a", 9, JOINING));
    assert!(is_refused(&store.execute(&future)), "a generation that is not yet");
}

fn two_clusters_in_one_store_do_not_see_each_other(fixture: &Fixture) {
    let mut ours = fixture.open_for("a");
    let mut theirs = fixture.open_for("b");
    ours.execute(&write_row(0, row("x", 1, JOINING))).unwrap();
    ours.execute(&StoreRequest::Settings { ours: vec![("k".into(), "a".into())] }).unwrap();
    ours.execute(&load("g", fence(9, 9))).unwrap();
    ours.execute(&write("g", fence(9, 9), 0, Some(record("ours")))).unwrap();
    assert_eq!(table(&mut *theirs), siloring_core::ports::store::Table::default());
    let settings = theirs.execute(&StoreRequest::Settings { ours: vec![] });
    assert_eq!(settings, Ok(StoreAnswer::Settings(vec![])));
    // The same key, fence and etags as theirs.
    assert_eq!(theirs.execute(&load("g", fence(9, 9))), state(None, 0));
    for etag in 0..2 {
        let change = write("g", fence(9, 9), etag, Some(record("theirs")));
        assert_eq!(theirs.execute(&change), written(etag + 1));
    }
    assert_eq!(ours.execute(&load("g", fence(9, 9))), state(Some(record("ours")), 1));
    theirs.execute(&write_row(0, row("x", 1, ACTIVE))).unwrap();
    theirs.execute(&StoreRequest::Heartbeat { generation: Generation(1), counter: 5 }).unwrap();
    let found = table(&mut *ours);
    assert_eq!((found.rows[0].row.status, found.rows[0].heartbeat), (JOINING, 0));
    assert_eq!((ours.cluster().as_str(), theirs.cluster().as_str()), ("a", "b"));
}

macro_rules! conformance {
    ($($case:ident)+) => {
        conformance! { memory: Memory $($case)+ }
        conformance! { sqlite: Sqlite $($case)+ }
        conformance! { postgres: Postgres $($case)+ }
    };
    ($module:ident: $kind:ident $($case:ident)+) => {
        mod $module { $(
            #[test]
            fn $case() {
                if let Some(fixture) = super::Fixture::new(super::Kind::$kind) {
                    super::$case(&fixture);
                }
            }
        )+ }
    };
}

pub(crate) use conformance;

conformance! {
    an_empty_store_shows_view_zero_without_rows
    a_row_comes_back_as_written_with_the_view_of_its_change
    a_wrong_version_changes_nothing
    a_view_that_does_not_rise_is_refused
    thirty_parallel_updaters_make_one_winner_a_version
    heartbeats_move_no_version_and_never_go_back
    dead_stays_dead
    a_status_moves_to_the_right_only
    removed_rows_never_return_but_a_new_lineage_may_write_them
    the_first_writer_of_settings_wins_whole
    of_two_first_writers_of_settings_one_wins_whole
    a_state_is_absent_then_written_changed_and_removed
    a_write_needs_the_etag_last_seen
    a_later_activations_load_refuses_the_earlier_ones_write
    removing_a_state_keeps_its_fence
    names_of_records_and_addresses_are_data
    a_group_is_answered_one_by_one_in_order
    the_largest_group_and_the_largest_state_go_through
    what_no_store_could_keep_is_refused_and_undoes_nothing
    two_clusters_in_one_store_do_not_see_each_other
}
