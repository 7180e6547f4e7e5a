//! The cluster secret: proves in the handshake that both sides belong to the cluster.
//!
//! Its bytes are never shown by `Debug`, never copied, wiped when the last holder drops them, and
//! compared in constant time only. Deliberately absent: where it comes from, and its encryption of
//! anything (it authenticates the handshake, not the bytes that follow).

use core::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretSlice};
use sha2::Sha256;

use siloring_core::limits::SECRET_BYTES_MIN;

use crate::facts::Role;

/// Bytes of a message authentication code.
pub(crate) const MAC_BYTES: usize = 32;

/// Tells these signatures from any other use of the same secret.
const LABEL: &[u8] = b"siloring handshake 1\0";

/// Why bytes are no cluster secret. Nothing was changed; give a longer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cluster secret of {length_bytes} bytes is shorter than {SECRET_BYTES_MIN}")]
pub struct SecretError {
    /// How many bytes were given.
    pub length_bytes: usize,
}

/// One cluster secret. Cloning it copies no bytes.
#[derive(Clone)]
pub struct Secret(Arc<SecretSlice<u8>>);

impl Secret {
    /// Takes the bytes of a secret: at least [`SECRET_BYTES_MIN`].
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, SecretError> {
        let bytes = bytes.into();
        if bytes.len() < SECRET_BYTES_MIN {
            return Err(SecretError { length_bytes: bytes.len() });
        }
        Ok(Self(Arc::new(bytes.into())))
    }

    /// The signature of `role` under a handshake's transcript.
    pub(crate) fn sign(&self, role: Role, transcript: &Transcript) -> [u8; MAC_BYTES] {
        self.mac(role, transcript).finalize().into_bytes().into()
    }

    /// Whether `signature` is that of `role` under this secret. Takes the same time for every
    /// answer.
    pub(crate) fn verify(
        &self,
        role: Role,
        transcript: &Transcript,
        signature: &[u8; MAC_BYTES],
    ) -> bool {
        self.mac(role, transcript).verify_slice(signature).is_ok()
    }

    fn mac(&self, role: Role, transcript: &Transcript) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.expose_secret())
            .expect("HMAC takes a key of any length");
        mac.update(LABEL);
        mac.update(match role {
            Role::Dialer => b"dialer\0\0",
            Role::Acceptor => b"acceptor",
        });
        mac.update(&transcript.hello);
        mac.update(&transcript.answer);
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret(not shown)")
    }
}

/// What both sides sign: digests of the Hello frame and of the `HelloAck` frame without its
/// signature. They hold both nonces, both identities, the purpose and the agreed limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transcript {
    pub(crate) hello: [u8; 32],
    pub(crate) answer: [u8; 32],
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        Transcript { hello: [1; 32], answer: [2; 32] }
    }

    #[test]
    fn a_secret_is_never_shown() {
        let secret = Secret::new("hunter2-hunter2-hunter2").unwrap();
        assert_eq!(format!("{secret:?} {secret:#?}"), "Secret(not shown) Secret(not shown)");
    }

    #[test]
    fn a_short_secret_is_refused_by_its_length() {
        assert_eq!(
            Secret::new(vec![7; SECRET_BYTES_MIN - 1]).unwrap_err(),
            SecretError { length_bytes: SECRET_BYTES_MIN - 1 }
        );
        assert!(Secret::new(vec![7; SECRET_BYTES_MIN]).is_ok());
    }

    #[test]
    fn a_signature_holds_for_its_role_secret_and_transcript_only() {
        let secret = Secret::new(vec![7; 32]).unwrap();
        let signature = secret.sign(Role::Dialer, &transcript());
        assert!(secret.verify(Role::Dialer, &transcript(), &signature));
        assert!(!secret.verify(Role::Acceptor, &transcript(), &signature), "reflected");
        let other = Transcript { hello: [3; 32], ..transcript() };
        assert!(!secret.verify(Role::Dialer, &other, &signature), "replayed");
        let foreign = Secret::new(vec![8; 32]).unwrap();
        assert!(!foreign.verify(Role::Dialer, &transcript(), &signature), "forged");
    }
}
