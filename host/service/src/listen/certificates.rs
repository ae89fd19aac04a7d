//! Certificates and keys: read at the start, and again when their files change. A pair that can't
//! be used changes nothing.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tilewright_config::Tls;
use tokio_rustls::TlsAcceptor;

use crate::{Error, Result};

/// The size of the largest file of certificates, in bytes.
const LARGEST: u64 = 4 << 20;

/// The files' contents; none for a file that can't be read.
type Contents = Vec<Option<Vec<u8>>>;

/// The certificates and key of new connections.
pub struct Certificates {
    tls: Tls,
    current: ArcSwap<ServerConfig>,
    /// The contents as last read, usable or not: unchanged contents are not tried again.
    last_contents: Mutex<Contents>,
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// [`Error::Credential`] if a file can't be used.
    pub fn open(tls: &Tls) -> Result<Self> {
        let last_contents = read_contents(tls);
        let current = ArcSwap::new(server_config(tls)?);
        Ok(Self { tls: tls.clone(), current, last_contents: Mutex::new(last_contents) })
    }

    /// The acceptor of the next connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.load_full())
    }

    /// The paths of the files.
    pub fn paths(&self) -> Vec<PathBuf> {
        paths(&self.tls).map(Path::to_owned).collect()
    }

    /// Puts the files' present contents in force; true if they are new. Existing connections stay
    /// as they are.
    ///
    /// # Errors
    /// [`Error::Credential`] if new contents can't be used: the previous ones stay. Reported once,
    /// until the files change again.
    pub fn refresh(&self) -> Result<bool> {
        let now = read_contents(&self.tls);
        let mut last_contents = self.last_contents.lock().unwrap_or_else(PoisonError::into_inner);
        if *last_contents == now {
            return Ok(false);
        }
        *last_contents = now;
        drop(last_contents);
        self.current.store(server_config(&self.tls)?);
        Ok(true)
    }
}

fn paths(tls: &Tls) -> impl Iterator<Item = &Path> {
    [&tls.certificate, &tls.key].into_iter().chain(&tls.clients).map(PathBuf::as_path)
}

fn read_contents(tls: &Tls) -> Contents {
    paths(tls).map(|path| read(path).ok()).collect()
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    tilewright_files::read(path, LARGEST)
}

/// A certificate or key that does not serve.
#[derive(Debug)]
pub struct CertificateFault {
    /// The file's key in `[server.tls]`.
    pub key: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The fault, and the contents expected.
    pub reason: String,
}

impl From<CertificateFault> for Error {
    fn from(CertificateFault { path, reason, .. }: CertificateFault) -> Self {
        Error::Credential { path, reason }
    }
}

/// The configuration of connections by the files of `[server.tls]`.
///
/// # Errors
/// The first file that can't be used, or a certificate that does not go with its key.
pub fn server_config(tls: &Tls) -> std::result::Result<Arc<ServerConfig>, CertificateFault> {
    type Read<T> = std::result::Result<T, CertificateFault>;
    let wrong = |key, path: &Path, reason: String| CertificateFault { key, path: path.to_owned(), reason };
    let read = |key, path: &Path| read(path).map_err(|error| wrong(key, path, format!("can't be read: {error}")));
    let certificates = |key, path: &Path| -> Read<Vec<CertificateDer<'static>>> {
        let all = CertificateDer::pem_slice_iter(&read(key, path)?).collect::<std::result::Result<Vec<_>, _>>();
        let all = all.map_err(|error| wrong(key, path, format!("expected certificates in PEM: {error}")))?;
        if all.is_empty() { Err(wrong(key, path, "no certificate in it: expected PEM".into())) } else { Ok(all) }
    };
    let of_certificate = |reason| wrong("certificate", &tls.certificate, reason);
    let chain = certificates("certificate", &tls.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&read("key", &tls.key)?);
    let key = key.map_err(|error| wrong("key", &tls.key, format!("expected a private key in PEM: {error}")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| of_certificate(error.to_string()))?;
    let builder = match &tls.clients {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let wrong = |reason| wrong("clients", path, reason);
            let mut roots = RootCertStore::empty();
            for certificate in certificates("clients", path)? {
                roots.add(certificate).map_err(|error| wrong(format!("no authority's certificate: {error}")))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| wrong(error.to_string()))?)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| of_certificate(format!("does not go with {}: {error}", tls.key.display())))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn write(folder: &Path, certificate: bool, key: bool) {
        let pair = KeyPair::generate().unwrap();
        let own = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&pair).unwrap();
        if certificate {
            fs::write(folder.join("cert.pem"), own.pem()).unwrap();
        }
        if key {
            fs::write(folder.join("key.pem"), pair.serialize_pem()).unwrap();
        }
    }

    #[test]
    fn a_new_pair_takes_over_and_a_broken_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(folder, true, true);
        let tls = Tls { certificate: folder.join("cert.pem"), key: folder.join("key.pem"), clients: None };
        let certificates = Certificates::open(&tls).unwrap();
        let current = || Arc::as_ptr(&certificates.current.load_full());
        let first = current();
        assert!(!certificates.refresh().unwrap() && current() == first);
        // Only one of the two has been written so far.
        write(folder, true, false);
        let told = certificates.refresh().unwrap_err().to_string();
        assert!(told.contains("does not go with") && current() == first, "{told}");
        assert!(!certificates.refresh().unwrap(), "said once");
        fs::write(folder.join("cert.pem"), "nothing").unwrap();
        assert!(certificates.refresh().is_err() && current() == first);
        fs::remove_file(folder.join("cert.pem")).unwrap();
        assert!(certificates.refresh().is_err() && current() == first);
        write(folder, true, true);
        assert!(certificates.refresh().unwrap() && current() != first);
    }
}
