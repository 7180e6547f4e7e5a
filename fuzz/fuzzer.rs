//! Fuzzes the target that `SILORING_FUZZ_TARGET` names: see `siloring_testkit::fuzz`.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use siloring_testkit::fuzz::Target;

static TARGET: LazyLock<Target> = LazyLock::new(Target::from_environment);

fuzz_target!(init: TARGET.write_seeds(), |input: &[u8]| TARGET.run(input));
