//! The shard node as the pump sees it.

use core::time::Duration;

use siloring_core::Moment;
use siloring_core::ports::store::StoreResult;
use siloring_core::sync::mailbox::Sender;
use siloring_runtime::exec::local::Unpark;
use siloring_runtime::mail::{ConnId, ControlMail, ShardMail};
use siloring_transport::{Established, Session};

use crate::pump::{NodeOutput, ShardNode, Unread};

use super::shard::{Effect, Node, Post};

/// A data link that is up.
pub(crate) struct DataLink {
    pub(crate) established: Box<Established>,
    /// What seals it; `None` without TLS.
    pub(crate) session: Option<Box<Session>>,
}

impl Node for ShardNode {
    type Mail = ShardMail;
    type ControlMail = ControlMail;
    type Link = DataLink;

    fn attach(&mut self, now: Moment, conn: ConnId, link: DataLink) {
        Self::attach(self, now, conn, &link.established, link.session);
    }

    fn receive_space(&mut self, now: Moment, conn: ConnId) -> Option<&mut [u8]> {
        Self::receive_space(self, now, conn)
    }

    fn received(&mut self, now: Moment, conn: ConnId, count: usize) {
        Self::received(self, now, conn, count);
    }

    fn take_frames(&mut self, now: Moment, conn: ConnId) -> Unread {
        Self::take_frames(self, now, conn)
    }

    fn set_came_after(&mut self, came_after: Moment) {
        Self::set_came_after(self, came_after);
    }

    fn turns_per_look(&self) -> usize {
        Self::turns_per_look(self)
    }

    fn worked(&mut self, span: Duration) {
        Self::worked(self, span);
    }

    fn refused_count(&self) -> u64 {
        Self::refused_count(self)
    }

    fn closed(&mut self, now: Moment, conn: ConnId, reason: &str) {
        Self::closed(self, now, conn, reason);
    }

    fn unsent(&mut self, conn: ConnId) -> &[u8] {
        Self::unsent(self, conn)
    }

    fn backlog_bytes(&self, conn: ConnId) -> usize {
        Self::backlog_bytes(self, conn)
    }

    fn frames_count(&self) -> u64 {
        Self::frames_count(self)
    }

    fn sent(&mut self, conn: ConnId, count: usize) {
        Self::sent(self, conn, count);
    }

    fn mail(&mut self, now: Moment, mail: ShardMail) {
        Self::mail(self, now, mail);
    }

    fn stored(&mut self, now: Moment, ticket: u64, result: StoreResult) {
        Self::mail(self, now, ShardMail::Store { ticket, result });
    }

    fn set_lease(&mut self, until: Moment) {
        Self::set_lease(self, until);
    }

    fn is_ready(&self) -> bool {
        Self::is_ready(self)
    }

    fn run(&mut self, now: Moment) -> bool {
        Self::run(self, now)
    }

    fn tick(&mut self, now: Moment) {
        Self::tick(self, now);
    }

    fn next_deadline(&self) -> Moment {
        Self::next_deadline(self)
    }

    fn take_dirty(&mut self, dirty: &mut Vec<ConnId>) {
        Self::take_dirty(self, dirty);
    }

    fn poll_effect(&mut self) -> Option<Effect<Self>> {
        Some(match self.poll_output()? {
            NodeOutput::Shard(shard, mail) => Effect::Shard(shard, mail),
            NodeOutput::Control(mail) => Effect::Control(mail),
            NodeOutput::Store { ticket, request } => Effect::Store(ticket, request),
            NodeOutput::Close { conn, last } => Effect::Close { conn, last },
            NodeOutput::Event(event) => Effect::Event(event),
        })
    }
}

/// Wakes a shard's thread for a task that another thread made ready.
#[derive(Debug)]
pub(crate) struct WakeShard(pub(crate) Sender<Post<ShardNode>>);

impl Unpark for WakeShard {
    fn unpark(&self) {
        self.0.nudge();
    }
}
