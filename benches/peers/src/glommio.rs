//! glommio alone: an echo over its TCP streams, without frames or actors.
//!
//! Both ends spin before they park, as Siloring's do.

use std::time::Duration;

use anyhow::{anyhow, ensure};
use futures_util::{AsyncReadExt, AsyncWriteExt};
use glommio::net::{TcpListener, TcpStream};
use glommio::{LocalExecutor, LocalExecutorBuilder, Placement};

use crate::names::{Names, names};
use crate::peer::{Peer, ready};
use crate::remote::{rate_of, times};
use crate::sockets::MESSAGE_BYTES;
use crate::support::{Effort, Sample, pin};

/// The names of its loads.
pub(crate) const NAMES: Names = names!("glommio echo");
/// How long an end looks for input before it parks: longer than any reply takes.
const SPIN_TIME: Duration = Duration::from_millis(1);
/// Bytes that an end reads at once.
const BATCH_BYTES: usize = 64 * 1024;

/// An executor on the calling thread, where that is pinned.
fn executor() -> anyhow::Result<LocalExecutor> {
    let builder = LocalExecutorBuilder::new(Placement::Unbound).spin_before_park(SPIN_TIME);
    builder.make().map_err(|error| anyhow!("glommio does not start: {error}"))
}

/// Plays the far end, until the other end closes.
pub(crate) fn play() -> anyhow::Result<()> {
    pin(1)?;
    executor()?.run(async {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(told)?;
        ready(&listener.local_addr().map_err(told)?.to_string())?;
        let mut stream = listener.accept().await.map_err(told)?;
        stream.set_nodelay(true).map_err(told)?;
        let mut bytes = vec![0; BATCH_BYTES];
        loop {
            let count = stream.read(&mut bytes).await?;
            if count == 0 {
                return Ok(());
            }
            stream.write_all(&bytes[..count]).await?;
        }
    })
}

/// Times of messages, one in flight.
pub(crate) fn one(effort: Effort) -> anyhow::Result<Sample> {
    let far = Peer::start(NAMES.peer, &[])?;
    pin(0)?;
    executor()?.run(async {
        let mut stream = connect(&far).await?;
        let (sent, mut got) = ([7; MESSAGE_BYTES], [0; MESSAGE_BYTES]);
        times(effort, async || {
            stream.write_all(&sent).await?;
            stream.read_exact(&mut got).await?;
            ensure!(got == sent, "the echo is not what was sent");
            Ok(())
        })
        .await
    })
}

/// Messages a second with `in_flight` under way.
pub(crate) fn many(in_flight: usize, effort: Effort) -> anyhow::Result<Sample> {
    let far = Peer::start(NAMES.peer, &[])?;
    pin(0)?;
    executor()?.run(async {
        let mut stream = connect(&far).await?;
        let (sent, mut got) = (vec![7; in_flight * MESSAGE_BYTES], vec![0; BATCH_BYTES]);
        let (mut missing_count, mut part_bytes) = (in_flight, 0);
        rate_of(effort, async || {
            stream.write_all(&sent[..missing_count * MESSAGE_BYTES]).await?;
            let count = stream.read(&mut got).await?;
            ensure!(count > 0, "the other end closed");
            missing_count = (part_bytes + count) / MESSAGE_BYTES;
            part_bytes = (part_bytes + count) % MESSAGE_BYTES;
            Ok(missing_count)
        })
        .await
    })
}

async fn connect(far: &Peer) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(far.place()).await.map_err(told)?;
    stream.set_nodelay(true).map_err(told)?;
    Ok(stream)
}

/// Its errors cannot cross threads, so that what they say goes on.
#[expect(clippy::needless_pass_by_value, reason = "errors are mapped by value")]
fn told(error: glommio::GlommioError<()>) -> anyhow::Error {
    anyhow!("{error}")
}
