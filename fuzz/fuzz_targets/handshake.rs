//! Fuzzes the target `handshake`: see `siloring_testkit::fuzz`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use siloring_testkit::fuzz::Target;

fuzz_target!(init: Target::Handshake.write_seeds(), |input: &[u8]| Target::Handshake.run(input));
