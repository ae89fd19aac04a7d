//! What is in force, kept across restarts. The configuration says where a policy begins; what was swapped in since stays until the
//! configuration, or the file that it names, says something new.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::{Error, Result, canary::CanaryState, revision::Revision, source::Grants};

/// A revision that can be made again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptRevision {
    pub number: u64,
    pub digest: String,
    pub origin: String,
    pub since: String,
    pub settings: Vec<(String, String)>,
    pub grants: Grants,
}

impl From<&Revision> for KeptRevision {
    fn from(revision: &Revision) -> Self {
        let Revision { number, digest, origin, since, settings, grants, .. } = revision;
        Self {
            number: *number,
            digest: digest.clone(),
            origin: origin.clone(),
            since: since.clone(),
            settings: settings.clone(),
            grants: *grants,
        }
    }
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptPolicy {
    pub next: u64,
    /// The configuration of it, as text, and the digest that its source had.
    pub configured: String,
    pub seen: Option<String>,
    pub in_force: KeptRevision,
    pub previous: Option<KeptRevision>,
    pub paused: bool,
}

/// How a canary's trial ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptCanary {
    pub policy: String,
    pub digest: String,
    pub state: CanaryState,
    pub why: Option<String>,
}

/// Everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    pub policies: BTreeMap<String, KeptPolicy>,
    /// By route.
    pub canaries: BTreeMap<String, KeptCanary>,
}

/// The file.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
}

impl State {
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// What was kept. A file that can't be understood is put aside: the configuration says where to begin.
    pub fn read(&self) -> Result<Kept> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Kept::default()),
            Err(source) => return Err(self.error("read", source)),
        };
        serde_json::from_slice(&text).or_else(|error| {
            let aside = self.path.with_extension("damaged");
            tracing::warn!(%error, aside = %aside.display(), "what was in force can't be read: beginning from the configuration");
            fs::rename(&self.path, &aside).map_err(|source| self.error("written", source))?;
            Ok(Kept::default())
        })
    }

    pub fn write(&self, kept: &Kept) -> Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let write = || -> io::Result<()> {
            let text = serde_json::to_vec_pretty(kept)?;
            let mut file = NamedTempFile::new_in(folder)?;
            file.write_all(&text)?;
            file.as_file().sync_all()?;
            file.persist(&self.path)?;
            Ok(())
        };
        write().map_err(|source| self.error("written", source))
    }

    fn error(&self, verb: &'static str, source: io::Error) -> Error {
        Error::Storage { path: self.path.clone(), verb, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_comes_back_and_damage_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::at(folder.path().join("rollout.json"));
        assert_eq!(state.read().unwrap(), Kept::default());
        let mut kept = Kept::default();
        let (policy, digest) = ("new".to_owned(), "sha256:00".to_owned());
        kept.canaries.insert("video".into(), KeptCanary { policy, digest, state: CanaryState::Stopped, why: None });
        state.write(&kept).unwrap();
        assert_eq!(state.read().unwrap(), kept);
        fs::write(folder.path().join("rollout.json"), "{").unwrap();
        assert_eq!(state.read().unwrap(), Kept::default());
        assert!(folder.path().join("rollout.damaged").exists());
    }
}
