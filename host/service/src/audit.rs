//! A line for each request that changes something: who asked, from where, for what, and what came
//! of it. To the log, by the target `tilewright::audit`, and to a file of its own where one is
//! configured.

use std::{
    fs::File,
    io::Write,
    net::IpAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use serde::Serialize;

use crate::{clock, error::one_line};

/// Characters of a path that are written.
const LONGEST: usize = 300;

/// A request that changes something, or was to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// RFC 3339 in UTC.
    pub time: String,
    /// The token's name; `anybody` where none is asked for.
    pub who: String,
    /// The token's role.
    pub role: &'static str,
    /// The peer's address; a proxy's, where one is in front of the server.
    pub address: IpAddr,
    /// The subject of the client's certificate, where one was shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// `POST`, `PUT` or `DELETE`.
    pub method: String,
    /// The path that was asked for.
    pub path: String,
    /// The status that it was answered with.
    pub status: u16,
    /// The address of what was made by it, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub made: Option<String>,
}

impl Entry {
    /// A path as it may stand in a line.
    pub fn path(path: &str) -> String {
        path.chars().take(LONGEST).map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
    }

    /// The time that a line carries.
    pub fn now() -> String {
        clock::text(clock::now_ms())
    }
}

/// Writes lines.
#[derive(Debug, Default)]
pub struct Audit {
    path: Option<PathBuf>,
    /// One line after the other.
    writing: Mutex<()>,
}

impl Audit {
    /// To the log, and to a file where there is one.
    pub fn new(path: Option<&Path>) -> Self {
        Self { path: path.map(Path::to_owned), writing: Mutex::default() }
    }

    /// Writes a line. One that the file does not take is in the log, with why.
    pub fn write(&self, entry: &Entry) {
        let Entry { who, role, address, certificate, method, path, status, made, .. } = entry;
        tracing::info!(target: "tilewright::audit", who, role, %address, certificate, method, path, status, made, "changed");
        let Some(file) = &self.path else { return };
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // Opened for each line: whoever moves the file away, to begin another, need tell nobody.
        let written = serde_json::to_string(entry).map_err(std::io::Error::other).and_then(|line| {
            let mut file = File::options().create(true).append(true).mode(0o600).open(file)?;
            file.write_all(format!("{line}\n").as_bytes())
        });
        if let Err(error) = written {
            tracing::error!(error = one_line(&error), path = %file.display(), "the audit's file does not take a line: the log has it");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_line_each_and_a_file_that_is_moved_away_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let audit = Audit::new(Some(&path));
        let entry = Entry {
            time: "2026-01-02T03:04:05.678Z".into(),
            who: "ci".into(),
            role: "submit",
            address: "192.0.2.1".parse().unwrap(),
            certificate: None,
            method: "POST".into(),
            path: Entry::path("/v1/jobs\r\nx: y"),
            status: 202,
            made: Some("/v1/jobs/1".into()),
        };
        audit.write(&entry);
        audit.write(&entry);
        let line = r#"{"time":"2026-01-02T03:04:05.678Z","who":"ci","role":"submit","address":"192.0.2.1","method":"POST","path":"/v1/jobs??x:?y","status":202,"made":"/v1/jobs/1"}"#;
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{line}\n{line}\n"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::rename(&path, folder.path().join("audit.log.1")).unwrap();
        audit.write(&entry);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
        assert_eq!(Entry::path(&"a".repeat(5000)).len(), LONGEST);
    }
}
