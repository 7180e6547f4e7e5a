//! What hostile input may do: the bodies of the fuzz targets, in ordinary code.
//!
//! A [`Target`] takes bytes and panics if one of its promises breaks. Two callers share it: the
//! fuzzers of the folder `fuzz`, which make new inputs, and ordinary tests, which replay those that
//! are kept. [`Target::seeds`] writes the first inputs: real frames, messages and texts.
//!
//! **Bounds.** Every target ends for every input, in time about linear in its length; what a peer
//! only claims is never allocated.
//!
//! Deliberately absent: the making of inputs, files (but for [`Target::write_seeds`]).

mod address;
mod cast;
mod frames;
mod handshake;
mod peers;
mod plans;
mod settings;
mod tape;
mod wire;

use std::path::Path;
use std::{fs, io};

/// Names the target of a fuzzer.
pub const TARGET_VARIABLE: &str = "SILORING_FUZZ_TARGET";
/// Names the folder into which a fuzzer writes its target's seeds before it starts.
pub const SEEDS_VARIABLE: &str = "SILORING_FUZZ_SEEDS";

/// One fuzz target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Target {
    /// The receiving half of a link: the same frames and the same end, however the bytes come.
    Frames,
    /// Both roles of a handshake, and somebody between them who forges, replays and reorders.
    Handshake,
    /// Every archive that travels, and the extension block.
    Wire,
    /// The control machine and a directory, spoken to by a peer that says anything.
    Peers,
    /// The address parser.
    Address,
    /// The configuration file and store URLs.
    Settings,
    /// The simulator's plans, and a few seconds of what they do.
    Plans,
}

impl Target {
    /// Every target.
    pub const ALL: [Self; 7] = [
        Self::Frames,
        Self::Handshake,
        Self::Wire,
        Self::Peers,
        Self::Address,
        Self::Settings,
        Self::Plans,
    ];

    /// The one that [`TARGET_VARIABLE`] names.
    ///
    /// # Panics
    /// If it names none.
    pub fn from_environment() -> Self {
        let name = std::env::var(TARGET_VARIABLE).expect("SILORING_FUZZ_TARGET names a target");
        let named = Self::ALL.into_iter().find(|target| target.name() == name);
        named.unwrap_or_else(|| panic!("no fuzz target is called {name}"))
    }

    /// Its name: that of its corpus.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frames => "frames",
            Self::Handshake => "handshake",
            Self::Wire => "wire",
            Self::Peers => "peers",
            Self::Address => "address",
            Self::Settings => "settings",
            Self::Plans => "plans",
        }
    }

    /// Gives it one input.
    ///
    /// # Panics
    /// If a promise of the target breaks: the input is a finding.
    pub fn run(self, input: &[u8]) {
        match self {
            Self::Frames => frames::run(input),
            Self::Handshake => handshake::run(input),
            Self::Wire => wire::run(input),
            Self::Peers => peers::run(input),
            Self::Address => address::run(input),
            Self::Settings => settings::run(input),
            Self::Plans => plans::run(input),
        }
    }

    /// Inputs to begin with.
    pub fn seeds(self) -> Vec<Vec<u8>> {
        match self {
            Self::Frames => frames::seeds(),
            Self::Handshake => handshake::seeds(),
            Self::Wire => wire::seeds(),
            Self::Peers => peers::seeds(),
            Self::Address => address::seeds(),
            Self::Settings => settings::seeds(),
            Self::Plans => plans::seeds(),
        }
    }

    /// Writes the seeds into the folder that [`SEEDS_VARIABLE`] names, if it is set.
    ///
    /// # Panics
    /// If they cannot be written.
    pub fn write_seeds(self) {
        let Some(folder) = std::env::var_os(SEEDS_VARIABLE) else {
            return;
        };
        let written = write_all(Path::new(&folder), &self.seeds());
        written.expect("the folder of the seeds can be written");
    }
}

fn write_all(folder: &Path, seeds: &[Vec<u8>]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (number, seed) in seeds.iter().enumerate() {
        fs::write(folder.join(format!("seed-{number}")), seed)?;
    }
    Ok(())
}
