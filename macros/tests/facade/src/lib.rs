//! The part of the facade that expansions name, without the engine.
//!
//! The real one says the same and more; the examples are compiled with it.

pub use siloring_core::{MethodId, hash, rkyv, schema, versions};
pub use siloring_macros::{Grain, grain_methods, message};
pub use siloring_runtime::reference::GrainRef;
pub use siloring_runtime::{call, grain, turn};

/// What most programs need.
pub mod prelude {
    pub use siloring_core::rkyv::Archived;
    pub use siloring_runtime::call::Call;
    pub use siloring_runtime::ctx::Ctx;

    pub use crate::{Grain, GrainRef, grain_methods, message};
}
