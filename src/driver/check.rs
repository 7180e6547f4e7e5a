//! Whether this machine lets a silo run, asked before anything else starts.
//!
//! Each refusal is one line that ends with the remedy. What is asked: may this process use
//! `io_uring` (by making an executor and throwing it away, which no table of kernels and profiles
//! replaces) and the wait that its threads sleep in (by one of a nanosecond), is enough memory
//! lockable, are enough descriptors allowed.

use core::time::Duration;
use std::{fs, io};

use rustix::process::{Resource, getrlimit};

use super::reactor::{self, ReactorError};
use super::readiness::Readiness;
use crate::silo::StartError;

/// Locked memory that an executor's rings need, as its engine checks.
const MEMLOCK_BYTES_MIN: u64 = 512 * 1024;
/// Descriptors of a silo besides those of its shards: listeners, store, lanes, log files.
const FILES_BASE: u64 = 128;
/// Descriptors of a shard: its rings and signals, and a few links.
const FILES_PER_SHARD: u64 = 32;
/// Where the kernel says who may use `io_uring`: 0 all, 1 privileged processes, 2 nobody.
const DISABLED_PATH: &str = "/proc/sys/kernel/io_uring_disabled";

/// Refuses a machine that cannot run a silo with so many shards.
pub(crate) fn machine(shards: u16) -> Result<(), StartError> {
    limits(shards, &|resource| getrlimit(resource).current)?;
    sleeps(|| Readiness::new()?.look(Duration::from_nanos(1)))?;
    reactor::probe().map_err(refusal)
}

fn sleeps(sleep: impl FnOnce() -> io::Result<()>) -> Result<(), StartError> {
    sleep().map_err(|error| StartError::Sleep { detail: error.to_string() })
}

fn limits(shards: u16, soft: &dyn Fn(Resource) -> Option<u64>) -> Result<(), StartError> {
    if let Some(limit_bytes) = soft(Resource::Memlock)
        && limit_bytes < MEMLOCK_BYTES_MIN
    {
        return Err(StartError::Memlock { limit_bytes, needed_bytes: MEMLOCK_BYTES_MIN });
    }
    let needed = FILES_BASE + FILES_PER_SHARD * u64::from(shards);
    if let Some(limit) = soft(Resource::Nofile)
        && limit < needed
    {
        return Err(StartError::Files { limit, needed });
    }
    Ok(())
}

/// What a user can do about an executor that could not be made.
pub(crate) fn refusal(error: ReactorError) -> StartError {
    match error {
        ReactorError::Memlock { limit_bytes, needed_bytes } => {
            StartError::Memlock { limit_bytes, needed_bytes }
        }
        ReactorError::Forbidden(error) => {
            let disabled = fs::read_to_string(DISABLED_PATH).unwrap_or_default();
            StartError::IoUring { detail: error.to_string(), remedy: remedy(disabled.trim()) }
        }
        ReactorError::Refused(detail) => StartError::IoUring { detail, remedy: remedy("") },
    }
}

fn remedy(disabled: &str) -> &'static str {
    match disabled {
        "2" => "set sysctl kernel.io_uring_disabled=0",
        "1" => "set sysctl kernel.io_uring_disabled=0, or run as a member of kernel.io_uring_group",
        _ => {
            "use Linux 5.11 or later, and in a container a seccomp profile that allows \
             io_uring_setup, io_uring_enter and io_uring_register (docker run --security-opt \
             seccomp=…)"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_runs_a_silo() {
        assert!(machine(2).is_ok());
    }

    #[test]
    fn a_low_limit_is_refused_with_its_remedy() {
        let memlock = limits(1, &|resource| (resource == Resource::Memlock).then_some(65_536));
        let text = memlock.unwrap_err().to_string();
        assert!(text.contains("65536") && text.contains("ulimit -l"), "{text}");
        let files = limits(4, &|resource| (resource == Resource::Nofile).then_some(64));
        let text = files.unwrap_err().to_string();
        assert!(text.contains("64") && text.contains("ulimit -n"), "{text}");
        assert!(limits(4, &|_| None).is_ok(), "unlimited");
    }

    #[test]
    fn a_kernel_or_profile_without_the_wait_is_refused_with_its_remedy() {
        let absent = sleeps(|| Err(rustix::io::Errno::NOSYS.into()));
        let text = absent.unwrap_err().to_string();
        assert!(text.contains("epoll_pwait2") && text.contains("Linux 5.11"), "{text}");
    }

    #[test]
    fn a_forbidden_ring_names_the_setting_that_forbids_it() {
        assert!(remedy("2").contains("io_uring_disabled"));
        assert!(remedy("0").contains("seccomp"));
    }
}
