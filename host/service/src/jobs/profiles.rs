//! The profiles of jobs, in a folder beside their results. Each stage's is kept when the stage
//! ends, with its events, so that it outlives the server; the events become a trace and a page when
//! the job ends.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;
use tilewright_plan::Stage;
use tilewright_profile::{Profile, Recording, write_page, write_trace};

use super::files::JobFiles;

/// The name of the folder.
const FOLDER: &str = "profile";

/// The names of the trace and the page in it.
const TRACE: &str = "trace.json";
const PAGE: &str = "page.html";

/// The endings of a stage's profile and of its events.
const PROFILE: &str = ".profile.json";
const EVENTS: &str = ".events.json";

/// Rows of operators, kernels, layers and parts that callers are given; trace and page have all.
const ROWS: usize = 50;

/// Stages in the order that a job has them.
const ORDER: [Stage; 4] = [Stage::Text, Stage::Encode, Stage::Denoise, Stage::Decode];

/// True of the folder of a job's profiles.
pub fn is_profiles(name: &str) -> bool {
    name == FOLDER
}

/// The beginning of the names of a stage's files, which sort as the stages do.
fn name_of(stage: &str) -> String {
    let place = ORDER.iter().position(|known| known.name() == stage).unwrap_or(ORDER.len());
    format!("{place}-{stage}-")
}

/// A file's contents; none if it is not there or of no use, which the log says.
fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let read = fs::read(path).and_then(|text| serde_json::from_slice(&text).map_err(io::Error::from));
    read.inspect_err(|error| tracing::warn!(%error, path = %path.display(), "a profile can't be read back")).ok()
}

impl JobFiles {
    fn profile_folder(&self, id: &str) -> PathBuf {
        self.job_folder(id).join(FOLDER)
    }

    /// The trace of a job that has ended.
    pub fn profile_trace(&self, id: &str) -> PathBuf {
        self.profile_folder(id).join(TRACE)
    }

    /// The page of the same.
    pub fn profile_page(&self, id: &str) -> PathBuf {
        self.profile_folder(id).join(PAGE)
    }

    /// The files of stages with an ending, in order.
    fn profile_files(&self, id: &str, ending: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.profile_folder(id)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.retain(|name| name.ends_with(ending));
        names.sort();
        names.iter().map(|name| self.profile_folder(id).join(name)).collect()
    }

