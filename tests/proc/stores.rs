//! Silos whose store goes away, while what is in memory goes on.

use std::time::{Duration, Instant};

use siloring_testkit::postgres::{PrivatePostgres, find_server};
use siloring_testkit::process::{is_long, skip};

use crate::silo::{ANSWER_TIME_MAX, Cluster, Silo, tell, until};

/// How long the store is away: beyond the bound of one request to it.
const OUTAGE: Duration = Duration::from_secs(12);
/// In the test's longer form: beyond every period and back-off that has to do with the store.
const LONG_OUTAGE: Duration = Duration::from_mins(1);
/// How long a publish to a hot stream may take meanwhile.
const HOT_TIME_MAX: Duration = Duration::from_secs(1);
/// By then whoever waits for the store has found it again.
const RETURN_TIME_MAX: Duration = Duration::from_secs(15);

/// M7.
#[test]
fn hot_streams_flow_while_postgres_is_away_and_new_subscriptions_wait_or_hear_why_not() {
    const NAME: &str =
        "hot_streams_flow_while_postgres_is_away_and_new_subscriptions_wait_or_hear_why_not";
    let Some(installation) = find_server() else {
        return skip(NAME, "no PostgreSQL server is installed");
    };
    let server = PrivatePostgres::start(&installation).unwrap_or_else(|error| panic!("{error}"));
    let cluster = Cluster::on_postgres("outage", &server);
    let (mut ann, mut bob) = (cluster.start("ann"), cluster.start("bob"));
    for key in 0..8 {
        ann.subscribe(&format!("load-{key}"), "ear", &format!("ear-{key}"));
        assert_eq!(bob.publish(&format!("load-{key}"), 0).how, "handled");
    }
    for silo in [&mut ann, &mut bob] {
        silo.get("load_events 2 8");
    }
    server.stop().unwrap_or_else(|error| panic!("{error}"));
    let stopped = Instant::now();
    // One waits longer than the outage, one does not; none is told that it was made.
    let patient = ann.ask("subscribe late one ear-one 40000");
    let mut refused = 0;
    let outage = if is_long() { LONG_OUTAGE } else { OUTAGE };
    while stopped.elapsed() < outage {
        let result = bob.result("subscribe late two ear 3000");
        assert!(result.contains("RegistryUnavailable"), "{result}");
        refused += 1;
        let hot = bob.publish("load-3", 0);
        assert!(hot.how == "handled" && hot.time < HOT_TIME_MAX, "{hot:?}");
    }
    server.start_again().unwrap_or_else(|error| panic!("{error}"));
    let first = ann.answer(patient)["result"].as_str().unwrap_or_default().to_owned();
    let is_typed = first == "subscribed" || first.contains("RegistryUnavailable");
    assert!(is_typed, "{first}");
    let began = Instant::now();
    for key in ["one", "two"] {
        let again = format!("subscribe late {key} ear-{key} 10000");
        until("it is made", RETURN_TIME_MAX, || bob.result(&again) == "subscribed");
    }
    let converged = began.elapsed();
    assert_eq!(ann.publish("late", 1).value, Some(2));
    assert_eq!(cluster.rows().len(), 10);
    let counts = [&mut ann, &mut bob].map(rest);
    tell(&format!(
        "{refused} refused meanwhile, the patient one: {first}; {counts:?} events; converged \
         after {converged:?} of at most {ANSWER_TIME_MAX:?}"
    ));
}

/// Ends a load in which every event was handled, and none late.
fn rest(silo: &mut Silo) -> u64 {
    let load = silo.get("rest");
    assert_eq!(load["ends"].as_object().map_or(0, serde_json::Map::len), 1, "{load}");
    let longest = load["longest_ms"].as_f64().unwrap_or(f64::MAX);
    assert!(longest < HOT_TIME_MAX.as_secs_f64() * 1e3, "{load}");
    load["ends"]["handled"].as_u64().unwrap_or(0)
}
