//! What machine a run was on: what a reader needs who wants to compare.

use std::fs;
use std::process::Command;

use serde::Serialize;

/// A machine, and what was built on it.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    /// The processor, as it names itself.
    pub(crate) processor: String,
    /// Processors that the run could use.
    pub(crate) processors_count: usize,
    /// Whether it says that it runs under a hypervisor.
    pub(crate) is_virtual: bool,
    /// Whether its processors may share a core.
    pub(crate) has_smt: bool,
    /// Memory, in MiB.
    pub(crate) memory_mib: u64,
    /// The kernel's release.
    pub(crate) kernel: String,
    /// The compiler.
    pub(crate) compiler: String,
    /// The commit that was built.
    pub(crate) commit: String,
    /// The day, in UTC.
    pub(crate) day: String,
}

impl Machine {
    /// The one this runs on.
    pub(crate) fn this() -> Self {
        let processor = read("/proc/cpuinfo");
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let memory_kib = memory.split(' ').next().and_then(|number| number.parse::<u64>().ok());
        Self {
            processors_count: std::thread::available_parallelism().map_or(0, Into::into),
            is_virtual: field(&processor, "flags").split(' ').any(|flag| flag == "hypervisor"),
            has_smt: read("/sys/devices/system/cpu/smt/active") == "1",
            processor: field(&processor, "model name"),
            memory_mib: memory_kib.unwrap_or_default() / 1024,
            kernel: read("/proc/sys/kernel/osrelease"),
            compiler: output("rustc", &["--version"]),
            commit: output("git", &["describe", "--always", "--dirty", "--abbrev=12"]),
            day: output("date", &["--utc", "+%F"]),
        }
    }

    /// The name of the folder of its results: its processor and how many of them.
    pub(crate) fn folder(&self) -> String {
        let words = self.processor.split(|letter: char| !letter.is_ascii_alphanumeric());
        let words: Vec<&str> =
            words.filter(|word| !["", "R", "TM", "CPU"].contains(word)).collect();
        format!("{}-x{}", words.join("-").to_lowercase(), self.processors_count)
    }

    /// In one line.
    pub(crate) fn text(&self) -> String {
        let kind = if self.is_virtual { ", virtual" } else { "" };
        let cores = if self.has_smt { "hardware threads" } else { "cores" };
        format!(
            "{} {cores} of {}{kind}, Linux {}, {}, commit {}, {}",
            self.processors_count,
            self.processor,
            self.kernel,
            self.compiler,
            self.commit,
            self.day
        )
    }
}

/// A file's text without the space around it; empty if there is none.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// What follows `name` and a colon in the first line that has both.
fn field(text: &str, name: &str) -> String {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_once(':').map_or("", |(_, value)| value).trim().to_owned()
}

/// What a program prints; empty if it cannot be run.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_name_and_a_folder() {
        let machine = Machine::this();
        assert!(machine.processors_count > 0 && !machine.kernel.is_empty());
        let folder = machine.folder();
        assert!(
            folder.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'),
            "{folder}"
        );
    }

    #[test]
    fn a_field_is_found_by_its_name() {
        let text = "model\t\t: 85\nmodel name\t: Example(R) CPU @ 2.5GHz\nflags\t: a b\n";
        assert_eq!(field(text, "model name"), "Example(R) CPU @ 2.5GHz");
        assert_eq!(field(text, "absent"), "");
    }
}
