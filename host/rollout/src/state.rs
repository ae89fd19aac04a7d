//! The revisions in force, saved across restarts. The configuration gives a policy's first
//! revision; a later swap stays until the configuration, or the file that it names, changes.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{Disk, Error, Result, canary::CanaryState, source::Grants};

/// The version of the file that this program writes. Version 0 had no version field, and no numbers
/// of policies that are no longer configured.
const VERSION: u32 = 1;

/// The jump of numbers if the file is damaged: beyond all that were used since its copy was made.
const JUMP: u64 = 1000;

/// The most bytes of a state file that is read.
const MOST_BYTES: u64 = 256 << 20;

/// The part of a revision that outlives the server, from which it can be loaded again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRevision {
    /// Counted from 1 over the policy's life, across restarts.
    pub number: u64,
    pub digest: String,
    /// The module's origin, in words.
    pub origin: String,
    /// The time when it first took over, RFC 3339 in UTC.
    pub since: String,
    pub settings: Vec<(String, String)>,
    pub grants: Grants,
}

impl SavedRevision {
    /// True if it decides as the other one does and has the same number.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.number, &self.digest, &self.settings, self.grants)
            == (other.number, &other.digest, &other.settings, other.grants)
    }
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedPolicy {
    pub next: u64,
    /// The policy's configuration as text, and the digest of its source at that time.
    pub configured: String,
    pub seen: Option<String>,
    pub in_force: SavedRevision,
    pub previous: Option<SavedRevision>,
    pub paused: bool,
    #[serde(default)]
    pub paused_by_watchdog: bool,
}

impl SavedPolicy {
    /// The revision in force, and the one before it.
    pub fn revisions(&self) -> impl Iterator<Item = &SavedRevision> {
        std::iter::once(&self.in_force).chain(&self.previous)
    }
}

/// The end of a canary's trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedCanary {
    pub policy: String,
    pub digest: String,
    pub state: CanaryState,
    pub why: Option<String>,
}

/// The saved state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedState {
    pub version: u32,
    pub policies: BTreeMap<String, SavedPolicy>,
    /// By route.
    pub canaries: BTreeMap<String, SavedCanary>,
    /// The next revision numbers of policies that are no longer configured; one that is configured
    /// again continues from there.
    pub numbers: BTreeMap<String, u64>,
}

impl SavedState {
    /// The next revision number of every policy that ever existed.
    pub fn next_numbers(&self) -> BTreeMap<String, u64> {
        let mut numbers = self.numbers.clone();
        for (name, policy) in &self.policies {
            let given = policy.revisions().map(|revision| revision.number.saturating_add(1)).max();
            raise(&mut numbers, name, policy.next.max(given.unwrap_or(1)));
        }
        numbers
    }
}

/// Raises the next number of a policy to `next`, unless it is higher already.
pub fn raise(numbers: &mut BTreeMap<String, u64>, name: &str, next: u64) {
    let known = numbers.entry(name.to_owned()).or_insert(1);
    *known = next.max(*known);
}

/// The file.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
    disk: Disk,
}

impl State {
    pub fn at(path: PathBuf, disk: Disk) -> Self {
        Self { path, disk }
    }

    /// The saved state; empty if there is no file. A malformed file is quarantined: the
    /// configuration gives the first revisions, and numbers continue well above those of the copy
    /// made with the change before.
    ///
    /// # Errors
    /// [`Error::Storage`] if the file can't be read, [`Error::Newer`] if a newer program has
    /// written it.
    pub fn read(&self) -> Result<SavedState> {
        let Some(text) = self.text(&self.path)? else { return Ok(SavedState::default()) };
        match self.parse(&text)? {
            Ok(saved) => Ok(saved),
            Err(error) => {
                let aside = self.path.with_extension("damaged");
                tracing::warn!(%error, aside = %aside.display(), "the state file can't be read: beginning from the configuration");
                let mut saved = SavedState::default();
                if let Some(Ok(before)) = self.text(&self.copy())?.map(|text| self.parse(&text)).transpose()? {
                    saved.numbers = before.next_numbers();
                    saved.numbers.values_mut().for_each(|next| *next += JUMP);
                }
                // The copy also stays in place until a new file replaces it, so that the next start
                // finds it if this one fails.
                let _ = fs::remove_file(&aside);
                if let Err(error) = fs::hard_link(&self.path, &aside) {
                    tracing::warn!(%error, "the damaged state file can't be quarantined");
                }
                Ok(saved)
            }
        }
    }