    /// Keeps the profile of a stage: `run` counts those of the stage from 0, of which text encoders
    /// have several. Those of an earlier try are replaced.
    ///
    /// # Errors
    /// The disk does not take them.
    pub fn keep_profile(&self, id: &str, run: usize, profile: Profile, recording: Recording) -> io::Result<()> {
        let folder = self.profile_folder(id);
        Self::create_folder(&folder, self.disk()).map_err(io::Error::other)?;
        let name = name_of(&profile.facts.stage);
        if run == 0 {
            let of_stage =
                |path: &PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&name));
            let before = [PROFILE, EVENTS].into_iter().flat_map(|ending| self.profile_files(id, ending));
            before.filter(of_stage).for_each(|path| drop(fs::remove_file(path)));
        }
        let kept = (profile, recording);
        self.disk().replace(&folder.join(format!("{name}{run}{EVENTS}")), &serde_json::to_vec(&kept)?)?;
        let short = kept.0.shortened(ROWS);
        self.disk().replace(&folder.join(format!("{name}{run}{PROFILE}")), &serde_json::to_vec(&short)?)
    }

    /// Makes the trace and the page of a job's stages; nothing if none was profiled.
    ///
    /// # Errors
    /// They can't be written.
    pub fn finish_profile(&self, id: &str) -> io::Result<()> {
        let events = self.profile_files(id, EVENTS);
        let stages: Vec<(Profile, Recording)> = events.iter().filter_map(|path| read(path)).collect();
        if stages.is_empty() {
            return Ok(());
        }
        let folder = self.profile_folder(id);
        let write = || -> io::Result<()> {
            self.disk().step()?;
            write_trace(&self.profile_trace(id), &stages).map_err(cause)?;
            self.disk().step()?;
            write_page(&self.profile_page(id), &stages).map_err(cause)?;
            self.disk().sync_folder(&folder)
        };
        self.disk().track(&folder, write())
    }

    /// The profiles of the stages of a job that have ended.
    pub fn profiles(&self, id: &str) -> Vec<Profile> {
        self.profile_files(id, PROFILE).iter().filter_map(|path| read(path)).collect()
    }

    /// Removes the events of a job that has ended.
    pub fn forget_events(&self, id: &str) {
        self.profile_files(id, EVENTS).iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

/// The disk's error, if it was one.
fn cause(error: tilewright_profile::Error) -> io::Error {
    match error {
        tilewright_profile::Error::Write { source, .. } => source,
        error @ tilewright_profile::Error::Stages { .. } => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use tilewright_profile::{Event, Facts, Kind, Part, Peaks, Track};
    use tilewright_rollout::Disk;

    use super::*;

    const ID: &str = "0199a2f0";

    fn recorded(stage: &str, ms: u64) -> (Profile, Recording) {
        let event = Event {
            name: stage.into(),
            kind: Kind::Part(Part::Stage),
            track: Track::Thread(1),
            start: 0,
            end: ms * 1_000_000,
            id: 0,
            launched_by: 0,
        };
        let recording = Recording { events: vec![event] };
        let peaks = Peaks {
            operations_per_second: 1e12,
            convolution_operations_per_second: 1e12,
            attention_operations_per_second: 1e12,
            bytes_per_second: 1e11,
        };
        let facts = Facts {
            stage: stage.into(),
            device: "a device".into(),
            on_gpu: false,
            request: String::new(),
            policy: String::new(),
            plan: String::new(),
            peaks,
            estimated_parts: Vec::new(),
            peaks_are_rough: false,
            compared_ms: [9.0, 10.0],
            compared: "the stage".into(),
            estimated_ms: None,
            manual_attention: false,
            in_f32: true,
        };
        (Profile::of(&recording, facts).unwrap(), recording)
    }

    fn keep(files: &JobFiles, run: usize, stage: &str, ms: u64) {
        let (profile, recording) = recorded(stage, ms);
        files.keep_profile(ID, run, profile, recording).unwrap();
    }

    fn opened() -> (tempfile::TempDir, JobFiles) {
        let folder = tempfile::tempdir().unwrap();
        let files = JobFiles::open(folder.path(), Disk::default()).unwrap();
        fs::create_dir(files.job_folder(ID)).unwrap();
        (folder, files)
    }

    fn found(files: &JobFiles) -> Vec<(String, f64)> {
        files.profiles(ID).into_iter().map(|profile| (profile.facts.stage, profile.stage_ms)).collect()
    }

    #[test]
    fn stages_are_in_order_and_a_stage_that_runs_again_replaces_its_own() {
        let (_folder, files) = opened();
        for (run, stage, ms) in [(0, "text", 5), (1, "text", 6), (0, "denoise", 9), (0, "encode", 3)] {
            keep(&files, run, stage, ms);
        }
        let expected = [("text", 5.0), ("text", 6.0), ("encode", 3.0), ("denoise", 9.0)];
        assert_eq!(found(&files), expected.map(|(stage, ms)| (stage.to_owned(), ms)));
        keep(&files, 0, "text", 7);
        let expected = [("text", 7.0), ("encode", 3.0), ("denoise", 9.0)];
        assert_eq!(found(&files), expected.map(|(stage, ms)| (stage.to_owned(), ms)));
    }

    #[test]
    fn profiles_live_as_long_as_their_job_and_events_until_its_end() {
        let (_folder, files) = opened();
        files.finish_profile(ID).unwrap();
        assert!(!files.profile_trace(ID).exists(), "nothing was profiled");
        keep(&files, 0, "text", 5);
        files.forget_results(ID);
        keep(&files, 0, "decode", 8);
        files.finish_profile(ID).unwrap();
        let trace = fs::read_to_string(files.profile_trace(ID)).unwrap();
        let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
        let ranges = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
        assert_eq!(ranges.map(|event| event["name"].clone()).collect::<Vec<_>>(), ["text", "decode"]);
        assert!(files.profile_page(ID).is_file());
        assert_eq!(files.profile_files(ID, EVENTS).len(), 2);
        files.forget_inputs(ID);
        assert_eq!(files.profile_files(ID, EVENTS), [""; 0].map(PathBuf::from));
        assert_eq!(found(&files).len(), 2);
        files.forget(ID);
        assert_eq!((found(&files).len(), files.profile_trace(ID).exists()), (0, false));
    }

    #[test]
    fn a_profile_that_cannot_be_read_back_takes_no_other_with_it() {
        let (_folder, files) = opened();
        keep(&files, 0, "text", 5);
        keep(&files, 0, "decode", 8);
        for ending in [PROFILE, EVENTS] {
            fs::write(&files.profile_files(ID, ending)[0], "{\"facts\": [").unwrap();
        }
        assert_eq!(found(&files), [("decode".to_owned(), 8.0)]);
        files.finish_profile(ID).unwrap();
        assert!(fs::read_to_string(files.profile_trace(ID)).unwrap().contains("decode"));
    }
}
