//! Something large that cases share, of one size at a time.
//!
//! Cases of one size follow each other; the first one starts what they measure, and the first one
//! of another size ends it, so that sizes do not disturb each other.

use std::cell::RefCell;

/// What the cases of the size that comes last share.
#[derive(Debug)]
pub(crate) struct TakenInTurn<T> {
    running: RefCell<Option<(u16, T)>>,
}

impl<T> TakenInTurn<T> {
    pub(crate) const fn new() -> Self {
        Self { running: RefCell::new(None) }
    }

    /// Measures what there is of a size; `start` starts it if it does not run yet.
    pub(crate) fn of<R>(
        &self,
        size: u16,
        start: impl FnOnce() -> anyhow::Result<T>,
        measure: impl FnOnce(&mut T) -> anyhow::Result<R>,
    ) -> anyhow::Result<R> {
        let mut running = self.running.borrow_mut();
        let known = running.take().filter(|(known, _)| *known == size);
        let (_, kept) = running.insert(known.map_or_else(|| Ok((size, start()?)), anyhow::Ok)?);
        measure(kept)
    }
}
