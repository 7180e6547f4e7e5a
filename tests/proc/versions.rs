//! Two really different binaries in one cluster, built from one source.

use std::time::Duration;

use siloring_testkit::process::{Stream, artifact};

use crate::silo::Cluster;

/// The binary of the next release.
const NEXT: &str = "test_silo_next";
/// How long a silo that is refused may take to say so.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(30);

/// A message that was changed without a new version is never misread: the silo that has it so joins
/// no cluster of silos that have it otherwise, and says which message it is and what to do.
#[test]
fn a_layout_changed_without_a_version_keeps_a_silo_out() {
    let cluster = Cluster::new("careless");
    let _first = cluster.start("first");
    let mut careful = cluster.start_binary(NEXT, "careful");
    assert_eq!(careful.outcome("take line 1 10000").value, Some(2));
    careful.drain();
    let binary = artifact(NEXT).expect("it is built with the tests");
    let program = cluster.program_of(binary, "careless").arguments(["--careless"]);
    let mut careless = program.start().unwrap();
    let ended = careless.wait_exit(REFUSAL_TIME_MAX).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(ended.code(), Some(1), "{}", careless.log_text());
    let said =
        |text| careless.line_count(Stream::Error, text) + careless.line_count(Stream::Output, text);
    for text in ["test.careless", "LayoutChanged", "raise the version of the type"] {
        assert!(said(text) > 0, "{text:?} is not said:\n{}", careless.log_text());
    }
}
