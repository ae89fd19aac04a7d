//! References: names of policies in registries.

use std::{fmt, net::IpAddr, str::FromStr};

use oci_spec::distribution;
use tilewright_files::digest::is_sha256;

use crate::{Error, Result};

/// `REGISTRY/NAME:TAG`, `REGISTRY/NAME@sha256:…`, or both. `oci://` may stand before it, or
/// `https://` to use TLS even for a registry on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    inner: distribution::Reference,
    has_tag: bool,
    tls: bool,
}

impl Reference {
    /// Host and port.
    pub fn registry(&self) -> &str {
        self.inner.resolve_registry()
    }

    /// The name within the registry.
    pub fn repository(&self) -> &str {
        self.inner.repository()
    }

    /// The name's last part, as in `wide`.
    pub fn name(&self) -> &str {
        let repository = self.repository();
        repository.rsplit('/').next().unwrap_or(repository)
    }

    /// The tag, if one was given.
    pub fn tag(&self) -> Option<&str> {
        self.inner.tag().filter(|_| self.has_tag)
    }

    /// The digest, if one was given: only this artifact is accepted then.
    pub fn digest(&self) -> Option<&str> {
        self.inner.digest()
    }

    /// The same name, pinned to this digest.
    pub fn pin(&self, digest: &str) -> String {
        format!("{}/{}@{digest}", self.inner.registry(), self.repository())
    }

    /// The manifest's name in the registry's API: tag or digest.
    pub(crate) fn manifest(&self) -> &str {
        self.digest().or(self.inner.tag()).unwrap_or("latest")
    }

    /// True if the registry is on this machine, and TLS was not asked for.
    pub(crate) fn is_loopback(&self) -> bool {
        !self.tls && is_loopback(self.registry())
    }
}

/// The text of a reference, for people: without `USER:PASSWORD@`, which no valid reference has and
/// a wrong one may.
pub fn without_user(text: &str) -> String {
    let (scheme, name) = text.find("://").map_or(("", text), |at| text.split_at(at + "://".len()));
    let is_user = |at: &usize| {
        let (before, after) = (&name[..*at], &name[at + 1..]);
        let is_digest = after.starts_with("sha256:") || after.starts_with("sha512:");
        // A password may contain the separators of a name.
        !is_digest && (after.contains('/') || !before.contains('/'))
    };
    let end = name.rmatch_indices('@').map(|(at, _)| at).find(is_user);
    format!("{scheme}{}", end.map_or(name, |at| &name[at + 1..]))
}

/// True if a host (with its port) is this machine.
pub(crate) fn is_loopback(authority: &str) -> bool {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |detail: &str| Error::Reference { text: without_user(text), detail: detail.into() };
        let tls = text.strip_prefix("https://");
        let name = tls.or_else(|| text.strip_prefix("oci://")).unwrap_or(text);
        // An omitted registry would mean Docker's, and publish a private policy there.
        let registry = name.split_once('/').map(|(registry, _)| registry);
        if !registry.is_some_and(|registry| registry == "localhost" || registry.contains(['.', ':'])) {
            return Err(wrong("it names no registry"));
        }
        let inner: distribution::Reference = name.parse().map_err(|error: distribution::ParseError| match error {
            distribution::ParseError::ReferenceInvalidFormat if name.contains(|c: char| c.is_ascii_uppercase()) => {
                wrong("it is not a name in a registry, where names are in lower case")
            }
            distribution::ParseError::ReferenceInvalidFormat => wrong("it is not a name in a registry"),
            error => wrong(&error.to_string()),
        })?;
        if inner.digest().is_some_and(|digest| !is_sha256(digest)) {
            return Err(wrong("of digests, sha256: with 64 lower-case hexadecimal digits is known here"));
        }
        let last = name.split('@').next().and_then(|name| name.rsplit('/').next()).unwrap_or_default();
        Ok(Self { inner, has_tag: last.contains(':'), tls: tls.is_some() })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.inner.registry(), self.repository())?;
        if let Some(tag) = self.inner.tag().filter(|_| self.has_tag || self.digest().is_none()) {
            write!(f, ":{tag}")?;
        }
        self.digest().map_or(Ok(()), |digest| write!(f, "@{digest}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_has_its_parts() {
        let digest = format!("sha256:{}", "a1".repeat(32));
        let pinned = format!("oci://ghcr.io/ada/policies/wide@{digest}");
        for (text, registry, repository, tag, pin) in [
            ("ghcr.io/ada/wide:1.0.0", "ghcr.io", "ada/wide", Some("1.0.0"), None),
            ("localhost:5000/wide", "localhost:5000", "wide", None, None),
            ("127.0.0.1:5000/a/wide:x", "127.0.0.1:5000", "a/wide", Some("x"), None),
            ("https://localhost:5000/wide:1", "localhost:5000", "wide", Some("1"), None),
            (&pinned, "ghcr.io", "ada/policies/wide", None, Some(digest.as_str())),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(
                (reference.registry(), reference.repository(), reference.tag(), reference.digest()),
                (registry, repository, tag, pin)
            );
            assert_eq!(reference.name(), if repository == "wide" { "wide" } else { reference.name() });
        }
        assert_eq!(pinned.parse::<Reference>().unwrap().name(), "wide");
    }

    #[test]
    fn a_password_in_a_reference_is_not_told() {
        let pin = format!("host/x@sha256:{}", "a1".repeat(32));
        let pinned = format!("ada:secret@{pin}");
        for (text, told) in [
            ("ada:secret@host:22/x:1", "host:22/x:1"),
            ("oci://ada:secret@host/x:1", "oci://host/x:1"),
            ("https://ada:sec/r@et@host/x", "https://host/x"),
            ("ada:secret@host", "host"),
            (&pinned, &pin),
            (&pin, &pin),
            ("ghcr.io/ada/wide@latest", "ghcr.io/ada/wide@latest"),
            ("ghcr.io/ada/wide:1", "ghcr.io/ada/wide:1"),
        ] {
            assert_eq!(without_user(text), told);
        }
        let error = pinned.parse::<Reference>().unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn only_this_machine_is_asked_without_tls() {
        for (text, expected) in [
            ("localhost:5000/wide", true),
            ("127.0.0.1/wide", true),
            ("127.8.8.8:80/wide", true),
            ("https://localhost:5000/wide", false),
            ("localhost.example:5000/wide", false),
            ("127.0.0.1.example/wide", false),
            ("128.0.0.1/wide", false),
        ] {
            assert_eq!(text.parse::<Reference>().unwrap().is_loopback(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_reference_says_why() {
        for (text, words) in [
            ("wide", "names no registry"),
            ("ada/wide:1", "names no registry"),
            ("", "names no registry"),
            ("ghcr.io/", "not a name in a registry"),
            ("ghcr.io/ada/Wide:1", "lower case"),
            ("ghcr.io/ada/wide@sha256:12", ""),
            ("ghcr.io/ada/wide@sha512:aa", ""),
            ("http://ghcr.io/ada/wide", "not a name"),
            ("ghcr.io/ada/wide:1 --plain-http", "not a name"),
        ] {
            let error = text.parse::<Reference>().unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("REGISTRY/NAME:TAG"), "{error}");
        }
    }
}
