//! The binary as an operator meets it: what it prints, where, and how it exits.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod registry;

use std::path::Path;
use std::process::{Command, Output};

fn siloring(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_siloring"));
    command.env_remove("SILORING_STORE").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn url_in(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("silo.db").display())
}

#[test]
fn migrate_says_what_it_did_and_the_second_time_that_nothing_was_missing() {
    let folder = tempfile::tempdir().unwrap();
    let url = url_in(folder.path());
    let first = siloring(&["migrate", &url]);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    let out = text(&first.stdout);
    assert!(out.contains(&format!("{url} is complete")), "{out}");
    assert_eq!(out.matches("applied").count(), 3, "{out}");
    let second = text(&siloring(&["migrate", &url]).stdout);
    assert_eq!(second.matches("already complete").count(), 3, "{second}");
}

#[test]
fn migrate_answers_with_one_json_object() {
    let folder = tempfile::tempdir().unwrap();
    let url = url_in(folder.path());
    let out = siloring(&["migrate", &url, "--cluster", "prod", "--json"]);
    let answer: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let expected = serde_json::json!({
        "url": url,
        "phases": [
            { "phase": "membership", "outcome": "applied" },
            { "phase": "subscriptions", "outcome": "applied" },
            { "phase": "grain_state", "outcome": "applied" },
        ],
        "cluster": { "id": "prod", "view": "0", "silos": 0 },
    });
    assert_eq!((out.status.code(), answer), (Some(0), expected));
}

#[test]
fn what_is_missing_is_completed() {
    let folder = tempfile::tempdir().unwrap();
    let url = url_in(folder.path());
    siloring(&["migrate", &url]);
    let database = rusqlite::Connection::open(folder.path().join("silo.db")).unwrap();
    database.execute_batch("DROP TABLE siloring_setting").unwrap();
    let out = text(&siloring(&["migrate", &url]).stdout);
    assert!(out.contains("completed") && out.contains("already complete"), "{out}");
}

#[test]
fn a_failure_exits_with_one_and_says_what_to_do_on_standard_error() {
    let folder = tempfile::tempdir().unwrap();
    let url = url_in(folder.path());
    siloring(&["migrate", &url]);
    let database = rusqlite::Connection::open(folder.path().join("silo.db")).unwrap();
    database.execute_batch("UPDATE siloring_phase SET checksum = 'x'").unwrap();
    let out = siloring(&["migrate", &url]);
    let error = text(&out.stderr);
    assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0), "{error}");
    assert!(error.starts_with("error: phase membership") && error.contains("run a version"));
    let out = siloring(&["migrate", &url, "--json"]);
    let error: serde_json::Value = serde_json::from_slice(&out.stderr).unwrap();
    assert!(error["error"].as_str().unwrap().contains("another version"), "{error}");
}

#[test]
fn a_wrong_url_names_the_remedy_and_never_a_password() {
    let out = siloring(&["migrate", "mysql://ada:s3cret@h/d"]);
    let error = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1));
    assert!(error.contains("use memory:, sqlite:PATH or postgres://"), "{error}");
    assert!(!error.contains("s3cret"), "{error}");
    let out = siloring(&["migrate", "postgres://ada:s3cret@localhost/d?host=/nonexistent"]);
    let error = text(&out.stderr);
    assert!(error.contains("cannot be reached") && !error.contains("s3cret"), "{error}");
}

#[test]
fn a_wrong_command_line_exits_with_two_and_help_shows_examples() {
    assert_eq!(siloring(&["migrate"]).status.code(), Some(2));
    assert_eq!(siloring(&["migrate", "memory:", "--cluster", "a b"]).status.code(), Some(2));
    let help = text(&siloring(&["migrate", "--help"]).stdout);
    assert!(help.contains("siloring migrate postgres://") && help.contains("Exit codes"), "{help}");
}
