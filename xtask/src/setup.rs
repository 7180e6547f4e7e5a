//! What the tests need beyond Rust and a C compiler, and how it is installed when it is missing.

use std::path::Path;
use std::time::Duration;

use crate::driver;

/// Everything that apt does here, so that a dead mirror does not hang the tests.
const APT_TIME_MAX: Duration = Duration::from_mins(5);

/// A package, and how to see that what we need of it is there.
struct Need {
    package: &'static str,
    what_for: &'static str,
    is_present: fn() -> bool,
}

const NEEDS: &[Need] = &[
    Need {
        package: "postgresql",
        what_for: "tests of the Postgres store",
        is_present: || driver::has_program("initdb") || has_packaged_postgres(),
    },
    Need {
        package: "iproute2",
        what_for: "tests that put processes on hosts of their own",
        is_present: || driver::has_program("ip"),
    },
    Need {
        package: "nftables",
        what_for: "tests that cut connections",
        is_present: || driver::has_program("nft"),
    },
    Need {
        package: "valgrind",
        what_for: "counting instructions",
        is_present: || driver::has_program("valgrind"),
    },
    Need {
        package: "libfaketime",
        what_for: "tests that move a wall clock",
        is_present: has_faketime,
    },
];

/// Installs what is missing if that is possible, and says what stays missing, one line each.
pub(crate) fn run(root: &Path) -> anyhow::Result<Vec<String>> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !(need.is_present)()).collect();
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    if is_root() && driver::has_program("apt-get") {
        install(root, &missing)?;
    }
    let absent = missing.iter().filter(|need| !(need.is_present)());
    Ok(absent
        .map(|need| format!("{}: `apt-get install {}` as root", need.what_for, need.package))
        .collect())
}

fn install(root: &Path, missing: &[&Need]) -> anyhow::Result<()> {
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    println!("installing {}", packages.join(" "));
    // A failure is seen by looking again for what was missing.
    driver::run(&mut driver::program(root, APT_TIME_MAX, "apt-get", &["update", "-qq"]))?;
    let arguments = [&["install", "-qq", "-y", "--no-install-recommends"], &packages[..]].concat();
    let mut command = driver::program(root, APT_TIME_MAX, "apt-get", &arguments);
    driver::run(command.env("DEBIAN_FRONTEND", "noninteractive"))?;
    Ok(())
}

fn has_packaged_postgres() -> bool {
    let versions = std::fs::read_dir("/usr/lib/postgresql");
    versions.is_ok_and(|mut versions| {
        versions.any(|version| version.is_ok_and(|v| v.path().join("bin/initdb").is_file()))
    })
}

/// In a folder for each architecture.
fn has_faketime() -> bool {
    let folders = std::fs::read_dir("/usr/lib");
    folders.is_ok_and(|mut folders| {
        let library = |folder: &Path| folder.join("faketime/libfaketime.so.1").is_file();
        folders.any(|folder| folder.is_ok_and(|folder| library(&folder.path())))
    })
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
}
