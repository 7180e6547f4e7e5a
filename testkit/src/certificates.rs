//! A certificate authority for tests: issues what silos need for TLS, right or wrong.
//!
//! Everything is PEM text; where the files go is the test's. Nothing here looks at a clock: what is
//! valid "now" is valid for all years in which these tests may run.

use std::io;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, SanType, date_time_ymd,
};

/// When a certificate is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Validity {
    /// It has expired.
    Past,
    /// It is valid.
    Now,
    /// It is not valid yet.
    Future,
}

/// What a silo needs for TLS, as PEM.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificates of the CAs it trusts.
    pub ca: String,
    /// Its certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl Issued {
    /// Writes `ca.pem`, `certificate.pem` and `key.pem` into a folder, over what is there.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let files = [("ca", &self.ca), ("certificate", &self.certificate), ("key", &self.key)];
        for (name, text) in files {
            std::fs::write(folder.join(name).with_extension("pem"), text)?;
        }
        Ok(())
    }
}

/// A CA.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl core::fmt::Debug for Authority {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.write_str("Authority(not shown)")
    }
}

impl Authority {
    /// A CA of that name, with a key of its own.
    ///
    /// # Panics
    /// If the system has no entropy.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2120, 1, 1);
        let key = KeyPair::generate().expect("the system has entropy");
        Self(CertifiedIssuer::self_signed(params, key).expect("the parameters are sound"))
    }

    /// The CA's certificate.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate that names these URIs, for both roles of a silo.
    pub fn issue(&self, uris: &[&str], validity: Validity) -> Issued {
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.issue_for(uris, validity, &both)
    }

    /// A certificate that names these URIs, for these roles.
    ///
    /// # Panics
    /// If a URI is not ASCII.
    pub fn issue_for(
        &self,
        uris: &[&str],
        validity: Validity,
        usages: &[ExtendedKeyUsagePurpose],
    ) -> Issued {
        let mut params = CertificateParams::default();
        let name = |uri: &&str| SanType::URI((*uri).try_into().expect("a URI is ASCII"));
        params.subject_alt_names = uris.iter().map(name).collect();
        params.extended_key_usages = usages.to_vec();
        let (from, to) = match validity {
            Validity::Past => (2021, 2022),
            Validity::Now => (2022, 2110),
            Validity::Future => (2110, 2111),
        };
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        let key = KeyPair::generate().expect("the system has entropy");
        let certificate = params.signed_by(&key, &self.0).expect("the parameters are sound");
        Issued { ca: self.pem(), certificate: certificate.pem(), key: key.serialize_pem() }
    }
}
