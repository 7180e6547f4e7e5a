//! The room: a grain that knows its members and delivers each line to the hub of every other one,
//! or publishes it on a stream of its own, which its members' hubs subscribe to.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join;
use siloring::Stream;
use siloring::prelude::*;

use super::clock::now_us;
use super::tally::TALLY;

/// What a member is given to take a line: a third of a post's own deadline, so that the poster
/// hears from the room even when some member never answers.
const DELIVERY_TIME_MAX: Duration = Duration::from_secs(10);

/// Something said, on its way to the room.
#[message(type = "chat.post")]
#[derive(Debug)]
pub(crate) struct Post {
    pub(crate) number: u64,
    pub(crate) from: String,
    pub(crate) text: String,
    /// When it was said, on the clock of this machine.
    pub(crate) sent_us: u64,
    /// Whether the room calls each other member's hub.
    pub(crate) by_calls: bool,
    /// Whether it publishes it on its stream.
    pub(crate) by_stream: bool,
}

/// The same on its way to a member.
#[message(type = "chat.line")]
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) number: u64,
    pub(crate) room: String,
    pub(crate) from: String,
    pub(crate) text: String,
    /// When the room passed it on, on the clock of this machine.
    pub(crate) sent_us: u64,
}

/// A pod's question whether lines still come to it.
#[message(type = "chat.probe")]
#[derive(Debug)]
pub(crate) struct Probe {
    /// Whose hub, and whose stream.
    pub(crate) name: String,
    /// Whether the room calls the hub.
    pub(crate) by_calls: bool,
    /// Whether it publishes on the stream.
    pub(crate) by_stream: bool,
}

/// Who got a line by a call.
#[message(type = "chat.heard")]
#[derive(Debug)]
pub(crate) struct Heard {
    /// This many members handled it.
    pub(crate) by: u32,
    /// This many did not, each for a reason that the room counted.
    pub(crate) missed: u32,
}

/// Why the room did not do what it was asked.
#[message(type = "chat.refusal")]
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{0} is not in the room: join it first")]
    NotAMember(String),
    #[error("{0:?} makes no address: choose another name")]
    BadName(String),
    #[error("the list of members was not stored: {0}")]
    NotStored(String),
    #[error("no sign of life came through: {0}")]
    Unheard(String),
}

impl Refusal {
    /// Its name among the kinds of failure.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::NotAMember(_) => "NotAMember",
            Self::BadName(_) => "BadName",
            Self::NotStored(_) => "NotStored",
            Self::Unheard(_) => "Unheard",
        }
    }
}

/// What survives the silo that the room lived on.
#[message(type = "chat.members")]
#[derive(Debug)]
struct Members {
    names: Vec<String>,
}

#[derive(Debug)]
struct Member {
    name: String,
    portal: HubRef,
}

/// A chat room. One activation in the whole cluster, wherever it lives.
#[derive(Grain, Default, Debug)]
#[grain(type = "chat.room", placement = "hash")]
pub(crate) struct Room {
    members: Vec<Member>,
}

#[grain_methods]
impl Room {
    async fn on_activate(&mut self, ctx: &Ctx) -> Result<(), String> {
        let stored = ctx.load_state::<Members>("members").await;
        let stored = stored.map_err(|error| error.to_string())?;
        for name in stored.map(|members| members.names).unwrap_or_default() {
            self.members.push(member(ctx, name).map_err(|error| error.to_string())?);
        }
        Ok(())
    }

    /// Lets a member in and says how many there are. Joining twice is joining once.
    pub(crate) async fn join(&mut self, ctx: &Ctx, name: String) -> Result<u64, Refusal> {
        if self.members.iter().all(|member| member.name != name) {
            self.members.push(member(ctx, name)?);
            self.store(ctx).await?;
        }
        Ok(self.members.len() as u64)
    }

    /// Lets a member go and says how many are left.
    pub(crate) async fn leave(&mut self, ctx: &Ctx, name: String) -> Result<u64, Refusal> {
        self.members.retain(|member| member.name != name);
        self.store(ctx).await?;
        Ok(self.members.len() as u64)
    }

