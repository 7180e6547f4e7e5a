//! Signals that end the process: the first one is heard, a second one ends it at once.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use super::threads;

/// The exit code of a process that was told twice.
const EXIT_TOLD_TWICE: i32 = 1;

/// Calls `heard` at the first `SIGTERM` or `SIGINT`.
pub(crate) fn on_first(heard: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let told = Arc::new(AtomicBool::new(false));
    let (mut receiver, sender) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        flag::register_conditional_shutdown(signal, EXIT_TOLD_TWICE, Arc::clone(&told))?;
        low_level::pipe::register(signal, sender.try_clone()?)?;
    }
    let body = move || {
        // One byte, whatever it is, is one signal.
        if receiver.read_exact(&mut [0]).is_ok() {
            told.store(true, Ordering::SeqCst);
            heard();
        }
    };
    drop(threads::start("siloring-signals".into(), body)?);
    Ok(())
}
