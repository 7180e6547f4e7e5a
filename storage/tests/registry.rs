//! The contract of the registry of subscriptions and dead letters, on memory, SQLite and Postgres.
//!
//! Method: as in `conformance`, whose macro makes a test of each case for each kind of store. What
//! a case asserts is in the documentation of `siloring_core::ports`.

use siloring_core::limits::{
    BODY_BYTES_MAX, REGISTRY_PAGE_MAX, STORE_GROUP_BYTES_MAX, STORE_GROUP_MAX,
    SUBSCRIPTION_FILTER_BYTES_MAX, SUBSCRIPTION_KEY_BYTES_MAX, SWEEP_OWNERS_MAX,
};
use siloring_core::ports::registry::{DeadLetter, SetVersion, Subscription};
use siloring_core::ports::store::{Store, StoreAnswer, StoreError, StoreRequest};
use siloring_core::schema::Schema;
use siloring_core::{Address, Generation, MethodId, ViewNumber};

use crate::conformance::conformance;
use crate::fixture::{
    Fixture, Kind, fence, insert, is_refused, load, record, registered, remove, replace, rows,
    state, stream, subscription, subscriptions, write, written,
};

fn an_empty_registry_shows_version_zero(fixture: &Fixture) {
    let mut store = fixture.open();
    assert_eq!(subscriptions(&mut *store, "s"), (vec![], SetVersion(0)));
    assert_eq!(list(&mut *store, None, 7), (vec![], SetVersion(0)));
    let swept = store.execute(&sweep(&[5], 9));
    assert_eq!(swept, Ok(StoreAnswer::Swept { count: 0 }));
    let none = remove(&subscription("s", "k"));
    assert_eq!(store.execute(&none), Err(StoreError::Conflict));
}

fn a_subscription_comes_back_as_written_with_its_version(fixture: &Fixture) {
    let mut store = fixture.open();
    let hub = Subscription {
        operation: u128::MAX,
        filter: "total > 5\n and \u{1f600} <> 'x'".into(),
        view: ViewNumber::new(3, 7),
        ..subscription("s", "hub")
    };
    let grain = Subscription {
        owner: None,
        handler: MethodId(u32::MAX),
        consumer: Address::of("mesh~chat.room", "general").unwrap(),
        operation: 0,
        version: SetVersion(99),
        ..subscription("s", "grain")
    };
    let first = registered(&store.execute(&insert(&hub)));
    let second = registered(&store.execute(&insert(&grain)));
    assert!(first > SetVersion(0) && second > first, "{first:?} {second:?}");
    let (found, newest) = subscriptions(&mut *fixture.open(), "s");
    let hub = Subscription { version: first, ..hub };
    let grain = Subscription { version: second, ..grain };
    assert_eq!(found, [grain, hub], "by key; what the writer said of the version is ignored");
    assert_eq!(newest, second);
    assert_eq!(subscriptions(&mut *store, "other"), (vec![], second), "other streams are apart");
}

fn a_key_is_inserted_once(fixture: &Fixture) {
    let mut store = fixture.open();
    let row = subscription("s", "k");
    let version = registered(&store.execute(&insert(&row)));
    let other = Subscription { operation: 2, ..row.clone() };
    assert_eq!(fixture.open().execute(&insert(&other)), Err(StoreError::Conflict));
    let (found, _) = subscriptions(&mut *store, "s");
    assert_eq!(found, [Subscription { version, ..row }], "the first one stays as it was");
}

fn a_subscription_is_replaced_at_the_version_last_seen_only(fixture: &Fixture) {
    let mut store = fixture.open();
    let row = subscription("s", "k");
    let absent = store.execute(&replace(&row, SetVersion(1)));
    assert_eq!(absent, Err(StoreError::Conflict), "there is none to replace");
    let first = registered(&store.execute(&insert(&row)));
    let moved = Subscription {
        owner: Some(Generation(6)),
        consumer: Address::of("portal", "elsewhere").unwrap(),
        filter: "f".into(),
        operation: 2,
        view: ViewNumber(11),
        handler: MethodId(4),
        ..row.clone()
    };
    for wrong in [0, first.0 - 1, first.0 + 1] {
        let late = store.execute(&replace(&moved, SetVersion(wrong)));
        assert_eq!(late, Err(StoreError::Conflict), "{wrong}");
    }
    let second = registered(&store.execute(&replace(&moved, first)));
    assert!(second > first);
    assert_eq!(store.execute(&replace(&row, first)), Err(StoreError::Conflict), "seen too early");
    let (found, newest) = subscriptions(&mut *store, "s");
    assert_eq!(found, [Subscription { version: second, ..moved }]);
    assert!(newest >= second);
}

