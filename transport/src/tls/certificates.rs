//! What a silo shows, and whom it trusts.
//!
//! Contract: [`Certificates::new`] takes PEM texts and refuses whatever a peer with the same CAs
//! would refuse, so that a wrong file stops a start (or is not taken at a renewal) and does not
//! part a running silo from its cluster. Invariants: a peer's chain is judged by rustls alone, for
//! both roles alike; a certificate may be used in both. Deliberately absent: files (the driver's).

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};

use siloring_core::limits::TLS_CHAIN_BYTES_MAX;

use super::names_of;
use super::session::Session;

/// Reads the wall clock, as time since 1970: certificates are valid by the calendar, and nothing
/// else in a silo looks at it.
pub type WallClock = fn() -> Duration;

/// Which of the files something is wrong with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TlsFile {
    /// The certificates of those who may issue.
    Ca,
    /// The silo's own.
    Certificate,
    /// Its private key.
    Key,
}

/// The texts of the three files.
#[derive(Clone, Copy)]
pub struct Pem<'a> {
    /// The certificates of all CAs that are trusted.
    pub ca: &'a [u8],
    /// The silo's certificate, then those between it and a CA.
    pub certificate: &'a [u8],
    /// The silo's private key.
    pub key: &'a [u8],
}

impl fmt::Debug for Pem<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Pem(not shown)")
    }
}

/// Why certificates are not taken. Nothing was changed; each text ends with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificatesError {
    /// The file holds nothing of what it is for.
    #[error("there is no {wanted} in it ({detail}): write it there as PEM")]
    Malformed {
        /// Which file.
        file: TlsFile,
        /// What it should hold.
        wanted: &'static str,
        /// What is wrong.
        detail: String,
    },
    /// The chain is longer than [`TLS_CHAIN_BYTES_MAX`].
    #[error(
        "its certificates have {found} bytes, more than {TLS_CHAIN_BYTES_MAX}: leave out the CA's"
    )]
    ChainTooLong {
        /// How many.
        found: usize,
    },
    /// The key belongs to another certificate.
    #[error("the key is not the one of the certificate: give the key that it was issued for")]
    KeyMismatch,
    /// The key or certificate cannot be used.
    #[error("it cannot be used ({detail}): issue an ECDSA, Ed25519 or RSA certificate")]
    Unusable {
        /// Which file.
        file: TlsFile,
        /// What is wrong.
        detail: String,
    },
    /// The certificate is not valid any more.
    #[error("the certificate has expired: issue a new one, or correct this host's clock")]
    Expired,
    /// The certificate is not valid yet.
    #[error("the certificate is not valid yet: correct this host's clock, or issue it earlier")]
    NotYetValid,
    /// Peers would not trust the certificate.
    #[error(
        "peers would refuse the certificate ({detail}): have it issued by a CA of the CA file, for \
         serverAuth and clientAuth"
    )]
    Untrusted {
        /// What is wrong.
        detail: String,
    },
    /// The certificate is not this silo's.
    #[error("the certificate names {found}: issue it with subjectAltName=URI:{wanted}")]
    Unnamed {
        /// What it should name.
        wanted: String,
        /// What it names.
        found: String,
    },
}

impl CertificatesError {
    /// In which file the fault is.
    pub const fn file(&self) -> TlsFile {
        match self {
            Self::Malformed { file, .. } | Self::Unusable { file, .. } => *file,
            Self::KeyMismatch => TlsFile::Key,
            Self::ChainTooLong { .. }
            | Self::Expired
            | Self::NotYetValid
            | Self::Untrusted { .. }
            | Self::Unnamed { .. } => TlsFile::Certificate,
        }
    }
}

/// What a silo shows, and whom it trusts: makes the sessions of its links.
#[derive(Clone)]
pub struct Certificates {
    dialer: Arc<ClientConfig>,
    acceptor: Arc<ServerConfig>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Certificates(not shown)")
    }
}

