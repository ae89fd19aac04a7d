//! The files of `[server.tls]`, read as the service reads them.

use tilewright_config::Config;
use tilewright_service::{CertificateFault, server_config};

use crate::failure::Outcome;

/// Reports the first file that can't be used, or a certificate that does not go with its key.
pub fn check(config: &Config) -> Outcome {
    let Some(tls) = &config.server.tls else { return Ok(()) };
    server_config(tls).map(drop).map_err(|CertificateFault { key, path, reason }| {
        config.error_at(&format!("server/tls/{key}"), format!("{}: {reason}", path.display())).into()
    })
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
