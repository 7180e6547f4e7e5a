//! The links of a pump: looked at, read, taken from, written.
//!
//! Of each link it knows since when what is there may have waited: since the last read or look that
//! found nothing. Invariant: a link is not read while something that was read before is not taken.

use core::time::Duration;

use siloring_core::Moment;
use siloring_core::limits::{HOT_LINKS_MAX, LINK_READ_PAUSE_BYTES, LOOP_TIME_MAX};
use siloring_runtime::mail::ConnId;
use siloring_transport::net::{Received, Socket};

use super::{MAIL_TOKEN, Node, Pump};
use crate::driver::readiness::Interest;
use crate::pump::Unread;

/// A link without input for this long is no longer read on suspicion.
const HOT_TIME: Duration = Duration::from_millis(1);

/// A link's socket, and what the pump knows of it.
pub(super) struct Conn {
    pub(super) socket: Socket,
    /// When input came last.
    input_at: Moment,
    watch: Interest,
    may_pause: bool,
    /// Whether the last read left nothing, and no look has found anything since.
    is_drained: bool,
    /// When that was: what is there now came later.
    drained_at: Moment,
    /// What was read and is not taken yet came after this; `None` if all is taken.
    came_after: Option<Moment>,
}

impl Conn {
    pub(super) const fn new(socket: Socket, now: Moment, watch: Interest, may_pause: bool) -> Self {
        let (is_drained, came_after) = (true, None);
        Self { socket, input_at: now, watch, may_pause, is_drained, drained_at: now, came_after }
    }

    /// There was nothing left of it.
    const fn drained(&mut self, now: Moment) {
        self.is_drained = true;
        self.drained_at = now;
    }

    /// There is something, and there was nothing at the look before.
    fn filled_after(&mut self, looked_before: Moment) {
        if core::mem::replace(&mut self.is_drained, false) {
            self.drained_at = self.drained_at.max(looked_before);
        }
    }
}

impl<N: Node> Pump<N> {
    /// Asks the kernel which links have input, or take output again.
    pub(super) fn look(&mut self, now: Moment) {
        let looked_before = core::mem::replace(&mut self.looked_at, now).max(self.woken_at);
        self.readiness.look(Duration::ZERO).expect("an epoll set can be asked");
        self.take_found(looked_before);
    }

    /// Takes what the kernel found in a look, which was not there before `looked_before`.
    pub(super) fn take_found(&mut self, looked_before: Moment) {
        self.ready.clear();
        for ready in self.readiness.found().filter(|ready| ready.token != MAIL_TOKEN) {
            let conn = ConnId(ready.token);
            if ready.readable {
                self.ready.push(conn);
                if let Some(found) = self.conns.get_mut(conn) {
                    found.filled_after(looked_before);
                }
            }
            if ready.writable {
                self.dirty.push(conn);
            }
        }
    }

    /// Reads the links that had input last, and those that the last look found. Whether any had
    /// input.
    pub(super) fn read_links(&mut self, now: Moment) -> bool {
        let mut any = false;
        let mut at = 0;
        while let Some(&conn) = self.hot.get(at) {
            let heat = self.read(now, conn);
            any |= heat == Heat::Input;
            if heat != Heat::Cold {
                at += 1;
            } else if self.hot.get(at) == Some(&conn) {
                // A link that is gone has left the list already.
                self.hot.swap_remove(at);
            }
        }
        while let Some(conn) = self.ready.pop() {
            if !self.hot.contains(&conn) && self.read(now, conn) == Heat::Input {
                any = true;
                if self.hot.len() < HOT_LINKS_MAX {
                    self.hot.push(conn);
                }
            }
        }
        any
    }

    /// Reads one link once.
    fn read(&mut self, now: Moment, conn: ConnId) -> Heat {
        let Some(found) = self.conns.get_mut(conn) else {
            return Heat::Cold;
        };
        if found.came_after.is_some() {
            return Heat::Input;
        }
        if found.watch == Interest::Write {
            return Heat::Cold;
        }
        let Some(space) = self.node.receive_space(now, conn) else {
            return Heat::Cold;
        };
        let room = space.len();
        match found.socket.receive(space) {
            Ok(Received::Bytes(count)) => {
                found.input_at = now;
                found.came_after = Some(found.drained_at);
                if count < room {
                    found.drained(now);
                }
                self.node.received(now, conn, count);
                self.unread.push_back(conn);
                return Heat::Input;
            }
            Ok(Received::Nothing) => {
                found.drained(now);
                if now.since(found.input_at) < HOT_TIME {
                    return Heat::Warm;
                }
            }
            Ok(Received::Closed) => self.lose(now, conn, "the peer closed it"),
            Err(error) => self.lose(now, conn, &error.to_string()),
        }
        Heat::Cold
    }

    /// Lets the node take what was read, a part of each link in turn, for a bounded time.
    pub(super) fn take_frames(&mut self) {
        let began = self.now;
        while let Some(conn) = self.unread.pop_front() {
            // A link that is gone is none any more.
            let Some(found) = self.conns.get_mut(conn) else { continue };
            let Some(came_after) = found.came_after else { continue };
            self.node.set_came_after(came_after);
            match self.node.take_frames(self.now, conn) {
                Unread::Some => self.unread.push_back(conn),
                Unread::None => found.came_after = None,
            }
            if !self.unread.is_empty() && self.read_clock().since(began) >= LOOP_TIME_MAX {
                return;
            }
        }
    }

    /// Writes what a link has to send, once; watches for room if the kernel did not take all.
    pub(super) fn write(&mut self, now: Moment, conn: ConnId) {
        let Some(found) = self.conns.get_mut(conn) else {
            return;
        };
        let unsent = self.node.unsent(conn);
        if !unsent.is_empty() {
            match found.socket.send(unsent) {
                Ok(count) => self.node.sent(conn, count),
                Err(error) => return self.lose(now, conn, &error.to_string()),
            }
        }
        let left = self.node.backlog_bytes(conn);
        let watch = if left == 0 {
            Interest::Read
        } else if found.may_pause && left > LINK_READ_PAUSE_BYTES {
            Interest::Write
        } else {
            Interest::Both
        };
        if watch != found.watch {
            found.watch = watch;
            if let Err(error) = self.readiness.change(&found.socket, conn.0, watch) {
                self.lose(now, conn, &error.to_string());
            }
        }
    }
}

/// How a link was when it was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heat {
    /// It had input.
    Input,
    /// It had none, but had some lately.
    Warm,
    /// It had none for a while, or is gone.
    Cold,
}
