//! TLS between silos: bytes of a link, sealed and opened without a socket.
//!
//! TLS 1.3 only, mutual. rustls decides everything that is cryptography: [`Certificates`] hold its
//! settings, a [`Session`] is one connection of it. What a certificate *names* is checked here: a
//! silo's is issued for the URI `siloring://<cluster>/<silo>` ([`silo_uri`]), and the handshake of
//! `handshake.rs`, which rides inside, compares it with what the peer says of itself. A URI, since
//! it is compared byte by byte (DNS names have no case, take wildcards and forbid characters that
//! names of silos have), and since no public CA issues one by mistake.
//!
//! Deliberately absent: TLS 1.2, resumption (a resumed session shows no certificate, so it would
//! outlive a CA that was taken away), early data, certificates' revocation (a CA is rolled over
//! instead), files, clocks and sockets. Entropy is the one thing that is no argument: rustls takes
//! its own, so no simulated cluster speaks TLS.

mod certificates;
mod session;

use core::fmt;

use siloring_core::{ClusterId, SiloName};

use crate::refusal::{Refusal, RefusalKind};

pub use certificates::{Certificates, CertificatesError, Pem, TlsFile, WallClock};
pub(crate) use session::is_tls;
pub use session::{Session, SessionError};

/// The URI for which a silo's certificate is issued.
pub fn silo_uri(cluster: &ClusterId, name: &SiloName) -> String {
    format!("siloring://{cluster}/{name}")
}

/// The silos that a peer's certificate names, as its CA wrote them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerNames(Vec<String>);

impl PeerNames {
    /// Refuses a peer whose certificate does not name it. One that has no name yet must at least be
    /// of the cluster.
    pub(crate) fn check(
        &self,
        cluster: &ClusterId,
        name: Option<&SiloName>,
    ) -> Result<(), Refusal> {
        let cluster = format!("siloring://{cluster}/");
        let who = name.map_or_else(|| cluster.clone(), |name| format!("{cluster}{name}"));
        let is_named = self.0.iter().any(|uri| match name {
            Some(_) => *uri == who,
            None => uri.starts_with(&who),
        });
        if is_named {
            return Ok(());
        }
        let detail = format!("the peer says it is {who}, its certificate names {self}");
        Err(Refusal::ours(RefusalKind::IdentityMismatch, detail))
    }
}

impl fmt::Display for PeerNames {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { out.write_str("no silo") } else { out.write_str(&self.0.join(", ")) }
    }
}

/// What a certificate names, in DER; empty if it is none.
fn names_of(certificate: &[u8]) -> PeerNames {
    let der = rustls::pki_types::CertificateDer::from_slice(certificate);
    let uris = webpki::EndEntityCert::try_from(&der).map_or_else(
        |_| Vec::new(),
        |parsed| parsed.valid_uri_names().map(str::to_owned).collect(),
    );
    PeerNames(uris)
}
