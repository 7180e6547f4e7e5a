//! The floors of a call between silos: echoes over bare sockets, and over tokio's.
//!
//! Both ends are pinned, and are two processes. Busy means that each end polls a non-blocking
//! socket without pause; blocking that it sleeps in the kernel. The framed echo is what a careful
//! tokio program does: its length-delimited codec, and one flush for all that is ready.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use anyhow::{Context, ensure};
use bytes::Bytes;
use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::peer::{Peer, ready};
use crate::support::{Effort, Sample, measure, measure_rate, pin};

/// Bytes of each message.
const MESSAGE_BYTES: usize = 64;

/// Busy polling over loopback TCP.
pub(crate) const TCP_BUSY: &str = "raw busy-polling TCP";
/// Sleeping in the kernel over loopback TCP.
pub(crate) const TCP_BLOCKING: &str = "raw blocking TCP";
/// Busy polling over an abstract Unix socket.
pub(crate) const UNIX_BUSY: &str = "raw busy-polling Unix";
/// Frames over tokio, any number in flight.
pub(crate) const TOKIO: &str = "tokio framed echo";

/// Plays the far end `role`, if it is one of this module's.
pub(crate) fn play(role: &str) -> Option<anyhow::Result<()>> {
    match role {
        TCP_BUSY => Some(serve_tcp(Waiting::Busy)),
        TCP_BLOCKING => Some(serve_tcp(Waiting::Blocking)),
        UNIX_BUSY => Some(serve_unix()),
        TOKIO => Some(serve_tokio()),
        _ => None,
    }
}

/// How an end waits for bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Busy,
    Blocking,
}

fn serve_tcp(waiting: Waiting) -> anyhow::Result<()> {
    pin(1)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    ready(&listener.local_addr()?.to_string())?;
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(waiting == Waiting::Busy)?;
    echo(stream)
}

fn serve_unix() -> anyhow::Result<()> {
    pin(1)?;
    let name = format!("siloring-bench-{}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    ready(&name)?;
    let (stream, _) = listener.accept()?;
    stream.set_nonblocking(true)?;
    echo(stream)
}

/// Answers each message with itself, until the other end closes.
fn echo(mut stream: impl Read + Write) -> anyhow::Result<()> {
    let mut message = [0; MESSAGE_BYTES];
    while receive(&mut stream, &mut message)? {
        send(&mut stream, &message)?;
    }
    Ok(())
}

/// Fills `message`; false if the other end closed instead.
fn receive(stream: &mut impl Read, message: &mut [u8]) -> anyhow::Result<bool> {
    let mut filled = 0;
    while filled < message.len() {
        match stream.read(&mut message[filled..]) {
            Ok(0) => return Ok(false),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error).context("cannot read"),
        }
    }
    Ok(true)
}

fn send(stream: &mut impl Write, message: &[u8]) -> anyhow::Result<()> {
    // One message is under way at a time: it always fits the socket's buffer.
    ensure!(stream.write(message)? == message.len(), "a message was cut");
    Ok(())
}

/// Round trips of one message with busy polling, over TCP.
pub(crate) fn tcp_busy(effort: Effort) -> anyhow::Result<Sample> {
    tcp(TCP_BUSY, Waiting::Busy, effort)
}

/// Round trips of one message with blocking calls, over TCP.
pub(crate) fn tcp_blocking(effort: Effort) -> anyhow::Result<Sample> {
    tcp(TCP_BLOCKING, Waiting::Blocking, effort)
}

fn tcp(role: &str, waiting: Waiting, effort: Effort) -> anyhow::Result<Sample> {
    let peer = Peer::start(role, &[])?;
    pin(0)?;
    let stream = TcpStream::connect(peer.place())?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(waiting == Waiting::Busy)?;
    round_trips(stream, effort)
}

/// Round trips of one message with busy polling, over an abstract Unix socket.
pub(crate) fn unix_busy(effort: Effort) -> anyhow::Result<Sample> {
    let peer = Peer::start(UNIX_BUSY, &[])?;
    pin(0)?;
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(peer.place())?)?;
    stream.set_nonblocking(true)?;
    round_trips(stream, effort)
}

fn round_trips(mut stream: impl Read + Write, effort: Effort) -> anyhow::Result<Sample> {
    let (sent, mut got) = ([7; MESSAGE_BYTES], [0; MESSAGE_BYTES]);
    measure(effort, || {
        send(&mut stream, &sent)?;
        ensure!(receive(&mut stream, &mut got)? && got == sent, "the echo is not what was sent");
        Ok(())
    })
}

fn serve_tokio() -> anyhow::Result<()> {
    pin(1)?;
    runtime()?.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        ready(&listener.local_addr()?.to_string())?;
        let (stream, _) = listener.accept().await?;
        let mut framed = frames(stream)?;
        while let Some(first) = framed.next().await {
            framed.feed(first?.freeze()).await?;
            while let Some(Some(more)) = framed.next().now_or_never() {
                framed.feed(more?.freeze()).await?;
            }
            flush(&mut framed).await?;
        }
        Ok(())
    })
}

/// Round trips of one frame at a time over tokio.
pub(crate) fn tokio_one(effort: Effort) -> anyhow::Result<Sample> {
    let peer = Peer::start(TOKIO, &[])?;
    pin(0)?;
    let runtime = runtime()?;
    let mut framed = runtime.block_on(connect(peer.place()))?;
    let message = Bytes::from_static(&[7; MESSAGE_BYTES]);
    measure(effort, || {
        let echoed = runtime.block_on(async {
            framed.send(message.clone()).await?;
            framed.next().await.context("the other end closed")?.context("cannot read")
        })?;
        ensure!(echoed == message, "the echo is not what was sent");
        Ok(())
    })
}

/// Frames a second over tokio with `in_flight` under way.
pub(crate) fn tokio_many(in_flight: usize, effort: Effort) -> anyhow::Result<Sample> {
    let peer = Peer::start(TOKIO, &[])?;
    pin(0)?;
    let runtime = runtime()?;
    let mut framed = runtime.block_on(connect(peer.place()))?;
    let message = Bytes::from_static(&[7; MESSAGE_BYTES]);
    let mut missing_count = in_flight;
    measure_rate(effort, || {
        runtime.block_on(async {
            for _ in 0..missing_count {
                framed.feed(message.clone()).await?;
            }
            flush(&mut framed).await?;
            framed.next().await.context("the other end closed")??;
            missing_count = 1;
            while let Some(Some(more)) = framed.next().now_or_never() {
                more?;
                missing_count += 1;
            }
            Ok(missing_count)
        })
    })
}

type Frames = Framed<tokio::net::TcpStream, LengthDelimitedCodec>;

async fn connect(place: &str) -> anyhow::Result<Frames> {
    frames(tokio::net::TcpStream::connect(place).await?)
}

fn frames(stream: tokio::net::TcpStream) -> anyhow::Result<Frames> {
    stream.set_nodelay(true)?;
    Ok(Framed::new(stream, LengthDelimitedCodec::new()))
}

async fn flush(framed: &mut Frames) -> std::io::Result<()> {
    SinkExt::<Bytes>::flush(framed).await
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().build().context("tokio does not start")
}
