//! The simulator's plans: a text is a plan or says which line is none, and what is printed is read
//! as what it was. Small plans are run for a few seconds: whatever their faults, no invariant of
//! the simulated world may break in that time.

use std::time::Duration;

use crate::sim::workload::Workload;
use crate::sim::{Cluster, Fault, Hosts, Options, Plan, PlanError, Slot};

/// How long a plan is run, once its silos are Active.
const RUN: Duration = Duration::from_secs(3);
/// Plans with more silos, shards or steps are not run: they only take longer.
const SILOS_MAX: u16 = 3;
const SHARDS_MAX: u16 = 2;
const STEPS_MAX: usize = 12;
/// Deliveries in each second of a run.
const LOAD_MAX: u32 = 24;
/// The narrowest pipe of a run: a frame a turn.
const PIPE_BYTES_MIN: u32 = 256;
/// The smallest mailbox of a run.
const MAILBOX_MIN: u32 = 64;
/// The longest way of a run: in a world that is slower than its silos wait for each other, none of
/// the design's bounds holds.
const WAY_MAX: Duration = Duration::from_millis(20);

pub(super) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let plan = match Plan::parse(&text) {
        Ok(plan) => plan,
        Err(error) => return check_error(&text, &error),
    };
    let printed = plan.to_string();
    let again = Plan::parse(&printed);
    assert_eq!(again.as_ref(), Ok(&plan), "a plan is read as it was printed");
    assert_eq!(again.map(|again| again.to_string()), Ok(printed), "and printed as it was read");
    assert!(plan.steps.is_sorted_by_key(|step| step.at), "steps are in order");
    if is_small(&plan) {
        run_shortly(plan);
    }
}

fn check_error(text: &str, error: &PlanError) {
    let line = error.line.checked_sub(1).and_then(|index| text.lines().nth(index));
    assert_eq!(line, Some(error.text.as_str()), "an error names its line");
}

fn is_small(plan: &Plan) -> bool {
    let options = &plan.options;
    options.silos <= SILOS_MAX && options.shards <= SHARDS_MAX && plan.steps.len() <= STEPS_MAX
}

/// Runs the plan as the simulator's tests do, but without their end: most of a run's time is in
/// what follows the faults.
fn run_shortly(mut plan: Plan) {
    let options = &mut plan.options;
    options.defect = None;
    options.safety = RUN;
    options.load_per_second = options.load_per_second.min(LOAD_MAX);
    options.pipe_bytes = options.pipe_bytes.max(PIPE_BYTES_MIN);
    options.mailbox = options.mailbox.max(MAILBOX_MIN);
    for way in [
        &mut options.latency,
        &mut options.store_latency,
        &mut options.wake,
        &mut options.mail_delay,
    ] {
        *way = (*way).min(WAY_MAX);
    }
    let text = plan.to_string();
    let workload = Workload::new();
    let mut cluster = workload.install(Cluster::builder().plan(plan)).build();
    let ran = cluster.start().and_then(|()| cluster.run_for(RUN));
    assert!(
        ran.is_ok(),
        "{}\n{text}",
        ran.map_or_else(|failure| failure.to_string(), |()| String::new())
    );
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let slots = [Slot(1), Slot(2), Slot(3)];
    let (second, soon) = (Duration::from_secs(1), Duration::from_millis(40));
    let [one, two, three] = slots;
    let faults = [
        Fault::Kill(one),
        Fault::Vanish(two),
        Fault::Start(one),
        Fault::Drain(three),
        Fault::Roll,
        Fault::Pause(two, second),
        Fault::Slow(one, soon, second),
        Fault::Jump(two, second),
        Fault::Reset(one, two),
        Fault::Mute(one, two, second),
        Fault::Split(two, three, second),
        Fault::Isolate(three, second),
        Fault::Refuse(one, three, second),
        Fault::Delay(one, two, soon, second),
        Fault::Lose(one, two, 200, second),
        Fault::StoreDown(second),
        Fault::StoreHang(second),
        Fault::StoreDelay(soon, second),
        Fault::StoreLose(300, second),
        Fault::StoreCut(two, second),
        Fault::StoreLag(second),
    ];
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    for (seed, fault) in (0..).zip(faults) {
        let mut options = Options::new(seed);
        options.hosts = if seed % 2 == 0 { Hosts::Apart } else { Hosts::One };
        let plan = Plan::calm(options).at(soon, Fault::Kill(three)).at(second, fault);
        seeds.push(plan.to_string().into_bytes());
    }
    seeds.push(Plan::from_seed(Options::new(7)).to_string().into_bytes());
    let broken = b"seed 1\nat 5s kill s1 # fine\nat 5 kill s1\n";
    seeds.push(broken.to_vec());
    seeds
}
