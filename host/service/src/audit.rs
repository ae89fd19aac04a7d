//! A line for each request that changes something: the caller, its address, the request and its
//! outcome; and one for each refused reload. It goes to the log, under the target
//! `tilewright::audit`, and to a file of its own if one is configured.

use std::{
    fs::File,
    io::{self, ErrorKind, Write},
    net::IpAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use serde::Serialize;
use tilewright_config::ConfigSource;

use crate::{clock, error::one_line};

/// The most characters of a path that are written.
const LONGEST: usize = 300;

/// The caller of a reload, which a changed file or a signal asks for.
const SERVER: &str = "the server";

/// A request that changed something or tried to, or a reload that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditEntry {
    /// The time, RFC 3339 in UTC.
    pub time: String,
    /// The token's name; `anybody` if none is asked for.
    pub who: String,
    /// The token's role.
    pub role: &'static str,
    /// The peer's address: the proxy's, if one is in front of the server. A reload has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The subject of the client's certificate, if it showed one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// `POST`, `PUT` or `DELETE`; `RELOAD` if the configuration or a token's file was read again.
    pub method: String,
    /// The path that was asked for; of a reload, the configuration's file.
    pub path: String,
    /// The status of the answer.
    pub status: u16,
    /// The address of the resource that it made, if that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub made: Option<String>,
    /// The fault of a reload, in a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

impl AuditEntry {
    /// The line of a reload that was refused, in whole or for one token.
    pub fn of_refused_reload(source: &ConfigSource, fault: &str) -> Self {
        Self {
            time: Self::now(),
            who: SERVER.into(),
            role: "none",
            address: None,
            certificate: None,
            method: "RELOAD".into(),
            path: Self::printable_path(&source.path().unwrap_or_default().to_string_lossy()),
            status: 422,
            made: None,
            fault: Some(fault.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()),
        }
    }

    /// A path fit for a line: shortened, in printable ASCII.
    pub fn printable_path(path: &str) -> String {
        path.chars().take(LONGEST).map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
    }

    /// The present time, as a line has it.
    pub fn now() -> String {
        clock::format_ms(clock::now_ms())
    }
}

/// The outcome of an action of the dashboard. The response itself only leads to a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionOutcome {
    /// The status that the API would have answered with.
    pub status: u16,
    /// The address of the resource that it made, if that has one.
    pub made: Option<String>,
}

/// The writer of lines.
#[derive(Debug, Default)]
pub struct AuditLog {
    path: Option<PathBuf>,
    /// Held while a line is written, so that lines don't mix.
    writing: Mutex<()>,
}

impl AuditLog {
    /// Lines go to the log, and to a file if there is one.
    pub fn new(path: Option<&Path>) -> Self {
        Self { path: path.map(Path::to_owned), writing: Mutex::default() }
    }

    /// Writes a line. If the file does not take it, the log has it, with the reason.
    pub fn write(&self, entry: &AuditEntry) {
        let AuditEntry { who, role, address, certificate, method, path, status, made, fault, .. } = entry;
        let address = address.map(|address| address.to_string());
        let outcome = if fault.is_none() { "changed" } else { "refused" };
        tracing::info!(target: "tilewright::audit", who, role, address, certificate, method, path, status, made, fault, "{outcome}");
        let Some(file) = &self.path else { return };
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // Opened for each line, so that the file can be moved away at any time to begin another.
        let line = serde_json::to_string(entry).unwrap_or_else(|_| format!("{entry:?}"));
        let written = open_for_append(file).and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        if let Err(error) = written {
            tracing::error!(error = one_line(&error), path = %file.display(), line, "the audit's file does not take a line: the log has it");
        }
    }
}

/// Opens the file to add to it, without waiting; one that is made is for its owner alone.
fn open_for_append(path: &Path) -> io::Result<File> {
    match File::options().create_new(true).append(true).mode(0o600).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => tilewright_files::append(path),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, process::Command};

    use super::*;

    fn entry() -> AuditEntry {
        AuditEntry {
            time: "2026-01-02T03:04:05.678Z".into(),
            who: "ci".into(),
            role: "submit",
            address: Some("192.0.2.1".parse().unwrap()),
            certificate: None,
            method: "POST".into(),
            path: AuditEntry::printable_path("/v1/jobs\r\nx: y"),
            status: 202,
            made: Some("/v1/jobs/1".into()),
            fault: None,
        }
    }

    #[test]
    fn a_refused_reload_has_its_fault_and_no_address() {
        let source = ConfigSource::File("/etc/tiles.toml".into());
        let refused = AuditEntry { time: entry().time, ..AuditEntry::of_refused_reload(&source, "no\ntoken") };
        let line = r#"{"time":"2026-01-02T03:04:05.678Z","who":"the server","role":"none","method":"RELOAD","path":"/etc/tiles.toml","status":422,"fault":"no token"}"#;
        assert_eq!(serde_json::to_string(&refused).unwrap(), line);
    }

    #[test]
    fn a_pipe_in_the_files_place_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert_eq!(open_for_append(&path).unwrap_err().to_string(), "a named pipe, not a file");
        let audit = AuditLog::new(Some(&path));
        audit.write(&entry());
        fs::remove_file(&path).unwrap();
        audit.write(&entry());
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
    }

    #[test]
    fn a_line_each_and_a_file_that_is_moved_away_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let audit = AuditLog::new(Some(&path));
        let entry = entry();
        audit.write(&entry);
        audit.write(&entry);
        let line = r#"{"time":"2026-01-02T03:04:05.678Z","who":"ci","role":"submit","address":"192.0.2.1","method":"POST","path":"/v1/jobs??x:?y","status":202,"made":"/v1/jobs/1"}"#;
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{line}\n{line}\n"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::rename(&path, folder.path().join("audit.log.1")).unwrap();
        audit.write(&entry);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
        assert_eq!(AuditEntry::printable_path(&"a".repeat(5000)).len(), LONGEST);
    }
}
