//! What the fuzzers found, replayed: every kept input of every target, and the seeds.
//!
//! `fuzz/corpus/` holds the inputs that together reach what the fuzzers have reached so far,
//! `fuzz/regressions/` those that once broke a promise. A failure names the file; the same input is
//! replayed alone with `cargo xtask fuzz TARGET --replay FILE`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::{fs, io};

use siloring_testkit::fuzz::Target;

#[test]
fn kept_frames_hold() {
    replay(Target::Frames);
}

#[test]
fn kept_handshakes_hold() {
    replay(Target::Handshake);
}

#[test]
fn kept_archives_hold() {
    replay(Target::Wire);
}

#[test]
fn what_kept_peers_say_holds() {
    replay(Target::Peers);
}

#[test]
fn kept_addresses_hold() {
    replay(Target::Address);
}

#[test]
fn kept_settings_hold() {
    replay(Target::Settings);
}

#[test]
fn kept_plans_hold() {
    replay(Target::Plans);
}

/// Gives a target its seeds and every kept input.
fn replay(target: Target) {
    for (number, seed) in target.seeds().iter().enumerate() {
        give(target, &format!("seed {number}"), seed);
    }
    let mut count = 0;
    for folder in ["corpus", "regressions"] {
        for path in files(&folder_of(folder, target)).expect("the kept inputs can be read") {
            give(
                target,
                &path.display().to_string(),
                &fs::read(&path).expect("a kept input can be read"),
            );
            count += 1;
        }
    }
    assert!(count >= 5, "{count} inputs of {} are kept", target.name());
}

fn give(target: Target, name: &str, input: &[u8]) {
    let held = catch_unwind(AssertUnwindSafe(|| target.run(input))).is_ok();
    assert!(held, "{name} breaks a promise of target {}", target.name());
}

fn folder_of(kind: &str, target: Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(kind).join(target.name())
}

/// The files of a folder, in order; none if there is no folder.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut files = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}
