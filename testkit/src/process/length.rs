//! How long a test takes: some have a longer form, which only `cargo xtask prove` runs.

/// Is set if tests are to run in their longer form.
pub const LONG_VARIABLE: &str = "SILORING_LONG";

/// Whether this run is a long one.
pub fn is_long() -> bool {
    std::env::var_os(LONG_VARIABLE).is_some()
}
