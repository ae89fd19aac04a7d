//! The files of `[server.tls]`, read as the service reads them.

use std::{path::Path, sync::Arc};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tilewright_config::{Config, Tls};

use crate::failure::Outcome;

/// Bytes of the largest file.
const LARGEST: u64 = 4 << 20;

/// A file that can't be used.
struct Unfit<'a> {
    /// The file's key in the configuration.
    key: &'static str,
    file: &'a Path,
    /// The fault, and the expected value.
    reason: String,
}

fn unfit<'a>(key: &'static str, file: &'a Path, reason: impl Into<String>) -> Unfit<'a> {
    Unfit { key, file, reason: reason.into() }
}

/// Reports the first file that can't be used, or a certificate that does not go with its key.
pub fn check(config: &Config) -> Outcome {
    let Some(tls) = &config.server.tls else { return Ok(()) };
    usable(tls).map_err(|Unfit { key, file, reason }| {
        config.error_at(&format!("server/tls/{key}"), format!("{}: {reason}", file.display())).into()
    })
}

fn usable(tls: &Tls) -> Result<(), Unfit<'_>> {
    let chain = certificates("certificate", &tls.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&read("key", &tls.key)?);
    let key = key.map_err(|error| unfit("key", &tls.key, format!("expected a private key in PEM: {error}")))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| unfit("certificate", &tls.certificate, error.to_string()))?;
    let builder = match &tls.clients {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates("clients", file)? {
                let added = roots.add(certificate);
                added.map_err(|error| unfit("clients", file, format!("no authority's certificate: {error}")))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| unfit("clients", file, error.to_string()))?)
        }
    };
    builder.with_single_cert(chain, key).map(drop).map_err(|error| {
        unfit("certificate", &tls.certificate, format!("does not go with {}: {error}", tls.key.display()))
    })
}

fn read<'a>(key: &'static str, file: &'a Path) -> Result<Vec<u8>, Unfit<'a>> {
    tilewright_files::read(file, LARGEST).map_err(|error| unfit(key, file, format!("can't be read: {error}")))
}

fn certificates<'a>(key: &'static str, file: &'a Path) -> Result<Vec<CertificateDer<'static>>, Unfit<'a>> {
    let all = CertificateDer::pem_slice_iter(&read(key, file)?).collect::<Result<Vec<_>, _>>();
    match all {
        Ok(all) if all.is_empty() => Err(unfit(key, file, "no certificate in it: expected PEM")),
        Ok(all) => Ok(all),
        Err(error) => Err(unfit(key, file, format!("expected certificates in PEM: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    #[test]
    fn files_that_do_not_serve_are_told_with_their_line() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["one", "two"] {
            let pair = KeyPair::generate().unwrap();
            let own = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&pair).unwrap();
            fs::write(at(&format!("{name}.pem")), own.pem()).unwrap();
            fs::write(at(&format!("{name}.key")), pair.serialize_pem()).unwrap();
        }
        fs::write(at("text"), "nothing").unwrap();
        let path = at("tilewright.toml");
        let told = |certificate: &str, key: &str, clients: &str| {
            let text = format!(
                "[server]\n[server.tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\nclients = \"{clients}\"\n"
            );
            check(&Config::parse(&text, &path).unwrap()).map_err(|failure| failure.to_string())
        };
        assert_eq!(told("one.pem", "one.key", "two.pem"), Ok(()));
        for (certificate, key, clients, line, words) in [
            ("missing", "one.key", "two.pem", 3, "missing: can't be read: No such file"),
            ("text", "one.key", "two.pem", 3, "text: no certificate in it: expected PEM"),
            ("one.pem", "text", "two.pem", 4, "text: expected a private key in PEM"),
            ("one.pem", "one.pem", "two.pem", 4, "one.pem: expected a private key in PEM"),
            ("one.pem", "two.key", "two.pem", 3, "does not go with"),
            ("one.pem", "one.key", "one.key", 5, "one.key: no certificate in it"),
        ] {
            let message = told(certificate, key, clients).unwrap_err();
            assert!(message.starts_with(&format!("{}:{line}: ", path.display())), "{message}");
            assert!(message.contains(words) && message.lines().count() == 1, "{message}");
        }
    }
}
