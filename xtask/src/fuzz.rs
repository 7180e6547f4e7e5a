//! `cargo xtask fuzz`: the fuzz targets, built and run, and what they find kept.
//!
//! The fuzzer is libFuzzer's, built with the stable compiler: what it needs of it is coverage,
//! which is a flag. It is one more program of the tests' build: what the tests' dependencies are
//! compiled to serves it too, and only this workspace's crates are compiled again, with the flag.
//! With `--sanitize` the nightly compiler adds its address sanitizer, for the unsafe code of
//! dependencies. Inputs come from the kept corpus and from the seeds that each target writes; what
//! a run finds stays in `target/fuzz/` unless `--keep` is given.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use crate::driver;
use crate::step::PROFILE;

/// Every target, as the test kit names it.
const TARGETS: [&str; 7] = ["frames", "handshake", "wire", "peers", "address", "settings", "plans"];
/// The build, on a slow machine.
const BUILD_TIME_MAX: Duration = Duration::from_mins(20);
/// The build, on two cores.
const BUILD_TIME_USUAL: Duration = Duration::from_mins(3);
/// Where everything is that is not kept.
const FOLDER: &str = "target/fuzz";
/// The build with the address sanitizer, which is one of its own.
const SANITIZED: &str = "target/fuzz/sanitized";
/// With the sanitizer the fuzzer is linked for this machine by its full name: so the flags do not
/// reach what the build itself runs.
const MACHINE: &str = "x86_64-unknown-linux-gnu";
/// The compiler, with what libFuzzer asks of it.
const COMPILER: &str = "fuzz/rustc-with-coverage";
/// Names the target that the fuzzer runs. The test kit reads it.
const TARGET_VARIABLE: &str = "SILORING_FUZZ_TARGET";
/// Names the folder into which a target writes its seeds. The test kit reads it.
const SEEDS_VARIABLE: &str = "SILORING_FUZZ_SEEDS";
/// Inputs that a target keeps at most, and their bytes together: the corpora are for everybody.
const KEPT_FILES_MAX: usize = 150;
const KEPT_BYTES_MAX: u64 = 42 * 1024;

/// What to fuzz, and for how long.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// One target only, by its name.
    target: Option<String>,
    /// For how long each target runs.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Runs one input, a crash perhaps, and makes none.
    #[arg(long, requires = "target")]
    replay: Option<PathBuf>,
    /// Puts the fewest inputs that reach what was reached into the kept corpus.
    #[arg(long)]
    keep: bool,
    /// Adds the address sanitizer; needs the nightly compiler.
    #[arg(long)]
    sanitize: bool,
}

/// What the fuzzers did.
#[derive(Debug, Default)]
pub(crate) struct Fuzzed {
    /// Targets that ran to their end.
    pub(crate) held: u64,
    /// Targets that found something, or did not run.
    pub(crate) failed: u64,
    /// How many inputs each has tried.
    pub(crate) executions: Vec<(&'static str, u64)>,
}

/// What the fuzzers need and this machine lacks, if anything.
pub(crate) fn missing() -> Option<&'static str> {
    let has_compiler = ["c++", "g++", "clang++"].into_iter().any(driver::has_program);
    (!has_compiler).then_some("fuzzers, whose kept inputs are replayed: a C++ compiler")
}

