//! A private Postgres server for tests, from the machine's own installation.
//!
//! One server per test binary, reached by a Unix socket in a folder of its own, one database per
//! test, cloned from a template that is prepared once. As root it runs as the user `postgres`,
//! since Postgres refuses root. It ends, by its process id, when the value is dropped, and also
//! when the test process ends in any other way: a guardian process waits for that. `fsync` is off
//! (no test cuts the power), `synchronous_commit` is on. Every step is bounded. Deliberately
//! absent: TCP, downloads, containers.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use postgres::{Client, NoTls};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::stop::stop;

/// Bound of `initdb`, in seconds for `timeout`.
const INITDB_SECONDS: &str = "60";
/// Bound of one start or stop, in seconds for `pg_ctl`.
const START_SECONDS: &str = "20";
/// Starts tried: after a `kill -9` the next ones fail until the orphans are gone.
const STARTS_MAX: usize = 40;

/// Waits until its input ends, then ends the server of folder `$1` and removes the folder.
const GUARDIAN: &str = r#"
trap '' INT TERM HUP
cat >/dev/null
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
if [ -n "$pid" ] && tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF -- "$1/data"; then
    kill -CONT "$pid"
    kill -QUIT "$pid"
    tries=0
    while [ "$tries" -lt 200 ] && kill -0 "$pid" 2>/dev/null; do
        sleep 0.05
        tries=$((tries + 1))
    done
    kill -KILL "$pid" 2>/dev/null
fi
umount -- "$1" 2>/dev/null
rm -rf -- "$1"
"#;

/// A Postgres installation of this machine.
#[derive(Clone, Debug)]
pub struct Installation {
    /// Where `initdb` and `pg_ctl` are.
    binaries: PathBuf,
}

/// Finds Postgres: `initdb` in `PATH`, else the newest of `/usr/lib/postgresql`.
pub fn find_server() -> Option<Installation> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).find(|folder| folder.join("initdb").is_file());
    let binaries = in_path.or_else(newest_of_debian)?;
    binaries.join("pg_ctl").is_file().then_some(Installation { binaries })
}

fn newest_of_debian() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.filter_map(Result::ok);
    let versions = versions.filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        let binaries = entry.path().join("bin");
        binaries.join("initdb").is_file().then_some((version, binaries))
    });
    versions.max().map(|(_, binaries)| binaries)
}