impl Certificates {
    /// Takes the texts of a silo whose certificate must name `uri`.
    pub fn new(pem: Pem<'_>, uri: &str, clock: WallClock) -> Result<Self, CertificatesError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = Arc::new(read_roots(pem.ca)?);
        let chain = read_chain(pem.certificate)?;
        let key = read_key(pem.key, &chain, &provider)?;
        let clock = Arc::new(Clock(clock));
        let acceptor =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| unusable(TlsFile::Ca, &error))?;
        let dialer =
            Arc::new(ChainOnly { roots, algorithms: provider.signature_verification_algorithms });
        check_own(&chain, uri, &dialer, &*acceptor, clock.time())?;
        let shown = Arc::new(rustls::sign::SingleCertAndKey::from(key));
        let mut dialer_config =
            ClientConfig::builder_with_details(Arc::clone(&provider), Arc::clone(&clock) as _)
                .with_safe_default_protocol_versions()
                .map_err(|error| unusable(TlsFile::Key, &error))?
                .dangerous()
                .with_custom_certificate_verifier(dialer)
                .with_client_cert_resolver(Arc::clone(&shown) as _);
        dialer_config.resumption = Resumption::disabled();
        dialer_config.enable_sni = false;
        let mut acceptor_config = ServerConfig::builder_with_details(provider, clock)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(TlsFile::Key, &error))?
            .with_client_cert_verifier(acceptor)
            .with_cert_resolver(shown);
        acceptor_config.send_tls13_tickets = 0;
        acceptor_config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        Ok(Self { dialer: Arc::new(dialer_config), acceptor: Arc::new(acceptor_config) })
    }

    /// The session of a link that this silo dials.
    pub fn dial(&self) -> Session {
        Session::dial(Arc::clone(&self.dialer))
    }

    /// The session of a link that somebody else dials.
    pub fn accept(&self) -> Session {
        Session::accept(Arc::clone(&self.acceptor))
    }
}

fn read_roots(ca: &[u8]) -> Result<RootCertStore, CertificatesError> {
    let wanted = "CA certificate";
    let file = TlsFile::Ca;
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(ca, file, wanted)? {
        roots.add(certificate).map_err(|error| unusable(file, &error))?;
    }
    Ok(roots)
}

fn read_chain(certificate: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificatesError> {
    let chain = read_certificates(certificate, TlsFile::Certificate, "certificate")?;
    let found = chain.iter().map(|certificate| certificate.len()).sum();
    if found > TLS_CHAIN_BYTES_MAX {
        return Err(CertificatesError::ChainTooLong { found });
    }
    Ok(chain)
}

fn read_certificates(
    text: &[u8],
    file: TlsFile,
    wanted: &'static str,
) -> Result<Vec<CertificateDer<'static>>, CertificatesError> {
    let malformed = |detail: String| CertificatesError::Malformed { file, wanted, detail };
    let certificates = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| malformed(error.to_string()))?;
    if certificates.is_empty() {
        return Err(malformed("no such section".into()));
    }
    Ok(certificates)
}

fn read_key(
    text: &[u8],
    chain: &[CertificateDer<'static>],
    provider: &CryptoProvider,
) -> Result<CertifiedKey, CertificatesError> {
    let der =
        PrivateKeyDer::from_pem_slice(text).map_err(|error| CertificatesError::Malformed {
            file: TlsFile::Key,
            wanted: "private key",
            detail: error.to_string(),
        })?;
    CertifiedKey::from_der(chain.to_vec(), der, provider).map_err(|error| {
        if matches!(error, Error::InconsistentKeys(_)) {
            return CertificatesError::KeyMismatch;
        }
        let is_of_certificate = matches!(error, Error::InvalidCertificate(_));
        let file = if is_of_certificate { TlsFile::Certificate } else { TlsFile::Key };
        unusable(file, &error)
    })
}

/// Whether a peer with our CAs would take our certificate, in either role.
fn check_own(
    chain: &[CertificateDer<'_>],
    uri: &str,
    dialer: &ChainOnly,
    acceptor: &dyn ClientCertVerifier,
    now: UnixTime,
) -> Result<(), CertificatesError> {
    let (own, between) = chain.split_first().expect("a chain that was read is not empty");
    let judged = dialer
        .verify_chain(own, between, now)
        .and_then(|()| acceptor.verify_client_cert(own, between, now).map(drop));
    judged.map_err(|error| {
        if is_expired(&error) {
            CertificatesError::Expired
        } else if is_not_yet_valid(&error) {
            CertificatesError::NotYetValid
        } else {
            CertificatesError::Untrusted { detail: error.to_string() }
        }
    })?;
    let names = names_of(own);
    if !names.0.iter().any(|name| name == uri) {
        let (wanted, found) = (uri.to_owned(), names.to_string());
        return Err(CertificatesError::Unnamed { wanted, found });
    }
    Ok(())
}

const fn is_expired(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. }
        )
    )
}

const fn is_not_yet_valid(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }
        )
    )
}

fn unusable(file: TlsFile, error: &dyn fmt::Display) -> CertificatesError {
    CertificatesError::Unusable { file, detail: error.to_string() }
}

#[derive(Debug)]
struct Clock(WallClock);

impl Clock {
    fn time(&self) -> UnixTime {
        UnixTime::since_unix_epoch((self.0)())
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.time())
    }
}

/// Judges an acceptor's chain, and leaves its name to the handshake: a dialer may know no more of a
/// peer than an address, and what the certificate must name is what the peer says it is.
#[derive(Debug)]
struct ChainOnly {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ChainOnly {
    fn verify_chain(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let parsed = ParsedCertificate::try_from(own)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, between, now, algorithms)
    }
}

impl ServerCertVerifier for ChainOnly {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify_chain(end_entity, intermediates, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        None
    }
}