    fn text(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        match tilewright_files::read(path, MOST_BYTES) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(self.error("read", source)),
        }
    }

    /// The state in a text. The outer error is a newer program's text, the inner one a text that is
    /// not sound.
    fn parse(&self, text: &[u8]) -> Result<serde_json::Result<SavedState>> {
        // Parsed directly, a list would be taken for the fields in their order.
        let fields: serde_json::Map<String, serde_json::Value> = match serde_json::from_slice(text) {
            Ok(fields) => fields,
            Err(error) => return Ok(Err(error)),
        };
        // The version comes first: a newer version may mean other things by the rest.
        let found = fields.get("version").and_then(serde_json::Value::as_u64).unwrap_or(0);
        if found > u64::from(VERSION) {
            return Err(Error::Newer { path: self.path.clone(), found, known: VERSION });
        }
        Ok(serde_json::from_value(fields.into()))
    }

    /// True if the file holds this state, even if the write reported an error.
    pub fn says(&self, saved: &SavedState) -> bool {
        let text = self.text(&self.path).ok().flatten();
        let found = text.and_then(|text| self.parse(&text).ok()?.ok());
        found.is_some_and(|found| SavedState { version: VERSION, ..saved.clone() } == found)
    }

    /// True if the state that was read is in the file as this program would write it.
    pub fn is_current(&self, read: &SavedState) -> bool {
        read.version == VERSION
    }

    pub fn write(&self, saved: &SavedState) -> Result<()> {
        let write = || -> io::Result<()> {
            let text = serde_json::to_vec_pretty(&SavedState { version: VERSION, ..saved.clone() })?;
            // The current file, if sound, gets a second name, since the new file takes its first
            // one. The older copy is replaced last, so that a failed write costs nothing.
            let (copy, next) = (self.copy(), self.path.with_extension("next"));
            let is_sound = |text: Vec<u8>| matches!(self.parse(&text), Ok(Ok(_)));
            let _ = fs::remove_file(&next);
            let linked =
                self.text(&self.path).ok().flatten().is_some_and(is_sound) && fs::hard_link(&self.path, &next).is_ok();
            let replaced = self.disk.replace(&self.path, &text);
            match &replaced {
                Ok(()) if linked => fs::rename(&next, &copy).unwrap_or_else(|error| tracing::debug!(%error, "no copy")),
                _ => drop(fs::remove_file(&next)),
            }
            replaced
        };
        write().map_err(|source| self.error("written", source))
    }

    fn copy(&self) -> PathBuf {
        self.path.with_extension("before")
    }

    fn error(&self, verb: &'static str, source: io::Error) -> Error {
        Error::Storage { path: self.path.clone(), verb, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(number: u64) -> SavedPolicy {
        let (digest, origin, since) = ("sha256:00".to_owned(), "fixed".to_owned(), String::new());
        let in_force = SavedRevision { number, digest, origin, since, settings: Vec::new(), grants: Grants::default() };
        SavedPolicy {
            next: number + 1,
            configured: String::new(),
            seen: None,
            in_force,
            previous: None,
            paused: false,
            paused_by_watchdog: false,
        }
    }

    #[test]
    fn what_was_kept_comes_back_and_damage_is_quarantined_without_a_number_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rollout.json");
        let state = State::at(path.clone(), Disk::default());
        assert_eq!(state.read().unwrap(), SavedState::default());
        let mut saved = SavedState { version: VERSION, ..SavedState::default() };
        let (new, digest) = ("new".to_owned(), "sha256:00".to_owned());
        saved
            .canaries
            .insert("video".into(), SavedCanary { policy: new, digest, state: CanaryState::Stopped, why: None });
        saved.policies.insert("own".into(), policy(4));
        saved.numbers.insert("gone".into(), 9);
        state.write(&saved).unwrap();
        assert_eq!(state.read().unwrap(), saved);
        saved.policies.insert("own".into(), policy(5));
        state.write(&saved).unwrap();
        assert!(state.says(&saved) && !state.says(&SavedState::default()));
        for damage in ["{", "", "[]", "{\"policies\": 3}"] {
            fs::write(&path, damage).unwrap();
            let found = state.read().unwrap();
            assert!(found.policies.is_empty());
            assert!(found.next_numbers()["own"] > 5 && found.next_numbers()["gone"] >= 9, "{found:?}");
            assert!(folder.path().join("rollout.damaged").exists());
        }
    }

    #[test]
    fn what_an_older_program_wrote_is_read_and_what_a_newer_one_wrote_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rollout.json");
        let state = State::at(path.clone(), Disk::default());
        let mut old = serde_json::to_value(SavedState {
            policies: [("own".to_owned(), policy(7))].into(),
            ..SavedState::default()
        });
        let old = old.as_mut().unwrap().as_object_mut().unwrap();
        old.remove("version");
        old.remove("numbers");
        fs::write(&path, serde_json::to_vec(old).unwrap()).unwrap();
        assert_eq!(state.read().unwrap().next_numbers()["own"], 8);
        fs::write(&path, "{ \"version\": 2, \"what\": [\"nobody knows\"] }").unwrap();
        let refused = state.read().unwrap_err().to_string();
        assert!(refused.contains("version 2") && refused.contains("update"), "{refused}");
        assert!(path.exists() && !folder.path().join("rollout.damaged").exists());
    }
}
