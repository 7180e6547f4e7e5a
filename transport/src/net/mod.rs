//! Sockets: TCP and abstract Unix ones, without blocking and without an executor.
//!
//! The one place of this crate that touches the operating system. It moves bytes and knows no
//! frame. A [`Socket`] may be handed to another thread; waiting for readiness is the driver's
//! business, as are time-outs. Everything here returns at once, [`resolve`] excepted.

mod host;
mod listener;
mod socket;

pub use host::{UnixName, host_identity, nonce, resolve};
pub use listener::{Accept, Listener, TurnedAway};
pub use socket::{Dialed, Over, Received, Socket};
