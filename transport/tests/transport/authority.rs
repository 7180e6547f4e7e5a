//! A CA for tests, and the certificates that it issues.

use core::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, SanType, date_time_ymd,
};
use siloring_transport::{Certificates, CertificatesError, Pem};

/// A day on which certificates of [`Validity::Now`] are valid.
pub(crate) fn today() -> Duration {
    Duration::from_secs(date_time_ymd(2026, 6, 1).unix_timestamp().unsigned_abs())
}

#[derive(Clone, Copy)]
pub(crate) enum Validity {
    Past,
    Now,
    Future,
}

/// What a silo has, as PEM.
pub(crate) struct Issued {
    pub(crate) ca: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Issued {
    pub(crate) fn take_for(&self, uri: &str) -> Result<Certificates, CertificatesError> {
        let (ca, key) = (self.ca.as_bytes(), self.key.as_bytes());
        Certificates::new(Pem { ca, certificate: self.certificate.as_bytes(), key }, uri, today)
    }
}

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        (params.not_before, params.not_after) =
            (date_time_ymd(2020, 1, 1), date_time_ymd(2040, 1, 1));
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn issue(&self, uris: &[&str], validity: Validity) -> Issued {
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.issue_for(uris, validity, &both)
    }

    pub(crate) fn issue_for(
        &self,
        uris: &[&str],
        validity: Validity,
        usages: &[ExtendedKeyUsagePurpose],
    ) -> Issued {
        let mut params = CertificateParams::default();
        params.subject_alt_names =
            uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())).collect();
        params.extended_key_usages = usages.to_vec();
        let (from, to) = match validity {
            Validity::Past => (2024, 2025),
            Validity::Now => (2025, 2030),
            Validity::Future => (2030, 2031),
        };
        (params.not_before, params.not_after) =
            (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Issued { ca: self.pem(), certificate: certificate.pem(), key: key.serialize_pem() }
    }
}
