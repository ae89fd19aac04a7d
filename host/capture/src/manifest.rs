//! The manifest: the last file of a capture, with the size and digest of every other, and of
//! itself. A digest without a key finds damage and careless changes, not a forger.

use serde::{Deserialize, Serialize};
use tilewright_files::digest;
use tilewright_plan::Stage;

/// The manifest's name.
pub const MANIFEST: &str = "capture.json";

/// The format's name and version.
pub(crate) const FORMAT: &str = "tilewright-capture";
pub(crate) const FORMAT_VERSION: u32 = 1;

/// This program's version.
pub(crate) const TILEWRIGHT: &str = env!("CARGO_PKG_VERSION");

/// The most files of a capture, and the most stages.
pub(crate) const MOST_FILES: usize = 1 << 16;

/// The most bytes of the manifest, beside those of its pattern, and of a row of it.
pub(crate) const BASE_BYTES: u64 = 1024;
pub(crate) const ROW_BYTES: u64 = 256;

/// The files of a stage.
pub(crate) const INPUTS: &str = "inputs.safetensors";
pub(crate) const OUTPUTS: &str = "outputs.safetensors";
pub(crate) const FACTS: &str = "stage.json";
pub(crate) const RECORD: &str = "record.json";
pub(crate) const LAYERS: &str = "layers";
const FILES: [&str; 4] = [INPUTS, OUTPUTS, FACTS, RECORD];

/// The contents of a capture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The format's name.
    pub format: String,
    /// The format's version.
    pub version: u32,
    /// The version of Tilewright that captured.
    pub tilewright: String,
    /// The time when the capture began, RFC 3339 in UTC.
    pub time: String,
    /// Prompts and tokens are in it.
    pub prompts: bool,
    /// The pattern of the layers that were captured.
    pub layers: Option<String>,
    /// Tensors of layers that were left out because of the limit.
    pub left_out: u64,
    /// Bytes of all other files.
    pub bytes: u64,
    /// The stages, in the order in which they finished.
    pub stages: Vec<StageEntry>,
    /// All other files, in the order in which they were written.
    pub files: Vec<FileEntry>,
    /// The digest of the rest of the manifest.
    pub sha256: String,
}

/// A stage of a capture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageEntry {
    /// The stage.
    pub stage: Stage,
    /// The number in the capture.
    pub index: u32,
    /// The folder in the capture, such as `2-denoise`.
    pub folder: String,
    /// Time that it took.
    pub elapsed_ms: f64,
    /// Tensors that were left out because prompts can be read from them.
    pub withheld: u64,
}

/// A file of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// The path in the capture, with `/`.
    pub path: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The digest.
    pub sha256: String,
}

/// The folder of a stage.
pub(crate) fn stage_folder(stage: Stage, index: u32) -> String {
    format!("{index}-{stage}")
}

/// The path of a stage's file of a layer's tensor.
pub(crate) fn layer_path(folder: &str, number: u32) -> String {
    format!("{folder}/{LAYERS}/{number:06}.safetensors")
}

impl Manifest {
    /// The number of tensors of layers.
    pub fn layer_tensors(&self) -> usize {
        let is_layer = |file: &&FileEntry| file.path.split('/').nth(1) == Some(LAYERS);
        self.files.iter().filter(is_layer).count()
    }

    /// The manifest's bytes, with its digest.
    pub(crate) fn sealed(&mut self) -> Vec<u8> {
        self.sha256 = self.digest();
        self.text()
    }

    /// True if these are its bytes to the last, and its digest is right.
    pub(crate) fn is_sealed_as(&self, bytes: &[u8]) -> bool {
        self.text() == bytes && self.digest() == self.sha256
    }

    fn text(&self) -> Vec<u8> {
        // Nothing in it can fail to be written as JSON.
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }

    fn digest(&self) -> String {
        digest::sha256(&Self { sha256: String::new(), ..self.clone() }.text())
    }

    /// Checks that everything in it fits together, and that every path is one that captures have.
    ///
    /// # Errors
    /// The reason.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.files.len().max(self.stages.len()) > MOST_FILES {
            return Err(format!("names more than {MOST_FILES} files or stages"));
        }
        let mut folders = std::collections::BTreeSet::new();
        for stage in &self.stages {
            if stage.folder != stage_folder(stage.stage, stage.index) || !folders.insert(&*stage.folder) {
                return Err("names a stage's folder that is wrong or there twice".into());
            }
        }
        let mut paths = std::collections::BTreeSet::new();
        let mut bytes = 0u64;
        for file in &self.files {
            let (folder, name) = file.path.split_once('/').unwrap_or_default();
            if !folders.contains(folder) || !is_file_of_stage(name) || !paths.insert(&*file.path) {
                return Err("names a file that no capture has, or one twice".into());
            }
            if !digest::is_sha256(&file.sha256) {
                return Err("has a digest that is none".into());
            }
            bytes = bytes.checked_add(file.bytes).ok_or("has sizes that are none")?;
        }
        if bytes == self.bytes { Ok(()) } else { Err("has sizes that do not add up".into()) }
    }
}

/// True for the path of a file in a stage's folder.
fn is_file_of_stage(name: &str) -> bool {
    let layer = name.strip_prefix(LAYERS).and_then(|name| name.strip_prefix('/'));
    match layer {
        Some(layer) => layer
            .strip_suffix(".safetensors")
            .is_some_and(|number| number.len() == 6 && number.bytes().all(|digit| digit.is_ascii_digit())),
        None => FILES.contains(&name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out_of_a_capture() {
        for name in [INPUTS, RECORD, "layers/000001.safetensors"] {
            assert!(is_file_of_stage(name), "{name}");
        }
        for name in ["", "..", "../a", "layers", "layers/", "layers/../../a", "layers/1.safetensors", "layers/000001"] {
            assert!(!is_file_of_stage(name), "{name}");
        }
    }

    #[test]
    fn a_row_fits_the_bytes_that_are_kept_for_it() {
        let file = |number| FileEntry {
            path: layer_path(&stage_folder(Stage::Denoise, u32::MAX), number),
            bytes: u64::MAX,
            sha256: digest::sha256(b""),
        };
        let stage = StageEntry {
            stage: Stage::Denoise,
            index: u32::MAX,
            folder: stage_folder(Stage::Denoise, u32::MAX),
            elapsed_ms: f64::MAX / 3.0,
            withheld: u64::MAX,
        };
        let mut manifest = Manifest {
            format: FORMAT.into(),
            version: u32::MAX,
            tilewright: TILEWRIGHT.into(),
            time: "2026-01-01T00:00:00.000000000Z".into(),
            prompts: false,
            layers: Some(String::new()),
            left_out: u64::MAX,
            bytes: u64::MAX,
            stages: Vec::new(),
            files: Vec::new(),
            sha256: String::new(),
        };
        assert!(manifest.sealed().len() as u64 <= BASE_BYTES);
        manifest.stages = vec![stage];
        manifest.files = (0..9).map(file).collect();
        assert!(manifest.sealed().len() as u64 <= BASE_BYTES + 10 * ROW_BYTES);
    }
}
