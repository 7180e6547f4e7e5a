//! The places that touch the world, counted: where the clippy ban on clocks, sleeps and threads is
//! lifted, and where code is unsafe. A new one enters by an entry here, with its reason.

use super::{Finding, Repository};

/// Each file that lifts the ban, with the reason that a reviewer accepted.
const LIFTED: &[(&str, &str)] = &[
    ("benches/call_stages.rs", "a bench measures time"),
    ("benches/peers/src/remote.rs", "a bench measures time"),
    ("benches/registry.rs", "a bench measures time"),
    ("benches/stream_leg.rs", "a bench measures time"),
    ("benches/support/mod.rs", "a bench measures time"),
    ("benches/support/open_loop.rs", "a bench measures time"),
    ("benches/support/pairs.rs", "a bench measures time"),
    ("benches/support/silos.rs", "a bench measures time"),
    ("benches/support/writer.rs", "a bench measures time"),
    ("testkit/src/bin/test_silo/main.rs", "a program of the tests measures time"),
    ("examples/pod_hub_chat/clock.rs", "the chat measures latencies and outages"),
    ("src/driver/clock.rs", "the clock of production"),
    ("storage/src/driver.rs", "the store's threads"),
    ("testkit/src/process/mod.rs", "real processes live in real time"),
    ("testkit/src/stop.rs", "real processes stop in real time"),
    ("tests/sim/smoke.rs", "the smoke says how fast it was"),
    ("tests/proc/main.rs", "real processes live in real time"),
    ("tests/chaos/main.rs", "real processes live in real time"),
    ("xtask/src/driver.rs", "steps are timed"),
];

/// Each file with unsafe code, with the reason that a reviewer accepted.
const UNSAFE: &[(&str, &str)] = &[
    ("benches/support/allocations.rs", "a global allocator that counts"),
    ("core/src/sync/queue.rs", "a slot has one owner at a time, which no type can say"),
];

/// The files that lift the clippy ban are the known ones, and each known one still does.
pub(super) fn lifted_bans_are_known(repository: &Repository) -> Vec<Finding> {
    compare(repository, "clippy::disallowed_methods", LIFTED)
}

/// The files with unsafe code are the known ones, and each known one still has some.
pub(super) fn unsafe_code_is_known(repository: &Repository) -> Vec<Finding> {
    compare(repository, "unsafe_code", UNSAFE)
}

fn compare(repository: &Repository, lint: &str, known: &[(&str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repository.rust() {
        let is_known = known.iter().any(|(other, _)| *other == path);
        match (lifts(text, lint), is_known) {
            (true, false) => {
                findings.push(Finding::in_file(path, format!("lifts {lint}, and is not listed")));
            }
            (false, true) => {
                findings.push(Finding::in_file(path, format!("is listed, and lifts no {lint}")));
            }
            (true, true) | (false, false) => {}
        }
    }
    let gone = known.iter().filter(|(path, _)| repository.text(path).is_none());
    findings.extend(gone.map(|(path, _)| Finding::in_file(path, "is listed, and is gone")));
    findings
}

/// Whether the text holds an attribute that lifts `lint`, on one line or several.
fn lifts(text: &str, lint: &str) -> bool {
    let openings = ["expect(", "allow("];
    openings.iter().flat_map(|opening| text.split(opening).skip(1)).any(|rest| {
        let inside = rest.split(')').next().unwrap_or_default();
        inside.split(',').any(|part| part.trim() == lint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINT: &str = "clippy::disallowed_methods";
    const KNOWN: &[(&str, &str)] = &[("driver.rs", "it drives")];

    #[test]
    fn a_ban_lifted_where_nobody_listed_it_is_found() {
        let lifting = format!("//! D.\n#![expect(\n    {LINT},\n    reason = \"r\"\n)]\n");
        let both = Repository::of(&[("driver.rs", &lifting), ("machine.rs", &lifting)]);
        let found = compare(&both, LINT, KNOWN);
        let what = format!("lifts {LINT}, and is not listed");
        assert_eq!(found, [Finding::in_file("machine.rs", what)]);
        assert_eq!(compare(&Repository::of(&[("driver.rs", &lifting)]), LINT, KNOWN), []);
    }

    #[test]
    fn an_entry_that_nothing_needs_is_found() {
        assert_eq!(compare(&Repository::of(&[("driver.rs", "//! D.\n")]), LINT, KNOWN).len(), 1);
        assert_eq!(compare(&Repository::of(&[]), LINT, KNOWN).len(), 1);
    }
}
