//! Fuzzes the target `frames`: see `siloring_testkit::fuzz`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use siloring_testkit::fuzz::Target;

fuzz_target!(init: Target::Frames.write_seeds(), |input: &[u8]| Target::Frames.run(input));
