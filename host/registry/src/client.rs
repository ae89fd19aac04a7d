//! Push and pull.

use serde::Serialize;
use tilewright_files::digest::{is_sha256, sha256};
use ureq::http::{HeaderValue, Method, header::HeaderMap};

use crate::{
    ArtifactInfo, Credentials, Error, Limits, Reach, Reference, Result,
    artifact::{self, MANIFEST},
    session::Session,
    transport::Parts,
};

/// The manifest's digest as the registry has it.
const DIGEST: &str = "docker-content-digest";

/// The result of a push.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pushed {
    /// The name with the digest, which always denotes this policy.
    pub reference: String,
    /// The manifest's digest.
    pub digest: String,
}

/// The result of a pull: the bytes have the promised digests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The policy's file.
    pub wasm: Vec<u8>,
    /// The text of its signature, if it came with one; it has not been verified yet.
    pub signature: Option<String>,
    /// The manifest's digest.
    pub digest: String,
    /// The name with the digest.
    pub reference: String,
}

/// One registry, for one repository.
pub struct Client {
    session: Session,
    limits: Limits,
}

impl Client {
    /// A client of a reference's registry: over TLS, unless it is on this machine or `plain_http`
    /// allows otherwise. The time for all its requests begins now.
    ///
    /// # Errors
    /// [`Error::Reference`] if its registry is not an address.
    pub fn new(
        reference: &Reference,
        credentials: Credentials,
        plain_http: bool,
        reach: Reach,
        limits: Limits,
    ) -> Result<Self> {
        Ok(Self { session: Session::new(reference, credentials, plain_http, reach, limits)?, limits })
    }

    /// Uploads a policy under the reference's tag.
    ///
    /// # Errors
    /// [`Error::Reference`] without a tag; the errors of the registry and the connection.
    pub fn push(
        &self,
        reference: &Reference,
        wasm: &[u8],
        about: &ArtifactInfo,
        signature: Option<&str>,
    ) -> Result<Pushed> {
        let (Some(tag), None) = (reference.tag(), reference.digest()) else {
            let detail = "a push needs a tag, and no digest".into();
            return Err(Error::Reference { text: reference.to_string(), detail });
        };
        let laid = artifact::pack(wasm, about, signature);
        self.upload(wasm)?;
        self.upload(&laid.config)?;
        let headers = vec![("content-type", HeaderValue::from_static(MANIFEST))];
        let parts = Parts { headers, body: Some(&laid.manifest) };
        let url = self.session.url(&format!("manifests/{tag}"))?;
        let response = self.session.expect(&[200, 201], "pushing the manifest", Method::PUT, url, parts)?;
        let digest = sha256(&laid.manifest);
        same_digest(response.headers(), &digest, reference)?;
        Ok(Pushed { reference: reference.pin(&digest), digest })
    }

    /// Downloads the policy that a reference names.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotAPolicy`], [`Error::TooLarge`], [`Error::Digest`]; the
    /// errors of the registry and the connection.
    pub fn pull(&self, reference: &Reference) -> Result<Pulled> {
        let (manifest, digest) = self.manifest(reference)?;
        let found = artifact::read(&manifest, reference)?;
        let wasm = self.layer(reference, &found.layer, found.bytes)?;
        Ok(Pulled { wasm, signature: found.signature, reference: reference.pin(&digest), digest })
    }

    fn manifest(&self, reference: &Reference) -> Result<(Vec<u8>, String)> {
        let headers = vec![("accept", HeaderValue::from_static(MANIFEST))];
        let url = self.session.url(&format!("manifests/{}", reference.manifest()))?;
        let parts = Parts { headers, body: None };
        let mut response = self.session.expect(&[200], "asking for the manifest", Method::GET, url, parts)?;
        let manifest = self.session.body("manifest", &mut response, self.limits.manifest_bytes)?;
        let digest = sha256(&manifest);
        if let Some(expected) = reference.digest().filter(|expected| *expected != digest) {
            return Err(wrong_digest(reference, "manifest", expected, &digest));
        }
        same_digest(response.headers(), &digest, reference)?;
        Ok((manifest, digest))
    }

    /// Downloads the layer from the registry itself: other addresses that a manifest may give are
    /// not used.
    fn layer(&self, reference: &Reference, expected: &str, bytes: u64) -> Result<Vec<u8>> {
        let most = self.limits.policy_bytes;
        if bytes > most {
            return Err(Error::TooLarge { reference: reference.to_string(), what: "policy", most });
        }
        let url = self.session.url(&format!("blobs/{expected}"))?;
        let mut response = self.session.expect(&[200], "asking for the policy", Method::GET, url, Parts::default())?;
        // A body that is longer than the manifest says is something else, so reading stops.
        let wasm = self.session.body("policy", &mut response, bytes)?;
        let digest = sha256(&wasm);
        if digest != expected {
            return Err(wrong_digest(reference, "policy", expected, &digest));
        }
        Ok(wasm)
    }

    /// Uploads what the registry doesn't have yet.
    fn upload(&self, bytes: &[u8]) -> Result<()> {
        const WHAT: &str = "pushing the policy";
        let digest = sha256(bytes);
        let known = self.session.url(&format!("blobs/{digest}"))?;
        if self.session.ask(WHAT, Method::HEAD, known, Parts::default())?.status() == 200 {
            return Ok(());
        }
        let url = self.session.url("blobs/uploads/")?;
        let empty = Parts { headers: Vec::new(), body: Some(&[]) };
        let begun = self.session.expect(&[202], WHAT, Method::POST, url.clone(), empty)?;
        let place = self.session.location(WHAT, &url, &begun)?.to_string();
        let joint = if place.contains('?') { '&' } else { '?' };
        let place = format!("{place}{joint}digest={digest}")
            .parse()
            .map_err(|_| Error::Transport { registry: place, detail: "it gives no address to upload to".into() })?;
        let headers = vec![("content-type", HeaderValue::from_static("application/octet-stream"))];
        self.session.expect(&[201], WHAT, Method::PUT, place, Parts { headers, body: Some(bytes) })?;
        Ok(())
    }
}

/// Checks the digest of the manifest, if the registry states it.
fn same_digest(headers: &HeaderMap, digest: &str, reference: &Reference) -> Result<()> {
    let said = headers.get(DIGEST).and_then(|value| value.to_str().ok());
    match said.filter(|said| is_sha256(said) && *said != digest) {
        Some(said) => Err(wrong_digest(reference, "manifest", said, digest)),
        None => Ok(()),
    }
}

fn wrong_digest(reference: &Reference, what: &'static str, expected: &str, found: &str) -> Error {
    Error::Digest { reference: reference.to_string(), what, expected: expected.into(), found: found.into() }
}
