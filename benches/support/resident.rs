//! What this process has in memory.

use std::fs;

use anyhow::{Context, ensure};

/// Bytes of it that are resident.
pub(crate) fn resident_bytes() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    let kibibytes: u64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
    ensure!(kibibytes > 0, "a process takes memory");
    Ok(kibibytes * 1024)
}
