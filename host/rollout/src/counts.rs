//! Counts of revisions and of trials, kept across restarts. They decide nothing that a restart has
//! to know for certain, so they are written without waiting for the disk, and what can't be read
//! counts as nothing.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Mutex,
};

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::{canary::CanaryFacts, revision::Revision, rollout::lock, tally::TallyFacts};

/// The most bytes of the file that are read.
const MOST_BYTES: u64 = 16 << 20;

/// The counts of a revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevisionCounts {
    policy: String,
    number: u64,
    digest: String,
    facts: TallyFacts,
}

/// The counts of a route's trial, of the module with this digest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialCounts {
    /// The module on trial.
    pub digest: String,
    /// The trial's counts.
    pub facts: CanaryFacts,
}

/// All counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedCounts {
    /// The counts of revisions that are in force, that were, or that drain.
    pub revisions: Vec<RevisionCounts>,
    /// By route.
    pub trials: BTreeMap<String, TrialCounts>,
}

impl SavedCounts {
    /// The counts of revisions and trials.
    pub fn of<'a>(
        revisions: impl Iterator<Item = &'a Revision>,
        trials: impl Iterator<Item = (String, TrialCounts)>,
    ) -> Self {
        let counts = |revision: &Revision| RevisionCounts {
            policy: revision.policy.clone(),
            number: revision.number,
            digest: revision.digest.clone(),
            facts: revision.tally(),
        };
        Self { revisions: revisions.map(counts).collect(), trials: trials.collect() }
    }

    /// The counts of a revision; none of one that was not counted.
    pub fn revision(&self, policy: &str, number: u64, digest: &str) -> TallyFacts {
        let is_same =
            |known: &&RevisionCounts| (&*known.policy, known.number, &*known.digest) == (policy, number, digest);
        self.revisions.iter().find(is_same).map(|known| known.facts).unwrap_or_default()
    }
}

/// The file of the counts.
#[derive(Debug)]
pub struct Counts {
    path: PathBuf,
    /// The counts that the file had at the start: those of revisions that are loaded later, too.
    pub before: SavedCounts,
    written: Mutex<SavedCounts>,
}

impl Counts {
    /// Reads the file; without one, or if it is damaged, counts begin at nothing.
    pub fn open(path: PathBuf) -> Self {
        let text = tilewright_files::read(&path, MOST_BYTES);
        let before: SavedCounts = match text.map(|text| serde_json::from_slice(&text)) {
            Ok(Ok(SavedCounts { revisions, trials })) => {
                let restored = |TrialCounts { digest, facts }| TrialCounts { digest, facts: facts.restored() };
                let trials = trials.into_iter().map(|(route, trial)| (route, restored(trial)));
                SavedCounts { revisions, trials: trials.collect() }
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, path = %path.display(), "counts can't be read: beginning at nothing");
                SavedCounts::default()
            }
            Err(_) => SavedCounts::default(),
        };
        Self { path, written: Mutex::new(before.clone()), before }
    }

    /// Writes counts, unless the file has them; `count` is called under the file's lock, so that
    /// older counts replace no newer ones.
    pub fn keep(&self, count: impl FnOnce() -> SavedCounts) {
        let mut written = lock(&self.written);
        let counts = count();
        if *written == counts {
            return;
        }
        match replace(&self.path, &counts) {
            Ok(()) => *written = counts,
            // The next job's end tries again.
            Err(error) => tracing::debug!(%error, path = %self.path.display(), "counts are not kept"),
        }
    }
}

fn replace(path: &Path, counts: &SavedCounts) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let file = NamedTempFile::with_prefix_in(crate::disk::PART, folder)?;
    fs::write(file.path(), serde_json::to_vec(counts)?)?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canary::Canary;

    #[test]
    fn counts_come_back_and_damage_counts_as_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counts.json");
        let facts = TallyFacts { jobs: 3, decisions: 5, failures: 1 };
        let (policy, digest) = ("own".to_owned(), "sha256:00".to_owned());
        let revision = RevisionCounts { policy, number: 2, digest: digest.clone(), facts };
        let mut trial = Canary::begin("new", 1, &digest).facts;
        (trial.jobs, trial.samples, trial.least_psnr) = (4, 1, Some(f64::INFINITY));
        let counts = SavedCounts {
            revisions: vec![revision],
            trials: [("all".to_owned(), TrialCounts { digest, facts: trial })].into(),
        };
        Counts::open(path.clone()).keep(|| counts.clone());
        let found = Counts::open(path.clone()).before;
        assert_eq!(found, counts);
        assert_eq!(found, counts);
        assert_eq!(found.revision("own", 2, "sha256:00"), facts);
        for (policy, number, digest) in [("two", 2, "sha256:00"), ("own", 3, "sha256:00"), ("own", 2, "sha256:01")] {
            assert_eq!(found.revision(policy, number, digest), TallyFacts::default());
        }
        for damage in ["", "{", "[]", "{\"revisions\": 3}"] {
            fs::write(&path, damage).unwrap();
            assert_eq!(Counts::open(path.clone()).before, SavedCounts::default(), "{damage}");
        }
    }
}
