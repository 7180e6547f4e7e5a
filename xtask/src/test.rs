//! `cargo xtask test`: every check and test of the project, in order of how soon they tell
//! something.
//!
//! Two builds serve nearly all steps, each without debug information: the linter's, and one of the
//! profile `ci` (optimised, with debug assertions), in which tests, simulated runs, examples, the
//! benches' smoke run and the fuzzer are linked: all of the whole workspace, so that none of them
//! chooses other features of a dependency. The models of what crosses threads are a small third
//! one.

use std::path::Path;
use std::process::ExitCode;

use crate::driver;
use crate::step::{self, Counted, PROFILE, Step};

const FORMAT: Step = Step {
    name: "format",
    arguments: &["fmt", "--all", "--check"],
    counted: Counted::AsOne,
    variables: &[],
};

const LINT: Step = Step {
    name: "lint",
    arguments: &[
        "clippy",
        "--profile",
        PROFILE,
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ],
    counted: Counted::AsOne,
    variables: &[],
};

/// What users build: everything else here is built with the switches by which tests plant defects.
const LINT_RELEASED: Step = Step {
    name: "lint released",
    arguments: &[
        "clippy",
        "--profile",
        PROFILE,
        "--package",
        "siloring",
        "--package",
        "siloring-cli",
        "--package",
        "siloring-testkit",
        "--lib",
        "--bins",
        "--locked",
        "--",
        "-D",
        "warnings",
    ],
    counted: Counted::AsOne,
    variables: &[],
};

const TEST_WITH_NEXTEST: Step = Step {
    name: "test",
    arguments: &[
        "nextest",
        "run",
        "--cargo-profile",
        PROFILE,
        "--workspace",
        "--locked",
        "--no-fail-fast",
        "--color",
        "never",
        "--show-progress",
        "none",
    ],
    counted: Counted::AsPrinted,
    variables: &[],
};

const TEST_WITH_CARGO: Step = Step {
    name: "test",
    arguments: &[
        "test",
        "--profile",
        PROFILE,
        "--workspace",
        "--locked",
        "--no-fail-fast",
        "--lib",
        "--bins",
        "--tests",
        "--examples",
        "--",
        "--skip",
        "long::",
    ],
    counted: Counted::AsPrinted,
    variables: &[],
};

const DOCUMENTATION: Step = Step {
    name: "documentation",
    arguments: &[
        "test",
        "--profile",
        PROFILE,
        "--workspace",
        "--locked",
        "--no-fail-fast",
        "--doc",
    ],
    counted: Counted::AsPrinted,
    variables: &[],
};

/// Every interleaving of what crosses threads, in a small build of its own.
const INTERLEAVINGS: Step = Step {
    name: "interleavings",
    arguments: &[
        "test",
        "--profile",
        PROFILE,
        "--locked",
        "--target-dir",
        "target/loom",
        "--package",
        "siloring-core",
        "--package",
        "siloring-pubsub",
        "--lib",
        "loom_tests",
    ],
    counted: Counted::AsPrinted,
    variables: &[("RUSTFLAGS", "--cfg loom")],
};

const BENCH_SMOKE: Step = Step {
    name: "bench smoke",
    arguments: &[
        "bench",
        "--profile",
        PROFILE,
        "--locked",
        "--workspace",
        "--bench",
        "*",
        "--",
        "--quick",
    ],
    counted: Counted::AsOne,
    variables: &[],
};

/// How long each fuzz target runs.
const FUZZ_SECONDS: u32 = 20;

/// Runs everything.
pub(crate) fn run(root: &Path) -> anyhow::Result<ExitCode> {
    let has_nextest = driver::has_program("cargo-nextest");
    let test = if has_nextest { &TEST_WITH_NEXTEST } else { &TEST_WITH_CARGO };
    let steps =
        [&FORMAT, &LINT, &LINT_RELEASED, &INTERLEAVINGS, test, &DOCUMENTATION, &BENCH_SMOKE];
    let mut report = step::run(root, &steps, &[], step::STEP_TIME_MAX)?;
    let _executions = report.fuzz(root, FUZZ_SECONDS);
    Ok(report.print())
}
