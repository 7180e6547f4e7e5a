//! What the macros refuse, and how a refusal reads.
//!
//! `TRYBUILD=overwrite` writes the expected messages anew; a change of them is read before it is
//! kept.

#[test]
fn mistakes_are_reported_at_their_place_with_the_remedy() {
    trybuild::TestCases::new().compile_fail("tests/fail/*.rs");
}
