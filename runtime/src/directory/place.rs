//! Where an address lives: the endpoint that hosts it, and under which number.

use siloring_core::{ActivationNumber, ClaimNumber, Endpoint};

/// An activation's or a hub's home.
///
/// The number orders the homes that one address ever had, whoever owned its range: a higher one is
/// newer. For a hub it is its claim's number.
#[derive(
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
)]
pub struct Place {
    /// The shard that hosts it.
    pub endpoint: Endpoint,
    /// Under which number.
    pub number: ActivationNumber,
}

impl Place {
    /// The home of a hub: its claim's holder.
    pub const fn of_claim(endpoint: Endpoint, claim: ClaimNumber) -> Self {
        let number = ActivationNumber { view: claim.view, counter: claim.counter };
        Self { endpoint, number }
    }

    /// The number, read as a claim's.
    pub const fn claim(self) -> ClaimNumber {
        ClaimNumber { view: self.number.view, counter: self.number.counter }
    }
}
