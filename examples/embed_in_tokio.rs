//! A server with a tokio runtime of its own that calls grains and opens hubs through a [`Handle`].
//!
//! It listens for lines of text on a TCP port of the loopback interface. Each connection names its
//! user first; from then on its lines go to the user's inbox grain, which passes them to the hub
//! `portal/<user>` of whoever is addressed: `grace: are you there?`. The example plays both users
//! itself and ends.
#![expect(clippy::print_stdout, reason = "it talks to a person")]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use siloring::prelude::*;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// One line on its way to a user.
#[message(type = "demo.note")]
struct Note {
    from: String,
    text: String,
}

/// Passes notes on and counts them.
#[derive(Grain, Default)]
#[grain(type = "demo.inbox")]
struct Inbox {
    passed_on: u64,
}

#[grain_methods]
impl Inbox {
    /// Hands a note to the hub of the user who owns this inbox. The error says why nobody got it.
    async fn pass_on(&mut self, ctx: &Ctx, note: Note) -> Result<u64, String> {
        let portal = ctx.hub_ref(&format!("portal/{}", ctx.key()));
        let portal = portal.map_err(|error| error.to_string())?;
        let sent = portal.send::<Note, ()>(&note).deadline(Duration::from_secs(5)).await;
        sent.map_err(|error| error.to_string())?;
        self.passed_on += 1;
        Ok(self.passed_on)
    }
}

/// One connection: a hub for what comes in, calls for what goes out.
async fn serve(stream: TcpStream, silo: Handle) -> anyhow::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader).lines();
    let user = lines.next_line().await?.context("the connection names its user first")?;
    let mut hub = silo.hub(&format!("portal/{user}"))?.take_over().open().await?;
    writer.write_all(b"welcome\n").await?;
    loop {
        tokio::select! {
            delivery = hub.next() => match delivery {
                Some(delivery) => show(delivery, &mut writer).await?,
                None => return Ok(()),
            },
            line = lines.next_line() => match line? {
                Some(line) => post(&user, &line, &silo, &mut writer).await?,
                None => return Ok(()),
            },
        }
    }
}

/// Writes a delivered note to its user and tells the sender so.
async fn show(delivery: Delivery, writer: &mut OwnedWriteHalf) -> anyhow::Result<()> {
    match delivery.message::<Note>() {
        Ok(note) => {
            writer.write_all(format!("{}: {}\n", note.from, note.text).as_bytes()).await?;
            delivery.answer(&());
        }
        Err(failure) => delivery.refuse(failure),
    }
    Ok(())
}

/// Sends `to: text` to the inbox of `to`; a failure comes back to the writer as a line.
async fn post(
    user: &str,
    line: &str,
    silo: &Handle,
    writer: &mut OwnedWriteHalf,
) -> anyhow::Result<()> {
    let Some((to, text)) = line.split_once(": ").filter(|(to, _)| *to != user) else {
        writer.write_all(b"(write `name: text`, with the name of somebody else)\n").await?;
        return Ok(());
    };
    let note = Note { from: user.to_owned(), text: text.to_owned() };
    let verdict = match silo.grain::<Inbox>(to).pass_on(note).await {
        Ok(count) => format!("(delivered, note {count} for {to})\n"),
        Err(error) => format!("({to} did not get it: {error})\n"),
    };
    writer.write_all(verdict.as_bytes()).await?;
    Ok(())
}

async fn accept(listener: TcpListener, silo: Handle) -> anyhow::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let connection = serve(stream, silo.clone());
        tokio::task::spawn_local(async move {
            if let Err(error) = connection.await {
                println!("a connection ended: {error:#}");
            }
        });
    }
}

/// A user at the other end of a connection.
struct User {
    lines: Lines<BufReader<OwnedReadHalf>>,
    writer: OwnedWriteHalf,
}

impl User {
    async fn connect(server: SocketAddr, name: &str) -> anyhow::Result<Self> {
        let (reader, writer) = TcpStream::connect(server).await?.into_split();
        let mut user = Self { lines: BufReader::new(reader).lines(), writer };
        user.say(name).await?;
        user.hear("welcome").await?;
        Ok(user)
    }

    async fn say(&mut self, line: &str) -> anyhow::Result<()> {
        self.writer.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(())
    }

    async fn hear(&mut self, beginning: &str) -> anyhow::Result<()> {
        let line = self.lines.next_line().await?.context("the server closed the connection")?;
        println!("{line}");
        anyhow::ensure!(line.starts_with(beginning), "expected {beginning:?}, heard {line:?}");
        Ok(())
    }
}

async fn play(silo: Handle) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let server = listener.local_addr()?;
    let accepting = tokio::task::spawn_local(accept(listener, silo));

    let mut ada = User::connect(server, "ada").await?;
    let mut grace = User::connect(server, "grace").await?;
    ada.say("grace: are you there?").await?;
    grace.hear("ada: are you there?").await?;
    ada.hear("(delivered").await?;
    grace.say("ada: always").await?;
    ada.hear("grace: always").await?;
    grace.hear("(delivered").await?;
    ada.say("alan: and you?").await?;
    ada.hear("(alan did not get it").await?;

    accepting.abort();
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let silo = Silo::builder()
        .cluster(format!("embed-in-tokio-{}", std::process::id()))
        .name("server")
        .bind("127.0.0.1:0")
        .store("memory:")
        .host::<Inbox>()
        .start()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let played = tokio::task::LocalSet::new().block_on(&runtime, play(silo.handle()));
    silo.drain()?;
    played
}