fn a_subscription_is_removed_by_its_owner_and_version_only(fixture: &Fixture) {
    let mut store = fixture.open();
    let mut held = [subscription("s", "hub"), subscription("s", "grain")];
    held[1].owner = None;
    for row in &mut held {
        row.version = registered(&store.execute(&insert(row)));
    }
    for row in &held {
        let owners = [None, Some(Generation(5)), Some(Generation(6))];
        for owner in owners.into_iter().filter(|owner| *owner != row.owner) {
            let wrong = remove(&Subscription { owner, ..row.clone() });
            assert_eq!(store.execute(&wrong), Err(StoreError::Conflict), "{owner:?}");
        }
        let version = SetVersion(row.version.0 + 1);
        let wrong = remove(&Subscription { version, ..row.clone() });
        assert_eq!(store.execute(&wrong), Err(StoreError::Conflict), "{version:?}");
        let elsewhere = remove(&Subscription { stream: stream("t"), ..row.clone() });
        assert_eq!(store.execute(&elsewhere), Err(StoreError::Conflict));
    }
    assert_eq!(subscriptions(&mut *store, "s").0.len(), 2, "nothing was removed so far");
    let mut newest = held[1].version;
    for row in &held {
        let version = registered(&store.execute(&remove(row)));
        assert!(version > newest, "a removal is a write: {version:?}");
        newest = version;
        assert_eq!(store.execute(&remove(row)), Err(StoreError::Conflict), "once");
    }
    assert!(subscriptions(&mut *store, "s").0.is_empty());
    let again = registered(&store.execute(&insert(&held[0])));
    assert!(again > newest, "a key that was removed is free, and no version comes back");
}

fn a_sweep_takes_the_rows_of_the_gone_that_its_view_may_judge(fixture: &Fixture) {
    let mut store = fixture.open();
    let row = |key: &str, owner: Option<u64>, view: u64| Subscription {
        owner: owner.map(Generation),
        view: ViewNumber(view),
        ..subscription(if view.is_multiple_of(2) { "s" } else { "t" }, key)
    };
    let kept = [
        row("grain", None, 4),
        row("alive", Some(6), 4),
        row("later", Some(5), 10),
        row("beyond", Some(7), ViewNumber::new(1, 2).0),
    ];
    let gone = [row("a", Some(5), 9), row("b", Some(5), 4), row("c", Some(7), 1)];
    for one in kept.iter().chain(&gone) {
        registered(&store.execute(&insert(one)));
    }
    let before = subscriptions(&mut *store, "s").1;
    assert_eq!(store.execute(&sweep(&[], 99)), Ok(StoreAnswer::Swept { count: 0 }));
    assert_eq!(store.execute(&sweep(&[5, 7], 0)), Ok(StoreAnswer::Swept { count: 0 }));
    assert_eq!(subscriptions(&mut *store, "s").1, before, "what removes nothing mints nothing");
    assert_eq!(store.execute(&sweep(&[5, 7, 8], 9)), Ok(StoreAnswer::Swept { count: 3 }));
    let (mut found, newest) = list(&mut *store, None, 100);
    found.sort_by_key(|row| row.key.clone());
    let keys: Vec<&str> = found.iter().map(|row| row.key.as_str()).collect();
    assert_eq!(keys, ["alive", "beyond", "grain", "later"]);
    assert!(newest > before, "a sweep is a write");
}

fn sweep(gone: &[u64], view: u64) -> StoreRequest {
    let gone = gone.iter().copied().map(Generation).collect();
    StoreRequest::SweepSubscriptions { gone, view: ViewNumber(view) }
}