/// Runs what the options ask for.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let targets: Vec<&'static str> = match &options.target {
        None => TARGETS.to_vec(),
        Some(name) => TARGETS.iter().copied().filter(|target| target == name).collect(),
    };
    if targets.is_empty() {
        bail!("no such target: there are {}", TARGETS.join(", "));
    }
    let build = Build::of(options.sanitize);
    build.run(root)?;
    if let (Some(input), [target]) = (&options.replay, &targets[..]) {
        let status = build.program(root, target).arg(input).status().context("cannot replay")?;
        return Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let fuzzed = fuzz_all(root, build, &targets, options.seconds)?;
    if options.keep {
        for target in &targets {
            keep(root, build, target)?;
        }
    }
    Ok(if fuzzed.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// For how many seconds each target can run if all of them are to have ended, and to have been
/// built, within `time`.
pub(crate) fn seconds_within(time: Duration) -> u32 {
    let rounds = u32::try_from(TARGETS.len().div_ceil(parallel())).expect("few targets");
    let seconds = time.saturating_sub(BUILD_TIME_USUAL).as_secs() / u64::from(rounds);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// Targets that run at once: one for each processor.
fn parallel() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Builds every target and runs each for so long.
pub(crate) fn all(root: &Path, seconds: u32) -> anyhow::Result<Fuzzed> {
    let build = Build::Plain;
    build.run(root)?;
    fuzz_all(root, build, &TARGETS, seconds)
}

/// How the fuzzers are built.
#[derive(Clone, Copy)]
enum Build {
    Plain,
    Sanitized,
}

impl Build {
    const fn of(sanitize: bool) -> Self {
        if sanitize { Self::Sanitized } else { Self::Plain }
    }

    fn run(self, root: &Path) -> anyhow::Result<()> {
        let toolchain: &[&str] = match self {
            Self::Plain => &[],
            Self::Sanitized => &["+nightly"],
        };
        let features = ["--features", "siloring-fuzz/fuzzer", "--example", "fuzzer"];
        let shared = ["build", "--profile", PROFILE, "--locked", "--workspace"];
        let mut arguments = [toolchain, &shared, &features].concat();
        if matches!(self, Self::Sanitized) {
            arguments.extend(["--target", MACHINE, "--target-dir", SANITIZED]);
        }
        let mut command = driver::program(root, BUILD_TIME_MAX, "cargo", &arguments);
        command.env("RUSTC_WORKSPACE_WRAPPER", root.join(COMPILER));
        if matches!(self, Self::Sanitized) {
            command.env("RUSTFLAGS", "-Zsanitizer=address");
        }
        let built = driver::run(&mut command)?;
        if !built.status.success() {
            bail!("the fuzzer was not built");
        }
        Ok(())
    }

    fn program(self, root: &Path, target: &str) -> Command {
        let built = match self {
            Self::Plain => driver::build_folder(root),
            Self::Sanitized => root.join(SANITIZED).join(MACHINE),
        };
        let mut program = Command::new(built.join(PROFILE).join("examples/fuzzer"));
        program.current_dir(root).env(TARGET_VARIABLE, target);
        program.env(SEEDS_VARIABLE, folder(root, "seeds", target));
        program
    }
}

fn folder(root: &Path, kind: &str, target: &str) -> PathBuf {
    root.join(FOLDER).join(kind).join(target)
}

fn kept(root: &Path, target: &str) -> PathBuf {
    root.join("fuzz/corpus").join(target)
}

/// A fuzzer that runs.
struct Running {
    target: &'static str,
    child: Child,
    log: PathBuf,
}

/// As many at a time as there are processors.
fn fuzz_all(
    root: &Path,
    build: Build,
    targets: &[&'static str],
    seconds: u32,
) -> anyhow::Result<Fuzzed> {
    let mut fuzzed = Fuzzed::default();
    for group in targets.chunks(parallel()) {
        let start = |target: &&'static str| start(root, build, target, seconds);
        let running: Vec<Running> = group.iter().map(start).collect::<anyhow::Result<_>>()?;
        for started in running {
            finish(started, seconds, &mut fuzzed)?;
        }
    }
    Ok(fuzzed)
}

fn start(root: &Path, build: Build, target: &'static str, seconds: u32) -> anyhow::Result<Running> {
    let [found, seeds, crashes] =
        ["found", "seeds", "crashes"].map(|kind| folder(root, kind, target));
    for folder in [&found, &seeds, &crashes] {
        fs::create_dir_all(folder).context("cannot make a folder of the fuzzers")?;
    }
    let kept = kept(root, target);
    fs::create_dir_all(&kept).context("cannot make the folder of a corpus")?;
    let log = root.join(FOLDER).join(format!("{target}.log"));
    let output = File::create(&log).context("cannot make a fuzzer's log")?;
    let child = build
        .program(root, target)
        .args([&found, &kept, &seeds])
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", crashes.display()))
        .args(["-timeout=30", "-rss_limit_mb=2048", "-print_final_stats=1", "-max_len=4096"])
        .stdout(output.try_clone().context("cannot share a log")?)
        .stderr(output)
        .spawn()
        .with_context(|| format!("cannot run the fuzzer {target}"))?;
    Ok(Running { target, child, log })
}

fn finish(started: Running, seconds: u32, fuzzed: &mut Fuzzed) -> anyhow::Result<()> {
    let Running { target, mut child, log } = started;
    let status = child.wait().context("cannot wait for a fuzzer")?;
    let output = fs::read(&log).context("cannot read a fuzzer's log")?;
    let output = String::from_utf8_lossy(&output);
    let tried = executions(&output);
    println!("fuzz {target}: {tried} executions in {seconds} s");
    fuzzed.executions.push((target, tried));
    if status.success() {
        fuzzed.held += 1;
        return Ok(());
    }
    let lines: Vec<&str> = output.lines().collect();
    println!("{}", lines[lines.len().saturating_sub(60)..].join("\n"));
    println!("replay it: cargo xtask fuzz {target} --replay FILE");
    fuzzed.failed += 1;
    Ok(())
}

/// How many inputs were tried, as libFuzzer says at its end.
fn executions(output: &str) -> u64 {
    let number = |line: &str| {
        line.strip_prefix("stat::number_of_executed_units:")
            .and_then(|rest| rest.trim().parse().ok())
    };
    output.lines().rev().find_map(number).unwrap_or(0)
}

/// Replaces the kept corpus of a target by the fewest inputs that reach as much; where these are
/// too many, by some of every size.
fn keep(root: &Path, build: Build, target: &str) -> anyhow::Result<()> {
    let (kept, merged) = (kept(root, target), folder(root, "merged", target));
    if merged.exists() {
        fs::remove_dir_all(&merged).context("cannot empty the folder of a merge")?;
    }
    fs::create_dir_all(&merged).context("cannot make the folder of a merge")?;
    let others = ["found", "seeds"].map(|kind| folder(root, kind, target));
    let status = build
        .program(root, target)
        .arg("-set_cover_merge=1")
        .args([&merged, &kept])
        .args(others)
        .status()
        .context("cannot merge a corpus")?;
    if !status.success() {
        bail!("the corpus of {target} was not merged");
    }
    fs::remove_dir_all(&kept).context("cannot empty a corpus")?;
    fs::create_dir_all(&kept).context("cannot make the folder of a corpus")?;
    let mut inputs = Vec::new();
    for entry in fs::read_dir(&merged).context("cannot read a merged corpus")? {
        let entry = entry?;
        inputs.push((entry.metadata()?.len(), entry.path()));
    }
    inputs.sort();
    let step = inputs.len().div_ceil(KEPT_FILES_MAX).max(1);
    let mut bytes = 0;
    for (size, input) in inputs.iter().step_by(step) {
        if bytes + size <= KEPT_BYTES_MAX {
            bytes += size;
            let name = input.file_name().context("an input has a name")?;
            let _copied = fs::copy(input, kept.join(name)).context("cannot keep an input")?;
        }
    }
    println!(
        "{target}: {} inputs reach all there is; {bytes} bytes of them are kept",
        inputs.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_are_read_from_the_final_statistics() {
        let output =
            "#10 DONE cov: 3\nstat::number_of_executed_units: 4711\nstat::peak_rss_mb: 40\n";
        assert_eq!(executions(output), 4711);
        assert_eq!(executions("a crash"), 0);
    }

    #[test]
    fn all_targets_and_their_build_have_a_place_in_the_time_that_is_left() {
        let rounds = u32::try_from(TARGETS.len().div_ceil(parallel())).unwrap();
        assert_eq!(seconds_within(BUILD_TIME_USUAL + rounds * Duration::from_secs(40)), 40);
        assert_eq!(seconds_within(Duration::from_mins(1)), 0, "there is no time to build them");
    }

    #[test]
    fn every_target_has_a_corpus_and_every_corpus_a_target() {
        let corpora = fs::read_dir(crate::root().unwrap().join("fuzz/corpus")).unwrap();
        let mut names: Vec<_> = corpora.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        let mut targets = TARGETS;
        targets.sort_unstable();
        assert_eq!(names, targets);
    }
}
