//! What is checked of all silos together, at each step that changes it.
//!
//! - *I4*: views of one number have one content;
//! - *I6*: in one view at most one shard serves a position of the ring;
//! - *I12*: a claim's number is told to one silo only, so that at most one holds the highest.
//!
//! A store that lost its last versions repeats their numbers: those of the lineage that lost them
//! are compared no more ([`Checks::lineage_lost`]).
//!
//! Deliberately absent: streams, whose I10 and I11 are the ledger's; what one silo alone can break,
//! which is checked where it is run.

use std::collections::BTreeMap;
use std::sync::Arc;

use siloring_core::{Address, ClaimNumber, Endpoint, Generation, View, ViewNumber};
use siloring_runtime::directory::Span;

use super::world::ProcessId;

/// What was seen of the silos.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// Every view seen, by number.
    views: BTreeMap<ViewNumber, Arc<View>>,
    /// The newest view that any silo has seen.
    newest: Option<Arc<View>>,
    /// What each shard serves, and in which view.
    serving: BTreeMap<Endpoint, (ViewNumber, Vec<Span>)>,
    /// Who was told each claim.
    claims: BTreeMap<(Address, ClaimNumber), ProcessId>,
    /// Which incarnation each process is.
    names: BTreeMap<ProcessId, Generation>,
    /// Views above the first and below the second may be two of one number.
    lost: Vec<(ViewNumber, ViewNumber)>,
}

impl Checks {
    /// Keeps a view, or says how it differs from another silo's of the same number.
    pub(super) fn view(&mut self, view: &Arc<View>) -> Option<String> {
        if self.newest.as_ref().is_none_or(|newest| newest.number() < view.number()) {
            self.newest = Some(Arc::clone(view));
        }
        if self.is_lost(view.number()) {
            return None;
        }
        let known = self.views.entry(view.number()).or_insert_with(|| Arc::clone(view));
        let differs = !Arc::ptr_eq(known, view) && known.rows() != view.rows();
        differs.then(|| format!("{:?} and {:?}", known.rows(), view.rows()))
    }

    /// A shard serves these spans in this view; says who else does.
    pub(super) fn serving(
        &mut self,
        shard: Endpoint,
        view: ViewNumber,
        spans: Vec<Span>,
    ) -> Option<String> {
        let others = self.serving.iter().filter(|(other, (in_view, _))| {
            **other != shard && *in_view == view && !self.is_lost(view)
        });
        let both = others.into_iter().find_map(|(other, (_, theirs))| {
            let overlap =
                |span: &Span| theirs.iter().any(|t| span.first <= t.last && t.first <= span.last);
            spans.iter().find(|span| overlap(span)).map(|span| (*other, *span))
        });
        let text = both.map(|(other, span)| format!("{shard:?} and {other:?} in {view}: {span:?}"));
        self.serving.insert(shard, (view, spans));
        text
    }

    /// A silo is told that it holds a claim; says who else was.
    pub(super) fn claimed(
        &mut self,
        process: ProcessId,
        address: &Address,
        number: ClaimNumber,
    ) -> Option<String> {
        let first = *self.claims.entry((address.clone(), number)).or_insert(process);
        (first != process).then(|| format!("{first:?} and {process:?} hold {address} {number:?}"))
    }

    /// A process is this incarnation; says what else it was.
    pub(super) fn named(&mut self, process: ProcessId, silo: Generation) -> Option<String> {
        let before = self.names.insert(process, silo);
        before.map(|before| format!("{process:?} was {before:?}, then {silo:?}"))
    }

    /// Whether a process is gone in the newest view that any silo has seen.
    pub(super) fn is_gone(&self, process: ProcessId) -> bool {
        let newest = self.newest.as_ref();
        self.names.get(&process).zip(newest).is_some_and(|(silo, view)| view.is_gone(*silo))
    }

    /// A silo has ended: it serves nothing.
    pub(super) fn ended(&mut self, silo: Generation) {
        self.serving.retain(|shard, _| shard.silo != silo);
    }

    /// The store went back to `kept`: newer numbers of its lineage may come again.
    pub(super) fn lineage_lost(&mut self, kept: ViewNumber) {
        self.lost.push((kept, ViewNumber::new(kept.lineage() + 1, 0)));
    }

    fn is_lost(&self, view: ViewNumber) -> bool {
        self.lost.iter().any(|(kept, next)| *kept < view && view < *next)
    }
}

#[cfg(test)]
mod tests {
    use siloring_core::ShardIndex;

    use super::*;

    fn shard(silo: u64) -> Endpoint {
        Endpoint { silo: Generation(silo), shard: ShardIndex(0) }
    }

    fn span(first: u64, last: u64) -> Vec<Span> {
        vec![Span { first, last }]
    }

    const VIEW: ViewNumber = ViewNumber(7);

    #[test]
    fn two_that_serve_one_position_in_one_view_are_seen() {
        let mut checks = Checks::default();
        assert_eq!(checks.serving(shard(1), VIEW, span(0, 9)), None);
        assert_eq!(checks.serving(shard(2), VIEW, span(10, 19)), None);
        let both = checks.serving(shard(3), VIEW, span(19, 29));
        assert!(both.is_some_and(|text| text.contains("19")));
        assert_eq!(checks.serving(shard(4), VIEW.next(), span(0, 29)), None);
        checks.ended(Generation(4));
        assert_eq!(checks.serving(shard(5), VIEW.next(), span(0, 29)), None);
    }

    #[test]
    fn one_claim_told_to_two_silos_is_seen() {
        let mut checks = Checks::default();
        let hub = Address::of("portal", "one").unwrap();
        let number = ClaimNumber { view: VIEW, counter: 1 };
        let newer = ClaimNumber { view: VIEW, counter: 2 };
        assert_eq!(checks.claimed(ProcessId(1), &hub, number), None);
        assert_eq!(
            checks.claimed(ProcessId(1), &hub, number),
            None,
            "the same silo may hear again"
        );
        assert_eq!(checks.claimed(ProcessId(2), &hub, newer), None);
        assert!(checks.claimed(ProcessId(2), &hub, number).is_some());
    }

    #[test]
    fn two_views_of_one_number_are_seen_unless_the_store_lost_the_first() {
        let empty = || Arc::new(View::new(VIEW, Vec::new()));
        let mut checks = Checks::default();
        assert_eq!(checks.view(&empty()), None);
        assert_eq!(checks.view(&empty()), None, "of equal content");
        checks.lineage_lost(ViewNumber(3));
        assert!(checks.is_lost(VIEW) && !checks.is_lost(ViewNumber(3)));
        assert!(!checks.is_lost(ViewNumber::new(1, 1)), "of the next lineage");
    }
}
