//! Fuzzes the target `address`: see `siloring_testkit::fuzz`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use siloring_testkit::fuzz::Target;

fuzz_target!(init: Target::Address.write_seeds(), |input: &[u8]| Target::Address.run(input));