/// Runs `work` on as many threads at once, each with a store of its own.
fn at_once<T: Send>(
    fixture: &Fixture,
    count: u64,
    work: impl Fn(u64, &mut dyn Store) -> T + Sync,
) -> Vec<T> {
    let barrier = std::sync::Barrier::new(usize::try_from(count).unwrap());
    std::thread::scope(|scope| {
        let (work, barrier) = (&work, &barrier);
        let run = move |index| {
            let mut store = fixture.open();
            barrier.wait();
            work(index, &mut *store)
        };
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || run(index))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn of_thirty_parallel_subscribers_of_one_key_one_wins(fixture: &Fixture) {
    let by =
        |operation: u64| Subscription { operation: operation.into(), ..subscription("s", "k") };
    let mut expected = None;
    for round in 0..3 {
        let results = at_once(fixture, 30, |index, store| {
            let row = by(100 * round + index);
            let request = StoreRequest::WriteSubscription { row, expected };
            (100 * round + index, store.execute(&request))
        });
        let (won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(|(_, it)| it.is_ok());
        assert_eq!((won.len(), lost.len()), (1, 29), "{won:?}");
        assert!(lost.iter().all(|(_, it)| *it == Err(StoreError::Conflict)), "{lost:?}");
        let (operation, version) = (won[0].0, registered(&won[0].1));
        let (found, _) = subscriptions(&mut *fixture.open(), "s");
        assert_eq!(found, [Subscription { version, ..by(operation) }]);
        expected = Some(version);
    }
}

fn who_has_seen_a_version_has_seen_every_write_below_it(fixture: &Fixture) {
    const WRITERS: u64 = 4;
    const WRITES: u64 = 40;
    let seen = at_once(fixture, WRITERS + 2, |index, store| {
        if index < WRITERS {
            for write in 0..WRITES {
                let key = format!("{index}-{write}");
                registered(&store.execute(&insert(&subscription("s", &key))));
            }
            return vec![];
        }
        let mut seen = Vec::new();
        while seen
            .last()
            .is_none_or(|(_, rows): &(_, Vec<_>)| (rows.len() as u64) < WRITERS * WRITES)
        {
            let (rows, newest) = subscriptions(store, "s");
            seen.push((newest, rows.iter().map(|row| row.version).collect::<Vec<_>>()));
        }
        seen
    });
    let (rows, _) = subscriptions(&mut *fixture.open(), "s");
    let mut versions: Vec<_> = rows.iter().map(|row| row.version).collect();
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(versions.len() as u64, WRITERS * WRITES, "no version is given twice");
    for (newest, mut seen) in seen.into_iter().flatten() {
        seen.sort_unstable();
        let below: Vec<_> = versions.iter().copied().filter(|it| *it <= newest).collect();
        assert_eq!(seen, below, "{newest:?}");
    }
}

fn list(
    store: &mut dyn Store,
    after: Option<(Address, String)>,
    limit: u32,
) -> (Vec<Subscription>, SetVersion) {
    rows(store.execute(&StoreRequest::ListSubscriptions { after, limit }))
}

fn a_list_is_read_in_pages_by_stream_and_key(fixture: &Fixture) {
    let mut store = fixture.open();
    // In the order of bytes: a locale's would differ.
    let expected = ["B/1", "B/Z", "B/a", "B/\u{e9}", "a/0", "a/k/2", "b/k", "\u{e9}/k"];
    let rows: Vec<_> = expected.iter().map(|it| it.split_once('/').unwrap()).collect();
    for (of, key) in rows.iter().rev() {
        registered(&store.execute(&insert(&subscription(of, key))));
    }
    for limit in [1, 3, 8, REGISTRY_PAGE_MAX] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let (page, newest) = list(&mut *store, after, limit);
            assert_eq!(newest, SetVersion(8));
            assert!(page.len() <= limit as usize);
            let Some(last) = page.last() else { break };
            after = Some((last.stream.clone(), last.key.clone()));
            found.extend(page);
        }
        let found: Vec<_> = found
            .iter()
            .map(|row| (row.stream.id().trim_start_matches("orders/"), row.key.as_str()))
            .collect();
        assert_eq!(found, rows, "in pages of {limit}");
    }
}

fn a_group_of_changes_is_answered_one_by_one_in_order(fixture: &Fixture) {
    let mut store = fixture.open();
    let (a, b) = (subscription("s", "a"), subscription("s", "b"));
    store.execute(&load("g", fence(1, 1))).unwrap();
    let results = store.execute_group(&[
        insert(&a),
        write("g", fence(1, 1), 0, Some(record("x"))),
        insert(&b),
        StoreRequest::WriteDeadLetter(letter("s", 1, "x")),
        insert(&a),
        StoreRequest::LoadSubscriptions { stream: stream("s") },
        write("g", fence(1, 1), 1, Some(record("y"))),
        load("g", fence(1, 1)),
        insert(&subscription("s", "")),
    ]);
    let versions = [registered(&results[0]), registered(&results[2])];
    assert!(versions[0] < versions[1], "{versions:?}");
    assert_eq!((&results[1], &results[6]), (&written(1), &written(2)));
    assert_eq!((&results[3], &results[4]), (&Ok(StoreAnswer::Done), &Err(StoreError::Conflict)));
    let found: Vec<_> = rows(results[5].clone()).0.iter().map(|row| row.version).collect();
    assert_eq!(found, versions);
    assert_eq!(results[7], state(Some(record("y")), 2));
    assert!(is_refused(&results[8]), "{results:?}");

    let [a, b] =
        [(a, versions[0]), (b, versions[1])].map(|(row, version)| Subscription { version, ..row });
    let results = store.execute_group(&[
        remove(&a),
        replace(&b, b.version),
        insert(&subscription("t", "c")),
        remove(&subscription("t", "never")),
        insert(&a),
        remove(&b),
    ]);
    let minted = [&results[0], &results[1], &results[2], &results[4]].map(registered);
    assert!(minted.is_sorted() && minted[0] > b.version, "{minted:?}");
    assert_eq!([&results[3], &results[5]], [&Err(StoreError::Conflict); 2]);
    let (found, _) = subscriptions(&mut *store, "s");
    let found: Vec<_> = found.iter().map(|row| row.version).collect();
    assert_eq!(found, [minted[3], minted[1]]);
}

fn the_largest_group_of_changes_goes_through(fixture: &Fixture) {
    let mut store = fixture.open();
    let filter = "x".repeat(SUBSCRIPTION_FILTER_BYTES_MAX);
    let row = |index: usize| Subscription {
        filter: filter.clone(),
        ..subscription(&format!("{}", index % 7), &format!("{index:04}"))
    };
    let held: Vec<_> = (0..STORE_GROUP_MAX).map(row).collect();
    let results = store.execute_group(&held.iter().map(insert).collect::<Vec<_>>());
    let versions: Vec<_> = results.iter().map(registered).collect();
    assert!(versions.is_sorted_by(|a, b| a < b), "each has its own, in order");
    let loads: Vec<_> = (0..7)
        .map(|of| StoreRequest::LoadSubscriptions { stream: stream(&of.to_string()) })
        .collect();
    let found: Vec<_> = store.execute_group(&loads).into_iter().map(|it| rows(it).0).collect();
    assert!(
        found
            .iter()
            .flatten()
            .all(|row| versions[row.key.parse::<usize>().unwrap()] == row.version)
    );
    let counts: Vec<_> = found.iter().map(Vec::len).collect();
    assert_eq!((counts.iter().sum::<usize>(), counts[0]), (STORE_GROUP_MAX, 147));
    let results = store.execute_group(&found.iter().flatten().map(remove).collect::<Vec<_>>());
    assert!(results.iter().all(Result::is_ok), "each is removed");
    assert!(list(&mut *store, None, 1).0.is_empty());
}

fn keys_and_filters_are_data(fixture: &Fixture) {
    let mut store = fixture.open();
    for key in ["'; DROP TABLE siloring_subscription; --", "%", "\u{1f600}", "a/b", "$1", "\\"] {
        let row = Subscription { filter: key.into(), ..subscription("s", "k") };
        let row = Subscription { key: key.into(), ..row };
        let version = registered(&store.execute(&insert(&row)));
        let held = Subscription { version, ..row };
        assert!(subscriptions(&mut *store, "s").0.contains(&held), "{key}");
        registered(&store.execute(&remove(&held)));
    }
    let longest = "k".repeat(SUBSCRIPTION_KEY_BYTES_MAX);
    registered(&store.execute(&insert(&subscription("s", &longest))));
}

fn what_no_registry_could_keep_is_refused(fixture: &Fixture) {
    let mut store = fixture.open();
    let row = subscription("s", "k");
    let edits: [fn(&mut Subscription); 7] = [
        |row| row.key.clear(),
        |row| row.key = "k".repeat(SUBSCRIPTION_KEY_BYTES_MAX + 1),
        |row| row.key = "a\0b".into(),
        |row| row.filter = "x".repeat(SUBSCRIPTION_FILTER_BYTES_MAX + 1),
        |row| row.filter = "\0".into(),
        |row| row.owner = Some(Generation::NONE),
        |row| row.view = ViewNumber(u64::MAX),
    ];
    for (index, edit) in edits.into_iter().enumerate() {
        let mut bad = row.clone();
        edit(&mut bad);
        assert!(is_refused(&store.execute(&insert(&bad))), "edit {index}");
    }
    let edits: [fn(&mut DeadLetter); 4] = [
        |it| it.reason = "x".repeat(513),
        |it| it.number = u64::MAX,
        |it| it.key.clear(),
        |it| it.body = vec![0; BODY_BYTES_MAX + 1].into(),
    ];
    for (index, edit) in edits.into_iter().enumerate() {
        let mut bad = letter("s", 1, "x");
        edit(&mut bad);
        assert!(is_refused(&store.execute(&StoreRequest::WriteDeadLetter(bad))), "letter {index}");
    }
    let requests = [
        replace(&row, SetVersion(u64::MAX)),
        remove(&Subscription { key: String::new(), ..row.clone() }),
        StoreRequest::ListSubscriptions { after: None, limit: 0 },
        StoreRequest::ListSubscriptions { after: None, limit: REGISTRY_PAGE_MAX + 1 },
        StoreRequest::ReadDeadLetters { stream: stream("s"), limit: 0 },
        sweep(&[u64::MAX], 1),
        sweep(&vec![1; SWEEP_OWNERS_MAX + 1], 1),
    ];
    for request in requests {
        assert!(is_refused(&store.execute(&request)), "{request:?}");
    }
    assert_eq!(list(&mut *store, None, 1), (vec![], SetVersion(0)));
}

fn two_clusters_in_one_registry_do_not_see_each_other(fixture: &Fixture) {
    let (mut ours, mut theirs) = (fixture.open_for("a"), fixture.open_for("b"));
    let row = subscription("s", "k");
    let version = registered(&ours.execute(&insert(&row)));
    ours.execute(&StoreRequest::WriteDeadLetter(letter("s", 1, "ours"))).unwrap();
    assert_eq!(subscriptions(&mut *theirs, "s"), (vec![], SetVersion(0)));
    assert_eq!(list(&mut *theirs, None, 10), (vec![], SetVersion(0)));
    assert_eq!(letters(&mut *theirs, "s", 10), []);
    // The same stream, key, owner and version as theirs.
    let held = Subscription { version, ..row.clone() };
    assert_eq!(theirs.execute(&remove(&held)), Err(StoreError::Conflict));
    assert_eq!(theirs.execute(&replace(&row, version)), Err(StoreError::Conflict));
    assert_eq!(theirs.execute(&sweep(&[5], 99)), Ok(StoreAnswer::Swept { count: 0 }));
    let other = Subscription { operation: 7, ..row };
    registered(&theirs.execute(&insert(&other)));
    theirs.execute(&StoreRequest::WriteDeadLetter(letter("s", 1, "theirs"))).unwrap();
    assert_eq!(subscriptions(&mut *ours, "s"), (vec![held], version), "nothing of ours moved");
    assert_eq!(letters(&mut *ours, "s", 10), [letter("s", 1, "ours")]);
    assert_eq!(theirs.execute(&sweep(&[5], 99)), Ok(StoreAnswer::Swept { count: 1 }));
    assert_eq!(subscriptions(&mut *ours, "s").0.len(), 1);
}

fn letter(of: &str, number: u64, body: impl Into<Vec<u8>>) -> DeadLetter {
    DeadLetter {
        stream: stream(of),
        key: "k".into(),
        consumer: Address::of("chat.room", "general").unwrap(),
        origin: u128::MAX - 1,
        number,
        attempts: u8::MAX,
        reason: "it said:\n'no'".into(),
        schema: Schema { type_id: u32::MAX, version: u16::MAX, fingerprint: u16::MAX },
        body: bytes::Bytes::from(body.into()),
        view: ViewNumber(9),
    }
}

fn letters(store: &mut dyn Store, of: &str, limit: u32) -> Vec<DeadLetter> {
    match store.execute(&StoreRequest::ReadDeadLetters { stream: stream(of), limit }) {
        Ok(StoreAnswer::DeadLetters(letters)) => letters,
        other => panic!("not dead letters: {other:?}"),
    }
}

fn a_dead_letter_is_kept_once_and_read_newest_last(fixture: &Fixture) {
    let mut store = fixture.open();
    assert_eq!(letters(&mut *store, "s", 10), []);
    // Numbers against the order in which they come.
    let kept: Vec<_> = [9, 4, 6].map(|number| letter("s", number, vec![7; 9])).into();
    let group: Vec<_> =
        kept.iter().chain(&kept).cloned().map(StoreRequest::WriteDeadLetter).collect();
    for _ in 0..2 {
        let results = store.execute_group(&group);
        assert!(results.iter().all(|result| *result == Ok(StoreAnswer::Done)), "{results:?}");
    }
    let again = DeadLetter { reason: "another".into(), ..kept[0].clone() };
    let group = [again, letter("t", 9, ""), letter("t", 9, "twice in a group")];
    let results = store.execute_group(&group.map(StoreRequest::WriteDeadLetter));
    assert!(results.iter().all(|result| *result == Ok(StoreAnswer::Done)), "{results:?}");
    assert_eq!(letters(&mut *store, "s", 10), kept, "the first of each, as it was");
    assert_eq!(letters(&mut *store, "s", 2), kept[1..]);
    assert_eq!(letters(&mut *store, "t", 10), [letter("t", 9, "")], "nothing is a body too");
    let others = [
        DeadLetter { key: "other".into(), ..kept[0].clone() },
        DeadLetter { origin: 0, ..kept[0].clone() },
    ];
    for one in others.clone() {
        store.execute(&StoreRequest::WriteDeadLetter(one)).unwrap();
    }
    assert_eq!(letters(&mut *fixture.open(), "s", 2), others, "other consumers and publishers");
}

fn an_answer_with_dead_letters_is_bounded_in_bytes(fixture: &Fixture) {
    let mut store = fixture.open();
    let body = vec![0; STORE_GROUP_BYTES_MAX / 3 + 1];
    for number in 0..3 {
        let one = letter("s", number, body.clone());
        store.execute(&StoreRequest::WriteDeadLetter(one)).unwrap();
    }
    let numbers: Vec<_> = letters(&mut *store, "s", 3).iter().map(|it| it.number).collect();
    assert_eq!(numbers, [1, 2], "the newest that fit");
}

conformance! {
    an_empty_registry_shows_version_zero
    a_subscription_comes_back_as_written_with_its_version
    a_key_is_inserted_once
    a_subscription_is_replaced_at_the_version_last_seen_only
    a_subscription_is_removed_by_its_owner_and_version_only
    a_sweep_takes_the_rows_of_the_gone_that_its_view_may_judge
    of_thirty_parallel_subscribers_of_one_key_one_wins
    who_has_seen_a_version_has_seen_every_write_below_it
    a_list_is_read_in_pages_by_stream_and_key
    a_group_of_changes_is_answered_one_by_one_in_order
    the_largest_group_of_changes_goes_through
    keys_and_filters_are_data
    what_no_registry_could_keep_is_refused
    two_clusters_in_one_registry_do_not_see_each_other
    a_dead_letter_is_kept_once_and_read_newest_last
    an_answer_with_dead_letters_is_bounded_in_bytes
}
