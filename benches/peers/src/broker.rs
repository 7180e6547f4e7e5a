//! A server that both ends of a peer connect to, if it is installed here.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::silos::rest;

/// How often a server is asked whether it is there.
const LOOK: Duration = Duration::from_millis(10);
/// How often at most: ten seconds.
const LOOKS_MAX: u32 = 1_000;

/// A running server; it is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Broker {
    child: Child,
    place: String,
}

impl Broker {
    /// Starts `program` with what `arguments` makes of a free port, and waits until it accepts.
    pub(crate) fn start(
        program: &str,
        arguments: impl FnOnce(u16) -> Vec<String>,
    ) -> anyhow::Result<Self> {
        let port = free_port()?;
        let child = Command::new(program)
            .args(arguments(port))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let mut broker = Self { child, place: format!("127.0.0.1:{port}") };
        for _ in 0..LOOKS_MAX {
            if TcpStream::connect(&broker.place).is_ok() {
                return Ok(broker);
            }
            if let Some(status) = broker.child.try_wait()? {
                bail!("{program} has ended: {status}");
            }
            rest(LOOK);
        }
        bail!("{program} does not accept")
    }

    /// Where it is.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // One that has ended by itself needs only to be waited for.
        drop(self.child.kill());
        self.child.wait().expect("an own child can be waited for");
    }
}

/// A port that nothing listens on, for those who cannot choose one and tell which.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Whether `program` is on the path.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
