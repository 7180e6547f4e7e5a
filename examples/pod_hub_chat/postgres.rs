//! A private PostgreSQL server from the machine's packages, in a temporary folder, for one run.
//!
//! It listens on a Unix socket in its folder only. Run by root it becomes the user `postgres`,
//! since the server refuses to be root.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use tempfile::TempDir;

/// Where Debian and Ubuntu keep the server's programs, a folder a version.
const DEBIAN_VERSIONS: &str = "/usr/lib/postgresql";
/// Nothing outlives the run, so nothing needs to reach the disk.
const SETTINGS: &str = "listen_addresses = ''\nfsync = off\nfull_page_writes = off\n";

/// A running server. Dropped, it stops and its folder is removed.
#[derive(Debug)]
pub(crate) struct PrivatePostgres {
    folder: TempDir,
    programs: PathBuf,
    user: Option<User>,
}

#[derive(Debug, Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
}

impl PrivatePostgres {
    /// Creates a database in a temporary folder and starts its server.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let programs = programs()?;
        let folder = tempfile::Builder::new().prefix("siloring-postgres-").tempdir()?;
        let user = if rustix::process::getuid().is_root() { Some(postgres_user()?) } else { None };
        if let Some(User { uid, gid }) = user {
            chown(folder.path(), Some(uid), Some(gid))?;
        }
        let server = Self { folder, programs, user };
        let data = server.data();
        let how = ["-A", "trust", "-U", "postgres", "-N", "--no-locale", "-E", "UTF8", "-D"];
        run(server.command("initdb").args(how).arg(&data))?;
        let sockets = format!("unix_socket_directories = '{}'\n", server.folder.path().display());
        let settings = data.join("postgresql.conf");
        let before = fs::read_to_string(&settings)?;
        fs::write(&settings, format!("{before}{SETTINGS}{sockets}"))?;
        server.go_on()?;
        Ok(server)
    }

    /// Stops the server at once: open sessions are cut.
    pub(crate) fn stop(&self) -> anyhow::Result<()> {
        run(self.command("pg_ctl").args(["-w", "-m", "immediate", "stop", "-D"]).arg(self.data()))
    }

    /// Starts it, for the first time or after a stop, and waits until it answers.
    pub(crate) fn go_on(&self) -> anyhow::Result<()> {
        let log = self.folder.path().join("log");
        run(self.command("pg_ctl").args(["-w", "start", "-D"]).arg(self.data()).arg("-l").arg(log))
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        format!("postgresql:///postgres?host={}&user=postgres", self.folder.path().display())
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        if let Some(User { uid, gid }) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        // The program is ending: a server that does not stop says why in its own log.
        let _stopped = self.stop();
    }
}

/// The folder of the newest server on this machine.
fn programs() -> anyhow::Result<PathBuf> {
    let remedy = "no PostgreSQL server is installed: run `apt-get install postgresql`";
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for version in fs::read_dir(DEBIAN_VERSIONS).into_iter().flatten() {
        let version = version?.path();
        let number = version.file_name().and_then(|name| name.to_str()?.parse().ok());
        if let Some(number) = number.filter(|_| version.join("bin/initdb").exists()) {
            found.push((number, version.join("bin")));
        }
    }
    if let Some((_, newest)) = found.into_iter().max() {
        return Ok(newest);
    }
    let path = std::env::var_os("PATH").context(remedy)?;
    std::env::split_paths(&path).find(|folder| folder.join("initdb").exists()).context(remedy)
}

/// The user that the packages make.
fn postgres_user() -> anyhow::Result<User> {
    let users = fs::read_to_string("/etc/passwd")?;
    let line = users.lines().find(|line| line.starts_with("postgres:"));
    let line = line.context("there is no user postgres: run this as an ordinary user")?;
    let fields: Vec<&str> = line.split(':').collect();
    let [_, _, uid, gid, ..] = fields[..] else { bail!("/etc/passwd has a malformed line") };
    Ok(User { uid: uid.parse()?, gid: gid.parse()? })
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let program = Path::new(command.get_program()).display().to_string();
    // Its output goes to a file-like nowhere: a server that inherits a pipe would hold it open.
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let status = status.with_context(|| format!("{program} did not start"))?;
    ensure!(status.success(), "{program} ended with {status}");
    Ok(())
}
