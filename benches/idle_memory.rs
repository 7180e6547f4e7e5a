//! What lies idle in a silo costs memory: bytes of each of a million grains, and of a hundred
//! thousand hubs.
//!
//! A grain has been called once and has no state of its own: what its program keeps comes on top. A
//! hub is claimed, and its program waits for a delivery. The silo has one shard and the memory
//! store. Held is what the process has at its allocator; resident is what the kernel has given it
//! for that, with what the allocator adds. Each kind is measured in a process of its own, as memory
//! that one gives back is the next one's; nothing in it depends on what the machine does meanwhile,
//! so that one measurement is enough for all rounds.

#[path = "support/allocations.rs"]
#[expect(dead_code, reason = "the other bench uses all of it")]
mod allocations;
#[path = "support/peer.rs"]
#[expect(dead_code, reason = "the other bench uses all of it")]
mod peer;
#[path = "support/resident.rs"]
mod resident;
#[path = "support/silos.rs"]
#[expect(dead_code, reason = "the other bench uses all of it")]
mod silos;
#[expect(dead_code, reason = "the other bench uses all of it")]
mod support;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::process::ExitCode;
use std::task::Poll;

use anyhow::{Context, bail};
use siloring::hub::Hub;
use siloring::prelude::*;

use self::peer::{Peer, ready, wait_for_close};
use self::resident::resident_bytes;
use self::silos::run_on;
use self::support::{Bench, Budget, Options, Row, Sample};

/// The peer that holds so many of a kind. Arguments: the kind's name, how many.
const HOLDER: &str = "holder";
/// A quick run has so many times fewer.
const QUICK_DIVISOR: u32 = 40;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// Does nothing, and has no state.
#[derive(Grain, Default)]
#[grain(type = "bench.idler")]
struct Idler {}

#[grain_methods]
impl Idler {
    /// Nothing, but that it is activated.
    async fn wake(&self) {}
}

/// What lies idle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Grains,
    Hubs,
}

impl What {
    const ALL: [Self; 2] = [Self::Grains, Self::Hubs];

    const fn name(self) -> &'static str {
        match self {
            Self::Grains => "grains",
            Self::Hubs => "hubs",
        }
    }

    const fn count(self) -> u32 {
        match self {
            Self::Grains => 1_000_000,
            Self::Hubs => 100_000,
        }
    }

    /// What each may cost, in bytes.
    const fn most(self) -> f64 {
        match self {
            Self::Grains => 512.0,
            Self::Hubs => 768.0,
        }
    }
}

/// How it is counted.
#[derive(Clone, Copy)]
enum Counted {
    Held,
    Resident,
}

impl Counted {
    const ALL: [Self; 2] = [Self::Held, Self::Resident];

    const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Resident => "resident",
        }
    }
}

/// Bytes.
#[derive(Clone, Copy)]
struct Memory {
    held: u64,
    resident: u64,
}

impl Memory {
    /// What this process has now.
    fn now() -> anyhow::Result<Self> {
        Ok(Self { held: allocations::held_bytes() as u64, resident: resident_bytes()? })
    }

    const fn since(self, before: Self) -> Self {
        Self {
            held: self.held.saturating_sub(before.held),
            resident: self.resident.saturating_sub(before.resident),
        }
    }
}

fn main() -> anyhow::Result<ExitCode> {
    if let Some((role, arguments)) = peer::role() {
        play(&role, &arguments)?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options::from_arguments();
    let divisor = if options.is_quick() { QUICK_DIVISOR } else { 1 };
    let known: RefCell<BTreeMap<What, Memory>> = RefCell::default();
    let memory = &|what: What| -> anyhow::Result<Memory> {
        if !known.borrow().contains_key(&what) {
            let memory = memory_of(what, what.count() / divisor)?;
            known.borrow_mut().insert(what, memory);
        }
        Ok(known.borrow()[&what])
    };
    let mut bench = Bench::new("what lies idle in a silo", options);
    for what in What::ALL {
        for counted in Counted::ALL {
            bench.case(case(what, counted), move |_| {
                let memory = memory(what)?;
                let bytes = match counted {
                    Counted::Held => memory.held,
                    Counted::Resident => memory.resident,
                };
                Ok(Sample::Number(number(bytes) / f64::from(what.count() / divisor)))
            });
            bench.row(row(what, counted));
        }
    }
    Ok(bench.run())
}

/// The name of a case. It lives as long as the program, as others' do.
fn case(what: What, counted: Counted) -> &'static str {
    format!("memory of each of {} idle {}, {}", what.count(), what.name(), counted.name()).leak()
}

fn row(what: What, counted: Counted) -> Row {
    let name = case(what, counted);
    let budget = Budget::ValueAtMost(what.most());
    Row { name, case: name, unit: "bytes", divisor: 1.0, against: None, budget }
}

/// What `count` of them cost a silo, as a process that holds them says.
fn memory_of(what: What, count: u32) -> anyhow::Result<Memory> {
    let holder = Peer::start(HOLDER, &[what.name(), &count.to_string()])?;
    let (held, resident) = holder.place().split_once(' ').context("it says both")?;
    Ok(Memory { held: held.parse()?, resident: resident.parse()? })
}

fn play(role: &str, arguments: &[String]) -> anyhow::Result<()> {
    let [name, count] = arguments else { bail!("{role} takes a kind and a number") };
    let count: u32 = count.parse()?;
    let what = What::ALL.into_iter().find(|what| role == HOLDER && what.name() == name);
    let silo = Silo::builder().cluster("bench-idle-memory").shards(1).host::<Idler>().start()?;
    // The first of each kind brings what all share.
    match what.with_context(|| format!("nobody plays {role} of {name}"))? {
        What::Grains => {
            wake_grains(&silo, 0, 1)?;
            tell(|| wake_grains(&silo, 1, count))
        }
        What::Hubs => {
            let first = open_hubs(&silo, 0, 1)?;
            tell(|| Ok((first, open_hubs(&silo, 1, count)?)))
        }
    }
}

/// Tells what `make` has added to this process' memory, and keeps what it made until it is known.
fn tell<T>(make: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<()> {
    let before = Memory::now()?;
    let idle = make()?;
    let Memory { held, resident } = Memory::now()?.since(before);
    ready(&format!("{held} {resident}"))?;
    wait_for_close();
    drop(idle);
    Ok(())
}

fn wake_grains(silo: &Silo, first: u32, count: u32) -> anyhow::Result<()> {
    let handle = silo.handle();
    run_on(&silo.handle(), 0, move || async move {
        for number in first..first + count {
            handle.grain::<Idler>(number.to_string()).wake().await?;
        }
        Ok(())
    })?
}

/// Opens hubs, and waits for a delivery to each.
fn open_hubs(silo: &Silo, first: u32, count: u32) -> anyhow::Result<Vec<Hub>> {
    let handle = silo.handle();
    run_on(&silo.handle(), 0, move || async move {
        let mut hubs = Vec::with_capacity(count as usize);
        for number in first..first + count {
            hubs.push(handle.hub(&format!("mesh/idle-{number}"))?.open().await?);
        }
        poll_fn(|cx| {
            let waiting = hubs.iter_mut().all(|hub| pin!(hub.next()).poll(cx).is_pending());
            Poll::Ready(waiting)
        })
        .await
        .then_some(hubs)
        .context("nobody sends anything")
    })?
}

fn number(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes).unwrap_or(u32::MAX))
}
