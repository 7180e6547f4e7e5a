//! Fuzzes the target `settings`: see `siloring_testkit::fuzz`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use siloring_testkit::fuzz::Target;

fuzz_target!(init: Target::Settings.write_seeds(), |input: &[u8]| Target::Settings.run(input));
