//! A chat on pods and hubs, in trouble, with the books kept.
//!
//! Rooms are grains; each member is a hub, `portal/<member>`, in one of the pods; a pod is a
//! process with a silo. A member posts by a grain call to the room; the room delivers the line to
//! the hub of every other member, or publishes it on the room's stream, which the members' hubs
//! subscribe to, or both (`--leg`). While the talk goes on, pods are rolled (a newcomer joins, the
//! oldest drains) and killed with `kill -9`, and their store may be stopped for a while; after each
//! of these every pod is probed. At the end stands a table: what was sent, what became of it, and
//! how long. It ends with 0 only if no message was silent (no outcome ever came, or an untrue one),
//! none doubled (a handler ran twice for one message and attempt), and every probe came back.
//!
//! - [`options`]: the command line. [`script`], [`conversation`], [`trace`]: what is said.
//! - [`conductor`]: starts the pods and paces the talk. [`deeds`]: rolls and kills. [`crew`]: the
//!   pods as its children. [`stage`]: where the members are. [`score`]: the books. [`table`]: how
//!   they are shown.
//! - [`pod`]: a pod's process. [`probe`]: signs of life. [`room`]: the grain. [`tally`]: what a
//!   pod counts, [`journal`]: what ran in it. [`protocol`]: the lines between conductor and pod.
//! - [`terminal`]: talking by hand. [`postgres`]: a private server for `--store postgres`.

mod clock;
mod conductor;
mod conversation;
mod crew;
mod deeds;
mod journal;
mod options;
mod pod;
mod postgres;
mod probe;
mod protocol;
mod ranges;
mod room;
mod score;
mod script;
mod stage;
mod table;
mod tally;
mod terminal;
mod trace;

use std::process::ExitCode;

use clap::Parser;

use options::{Mode, Options};

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    match &options.mode {
        Some(Mode::Pod(settings)) => pod::run(settings),
        None if options.interactive => terminal::run(&options),
        None => conductor::run(&options),
    }
}
