//! Frames between silos: the handshake, established links, TLS, sockets.
//!
//! [`Handshake`], [`Link`] and [`Session`] are machines without I/O: bytes go in, frames and bytes
//! come out.
//! [`net`] is the only place that touches a socket; it knows no frame. Deliberately absent: grains,
//! routing, retries, deadlines (they are the caller's), clocks, threads, async. Byte tables:
//! `docs/wire.md`.

pub mod handshake;
pub mod inbound;
pub mod link;
pub mod names;
pub mod net;
pub mod outbound;
pub mod refusal;
pub mod secret;
pub mod tls;

mod facts;
mod greeting;

pub use facts::{FactsError, LocalFacts, Purpose, Role, WireVersions};
pub use handshake::{Established, Handshake, Step};
pub use inbound::{Frame, Inbound, LinkError};
pub use link::Link;
pub use names::Names;
pub use outbound::{Class, Outbound, Position, SendRefused};
pub use refusal::{Refusal, RefusalKind, RefusedBy};
pub use secret::{Secret, SecretError};
pub use tls::{
    Certificates, CertificatesError, PeerNames, Pem, Session, SessionError, TlsFile, WallClock,
    silo_uri,
};
