//! actix: a message to an actor in the same process, on this thread's arbiter or on another's.

use actix::{Actor, Addr, Arbiter, Context, Handler, Message, MessageResult, System};
use anyhow::ensure;

use crate::names::{LocalNames, local_names};
use crate::remote::times;
use crate::support::{Effort, Sample, pin};
use crate::threads::{PAYLOAD, Payload};

/// The names of its loads.
pub(crate) const NAMES: LocalNames = local_names!("actix");

#[derive(Message)]
#[rtype(result = "Payload")]
struct Ask(Payload);

struct Echo;

impl Actor for Echo {
    type Context = Context<Self>;
}

impl Handler<Ask> for Echo {
    type Result = MessageResult<Ask>;

    fn handle(&mut self, Ask(payload): Ask, _: &mut Context<Self>) -> MessageResult<Ask> {
        MessageResult(payload)
    }
}

/// Times of messages on one thread.
pub(crate) fn same_thread(effort: Effort) -> anyhow::Result<Sample> {
    pin(0)?;
    System::new().block_on(async {
        let echo = Echo.start();
        times(effort, async || ask(&echo).await).await
    })
}

/// Times of messages across two threads.
pub(crate) fn across_threads(effort: Effort) -> anyhow::Result<Sample> {
    pin(0)?;
    System::new().block_on(async {
        let far = Arbiter::new();
        let echo = Echo::start_in_arbiter(&far.handle(), |_| {
            pin(1).expect("the processor may be used");
            Echo
        });
        let sample = times(effort, async || ask(&echo).await).await;
        far.stop();
        far.join().expect("the other thread does not panic");
        sample
    })
}

async fn ask(echo: &Addr<Echo>) -> anyhow::Result<()> {
    ensure!(echo.send(Ask(PAYLOAD)).await? == PAYLOAD, "the echo is not what was sent");
    Ok(())
}
