//! The filter port: a silo may refuse a call before its turn.

use core::fmt;

use siloring_core::address::{Address, AddressHash};
use siloring_core::ids::MethodId;

use crate::envelope::Envelope;

/// What a filter sees of a call.
#[derive(Clone, Copy, Debug)]
pub struct FilterCall<'a> {
    /// Who is called.
    pub target: &'a Address,
    /// Who calls; [`AddressHash::NONE`] for code outside of grains and hubs.
    pub source: AddressHash,
    /// Which method, or message type.
    pub method: MethodId,
    /// Identity, headers and trace, if any travel with the call.
    pub envelope: Option<&'a Envelope>,
}

/// What a filter says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The turn may begin.
    Allow,
    /// The caller hears `AccessDenied`; the turn does not begin.
    Deny,
}

/// Decides on each delivery to a silo's grains and hubs. Called on the shards: it must not block.
pub trait Filter: Send + Sync + fmt::Debug {
    /// May this call run?
    fn check(&self, call: &FilterCall<'_>) -> Verdict;
}
