//! Who knocks: connections that others dialled and whose handshake is under way.
//!
//! **Contract.** [`Knocks::enter`] takes every newcomer and names the one that must make room for
//! it: one of its own source when that has its share, else, when the table is full, one of all. It
//! is the oldest of them that has sent nothing, else the oldest. So the silent drive out nobody who
//! speaks, and one source leaves room for the others.
//!
//! **Bounds.** `HANDSHAKES_PENDING_MAX` in all, `HANDSHAKES_PER_SOURCE_MAX` of one address. Peers
//! on Unix sockets have no address: they are processes of this user, on this host.
//!
//! Deliberately absent: time (each connection has its own), and what is said (the handshake's).

use std::collections::BTreeMap;
use std::net::IpAddr;

use siloring_core::limits::{HANDSHAKES_PENDING_MAX, HANDSHAKES_PER_SOURCE_MAX};
use siloring_runtime::mail::ConnId;

#[derive(Debug)]
struct Knock {
    source: Option<IpAddr>,
    has_spoken: bool,
}

/// Connections are named in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Knocks(BTreeMap<ConnId, Knock>);

impl Knocks {
    /// Takes a newcomer; tells who must go for it.
    pub(super) fn enter(&mut self, conn: ConnId, source: Option<IpAddr>) -> Option<ConnId> {
        let evicted = self.displaced(source);
        if let Some(evicted) = evicted {
            self.0.remove(&evicted);
        }
        self.0.insert(conn, Knock { source, has_spoken: false });
        assert!(self.0.len() <= HANDSHAKES_PENDING_MAX, "somebody went for the newcomer");
        evicted
    }

    /// It has sent something.
    pub(super) fn spoke(&mut self, conn: ConnId) {
        if let Some(knock) = self.0.get_mut(&conn) {
            knock.has_spoken = true;
        }
    }

    /// Its handshake is over.
    pub(super) fn leave(&mut self, conn: ConnId) {
        self.0.remove(&conn);
    }

    fn displaced(&self, source: Option<IpAddr>) -> Option<ConnId> {
        let is_own = |knock: &Knock| source.is_some() && knock.source == source;
        if self.0.values().filter(|knock| is_own(knock)).count() >= HANDSHAKES_PER_SOURCE_MAX {
            return self.first(is_own);
        }
        if self.0.len() >= HANDSHAKES_PENDING_MAX {
            return self.first(|_| true);
        }
        None
    }

    /// The oldest of these that has sent nothing, else the oldest of these.
    fn first(&self, is_meant: impl Fn(&Knock) -> bool) -> Option<ConnId> {
        let mut meant = self.0.iter().filter(|(_, knock)| is_meant(knock));
        let silent = meant.clone().find(|(_, knock)| !knock.has_spoken);
        silent.or_else(|| meant.next()).map(|(conn, _)| *conn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    /// Knocks of `count` connections from there; who went for each.
    fn knock(
        knocks: &mut Knocks,
        from: u64,
        count: usize,
        source: Option<IpAddr>,
    ) -> Vec<Option<u64>> {
        let conns = (from..).take(count);
        conns.map(|conn| knocks.enter(ConnId(conn), source).map(|evicted| evicted.0)).collect()
    }

    #[test]
    fn the_oldest_silent_one_goes_first_then_the_oldest() {
        let mut knocks = Knocks::default();
        assert_eq!(knock(&mut knocks, 0, HANDSHAKES_PENDING_MAX, None), [None; 64]);
        for spoken in (0..HANDSHAKES_PENDING_MAX as u64).filter(|conn| *conn != 5) {
            knocks.spoke(ConnId(spoken));
        }
        assert_eq!(knock(&mut knocks, 100, 1, None), [Some(5)], "the only silent one");
        knocks.spoke(ConnId(100));
        assert_eq!(knock(&mut knocks, 101, 1, None), [Some(0)], "all have spoken: the oldest");
        knocks.leave(ConnId(7));
        assert_eq!(knock(&mut knocks, 102, 1, None), [None], "there is room");
    }

    #[test]
    fn a_source_with_its_share_makes_room_for_itself() {
        let mut knocks = Knocks::default();
        knock(&mut knocks, 0, 1, Some(address(1)));
        let flood = knock(&mut knocks, 100, HANDSHAKES_PER_SOURCE_MAX + 2, Some(address(2)));
        assert_eq!(flood.iter().flatten().copied().collect::<Vec<_>>(), [100, 101]);
        // Speaking does not help a source to more than its share.
        (100..200).for_each(|conn| knocks.spoke(ConnId(conn)));
        assert_eq!(knock(&mut knocks, 200, 1, Some(address(2))), [Some(102)]);
        assert_eq!(knock(&mut knocks, 300, 1, Some(address(1))), [None]);
    }
}
