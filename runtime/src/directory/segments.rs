//! Which parts of the ring this shard serves, takes or gives away.
//!
//! # Why at most one shard serves a position (I6)
//! A shard serves a part if it served it in its last view, if the one shard that did gave it all it
//! had, or if every shard that may hold anything has answered a recovery *in the asker's view*. A
//! shard that skipped views has answered nobody in them, so nobody can have begun to serve by
//! recovery meanwhile; and nobody can have been given what this shard did not give. So a part that
//! was served before a jump over views is still this shard's to keep, or to give.
//!
//! What was served and is another's now is *frozen*: no longer changed, kept until its taker serves
//! it. Once the taker may have got it all, the frozen part is good for that taker only: in a view
//! with another owner it is dropped, and whoever owns it then recovers.

use siloring_core::Endpoint;
use siloring_core::ring::Ring;

use super::defect::{Defect, Planted};
use super::span::{Span, inside, joined, outside, owners, split};

/// How a part of the ring stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// Requests are answered.
    Serving,
    /// Ours in this view, but its entries are not all here: requests wait.
    Acquiring,
    /// Another's in this view; its entries are kept for it.
    Frozen {
        /// Whose it is.
        taker: Endpoint,
        /// Whether the taker may serve it already.
        given: Given,
    },
}

/// Whether the taker of a frozen part may serve it already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Given {
    /// It lacks the last piece, and has had no answer to a recovery.
    No,
    /// It may.
    Maybe,
}

/// A part of the ring and how it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    pub(super) span: Span,
    pub(super) standing: Standing,
}

/// What a change of views asks for.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Change {
    /// Parts whose entries are of no use here any more.
    pub(super) dropped: Vec<Span>,
    /// Parts that are newly ours, each with its last owner, if that is known.
    pub(super) wanted: Vec<(Span, Option<Endpoint>)>,
}

/// All parts that this shard has to do with: sorted, disjoint.
#[derive(Debug, Default)]
pub(super) struct Segments(Vec<Segment>);

impl Segments {
    /// Goes from one view's ring to the next one's.
    pub(super) fn change(
        &mut self,
        me: Endpoint,
        before: &Ring,
        after: &Ring,
        planted: Planted,
    ) -> Change {
        let after = owners(after);
        let mine = joined(after.iter().filter(|(_, owner)| *owner == me).map(|(span, _)| *span));
        let mut next = Vec::new();
        let mut dropped = Vec::new();
        for segment in core::mem::take(&mut self.0) {
            let parts = split(segment.span, &after);
            if parts.is_empty() {
                dropped.push(segment.span);
            }
            for (span, owner) in parts {
                match follow(segment.standing, me, owner, planted) {
                    Some(standing) => next.push(Segment { span, standing }),
                    None => dropped.push(span),
                }
            }
        }
        let had = joined(next.iter().filter(|s| !is_frozen(s.standing)).map(|s| s.span));
        let before = owners(before);
        let mut wanted = Vec::new();
        for part in mine.iter().flat_map(|span| outside(*span, &had)) {
            next.push(Segment { span: part, standing: Standing::Acquiring });
            let givers = split(part, &before);
            if givers.is_empty() {
                wanted.push((part, None));
            }
            wanted.extend(givers.into_iter().map(|(span, giver)| (span, Some(giver))));
        }
        self.replace(next);
        Change { dropped, wanted }
    }

    /// How a position stands; `None` if it is not this shard's business.
    pub(super) fn standing(&self, position: u64) -> Option<Standing> {
        let index = self.0.partition_point(|segment| segment.span.last < position);
        let segment = self.0.get(index).filter(|segment| segment.span.contains(position))?;
        Some(segment.standing)
    }

    /// The parts that stand so.
    pub(super) fn spans(&self, wanted: impl Fn(Standing) -> bool) -> Vec<Span> {
        joined(self.0.iter().filter(|s| wanted(s.standing)).map(|s| s.span))
    }

