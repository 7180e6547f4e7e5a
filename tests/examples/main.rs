//! The examples do what they say: each is run as a person would run it.

/// The chat's books have unit tests of their own; here they run.
#[path = "../../examples/pod_hub_chat/main.rs"]
#[expect(dead_code, reason = "the program itself is run as a process")]
mod pod_hub_chat;

/// The models of older designs have tests that show their losses; here they run.
#[path = "../../examples/silence_table/main.rs"]
#[expect(dead_code, reason = "the program itself is run as a process")]
mod silence_table;

use std::process::{Command, Output};

use siloring_testkit::process::{artifact, is_long};

fn run(name: &str, arguments: &[&str]) -> Output {
    let program = artifact(name).expect("examples are built with the tests");
    let output = Command::new(program).args(arguments).output().expect("an example starts");
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{name} ended with {}\n{out}\n{error}", output.status);
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn hello_grain_calls_a_grain_twice() {
    let said = text(&run("hello_grain", &[]).stdout);
    assert!(said.contains("first: Ok(1)") && said.contains("second: Ok(2)"), "{said}");
}

#[test]
fn two_silos_lose_nothing_when_one_leaves() {
    let said = text(&run("two_silos", &[]).stdout);
    assert!(said.contains("nothing was lost"), "{said}");
}

#[test]
fn a_tokio_server_calls_grains_and_opens_hubs() {
    run("embed_in_tokio", &[]);
}

/// Runs the chat, which must end without a silent or a doubled message; gives its table.
fn chat(options: &[&str]) -> serde_json::Value {
    let arguments = [options, &["--rolls", "1", "--kills", "1", "--json"]].concat();
    let output = run("pod_hub_chat", &arguments);
    let table: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!((&table["silent"], &table["doubled"]), (&0.into(), &0.into()), "{table}");
    assert_eq!((&table["rolls"], &table["kills"]), (&1.into(), &1.into()), "{table}");
    let all_came = serde_json::json!([[10, 10], [10, 10]]);
    assert_eq!(table["probes"], all_came, "two pods, after each trouble: {table}");
    table
}

fn assert_handled(table: &serde_json::Value, legs: [&str; 2], above: u64) {
    for leg in legs {
        let count = |name: &str| table[leg][name].as_u64().expect("a count");
        assert!(count("sent") > above && count("handled") > above, "{leg}: {table}");
    }
}

#[test]
fn the_chat_ends_without_silence_through_a_roll_and_a_kill() {
    let table = chat(&[]);
    let count = |name: &str| table[name].as_u64().expect("a count");
    assert!(count("sent") > 100 && count("handled") > 100, "{table}");
    assert_eq!(table["publishes"]["sent"], 0, "nothing rides a stream: {table}");
}

/// As above, each line as one event that the members' hubs subscribe to; the talk is fast.
#[test]
fn the_chat_ends_without_silence_over_streams() {
    let table = chat(&["--leg", "stream", "--speed", "100"]);
    assert_handled(&table, ["publishes", "events"], 100);
    assert_eq!(table["deliveries"]["sent"], 0, "no hub is called: {table}");
    assert!(table["checks"]["live"].as_u64().expect("a count") > 100, "{table}");
}

#[test]
fn the_chat_ends_without_silence_on_both_legs_at_once() {
    let table = chat(&["--leg", "both", "--speed", "100"]);
    assert_handled(&table, ["publishes", "events"], 100);
    assert_handled(&table, ["deliveries", "events"], 500);
}

/// The seed of silence: the same chat on the server that a deployment would use.
#[test]
fn the_chat_ends_without_silence_on_postgres() {
    if siloring_testkit::postgres::find_server().is_none() {
        return siloring_testkit::process::skip(
            "the_chat_ends_without_silence_on_postgres",
            "no PostgreSQL server is installed",
        );
    }
    let table = chat(&["--store", "postgres", "--leg", "both"]);
    assert_handled(&table, ["deliveries", "events"], 500);
    if is_long() {
        ["stream", "both"].into_iter().for_each(chat_through_everything);
    }
}

/// Ten rolls, five kills, and a minute without the store.
fn chat_through_everything(leg: &str) {
    let troubles = ["--rolls", "10", "--kills", "5", "--outage", "60"];
    let how = ["--store", "postgres", "--leg", leg, "--json"];
    // It ends well only if nothing was silent or doubled, and every probe came back.
    let output = run("pod_hub_chat", &[&troubles[..], &how[..]].concat());
    let table: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let all_came = vec![serde_json::json!([10, 10]); 16];
    assert_eq!(table["probes"], serde_json::Value::from(all_came), "{leg}: {table}");
}

/// What the models lose in silence, real silos of this library tell.
#[test]
fn of_all_designs_in_the_table_only_models_are_silent() {
    let output = run("silence_table", &["--json"]);
    let rows: Vec<serde_json::Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("one JSON object a line"))
        .collect();
    let (models, ours): (Vec<_>, Vec<_>) =
        rows.iter().partition(|row| row["design"].to_string().contains("model"));
    assert_eq!((models.len(), ours.len()), (9, 6), "three troubles: {rows:?}");
    let silent = |row: &&&serde_json::Value| row["silent"] != 0;
    assert_eq!(models.iter().filter(silent).count(), 5, "{models:?}");
    for row in ours {
        assert_eq!((&row["silent"], &row["wrongly_refused"]), (&0.into(), &0.into()), "{row}");
        let count = |name: &str| row[name].as_u64().expect("a count");
        assert_eq!(count("handled") + count("told"), count("sent"), "{row}");
        let trouble = row["trouble"].to_string();
        assert!(!trouble.contains("rolled") || count("told") == 0, "a roll fails nothing: {row}");
        assert!(!trouble.contains("hub") || count("told") > 0, "nobody is there: {row}");
    }
}
