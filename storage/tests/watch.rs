//! Word of changes in the registry: it comes, it comes in time, and a lost one is made up for.
//!
//! Method: a watch on a real store, changes by other handles and by hand; what is heard is compared
//! in order. A hint too many is allowed by the contract, so only where one would hide a defect is
//! the whole of what was heard compared.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use siloring_core::AddressHash;
use siloring_core::limits::REGISTRY_POLL_PERIOD;
use siloring_core::ports::registry::RegistryHint;
use siloring_core::ports::store::{StoreAnswer, StoreRequest};
use siloring_storage::{RegistryWatch, migrate, open};

use crate::fixture::{
    cluster, insert, new_server, postgres, registered, remove, sqlite, stream, subscription,
    subscriptions,
};

const EVERYTHING: RegistryHint = RegistryHint::Everything;
/// Far more than the period: a loaded machine is slow.
const PATIENCE: Duration = Duration::from_secs(20);

fn hint(of: &str) -> RegistryHint {
    RegistryHint::Stream(stream(of).hash())
}

fn watch(url: &str) -> (RegistryWatch, Receiver<RegistryHint>) {
    let (sender, heard) = channel();
    let on_hint = move |hint| sender.send(hint).unwrap_or(());
    (RegistryWatch::start(url, &cluster("a"), on_hint).unwrap(), heard)
}

fn next(heard: &Receiver<RegistryHint>) -> RegistryHint {
    heard.recv_timeout(PATIENCE).unwrap()
}

/// What is heard until `last`, that included.
fn until(heard: &Receiver<RegistryHint>, last: RegistryHint) -> Vec<RegistryHint> {
    let mut all = vec![next(heard)];
    while all.last() != Some(&last) {
        all.push(next(heard));
    }
    all
}

fn admin(url: &str) -> postgres::Client {
    postgres::Client::connect(url, postgres::NoTls).unwrap()
}

#[test]
fn postgres_tells_which_stream_has_changed_and_only_those_of_the_cluster() {
    let Some(url) = postgres() else { return };
    let (_watch, heard) = watch(&url);
    assert_eq!(next(&heard), EVERYTHING, "once it listens");
    let mut ours = open(&url, &cluster("a")).unwrap();
    let mut theirs = open(&url, &cluster("b")).unwrap();
    registered(&theirs.execute(&insert(&subscription("theirs", "k"))));
    registered(&ours.execute(&insert(&subscription("s", "k"))));
    assert_eq!(next(&heard), hint("s"));
    let refused = ours.execute(&insert(&subscription("s", "k")));
    assert!(refused.is_err(), "and nobody is told: {refused:?}");
    let group = [insert(&subscription("t", "1")), insert(&subscription("t", "2"))];
    ours.execute_group(&group).iter().for_each(|result| assert!(result.is_ok()));
    assert_eq!(next(&heard), hint("t"), "one transaction tells of a stream once");
    let (rows, _) = subscriptions(&mut *ours, "s");
    registered(&ours.execute(&remove(&rows[0])));
    assert_eq!(next(&heard), hint("s"));
    let row = subscription("s", "k");
    let sweep =
        StoreRequest::SweepSubscriptions { gone: row.owner.into_iter().collect(), view: row.view };
    assert_eq!(ours.execute(&sweep), Ok(StoreAnswer::Swept { count: 2 }));
    assert_eq!(next(&heard), EVERYTHING);
}

#[test]
fn a_watch_that_was_cut_off_listens_again_and_then_says_that_everything_may_have_changed() {
    let Some(url) = postgres() else { return };
    let (_watch, heard) = watch(&url);
    assert_eq!(next(&heard), EVERYTHING);
    let mut by_hand = admin(&url);
    for _ in 0..2 {
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()";
        assert!(!by_hand.query(cut, &[]).unwrap().is_empty(), "it was connected");
        assert_eq!(next(&heard), EVERYTHING);
        let mut store = open(&url, &cluster("a")).unwrap();
        let (rows, _) = subscriptions(&mut *store, "s");
        let change = rows.first().map_or_else(|| insert(&subscription("s", "k")), remove);
        registered(&store.execute(&change));
        drop(store);
        until(&heard, hint("s"));
    }
}

#[test]
fn a_change_that_nobody_was_told_of_is_noticed_within_the_period() {
    let Some(url) = postgres() else { return };
    let mut store = open(&url, &cluster("a")).unwrap();
    registered(&store.execute(&insert(&subscription("s", "k"))));
    let (_watch, heard) = watch(&url);
    assert_eq!(next(&heard), EVERYTHING);
    admin(&url).batch_execute("UPDATE siloring_registry SET version = version + 1").unwrap();
    assert_eq!(next(&heard), EVERYTHING);
}

