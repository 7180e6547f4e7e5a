//! The floors of a call between silos: echoes over bare sockets, and over tokio's.
//!
//! Both ends are pinned, and are two processes. Busy means that each end polls a non-blocking
//! socket without pause; blocking that it sleeps in the kernel. The framed echo is what a careful
//! tokio program does: its length-delimited codec, and one flush for all that is ready.

use std::future::poll_fn;
use std::hint::spin_loop;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::pin::Pin;
use std::task::{self, Poll};

use anyhow::{Context, ensure};
use bytes::Bytes;
use futures_util::{FutureExt, Sink, SinkExt, Stream, StreamExt};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::peer::{Peer, ready};
use crate::support::{Effort, Sample, measure, measure_rate, pin};

/// Bytes of each message, unless more are asked for.
pub(crate) const MESSAGE_BYTES: usize = 64;
/// Bytes that an end over bare sockets reads at once.
const BATCH_BYTES: usize = 64 * 1024;

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

/// Answers what comes with itself, until the other end closes, be it amid answers.
fn echo(mut stream: impl Read + Write) -> anyhow::Result<()> {
    let mut bytes = vec![0; BATCH_BYTES];
    loop {
        let count = receive_some(&mut stream, &mut bytes)?;
        if count == 0 || !hand_over(&mut stream, &bytes[..count])? {
            return Ok(());
        }
    }
}

/// Fills `message`; false if the other end closed instead.
fn receive(stream: &mut impl Read, message: &mut [u8]) -> anyhow::Result<bool> {
    let mut filled = 0;
    while filled < message.len() {
        match receive_some(stream, &mut message[filled..])? {
            0 => return Ok(false),
            count => filled += count,
        }
    }
    Ok(true)
}

/// Waits for some bytes; none if the other end closed instead.
fn receive_some(stream: &mut impl Read, bytes: &mut [u8]) -> anyhow::Result<usize> {
    loop {
        match stream.read(bytes) {
            Ok(count) => return Ok(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => spin_loop(),
            Err(error) if is_closed(&error) => return Ok(0),
            Err(error) => return Err(error).context("cannot read"),
        }
    }
}

fn send(stream: &mut impl Write, bytes: &[u8]) -> anyhow::Result<()> {
    ensure!(hand_over(stream, bytes)?, "the other end closed");
    Ok(())
}

/// Hands over all bytes; false if the other end closed instead. What is under way at a time fits
/// the sockets' buffers, so that neither end waits here for the other one.
fn hand_over(stream: &mut impl Write, mut bytes: &[u8]) -> anyhow::Result<bool> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => spin_loop(),
            Err(error) if is_closed(&error) => return Ok(false),
            Err(error) => return Err(error).context("cannot write"),
        }
    }
    Ok(true)
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
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
    round_trips(connect_tcp(&peer, waiting)?, effort)
}

fn connect_tcp(peer: &Peer, waiting: Waiting) -> anyhow::Result<TcpStream> {
    pin(0)?;
    let stream = TcpStream::connect(peer.place())?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(waiting == Waiting::Busy)?;
    Ok(stream)
}

/// Messages a second with `in_flight` under way and busy polling, over TCP.
pub(crate) fn tcp_busy_many(in_flight: usize, effort: Effort) -> anyhow::Result<Sample> {
    let peer = Peer::start(TCP_BUSY, &[])?;
    batches(connect_tcp(&peer, Waiting::Busy)?, in_flight, effort)
}

/// Messages a second with `in_flight` under way and blocking calls, over TCP.
pub(crate) fn tcp_blocking_many(in_flight: usize, effort: Effort) -> anyhow::Result<Sample> {
    let peer = Peer::start(TCP_BLOCKING, &[])?;
    batches(connect_tcp(&peer, Waiting::Blocking)?, in_flight, effort)
}

/// Sends as many messages as have come back, in one go.
fn batches(
    mut stream: impl Read + Write,
    in_flight: usize,
    effort: Effort,
) -> anyhow::Result<Sample> {
    let sent = vec![7; in_flight * MESSAGE_BYTES];
    let mut got = vec![0; BATCH_BYTES];
    let (mut missing_count, mut part_bytes) = (in_flight, 0);
    measure_rate(effort, || {
        send(&mut stream, &sent[..missing_count * MESSAGE_BYTES])?;
        let count = receive_some(&mut stream, &mut got)?;
        ensure!(count > 0, "the other end closed");
        missing_count = (part_bytes + count) / MESSAGE_BYTES;
        part_bytes = (part_bytes + count) % MESSAGE_BYTES;
        Ok(missing_count)
    })
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

/// Round trips of one frame of `message_bytes` at a time over tokio.
pub(crate) fn tokio_one(message_bytes: usize, effort: Effort) -> anyhow::Result<Sample> {
    let peer = Peer::start(TOKIO, &[])?;
    pin(0)?;
    let runtime = runtime()?;
    let mut framed = runtime.block_on(connect(peer.place()))?;
    let message = Bytes::from(vec![7; message_bytes]);
    measure(effort, || {
        let echoed = runtime.block_on(async {
            framed.send(message.clone()).await?;
            framed.next().await.context("the other end closed")?.context("cannot read")
        })?;
        ensure!(echoed == message, "the echo is not what was sent");
        Ok(())
    })
}

/// Frames of `message_bytes` a second over tokio with `in_flight` under way.
pub(crate) fn tokio_many(
    in_flight: usize,
    message_bytes: usize,
    effort: Effort,
) -> anyhow::Result<Sample> {
    let peer = Peer::start(TOKIO, &[])?;
    pin(0)?;
    let runtime = runtime()?;
    let mut framed = runtime.block_on(connect(peer.place()))?;
    let message = Bytes::from(vec![7; message_bytes]);
    let mut missing_count = in_flight;
    measure_rate(effort, || {
        runtime.block_on(poll_fn(|context| {
            exchange(&mut framed, &message, &mut missing_count, context)
        }))
    })
}

/// Sends what is missing, and takes all that has come back, whose number it gives: that is missing
/// then. It takes also while it cannot send, since the other end does likewise.
fn exchange(
    framed: &mut Frames,
    message: &Bytes,
    missing_count: &mut usize,
    context: &mut task::Context<'_>,
) -> Poll<anyhow::Result<usize>> {
    let mut framed = Pin::new(framed);
    while *missing_count > 0 && Sink::<Bytes>::poll_ready(framed.as_mut(), context)?.is_ready() {
        framed.as_mut().start_send(message.clone())?;
        *missing_count -= 1;
    }
    let _is_flushed = Sink::<Bytes>::poll_flush(framed.as_mut(), context)?;
    let mut got_count = 0;
    while let Poll::Ready(frame) = framed.as_mut().poll_next(context) {
        frame.context("the other end closed")??;
        got_count += 1;
    }
    *missing_count += got_count;
    if got_count > 0 { Poll::Ready(Ok(got_count)) } else { Poll::Pending }
}

type Frames = Framed<tokio::net::TcpStream, LengthDelimitedCodec>;

async fn connect(place: &str) -> anyhow::Result<Frames> {
    frames(tokio::net::TcpStream::connect(place).await?)
}

fn frames(stream: tokio::net::TcpStream) -> anyhow::Result<Frames> {
    stream.set_nodelay(true)?;
    Ok(Framed::new(stream, LengthDelimitedCodec::new()))
}

async fn flush(framed: &mut Frames) -> io::Result<()> {
    SinkExt::<Bytes>::flush(framed).await
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().build().context("tokio does not start")
}
