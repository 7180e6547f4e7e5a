//! The certificate files: read at the start, and again when they have changed.
//!
//! A change is seen by the files' numbers, sizes and times, which also shows a link that points
//! elsewhere now. What is read is taken whole or not at all: while one of three files is new and
//! another is old they do not fit, and the next change is waited for.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use siloring_core::limits::TLS_FILE_BYTES_MAX;
use siloring_transport::{Certificates, CertificatesError, Pem, TlsFile};

use super::clock;

/// Where a silo's certificates are: PEM files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tls {
    /// The certificates of all CAs whose silos are trusted.
    pub ca: PathBuf,
    /// The silo's certificate, then those between it and a CA. It names
    /// `siloring://<cluster>/<silo>` and is issued for both roles.
    pub certificate: PathBuf,
    /// The silo's private key.
    pub key: PathBuf,
}

impl Tls {
    fn path(&self, file: TlsFile) -> &Path {
        match file {
            TlsFile::Ca => &self.ca,
            TlsFile::Certificate => &self.certificate,
            TlsFile::Key => &self.key,
        }
    }
}

/// Why certificate files were not taken. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} cannot be read ({detail}): correct the path or its rights", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system said.
        detail: String,
    },
    /// What is in the files cannot be used.
    #[error("{}: {error}", path.display())]
    Wrong {
        /// In which the fault is.
        path: PathBuf,
        /// What is wrong, and the remedy.
        error: CertificatesError,
    },
}

/// What tells one state of a file from another.
type Stamp = (u64, u64, u64, i64, i64);

/// The files of one silo.
#[derive(Debug)]
pub(crate) struct CertificateFiles {
    tls: Tls,
    uri: String,
    /// As they were when they were read last; `None` for one that could not be looked at.
    stamps: [Option<Stamp>; 3],
}

impl CertificateFiles {
    /// The files of a silo whose certificate must name `uri`.
    pub(crate) fn new(tls: Tls, uri: String) -> Self {
        Self { tls, uri, stamps: [None; 3] }
    }

    /// Reads them.
    pub(crate) fn read(&mut self) -> Result<Certificates, TlsError> {
        // Looked at before they are read: what changes in between is seen next time.
        self.stamps = self.look();
        let (ca, certificate, key) =
            (read(&self.tls.ca)?, read(&self.tls.certificate)?, read(&self.tls.key)?);
        let pem = Pem { ca: &ca, certificate: &certificate, key: &key };
        Certificates::new(pem, &self.uri, clock::wall).map_err(|error| {
            let path = self.tls.path(error.file()).to_owned();
            TlsError::Wrong { path, error }
        })
    }

    /// Reads them if they have changed since.
    pub(crate) fn read_changed(&mut self) -> Option<Result<Certificates, TlsError>> {
        (self.look() != self.stamps).then(|| self.read())
    }

    fn look(&self) -> [Option<Stamp>; 3] {
        [&self.tls.ca, &self.tls.certificate, &self.tls.key].map(|path| {
            let found = fs::metadata(path).ok()?;
            Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| {
        file.take(TLS_FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > TLS_FILE_BYTES_MAX {
            let text = format!("it is longer than {TLS_FILE_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        Ok(())
    });
    let unreadable = |error: io::Error| TlsError::Unreadable {
        path: path.to_owned(),
        detail: error.to_string(),
    };
    read.map_err(unreadable)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use siloring_testkit::certificates::{Authority, Validity};

    use super::*;

    const URI: &str = "siloring://demo/pod-a";

    fn files(folder: &Path) -> CertificateFiles {
        let [ca, certificate, key] =
            ["ca.pem", "certificate.pem", "key.pem"].map(|name| folder.join(name));
        CertificateFiles::new(Tls { ca, certificate, key }, URI.to_owned())
    }

    #[test]
    fn files_are_read_again_when_they_have_changed_and_taken_whole_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("ca");
        authority.issue(&[URI], Validity::Now).write(folder.path()).unwrap();
        let mut files = files(folder.path());
        assert!(files.read().is_ok());
        assert!(files.read_changed().is_none(), "nothing has changed");
        // Half of a renewal: the old key stays beside the new certificate.
        let renewed = authority.issue(&[URI], Validity::Now);
        let certificate = folder.path().join("certificate.pem");
        fs::write(&certificate, &renewed.certificate).unwrap();
        let error = files.read_changed().unwrap().unwrap_err();
        assert!(error.to_string().contains("key.pem"), "{error}");
        assert!(files.read_changed().is_none(), "it is told once");
        renewed.write(folder.path()).unwrap();
        assert!(files.read_changed().unwrap().is_ok());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = files(folder.path());
        let error = files.read().unwrap_err().to_string();
        assert!(error.contains("ca.pem") && error.ends_with("correct the path or its rights"));
        fs::write(folder.path().join("ca.pem"), vec![b'x'; (1 << 20) + 1]).unwrap();
        assert!(files.read_changed().unwrap().unwrap_err().to_string().contains("longer"));
    }
}
