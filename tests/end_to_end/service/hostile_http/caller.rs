//! The caller that sends bad requests, and the statuses that refuse them.

use std::{fs, path::PathBuf};

use serde_json::json;

use super::wire::{CLOSED, request};
use crate::program::fixture;

/// The configuration of the service, in lower case.
pub const TOKEN: &str = "correct-horse-battery-staple";

/// The most bytes that a body may have; far less than the default, so that a body that is too large
/// is cheap.
pub const UPLOAD: usize = 128 << 10;

/// The statuses that may answer a mistake: what it is, or that the service hung up.
pub type Statuses = &'static [u16];
pub const REFUSED: Statuses = &[400, 422];
pub const UNAUTHORIZED: Statuses = &[401];
pub const NOWHERE: Statuses = &[400, 404];
pub const UNKNOWN: Statuses = &[400, 404, 422];
pub const FORBIDDEN: Statuses = &[400, 403, 404, 422];
pub const FOREIGN: Statuses = &[400, 403, 421];
pub const GARBAGE: Statuses = &[400, CLOSED];
pub const LARGE: Statuses = &[413, CLOSED];
pub const LONG: Statuses = &[400, 414, 431, CLOSED];
pub const MANY: Statuses = &[400, 413, 422, 431, CLOSED];
pub const METHOD: Statuses = &[400, 404, 405, 501];
pub const CODING: Statuses = &[400, 501, CLOSED];
pub const MEDIA: Statuses = &[400, 415];

/// A request that is answered by one of these.
pub struct Attack {
    pub name: String,
    pub bytes: Vec<u8>,
    pub accepted: Statuses,
}

pub fn attack(name: impl Into<String>, bytes: impl Into<Vec<u8>>, accepted: Statuses) -> Attack {
    Attack { name: name.into(), bytes: bytes.into(), accepted }
}

pub struct Caller {
    /// The header line with the token; empty for a service that has none.
    pub bearer: String,
    /// The folder that jobs may name paths in.
    pub root: PathBuf,
}

impl Caller {
    pub fn ask(&self, line: &str) -> Vec<u8> {
        request(line, &self.bearer, "")
    }

    pub fn send(&self, line: &str, kind: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
        request(line, format!("{}Content-Type: {kind}\r\n", self.bearer), body)
    }

    /// Asks for a job in JSON.
    pub fn json(&self, body: impl AsRef<[u8]>) -> Vec<u8> {
        self.send("POST /v1/jobs", "application/json", body)
    }

    /// Asks for a job in parts.
    pub fn parts(&self, parts: &[Vec<u8>]) -> Vec<u8> {
        self.send("POST /v1/jobs", "multipart/form-data; boundary=b", whole(parts))
    }

    /// A job as it should be, and `more`: members, each after a comma.
    pub fn job(&self, more: &str) -> String {
        let path = json!(self.root.join("latent.safetensors"));
        format!(r#"{{"model":"flux","latent_path":{path}{more}}}"#)
    }
}

/// A part; what goes before it is the boundary `b`.
pub fn part(disposition: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let head = format!("--b\r\nContent-Disposition: form-data; {disposition}\r\n\r\n");
    [head.as_bytes(), body.as_ref(), b"\r\n"].concat()
}

/// Parts and their end.
pub fn whole(parts: &[Vec<u8>]) -> Vec<u8> {
    [&parts.concat()[..], b"--b--\r\n"].concat()
}

/// The two parts that an upload has.
pub fn upload(latent: impl AsRef<[u8]>) -> [Vec<u8>; 2] {
    [part("name=\"request\"", r#"{"model":"flux"}"#), part("name=\"latent\"; filename=\"x\"", latent)]
}

/// One that decodes in no time.
pub fn latent() -> Vec<u8> {
    fs::read(fixture("flux-bfl/latent.safetensors")).unwrap()
}
