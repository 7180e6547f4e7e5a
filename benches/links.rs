//! Calls of a silo whose shard has many links: beside links that say nothing, and over all of them.
//!
//! The crowd is one more silo, a process with as many shards as there shall be links: each shard
//! has a link of its own to the one shard that is measured. The crowd's threads share the processor
//! of the far end, and park. Silent links cost what is measured whatever looking at them costs, and
//! whatever the ticks of so many idle shards take of the machine. Over all links, a fixed number of
//! calls is under way, spread evenly over them; with few processors the crowd's own work, a thread
//! for each link, is most of what is seen there.

#[path = "support/pairs.rs"]
#[expect(dead_code, reason = "the other bench uses all of it")]
mod pairs;
#[path = "support/peer.rs"]
#[expect(dead_code, reason = "the other bench uses all of it")]
mod peer;
#[path = "support/silos.rs"]
mod silos;
#[expect(dead_code, reason = "the other bench uses all of it")]
mod support;
#[path = "support/taken_in_turn.rs"]
mod taken_in_turn;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use siloring::prelude::*;
use siloring::{Idle, LinkMode};

use self::pairs::{Pair, call_once};
use self::peer::{Peer, ready, take_orders};
use self::silos::{Cluster, Echo, EchoRef, KEY, Load, Payload, call_times};
use self::support::{Bench, Budget, Effort, Options, Row, Sample, pin};
use self::taken_in_turn::TakenInTurn;

/// Links of the crowd.
const SIZES: [u16; 4] = [1, 16, 64, 512];
/// A quick run has at most so many.
const QUICK_SIZE_MAX: u16 = 16;
/// Ratios are to so many.
const BASE: u16 = SIZES[0];
/// Calls that are under way over all links of the crowd together.
const IN_FLIGHT: usize = 512;

/// The peer that links often. Arguments: the cluster's name and file, how many links. Orders are
/// a [`Load`]; it answers with calls a second.
const CROWD: &str = "crowd";
/// The grain that the crowd calls: it lives on the measured silo.
const CROWDED_KEY: &str = "crowded";

fn main() -> anyhow::Result<ExitCode> {
    if let Some((role, arguments)) = peer::role() {
        match (role.as_str(), arguments.as_slice()) {
            (CROWD, [name, file, links]) => crowd(name, file, links.parse()?)?,
            (role, arguments) => pairs::play(role, arguments)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let folder = tempfile::tempdir()?;
    let options = Options::from_arguments();
    let sizes = options.sizes(&SIZES, QUICK_SIZE_MAX);
    let kept = &TakenInTurn::new();
    let start = &|size| Crowded::start(folder.path(), size);
    let mut bench = Bench::new("a silo with many links", options);
    for size in sizes {
        bench.case(silent(size), move |effort| {
            kept.of(size, || start(size), |crowded| crowded.times(effort))
        });
        bench.case(active(size), move |effort| {
            kept.of(size, || start(size), |crowded| crowded.rate(effort))
        });
        bench.row(Row {
            name: silent(size),
            case: silent(size),
            unit: "us",
            divisor: 1e3,
            against: Some(silent(BASE)),
            budget: Budget::RatioAtMost(1.2),
        });
        bench.row(Row {
            name: active(size),
            case: active(size),
            unit: "per s",
            divisor: 1.0,
            against: Some(active(BASE)),
            budget: Budget::None,
        });
    }
    Ok(bench.run())
}

/// The name of a case. It lives as long as the program, as others' do.
fn silent(size: u16) -> &'static str {
    format!("call beside silent ones, {size} links").leak()
}

fn active(size: u16) -> &'static str {
    format!("calls a second over all, {size} links").leak()
}

/// A pair of silos, and the crowd that is linked with the calling one. Fields are dropped in order:
/// the pair's caller leaves first.
struct Crowded {
    pair: Pair,
    crowd: Peer,
}

impl Crowded {
    fn start(folder: &Path, links: u16) -> anyhow::Result<Self> {
        let pair = Pair::start(folder, LinkMode::Tcp, Idle::default())?;
        // On the caller's silo, which every shard of the crowd then links with.
        call_once(&pair.handle(), 0, CROWDED_KEY)?;
        let Cluster { name, file } = pair.cluster();
        let file = file.to_str().context("the folder's path is text")?;
        let crowd = Peer::start(CROWD, &[name, file, &links.to_string()])?;
        Ok(Self { pair, crowd })
    }

    fn times(&self, effort: Effort) -> anyhow::Result<Sample> {
        call_times(&self.pair.handle(), KEY, effort)
    }

    fn rate(&mut self, effort: Effort) -> anyhow::Result<Sample> {
        self.crowd.order(&Load::new(IN_FLIGHT, effort).to_order())?;
        Ok(Sample::Number(self.crowd.answer()?.parse()?))
    }
}

/// Links from every shard, and calls when told to.
fn crowd(name: &str, file: &str, links: u16) -> anyhow::Result<()> {
    pin(1)?;
    let cluster = Cluster { name: name.to_owned(), file: file.into() };
    let silo = cluster.silo(CROWD, LinkMode::Tcp, Idle::Park).shards(links).start()?;
    let handle = silo.handle();
    for shard in 0..links {
        call_once(&handle, shard, CROWDED_KEY)?;
    }
    ready(silo.address())?;
    take_orders(|order| {
        let caller = |_| {
            let echo = handle.grain::<Echo>(CROWDED_KEY);
            async move || handled(&echo).await
        };
        Ok(Load::of_order(order)?.rate(&handle, caller)?.to_string())
    })
}

/// Calls until the shard takes the call: one that it refuses for load is none.
async fn handled(echo: &GrainRef<Echo>) -> Result<(), CallError> {
    loop {
        match echo.echo(Payload::new()).await {
            Err(CallError::Delivery(failure))
                if failure.rejected_kind() == Some(RejectedKind::Overloaded) => {}
            result => return result.map(drop),
        }
    }
}