    /// Sends a sign of life the way that lines go, and hears that it came.
    pub(crate) async fn probe(&self, ctx: &Ctx, probe: Probe) -> Result<(), Refusal> {
        let Probe { name, by_calls, by_stream } = probe;
        let unheard = |failure: DeliveryFailure| Refusal::Unheard(failure.to_string());
        let line = Line {
            number: 0,
            room: ctx.key().to_owned(),
            from: ctx.key().to_owned(),
            text: String::new(),
            sent_us: now_us(),
        };
        if by_calls {
            let hub = member(ctx, name.clone())?.portal;
            let called = hub.send::<Line, ()>(&line).deadline(DELIVERY_TIME_MAX).await;
            called.map_err(|CallError::Delivery(failure)| unheard(failure))?;
        }
        if by_stream {
            let bad_name = |_| Refusal::BadName(name.clone());
            let stream = Stream::<Line>::here(STREAMS, &name).map_err(bad_name)?;
            stream.publish(&line).deadline(DELIVERY_TIME_MAX).await.map_err(unheard)?;
        }
        Ok(())
    }

    /// Passes a line to every other member and says who got it. Posts interleave: one slow member
    /// holds up the posts that wait for it, not the room.
    pub(crate) async fn post(&self, ctx: &Ctx, post: &Archived<Post>) -> Result<Heard, Refusal> {
        TALLY.posted(post.number.to_native(), post.sent_us.to_native());
        let from = post.from.as_str();
        if self.members.iter().all(|member| member.name != from) {
            return Err(Refusal::NotAMember(from.to_owned()));
        }
        let line = Line {
            number: post.number.to_native(),
            room: ctx.key().to_owned(),
            from: from.to_owned(),
            text: post.text.as_str().to_owned(),
            sent_us: now_us(),
        };
        let Ok(stream) = Stream::here(STREAMS, ctx.key()) else {
            return Err(Refusal::BadName(ctx.key().to_owned()));
        };
        let others = self.members.iter().filter(|member| post.by_calls && member.name != from);
        let deliveries = others.map(|member| {
            TALLY.delivery_began();
            member.portal.send::<Line, ()>(&line).deadline(DELIVERY_TIME_MAX)
        });
        let called = all_outcomes(deliveries.collect());
        if !post.by_stream {
            return Ok(called.await);
        }
        let (heard, ()) = join(called, publish(&stream, &line)).await;
        Ok(heard)
    }
}

impl Room {
    async fn store(&self, ctx: &Ctx) -> Result<(), Refusal> {
        let names = self.members.iter().map(|member| member.name.clone()).collect();
        let stored = ctx.save_state("members", &Members { names }).await;
        stored.map_err(|error| Refusal::NotStored(error.to_string()))
    }
}

fn member(ctx: &Ctx, name: String) -> Result<Member, Refusal> {
    match ctx.hub_ref(&portal(&name)) {
        Ok(portal) => Ok(Member { name, portal }),
        Err(_) => Err(Refusal::BadName(name)),
    }
}

/// The address of a member's hub.
pub(crate) fn portal(member: &str) -> String {
    format!("portal/{member}")
}

/// The namespace of rooms' streams: the key is the room's.
pub(crate) const STREAMS: &str = "room";

/// Publishes a line and counts what became of it. The check before it is only for the books:
/// whatever it says, publishing tells the truth.
async fn publish(stream: &Stream<Line>, line: &Line) {
    TALLY.publish_began(&stream.has_live_subscriber());
    let began_us = now_us();
    let outcome = stream.publish(line).deadline(DELIVERY_TIME_MAX).await;
    TALLY.publish_ended(&outcome, now_us() - began_us);
}

/// Starts all deliveries, then waits for each.
async fn all_outcomes(mut deliveries: Vec<Call<()>>) -> Heard {
    let mut heard = Heard { by: 0, missed: 0 };
    let mut waiting = Vec::with_capacity(deliveries.len());
    poll_fn(|cx| {
        for mut delivery in deliveries.drain(..) {
            match Pin::new(&mut delivery).poll(cx) {
                Poll::Ready(outcome) => heard.count(&outcome),
                Poll::Pending => waiting.push(delivery),
            }
        }
        Poll::Ready(())
    })
    .await;
    for delivery in waiting {
        heard.count(&delivery.await);
    }
    heard
}

impl Heard {
    fn count(&mut self, outcome: &Result<(), CallError>) {
        TALLY.delivery_ended(outcome);
        match outcome {
            Ok(()) => self.by += 1,
            Err(_) => self.missed += 1,
        }
    }
}