/// Why the private server did not do it. Nothing outside its folder was touched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresError {
    /// A file or process operation failed.
    #[error("{what}: {source}")]
    Io {
        /// Which.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// A program of Postgres failed.
    #[error("{program} failed: {output}")]
    Program {
        /// Which.
        program: String,
        /// What it printed, and the end of the server's log.
        output: String,
    },
    /// The server refused a statement or a connection.
    #[error("the private Postgres: {0}")]
    Sql(#[from] postgres::Error),
    /// The template could not be prepared.
    #[error("the template database: {0}")]
    Prepare(String),
    /// As root, Postgres needs a user `postgres` to run as. Install the distribution's package.
    #[error("running as root, and /etc/passwd has no user postgres: apt-get install postgresql")]
    NoUser,
}

/// What is special about a server.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Variables of its environment.
    pub environment: Vec<(&'static str, String)>,
    /// Its data is on a disk of its own, of this many bytes: needs root. None: with the others.
    pub disk_bytes: Option<u64>,
}

/// A running server that belongs to this process.
#[derive(Debug)]
pub struct PrivatePostgres {
    surroundings: Surroundings,
    installation: Installation,
    folder: PathBuf,
    /// Ends the server when its input is closed. Its process id is not the server's.
    guardian: Child,
    /// Guards the making of the template and of databases from it: Postgres clones one at a time.
    template: Mutex<Option<&'static str>>,
    next_database: AtomicU32,
}

impl PrivatePostgres {
    /// Makes a server and starts it: about three seconds.
    pub fn start(installation: &Installation) -> Result<Self, PostgresError> {
        Self::start_in(installation, Surroundings::default())
    }

    /// As [`Self::start`], in other surroundings.
    pub fn start_in(
        installation: &Installation,
        surroundings: Surroundings,
    ) -> Result<Self, PostgresError> {
        let folder = tempfile::Builder::new().prefix("siloring-pg-").tempdir();
        let folder = folder.map_err(|source| io_error("a temporary folder", source))?.keep();
        if let Some(bytes) = surroundings.disk_bytes {
            mount_disk(&folder, bytes)?;
        }
        if geteuid().is_root() {
            let (user, group) = postgres_user().ok_or(PostgresError::NoUser)?;
            chown(&folder, Some(user), Some(group))
                .map_err(|source| io_error("chown of the folder", source))?;
        }
        let guardian = guard(&folder)?;
        let server = Self {
            surroundings,
            installation: installation.clone(),
            folder,
            guardian,
            template: Mutex::new(None),
            next_database: AtomicU32::new(0),
        };
        server.initialize()?;
        server.start_again()?;
        Ok(server)
    }

    /// The URL of a database.
    pub fn url(&self, database: &str) -> String {
        format!("postgresql:///{database}?host={}&user=postgres", self.folder.display())
    }

    /// Makes an empty database, and returns its URL.
    pub fn empty_database(&self) -> Result<String, PostgresError> {
        let template = self.template.lock().unwrap_or_else(PoisonError::into_inner);
        let url = self.create("template0");
        drop(template);
        url
    }

    /// Makes a database like the template, and returns its URL. The first call has `prepare` make
    /// the template, given its URL.
    pub fn database(
        &self,
        prepare: impl FnOnce(&str) -> Result<(), String>,
    ) -> Result<String, PostgresError> {
        let mut template = self.template.lock().unwrap_or_else(PoisonError::into_inner);
        if template.is_none() {
            self.execute("CREATE DATABASE prepared TEMPLATE template0")?;
            prepare(&self.url("prepared")).map_err(PostgresError::Prepare)?;
            *template = Some("prepared");
        }
        let url = self.create(template.unwrap_or("template0"));
        drop(template);
        url
    }

    /// Runs statements in the administrator's database.
    pub fn execute(&self, statements: &str) -> Result<(), PostgresError> {
        let mut client = Client::connect(&self.url("postgres"), NoTls)?;
        Ok(client.batch_execute(statements)?)
    }

    /// Starts it after [`Self::kill`] or [`Self::stop`]; tries again until the orphans are gone.
    pub fn start_again(&self) -> Result<(), PostgresError> {
        let log = self.folder.join("log");
        let mut result = Ok(());
        for _ in 0..STARTS_MAX {
            let arguments = ["-w".as_ref(), "-t".as_ref(), START_SECONDS.as_ref()];
            let log = ["-l".as_ref(), log.as_os_str(), "start".as_ref()];
            result = self.pg_ctl(&[&arguments[..], &log[..]].concat());
            if result.is_ok() {
                return Ok(());
            }
        }
        result
    }

    /// Stops it at once, as an operator would: open sessions are cut, and it recovers at the start.
    pub fn stop(&self) -> Result<(), PostgresError> {
        self.pg_ctl(&["-w", "-t", START_SECONDS, "-m", "immediate", "stop"].map(OsStr::new))
    }

    /// Ends it by `kill -9`.
    pub fn kill(&self) -> Result<(), PostgresError> {
        self.signal(&[self.pid()?], Signal::KILL)
    }

    /// Stops all its processes with SIGSTOP until the guard is dropped: from its making on,
    /// connections are accepted by the kernel and nothing is said on them.
    pub fn pause(&self) -> Result<Paused<'_>, PostgresError> {
        let server = self.pid()?;
        let mut paused = Paused { server: self, pids: vec![server] };
        // The server first: it can start no more sessions then.
        stop(server).map_err(|source| io_error("pausing the server", source))?;
        for session in children(server) {
            paused.pids.push(session);
            stop(session).map_err(|source| io_error("pausing a session", source))?;
        }
        Ok(paused)
    }

    /// Fills its disk to the last byte, until the guard is dropped. Only for a server that has one.
    pub fn fill_disk(&self) -> Result<FullDisk, PostgresError> {
        assert!(self.surroundings.disk_bytes.is_some(), "the disk is the server's own");
        let path = self.folder.join("filler");
        let mut file = fs::File::create(&path).map_err(|source| io_error("the filler", source))?;
        let full = FullDisk { path };
        for piece_bytes in [1 << 20, 4096, 1] {
            let piece = vec![0; piece_bytes];
            while file.write_all(&piece).is_ok() {}
        }
        Ok(full)
    }

    fn initialize(&self) -> Result<(), PostgresError> {
        let data = self.folder.join("data");
        let arguments = ["-A", "trust", "-U", "postgres", "-N", "--no-locale", "-E", "UTF8", "-D"];
        let arguments: Vec<&OsStr> =
            arguments.iter().map(OsStr::new).chain([data.as_os_str()]).collect();
        self.run("initdb", &arguments)?;
        let file = data.join("postgresql.conf");
        let configuration = fs::read_to_string(&file)
            .map_err(|source| io_error("reading postgresql.conf", source))?;
        let ours = format!(
            "{configuration}\nlisten_addresses = ''\nunix_socket_directories = '{}'\nfsync = off\n\
             full_page_writes = off\nsynchronous_commit = on\nmax_connections = 200\n\
             shared_buffers = 32MB\nautovacuum = off\n",
            self.folder.display()
        );
        fs::write(&file, ours).map_err(|source| io_error("writing postgresql.conf", source))
    }

    fn create(&self, template: &str) -> Result<String, PostgresError> {
        let name = format!("test_{}", self.next_database.fetch_add(1, Ordering::Relaxed));
        self.execute(&format!("CREATE DATABASE {name} TEMPLATE {template}"))?;
        Ok(self.url(&name))
    }

    fn pg_ctl(&self, arguments: &[&OsStr]) -> Result<(), PostgresError> {
        let data = self.folder.join("data");
        let of_folder = [OsStr::new("-s"), OsStr::new("-D"), data.as_os_str()];
        self.run("pg_ctl", &[&of_folder[..], arguments].concat())
    }

    /// Runs a program of the installation as the server's user, for a bounded time.
    fn run(&self, program: &str, arguments: &[&OsStr]) -> Result<(), PostgresError> {
        let mut command = Command::new("timeout");
        command.args(["-k", "1", INITDB_SECONDS]);
        if geteuid().is_root() {
            command.args(["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]);
        }
        command.arg(self.installation.binaries.join(program)).args(arguments);
        // A file, not a pipe: the server inherits it and would keep a pipe open.
        let output = self.folder.join("output");
        let file = fs::File::create(&output).map_err(|source| io_error("output", source))?;
        let second = file.try_clone().map_err(|source| io_error("output", source))?;
        command.current_dir(&self.folder).env("LC_ALL", "C");
        command.envs(self.surroundings.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(file).stderr(second);
        let status = command.status().map_err(|source| io_error(program, source))?;
        if status.success() {
            return Ok(());
        }
        let printed = fs::read_to_string(&output).unwrap_or_default();
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let log: Vec<&str> = log.lines().rev().take(5).collect();
        let output = format!("{status}; {printed}; log, newest first: {log:?}");
        Err(PostgresError::Program { program: program.to_owned(), output })
    }

    /// The server's process id: the first line of its own file.
    fn pid(&self) -> Result<Pid, PostgresError> {
        let file = self.folder.join("data/postmaster.pid");
        let text = fs::read_to_string(file).map_err(|source| io_error("postmaster.pid", source))?;
        let pid = text.lines().next().and_then(|line| line.trim().parse().ok());
        pid.and_then(Pid::from_raw)
            .ok_or_else(|| io_error("postmaster.pid", io::ErrorKind::InvalidData.into()))
    }

    fn signal(&self, pids: &[Pid], signal: Signal) -> Result<(), PostgresError> {
        for pid in pids {
            match kill_process(*pid, signal) {
                // A session that ended meanwhile needs no signal.
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => {
                    let what = format!("signal to {}", self.folder.display());
                    return Err(io_error(&what, error.into()));
                }
            }
        }
        Ok(())
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        drop(self.guardian.stdin.take());
        let ended = self.guardian.wait();
        debug_assert!(ended.is_ok(), "the guardian is our child: {ended:?}");
    }
}

/// A server whose processes are stopped; dropping it lets them go on.
#[derive(Debug)]
pub struct Paused<'a> {
    server: &'a PrivatePostgres,
    pids: Vec<Pid>,
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        let resumed = self.server.signal(&self.pids, Signal::CONT);
        debug_assert!(resumed.is_ok(), "the processes are the server's: {resumed:?}");
    }
}

/// A disk that is full; dropping it makes room.
#[derive(Debug)]
pub struct FullDisk {
    path: PathBuf,
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        let removed = fs::remove_file(&self.path);
        debug_assert!(removed.is_ok(), "the filler is ours: {removed:?}");
    }
}

fn mount_disk(folder: &Path, bytes: u64) -> Result<(), PostgresError> {
    let mut command = Command::new("mount");
    command.args(["-t", "tmpfs", "-o", &format!("size={bytes},mode=700"), "tmpfs"]).arg(folder);
    let output = command.output().map_err(|source| io_error("mount", source))?;
    if output.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(PostgresError::Program { program: "mount".to_owned(), output })
}

fn guard(folder: &Path) -> Result<Child, PostgresError> {
    let mut command = Command::new("sh");
    command.args(["-c", GUARDIAN, "guardian"]).arg(folder).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map_err(|source| io_error("the guardian", source))
}

/// Processes whose parent is `pid`.
fn children(pid: Pid) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let parent = format!("PPid:\t{}\n", pid.as_raw_nonzero());
    let is_child = |entry: &fs::DirEntry| {
        let status = fs::read_to_string(entry.path().join("status"));
        status.is_ok_and(|status| status.contains(&parent))
    };
    let children = processes.filter_map(Result::ok).filter(is_child);
    children.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect()
}

fn postgres_user() -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.starts_with("postgres:"))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn io_error(what: &str, source: io::Error) -> PostgresError {
    PostgresError::Io { what: what.to_owned(), source }
}