#[test]
fn what_others_tell_on_the_channel_does_no_harm() {
    let Some(url) = postgres() else { return };
    let (_watch, heard) = watch(&url);
    assert_eq!(next(&heard), EVERYTHING);
    let mut by_hand = admin(&url);
    let channel = "SELECT 'siloring_' || lpad(to_hex($1::bigint), 16, '0')";
    let hash = siloring_core::hash::stable_u64(b"a").cast_signed();
    let channel: String = by_hand.query_one(channel, &[&hash]).unwrap().get(0);
    let long = "f".repeat(33);
    let forged = ["", "x", "+0000000000000000000000000000007", "F", &long, "f0f0"];
    for payload in forged {
        by_hand.execute("SELECT pg_notify($1, $2)", &[&channel, &payload]).unwrap();
    }
    let unknown = format!("{:032x}", 7);
    by_hand.execute("SELECT pg_notify($1, $2)", &[&channel, &unknown]).unwrap();
    assert_eq!(next(&heard), RegistryHint::Stream(AddressHash(7)), "no other was taken for one");
}

#[test]
fn where_nobody_may_listen_the_version_is_looked_at() {
    let Some(server) = new_server("a pooler that lets nobody listen") else {
        return;
    };
    let url = server.database(|url| migrate(url).map(drop).map_err(|error| error.to_string()));
    let url = url.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let pooled = through_a_pooler(&url, folder.path());
    let (_watch, heard) = watch(&pooled);
    assert_eq!(next(&heard), EVERYTHING);
    let mut store = open(&url, &cluster("a")).unwrap();
    registered(&store.execute(&insert(&subscription("s", "k"))));
    assert_eq!(next(&heard), EVERYTHING, "which stream is not known");
    server.stop().unwrap();
}

/// The URL of a socket in `folder` that leads to the server of `url`, where `LISTEN` is no word.
fn through_a_pooler(url: &str, folder: &Path) -> String {
    let (before, rest) = url.split_once("host=").unwrap();
    let (host, after) = rest.split_once('&').unwrap_or((rest, ""));
    let host = host.replace("%2F", "/");
    let name = std::fs::read_dir(&host).unwrap().map(|entry| entry.unwrap().file_name());
    let name = name.into_iter().find(|name| name.to_str().unwrap().starts_with(".s.PGSQL."));
    let name = name.unwrap();
    let name = name.to_str().unwrap().trim_end_matches(".lock").to_owned();
    let server = Path::new(&host).join(&name);
    let listener = UnixListener::bind(folder.join(&name)).unwrap();
    spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), UnixStream::connect(&server).unwrap());
            let answers = (server.try_clone().unwrap(), client.try_clone().unwrap());
            spawn(move || forward(answers.0, answers.1));
            spawn(move || forward(client, server));
        }
    });
    format!("{before}host={}&{after}", folder.display())
}

/// Ends with the process at the latest.
fn spawn(work: impl FnOnce() + Send + 'static) {
    drop(std::thread::Builder::new().spawn(work).unwrap());
}

fn forward(mut from: UnixStream, mut to: UnixStream) {
    let mut bytes = [0; 4 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let part = &mut bytes[..count];
        let word = part.windows(6).position(|word| word == b"LISTEN");
        if let Some(at) = word {
            part[at..at + 6].copy_from_slice(b"HEARKN");
        }
        if to.write_all(part).is_err() {
            break;
        }
    }
    // Either may be closed already.
    drop(to.shutdown(std::net::Shutdown::Both));
}

#[test]
fn changes_of_another_process_in_a_file_are_noticed_one_by_one() {
    let (url, _folder) = sqlite();
    let (_watch, heard) = watch(&url);
    assert_eq!(next(&heard), EVERYTHING);
    let mut store = open(&url, &cluster("a")).unwrap();
    let mut theirs = open(&url, &cluster("b")).unwrap();
    for key in ["1", "2"] {
        registered(&theirs.execute(&insert(&subscription("s", key))));
        registered(&store.execute(&insert(&subscription("s", key))));
        assert_eq!(next(&heard), EVERYTHING);
    }
    registered(&theirs.execute(&insert(&subscription("s", "3"))));
    let more = heard.recv_timeout(REGISTRY_POLL_PERIOD * 2);
    assert!(more.is_err(), "nothing of ours has moved: {more:?}");
}

#[test]
fn a_store_that_is_migrated_later_is_watched_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let (_watch, heard) = watch(&url);
    assert!(heard.try_recv().is_err());
    migrate(&url).unwrap();
    assert_eq!(next(&heard), EVERYTHING);
}

#[test]
fn a_watch_that_is_dropped_ends_and_lets_its_listener_go() {
    let (file, _folder) = sqlite();
    for url in [Some(file), postgres()].into_iter().flatten() {
        let (watch, heard) = watch(&url);
        assert_eq!(next(&heard), EVERYTHING);
        drop(watch);
        assert_eq!(heard.recv_timeout(PATIENCE).ok(), None);
        assert!(heard.recv().is_err(), "the thread has dropped its end");
    }
}

#[test]
fn in_memory_there_is_nothing_to_watch() {
    let (_watch, heard) = watch("memory:");
    assert!(heard.recv().is_err(), "no thread keeps the other end");
}