    /// The parts that are served.
    pub(super) fn serving(&self) -> Vec<Span> {
        self.spans(|standing| standing == Standing::Serving)
    }

    /// The parts that are moving in.
    pub(super) fn acquiring(&self) -> Vec<Span> {
        self.spans(|standing| standing == Standing::Acquiring)
    }

    /// The parts that are kept for `taker`.
    pub(super) fn frozen_for(&self, taker: Endpoint) -> Vec<Span> {
        self.spans(|standing| is_frozen_for(standing, taker))
    }

    /// The parts that are kept for others, by taker.
    pub(super) fn offers(&self) -> Vec<(Endpoint, Vec<Span>)> {
        let mut takers: Vec<_> = self
            .0
            .iter()
            .filter_map(|segment| match segment.standing {
                Standing::Frozen { taker, .. } => Some(taker),
                Standing::Serving | Standing::Acquiring => None,
            })
            .collect();
        takers.sort_unstable();
        takers.dedup();
        takers.into_iter().map(|taker| (taker, self.frozen_for(taker))).collect()
    }

    /// From now on requests for these parts, which were moving in, are answered.
    pub(super) fn open(&mut self, spans: &[Span]) {
        self.rework(spans, |standing| {
            assert_eq!(standing, Standing::Acquiring, "only what moved in is opened");
            Some(Standing::Serving)
        });
    }

    /// The taker may serve these parts from now on.
    pub(super) fn give(&mut self, spans: &[Span], taker: Endpoint) {
        self.rework(spans, |standing| {
            Some(if is_frozen_for(standing, taker) {
                Standing::Frozen { taker, given: Given::Maybe }
            } else {
                standing
            })
        });
    }

    /// The taker serves these parts: what was kept of them for it is dropped, and returned.
    pub(super) fn drop_given(&mut self, spans: &[Span], taker: Endpoint) -> Vec<Span> {
        let frozen = self.frozen_for(taker);
        let dropped: Vec<_> = spans.iter().flat_map(|span| inside(*span, &frozen)).collect();
        self.rework(&dropped, |_| None);
        dropped
    }

    /// Whether no part is this shard's business.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All parts.
    #[cfg(test)]
    pub(super) fn all(&self) -> &[Segment] {
        &self.0
    }

    /// Restates the parts inside of `spans`.
    fn rework(&mut self, spans: &[Span], restate: impl Fn(Standing) -> Option<Standing>) {
        let spans = joined(spans.iter().copied());
        let mut next = Vec::new();
        for segment in core::mem::take(&mut self.0) {
            let Segment { span, standing } = segment;
            next.extend(outside(span, &spans).into_iter().map(|span| Segment { span, standing }));
            for span in inside(span, &spans) {
                next.extend(restate(standing).map(|standing| Segment { span, standing }));
            }
        }
        self.replace(next);
    }

    fn replace(&mut self, mut segments: Vec<Segment>) {
        segments.sort_unstable_by_key(|segment| segment.span);
        segments.dedup_by(|next, last| {
            let adjoin = last.span.last.checked_add(1) == Some(next.span.first);
            let same = adjoin && last.standing == next.standing;
            if same {
                last.span.last = next.span.last;
            }
            same
        });
        let disjoint = segments.windows(2).all(|pair| pair[0].span.last < pair[1].span.first);
        assert!(disjoint, "I6: the parts of the ring are disjoint");
        self.0 = segments;
    }
}

/// How a part stands in the next view, which gives it to `owner`; `None`: it is dropped.
fn follow(standing: Standing, me: Endpoint, owner: Endpoint, planted: Planted) -> Option<Standing> {
    let is_mine = owner == me;
    if standing == Standing::Serving && planted.has(Defect::RangeKept) {
        return Some(Standing::Serving);
    }
    match standing {
        Standing::Acquiring => is_mine.then_some(Standing::Acquiring),
        Standing::Frozen { taker, given: Given::Maybe } if !planted.has(Defect::GivenTwice) => {
            let given = Given::Maybe;
            (taker == owner).then_some(Standing::Frozen { taker, given })
        }
        Standing::Serving | Standing::Frozen { .. } => Some(if is_mine {
            Standing::Serving
        } else {
            Standing::Frozen { taker: owner, given: Given::No }
        }),
    }
}

