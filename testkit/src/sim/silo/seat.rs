//! A shard's thread: its node, its links, its mail.

use std::collections::{BTreeMap, BTreeSet};

use siloring::pump::{NodeOutput, ShardNode, Unread};
use siloring_core::event::Event;
use siloring_core::{Endpoint, Moment, ShardIndex};
use siloring_runtime::mail::{ConnId, ShardMail};

use super::super::network::{EndId, Ending};
use super::super::node::Letter;
use super::super::sizes::Sizes;
use super::super::world::{Context, Input, Part};
use super::{Silo, reason};

/// Runs of a shard's turns in one go: a shard that always has more must let time pass.
const ROUNDS_MAX: u32 = 64;

/// A shard's place: its node once the silo has its incarnation, and what waits for it.
#[derive(Default)]
pub(super) struct Seat {
    pub(super) node: Option<ShardNode>,
    /// Ends of links that are on their way here, and those of them that have ended.
    pub(super) coming: BTreeMap<EndId, Option<Ending>>,
    /// Ends with bytes that have not been read.
    pub(super) readable: BTreeSet<EndId>,
    pub(super) dirty: Vec<ConnId>,
    /// Ends whose last write was cut short.
    pub(super) clogged: BTreeSet<EndId>,
    /// Once the shard drains: how many activations it may have. They only become fewer (I16).
    pub(super) activations_max: Option<usize>,
    /// Whether a range was opened in this run.
    pub(super) has_opened: bool,
    pub(super) runs: u64,
    /// How many of the directory's faults it has had.
    #[cfg(feature = "planted")]
    pub(super) faults: usize,
}

/// The connection of a shard's end: a shard's connections are named after their ends.
fn conn_of(end: EndId) -> ConnId {
    ConnId(u64::from(end.0))
}

fn end_of(conn: ConnId) -> EndId {
    EndId(u32::try_from(conn.0).expect("named after an end"))
}

/// A shard's thread.
impl Silo {
    pub(super) fn run_shard(&mut self, part: Part, context: &mut Context<'_>) -> Moment {
        let index = usize::from(part.0) - 1;
        let Some(mut node) = self.seats[index].node.take() else {
            return Moment::NEVER;
        };
        let now = context.now();
        let seat = &mut self.seats[index];
        seat.runs += 1;
        node.set_lease(self.serve_until);
        #[cfg(feature = "planted")]
        for fault in self.shared.faults.borrow().iter().skip(seat.faults) {
            seat.faults += 1;
            node.plant_fault(*fault);
        }
        let known = node.directory().view();
        let mut lost = Vec::new();
        while let Some(input) = context.next_input() {
            shard_input(&mut node, seat, input, &mut lost, context);
        }
        while let Some(letter) = self.mailboxes.shards[index].pop() {
            take_letter(&mut node, seat, letter, &mut lost, now);
        }
        read_links(&mut node, seat, context);
        for (end, ending) in lost {
            seat.readable.remove(&end);
            seat.clogged.remove(&end);
            node.closed(now, conn_of(end), reason(ending));
        }
        let more = self.work(&mut node, index, context);
        let clogged = self.seats[index].clogged.len();
        let sizes = Sizes { shard: node.sizes(), directory: node.directory().usage(), clogged };
        check_sizes(sizes, &mut self.seats[index], context);
        self.shared.measured(index, sizes);
        if std::mem::take(&mut self.seats[index].has_opened) || node.directory().view() != known {
            check_serving(&node, index, context);
        }
        let deadline = if more { now } else { node.next_deadline() };
        self.seats[index].node = Some(node);
        deadline
    }

    /// Lets the node work and does what it wants done; whether it has more to do.
    fn work(&mut self, node: &mut ShardNode, index: usize, context: &mut Context<'_>) -> bool {
        let now = context.now();
        if node.next_deadline() <= now {
            node.tick(now);
            let next = node.next_deadline();
            if next <= now {
                context.violate("I14 no timer is overdue after its tick", format!("{next:?}"));
            }
        }
        let mut more = true;
        let mut rounds = 0;
        while more && rounds < ROUNDS_MAX {
            more = node.run(now);
            rounds += 1;
            self.take_outputs(node, index, context);
        }
        let seat = &mut self.seats[index];
        let mut dirty = std::mem::take(&mut seat.dirty);
        node.take_dirty(&mut dirty);
        for conn in dirty.drain(..) {
            write_link(node, &mut seat.clogged, conn, context);
        }
        seat.dirty = dirty;
        more
    }

