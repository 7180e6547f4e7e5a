//! What the macros accept, and what it means.

pub mod layouts;
pub mod room;
pub mod versions;