const fn is_frozen(standing: Standing) -> bool {
    match standing {
        Standing::Frozen { .. } => true,
        Standing::Serving | Standing::Acquiring => false,
    }
}

fn is_frozen_for(standing: Standing, wanted: Endpoint) -> bool {
    match standing {
        Standing::Frozen { taker, .. } => taker == wanted,
        Standing::Serving | Standing::Acquiring => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::span::covers;
    use siloring_core::{Generation, ShardIndex};

    fn at(silo: u64) -> Endpoint {
        Endpoint { silo: Generation(silo), shard: ShardIndex(0) }
    }

    fn ring(silos: &[u64]) -> Ring {
        Ring::new(silos.iter().map(|silo| (Generation(*silo), 1)))
    }

    fn step(segments: &mut Segments, me: u64, before: &[u64], after: &[u64]) -> Change {
        segments.change(at(me), &ring(before), &ring(after), Planted::NONE)
    }

    #[test]
    fn what_is_newly_ours_is_wanted_from_its_last_owner() {
        let mut two = Segments::default();
        let change = step(&mut two, 2, &[1], &[1, 2]);
        assert!(change.wanted.iter().all(|(_, giver)| *giver == Some(at(1))));
        assert_eq!(joined(change.wanted.iter().map(|(span, _)| *span)), two.acquiring());
        assert!(two.serving().is_empty());
    }

    #[test]
    fn what_was_lost_is_frozen_and_thaws_if_it_comes_back_untaken() {
        let mut one = Segments::default();
        step(&mut one, 1, &[], &[1]);
        one.open(&[Span::WHOLE]);
        assert_eq!(one.serving(), vec![Span::WHOLE]);
        step(&mut one, 1, &[1], &[1, 2]);
        let lost = one.frozen_for(at(2));
        assert!(!lost.is_empty());
        let change = step(&mut one, 1, &[1, 2], &[1]);
        assert_eq!(change, Change { dropped: vec![], wanted: vec![] });
        assert_eq!(one.serving(), vec![Span::WHOLE]);
    }

    #[test]
    fn what_may_have_been_taken_never_thaws() {
        let mut one = Segments::default();
        step(&mut one, 1, &[], &[1]);
        one.open(&[Span::WHOLE]);
        step(&mut one, 1, &[1], &[1, 2]);
        let lost = one.frozen_for(at(2));
        one.give(&lost, at(2));
        let change = step(&mut one, 1, &[1, 2], &[1]);
        assert_eq!(joined(change.dropped), lost);
        assert_eq!(one.acquiring(), lost);
        assert!(change.wanted.iter().all(|(_, giver)| *giver == Some(at(2))));
    }

    #[test]
    fn what_is_taken_is_dropped_once_its_taker_says_so() {
        let mut one = Segments::default();
        step(&mut one, 1, &[], &[1]);
        one.open(&[Span::WHOLE]);
        step(&mut one, 1, &[1], &[2]);
        let half = Span { first: 0, last: u64::MAX / 2 };
        assert_eq!(one.drop_given(&[half], at(3)), vec![], "not the taker");
        assert_eq!(one.drop_given(&[half], at(2)), vec![half]);
        assert!(!covers(&one.frozen_for(at(2)), half));
        assert_eq!(one.drop_given(&[Span::WHOLE], at(2)).len(), 1);
        assert!(one.is_empty());
    }

    #[test]
    fn a_view_without_an_active_silo_drops_everything() {
        let mut one = Segments::default();
        step(&mut one, 1, &[], &[1]);
        one.open(&[Span::WHOLE]);
        assert_eq!(step(&mut one, 1, &[1], &[]).dropped, vec![Span::WHOLE]);
        assert!(one.is_empty());
    }
}