    fn take_outputs(&mut self, node: &mut ShardNode, index: usize, context: &mut Context<'_>) {
        while let Some(output) = node.poll_output() {
            match output {
                NodeOutput::Shard(shard, mail) => {
                    let mailbox = &self.mailboxes.shards[usize::from(shard.0)];
                    mailbox.push(self.mailboxes.running(), Letter::Mail(mail));
                }
                NodeOutput::Control(mail) => {
                    self.control_mail.push(self.mailboxes.running(), mail);
                }
                NodeOutput::Store { ticket, request } => context.submit(ticket, request),
                NodeOutput::Close { conn, last } => {
                    let end = end_of(conn);
                    context.write(end, &last);
                    self.seats[index].clogged.remove(&end);
                    self.seats[index].readable.remove(&end);
                    context.close(end);
                }
                NodeOutput::Event(event) => {
                    self.seats[index].has_opened |= matches!(event, Event::RangeServed { .. });
                    check_claim(&event, context);
                    context.tell(event);
                }
            }
        }
    }
}

fn check_claim(event: &Event, context: &mut Context<'_>) {
    if let Event::HubClaimed { address, number } = event {
        let process = context.process();
        context.check("I12 a claim's number is one silo's", |checks| {
            checks.claimed(process, address, *number)
        });
    }
}

fn check_serving(node: &ShardNode, index: usize, context: &mut Context<'_>) {
    let shard = ShardIndex(u16::try_from(index).expect("counted from a u16"));
    let shard = Endpoint { silo: node.silo(), shard };
    let (view, spans) = (node.directory().view(), node.directory().serving());
    context.check("I6 one shard serves a position in a view", |checks| {
        checks.serving(shard, view, spans)
    });
}

fn take_letter(
    node: &mut ShardNode,
    seat: &mut Seat,
    letter: Letter,
    lost: &mut Vec<(EndId, Ending)>,
    now: Moment,
) {
    match letter {
        Letter::Mail(mail) => {
            if matches!(mail, ShardMail::BeginDrain) {
                seat.activations_max = Some(node.sizes().activations);
            }
            node.mail(now, mail);
        }
        Letter::Link(end, established) => {
            node.attach(now, conn_of(end), &established, None);
            lost.extend(seat.coming.remove(&end).flatten().map(|ending| (end, ending)));
        }
    }
}

fn shard_input(
    node: &mut ShardNode,
    seat: &mut Seat,
    input: Input,
    lost: &mut Vec<(EndId, Ending)>,
    context: &mut Context<'_>,
) {
    match input {
        Input::Readable { end } => {
            seat.readable.insert(end);
        }
        Input::Writable { end } => write_link(node, &mut seat.clogged, conn_of(end), context),
        // After what has arrived before it was read, and after the link has come.
        Input::Closed { end, ending } => match seat.coming.get_mut(&end) {
            Some(coming) => *coming = Some(ending),
            None => lost.push((end, ending)),
        },
        Input::Store { ticket, result } => {
            node.mail(context.now(), ShardMail::Store { ticket, result });
        }
        Input::Accepted { .. }
        | Input::Connected { .. }
        | Input::DialFailed { .. }
        | Input::Hint(_)
        | Input::TurnedAway
        | Input::Drain => unreachable!("another thread's: {input:?}"),
    }
}

/// Reads every link that has bytes; while the silo is fenced, none.
fn read_links(node: &mut ShardNode, seat: &mut Seat, context: &mut Context<'_>) {
    let now = context.now();
    let mut drained = Vec::new();
    for end in &seat.readable {
        while let Some(space) = node.receive_space(now, conn_of(*end)) {
            let count = context.read(*end, space);
            if count == 0 {
                drained.push(*end);
                break;
            }
            node.received(now, conn_of(*end), count);
            while node.take_frames(now, conn_of(*end)) == Unread::Some {}
        }
    }
    for end in drained {
        seat.readable.remove(&end);
    }
}

fn write_link(
    node: &mut ShardNode,
    clogged: &mut BTreeSet<EndId>,
    conn: ConnId,
    context: &mut Context<'_>,
) {
    let end = end_of(conn);
    let unsent = node.unsent(conn);
    if unsent.is_empty() {
        return;
    }
    let (taken, wanted) = (context.write(end, unsent), unsent.len());
    if taken < wanted {
        clogged.insert(end);
    } else {
        clogged.remove(&end);
    }
    node.sent(conn, taken);
}

fn check_sizes(sizes: Sizes, seat: &mut Seat, context: &mut Context<'_>) {
    if let Some(text) = sizes.beyond_bounds() {
        context.violate("I13 every table is at most its bound", text);
    }
    let Some(most) = &mut seat.activations_max else { return };
    let activations = sizes.shard.activations;
    if activations > *most {
        let text = format!("{activations} activations after {most}");
        context.violate("I16 no activation is made after Draining", text);
    }
    *most = activations;
}
