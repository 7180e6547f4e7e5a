//! Talking by hand: each terminal is a pod with one member.
//!
//! All terminals of a user share a SQLite file in the temporary folder, or what `--store` names.
//! The first one makes the room; it stays as long as somebody is there, wherever it lives.
#![expect(clippy::print_stdout, reason = "it talks to a person")]

use std::fs;
use std::io::{self, BufRead as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::process::ExitCode;
use std::thread;

use anyhow::Context as _;
use siloring::prelude::*;
use tokio::sync::mpsc::{Receiver, channel};

use super::clock::now_us;
use super::options::Options;
use super::room::{Heard, Line, Post, Room, RoomRef as _, portal};

const ROOM: &str = "lobby";
const CLUSTER: &str = "siloring-chat-terminals";
/// Lines typed while an earlier one is on its way.
const TYPED_AHEAD_MAX: usize = 16;

/// Talks until the end of the input or `/quit`.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let name = match &options.name {
        Some(name) => name.clone(),
        None => ask_name()?,
    };
    let store = match &options.store {
        Some(store) => store.clone(),
        None => shared_store()?,
    };
    siloring::migrate(&store).context("the store was not prepared")?;
    let silo = Silo::builder()
        .cluster(CLUSTER)
        .name(format!("terminal-{}", std::process::id()))
        .bind("127.0.0.1:0")
        .store(&store)
        .shards(1)
        .host::<Room>()
        .start()?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let talk = talk(silo.handle(), name, typed()?);
    let talked = tokio::task::LocalSet::new().block_on(&runtime, talk);
    silo.drain()?;
    talked.map(|()| ExitCode::SUCCESS)
}

fn ask_name() -> anyhow::Result<String> {
    print!("your name: ");
    io::stdout().flush()?;
    let mut name = String::new();
    io::stdin().read_line(&mut name)?;
    let name = name.trim();
    anyhow::ensure!(!name.is_empty(), "a member needs a name: give one, or use --name");
    Ok(name.to_owned())
}

/// A file that this user's terminals share.
fn shared_store() -> anyhow::Result<String> {
    let user = rustix::process::getuid().as_raw();
    let folder = std::env::temp_dir().join(format!("siloring-chat-of-{user}"));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    Ok(format!("sqlite:{}", folder.join("chat.db").display()))
}

/// What is typed, line by line, until the end of the input.
fn typed() -> anyhow::Result<Receiver<String>> {
    let (teller, typed) = channel(TYPED_AHEAD_MAX);
    let read = move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if teller.blocking_send(line).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("typed".into()).spawn(read)?;
    Ok(typed)
}

async fn talk(silo: Handle, name: String, mut typed: Receiver<String>) -> anyhow::Result<()> {
    let hub = silo.hub(&portal(&name))?.open().await?;
    let room = hub.grain::<Room>(ROOM);
    let listening = tokio::task::spawn_local(listen(hub));
    let here = room.join(name.clone()).await?;
    println!("{here} in the {ROOM}; write lines, or /quit");
    let mut number = 0;
    while let Some(text) = typed.recv().await.filter(|text| text != "/quit") {
        number += 1;
        let post = Post {
            number,
            from: name.clone(),
            text,
            sent_us: now_us(),
            by_calls: true,
            by_stream: false,
        };
        match room.post(post).await {
            Ok(Heard { by, missed: 0 }) => println!("  (heard by {by})"),
            Ok(Heard { by, missed }) => println!("  (heard by {by}, missed by {missed})"),
            Err(error) => println!("  (not said: {error})"),
        }
    }
    room.leave(name).await?;
    listening.abort();
    Ok(())
}

/// Shows what the others say.
async fn listen(mut hub: Hub) {
    while let Some(delivery) = hub.next().await {
        match delivery.message::<Line>() {
            Ok(line) => {
                println!("{}: {}", line.from, line.text);
                delivery.answer(&());
            }
            Err(failure) => delivery.refuse(failure),
        }
    }
    if let Some(reason) = hub.ended() {
        println!("  (you hear nothing any more: {reason})");
    }
}
