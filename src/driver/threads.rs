//! The threads of a silo. A panic on one of them ends the process.

use std::io;
use std::process;
use std::thread::{Builder, JoinHandle, panicking};

/// Aborts the process if it is dropped by a panic.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if panicking() {
            tracing::error!(target: "siloring", "a runtime thread panicked: the process aborts");
            process::abort();
        }
    }
}

/// Starts a thread of the silo.
pub(crate) fn start<T: Send + 'static>(
    name: String,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name).spawn(move || {
        let guard = AbortOnPanic;
        let result = body();
        drop(guard);
        result
    })
}
