//! The last decisions of a revision, with their exchanges, for `tilewright policy replay`.

use std::{
    collections::VecDeque,
    fs, io,
    path::{Path, PathBuf},
};

use tilewright_plan::records::AnyRecord;

use crate::{Disk, Error, Result, tally::push_bounded};

/// Decisions that are kept of a revision.
const KEPT: usize = 32;

/// Dumps that are kept of a policy.
const DUMPS: usize = 8;

/// A ring of full records.
#[derive(Debug, Default)]
pub struct Ring(VecDeque<AnyRecord>);

impl Ring {
    pub fn push(&mut self, record: AnyRecord) {
        push_bounded(&mut self.0, record, KEPT);
    }

    /// Writes the records as lines, under a name that sorts by revision; removes the policy's
    /// oldest dumps.
    pub fn write(&self, disk: &Disk, folder: &Path, policy: &str, revision: u64) -> Result<PathBuf> {
        let path = folder.join(format!("{policy}-{revision:06}.jsonl"));
        let write = || -> io::Result<()> {
            disk.step()?;
            fs::create_dir_all(folder)?;
            let mut lines = Vec::new();
            for record in &self.0 {
                serde_json::to_writer(&mut lines, record)?;
                lines.push(b'\n');
            }
            disk.replace(&path, &lines)
        };
        write().map_err(|source| Error::Storage { path: path.clone(), verb: "written", source })?;
        prune(folder, policy);
        Ok(path)
    }
}

fn prune(folder: &Path, policy: &str) {
    let is_of = |path: &PathBuf| {
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        stem.and_then(|stem| stem.rsplit_once('-')).is_some_and(|(name, _)| name == policy)
    };
    let mut dumps: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).filter(is_of).collect();
    dumps.sort();
    for old in dumps.iter().rev().skip(DUMPS) {
        // A dump that can't be removed only takes room.
        let _ = fs::remove_file(old);
    }
}
