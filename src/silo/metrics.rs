//! The counters of a silo, for whoever serves them to a collector.

use core::fmt;
use std::sync::Arc;

use crate::driver::shared::Shared;

/// Reads a silo's counters, from any thread. Cheap to clone; after the silo's end it shows the last
/// values.
#[derive(Clone)]
pub struct Metrics(Arc<Shared>);

impl fmt::Debug for Metrics {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Metrics")
    }
}

impl Metrics {
    pub(super) fn of(shared: &Arc<Shared>) -> Self {
        Self(Arc::clone(shared))
    }

    /// Everything that is counted, as Prometheus text.
    pub fn text(&self) -> String {
        self.0.metrics_text()
    }
}
