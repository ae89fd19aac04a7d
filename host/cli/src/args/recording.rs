//! `--record`, of every command that decides: the file of records, and their extent.

use std::{
    fs::OpenOptions,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use clap::Args;

use crate::failure::{Failure, Outcome};

/// The word that asks for everything that a replay needs.
const FULL: &str = "full";

/// The file of records, and their extent.
#[derive(Args, Debug)]
pub struct Recording {
    /// Append the decision record to this file, as a JSON line. '--record FILE --record full' adds
    /// all that the policy was asked and given, which 'tilewright policy replay' decides from
    /// again; a file of that name is written ./full
    #[arg(long = "record", value_name = "FILE|full")]
    given: Vec<PathBuf>,
}

impl Recording {
    /// The file of records, if they are wanted.
    pub fn file(&self) -> Option<&Path> {
        self.given.iter().map(PathBuf::as_path).find(|path| *path != Path::new(FULL))
    }

    /// True if the whole exchange between host and policy is wanted.
    pub fn is_full(&self) -> bool {
        self.given.iter().any(|path| path == Path::new(FULL))
    }

    /// Refuses contradicting options, and a file that can't be appended to.
    ///
    /// # Errors
    /// Wrong arguments.
    pub fn check(&self) -> Outcome {
        let files: Vec<_> = self.given.iter().filter(|path| path.as_path() != Path::new(FULL)).collect();
        if let [first, second, ..] = files[..] {
            let (first, second) = (first.display(), second.display());
            return Err(Failure::input(format!("--record {first} --record {second}: records go into one file")));
        }
        let Some(path) = files.first() else {
            return match self.is_full() {
                true => Err(Failure::input("--record full: say where to as well: --record FILE --record full")),
                false => Ok(()),
            };
        };
        // A pipe without a reader would be waited for.
        tilewright_outputs::destination(path)?;
        let failed = |error| Failure::input(format!("{}: can't be written: {error}", path.display()));
        match OpenOptions::new().append(true).open(path) {
            // The file itself is made only with the first record.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                tilewright_outputs::temporary(path, ".tmp").map(drop).map_err(failed)
            }
            opened => opened.map(drop).map_err(failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(given: &[&str]) -> Recording {
        Recording { given: given.iter().map(PathBuf::from).collect() }
    }

    #[test]
    fn full_is_a_word_and_dot_full_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("r.jsonl").display().to_string();
        for given in [&["full", &file][..], &[&file, "full"], &[&file, "full", "full"]] {
            let recording = recording(given);
            recording.check().unwrap();
            assert!(recording.is_full());
            assert_eq!(recording.file(), Some(Path::new(&file)));
        }
        let named = recording(&["./full"]);
        assert!(!named.is_full() && named.file().is_some_and(|file| file.ends_with("full")));
        assert!(recording(&[]).check().is_ok() && recording(&[]).file().is_none());
        assert!(recording(&["full"]).check().is_err());
        assert!(recording(&[&file, "other.jsonl"]).check().is_err());
    }
}
