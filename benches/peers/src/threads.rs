//! Actors inside one process: the caller on this thread's runtime, the actor on it too or on that
//! of a second thread.

use std::future::Future;
use std::thread;

use anyhow::Context;
use tokio::sync::oneshot;

use crate::remote::{runtime, times};
use crate::support::{Effort, Sample, pin};

/// Bytes of each message, as of those between processes.
pub(crate) type Payload = [u8; 64];
/// Any 64 bytes.
pub(crate) const PAYLOAD: Payload = [7; 64];

/// Times of what `ask` asks of the actor that `spawn` gives, on one thread.
pub(crate) fn same<A, F: Future<Output = anyhow::Result<A>>>(
    effort: Effort,
    spawn: impl FnOnce() -> F,
    ask: &impl AsyncFn(&A) -> anyhow::Result<()>,
) -> anyhow::Result<Sample> {
    pin(0)?;
    runtime()?.block_on(async {
        let actor = spawn().await?;
        times(effort, async || ask(&actor).await).await
    })
}

/// The same, with the actor on a thread and processor of its own.
pub(crate) fn across<A: Send, F: Future<Output = anyhow::Result<A>>>(
    effort: Effort,
    spawn: impl FnOnce() -> F + Send,
    ask: &impl AsyncFn(&A) -> anyhow::Result<()>,
) -> anyhow::Result<Sample> {
    let (told, actor) = oneshot::channel();
    let (stop, stopped) = oneshot::channel();
    thread::scope(|scope| {
        let far = scope.spawn(move || hold(spawn, told, stopped));
        let sample = ask_from_here(effort, actor, ask);
        drop(stop);
        far.join().expect("the other thread does not panic").and(sample)
    })
}

/// Holds an actor on the second processor, until `stopped` ends.
fn hold<A, F: Future<Output = anyhow::Result<A>>>(
    spawn: impl FnOnce() -> F,
    told: oneshot::Sender<A>,
    stopped: oneshot::Receiver<()>,
) -> anyhow::Result<()> {
    pin(1)?;
    runtime()?.block_on(async {
        let actor = spawn().await?;
        // Nobody takes it if the caller has failed, who then stops this thread too.
        drop(told.send(actor));
        drop(stopped.await);
        Ok(())
    })
}

fn ask_from_here<A>(
    effort: Effort,
    actor: oneshot::Receiver<A>,
    ask: &impl AsyncFn(&A) -> anyhow::Result<()>,
) -> anyhow::Result<Sample> {
    pin(0)?;
    runtime()?.block_on(async {
        let actor = actor.await.context("the actor does not start")?;
        times(effort, async || ask(&actor).await).await
    })
}
