//! The LoRAs that a configured model offers, and the model with some of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use tilewright_pipeline::{LoraIdentity, LoraRequest};
use tilewright_plan::words::did_you_mean;
use tilewright_service_api::{LoraField, LoraSetting};

use super::OpenModel;
use crate::error::one_line;

/// The file that makes a folder one LoRA.
const OF_PEFT: &str = "adapter_config.json";

/// The endings of LoRAs' files.
const ENDINGS: [&str; 5] = ["safetensors", "sft", "pt", "pth", "ckpt"];

/// The most LoRAs that are offered, and the folders below a configured one that are looked into.
const MOST: usize = 10_000;
const DEEPEST: usize = 8;

/// The choices of LoRAs that stay open.
const MOST_CHOICES: usize = 4;

/// Names in an error.
const NAMED: usize = 20;

/// A LoRA of an open model.
#[derive(Debug)]
pub struct OpenLora {
    /// The LoRA's name in the request.
    name: String,
    /// The LoRA's file and strength.
    pub request: LoraRequest,
    /// The name and digest of its file.
    pub identity: LoraIdentity,
    /// A line on what of it has no place in the transformer, if anything.
    note: Option<String>,
}

impl OpenLora {
    /// The LoRA as callers see it.
    pub fn setting(&self) -> LoraSetting {
        LoraSetting {
            name: self.name.clone(),
            digest: self.identity.file.digest.clone(),
            strength: self.identity.strength,
            expert: self.identity.expert.map(|expert| expert as u32),
            note: self.note.clone(),
        }
    }
}

impl OpenModel {
    /// The names of the LoRAs that requests may ask for, those that are there now.
    pub fn lora_names(&self) -> Vec<String> {
        self.offered().into_keys().collect()
    }

    fn offered(&self) -> BTreeMap<String, PathBuf> {
        let mut offered = Offered::default();
        for path in &self.configured.loras {
            // One configured folder may lie in another.
            offered.entered.clear();
            offered.add(path, "", 0);
        }
        offered.found
    }

    /// The model with LoRAs on its transformer; itself if none is asked for. The last choices stay
    /// open, so that jobs that ask for the same do not read the files again.
    ///
    /// # Errors
    /// One line: the model offers no such LoRA, or it does not fit.
    pub fn with_loras(self: &Arc<Self>, wanted: &[LoraField]) -> Result<Arc<Self>, String> {
        if wanted.is_empty() {
            return Ok(self.clone());
        }
        let requests = self.requests(wanted)?;
        let is_same = |open: &Arc<Self>| open.loras.iter().map(|lora| &lora.request).eq(&requests) && open.is_current();
        let choices = || self.with_loras.lock().unwrap_or_else(PoisonError::into_inner);
        let known = choices().iter().find(|open| is_same(open)).cloned();
        // Not under the lock: the files are read and hashed.
        let open = match known {
            Some(open) => open,
            None => Arc::new(self.open_with_loras(wanted, &requests)?),
        };
        let mut choices = choices();
        choices.retain(|other| !Arc::ptr_eq(other, &open) && other.is_current());
        choices.insert(0, open.clone());
        choices.truncate(MOST_CHOICES);
        Ok(open)
    }

    /// The files of LoRAs that are asked for.
    fn requests(&self, wanted: &[LoraField]) -> Result<Vec<LoraRequest>, String> {
        let Some(experts) = self.transformer.as_ref().map(|plain| plain.denoiser.files().len()) else {
            return Err(format!("loras: model {} has no transformer", self.name));
        };
        let offered = self.offered();
        let request = |LoraField { name, strength, expert }: &LoraField| {
            let path = offered.get(name).ok_or_else(|| self.not_offered(name, &offered))?;
            let expert = expert.map(|expert| expert as usize);
            if let Some(expert) = expert.filter(|expert| *expert >= experts) {
                return Err(format!("loras: {name} is for expert {expert}, and model {} has {experts}", self.name));
            }
            Ok(LoraRequest { path: path.clone(), strength: *strength, expert })
        };
        wanted.iter().map(request).collect()
    }

    fn open_with_loras(&self, wanted: &[LoraField], requests: &[LoraRequest]) -> Result<Self, String> {
        let plain =
            self.transformer.as_ref().ok_or_else(|| format!("loras: model {} has no transformer", self.name))?;
        let mut transformer = plain.without_loras();
        let mut loras = Vec::new();
        for (LoraField { name, .. }, request) in wanted.iter().zip(requests) {
            // No path of the server is told.
            let by_name = |line: String| line.replace(&request.path.display().to_string(), name);
            let refused = |error: tilewright_pipeline::Error| format!("loras: {}", by_name(one_line(&error)));
            let note = transformer.add(request).map_err(refused)?.map(by_name);
            let identity = LoraIdentity::of(request).map_err(refused)?;
            loras.push(OpenLora { name: name.clone(), request: request.clone(), identity, note });
        }
        Ok(Self {
            name: self.name.clone(),
            vae: self.vae.clone(),
            transformer: Some(transformer),
            loras,
            text: self.text.clone(),
            identity: self.identity.clone(),
            colours: self.colours.clone(),
            parts: self.parts.clone(),
            configured: self.configured.clone(),
            with_loras: Mutex::default(),
        })
    }

    fn not_offered(&self, name: &str, offered: &BTreeMap<String, PathBuf>) -> String {
        let asked: String = name.chars().take(64).flat_map(char::escape_debug).collect();
        if self.configured.loras.is_empty() {
            return format!(
                "loras: model {} offers none: name their folder in its configuration: loras = \"FOLDER\"",
                self.name
            );
        }
        if offered.is_empty() {
            return format!("loras: model {} offers no '{asked}': no LoRA lies in its configured folders", self.name);
        }
        let close = did_you_mean(name, offered.keys().map(String::as_str));
        let mut known: Vec<&str> = offered.keys().take(NAMED).map(String::as_str).collect();
        if offered.len() > NAMED {
            known.push("…");
        }
        format!("loras: model {} offers no '{asked}'{close}: there are {}", self.name, known.join(", "))
    }
}

/// LoRAs by their names: paths below a configured folder without their ending.
#[derive(Default)]
struct Offered {
    found: BTreeMap<String, PathBuf>,
    /// Real paths of folders that were entered: a link may lead to a parent.
    entered: BTreeSet<PathBuf>,
}

impl Offered {
    /// Adds the LoRA at a path, or those below it. The first of a name stays.
    fn add(&mut self, path: &Path, name: &str, depth: usize) {
        if self.found.len() >= MOST {
            return;
        }
        let own = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let stem = |path: &Path| path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_file() {
            let has_ending = path.extension().is_some_and(|ending| ENDINGS.iter().any(|known| ending == *known));
            if has_ending || depth == 0 {
                let name = format!("{name}{}", stem(path));
                self.found.entry(name).or_insert_with(|| path.to_owned());
            }
            return;
        }
        if path.join(OF_PEFT).is_file() {
            let name = format!("{name}{}", own(path));
            self.found.entry(name).or_insert_with(|| path.to_owned());
            return;
        }
        let is_new = path.canonicalize().is_ok_and(|real| self.entered.insert(real));
        let Ok(entries) = fs::read_dir(path) else { return };
        if depth > DEEPEST || !is_new {
            return;
        }
        let below = if depth == 0 { String::new() } else { format!("{name}{}/", own(path)) };
        let mut entries: Vec<PathBuf> = entries.flatten().take(MOST).map(|entry| entry.path()).collect();
        // Safetensors go before pickles of the same name.
        let rank = |path: &PathBuf| {
            let ending = path.extension().and_then(|ending| ENDINGS.iter().position(|known| ending == *known));
            ending.unwrap_or(ENDINGS.len())
        };
        entries.sort_by_cached_key(|path| (rank(path), path.clone()));
        for entry in entries.iter().filter(|entry| !own(entry).starts_with('.')) {
            self.add(entry, &below, depth + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(paths: &[&Path]) -> Vec<String> {
        let mut offered = Offered::default();
        paths.iter().for_each(|path| offered.add(path, "", 0));
        offered.found.into_keys().collect()
    }

    #[test]
    fn loras_are_offered_by_their_paths_below_the_folder() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("loras");
        fs::create_dir_all(folder.join("styles/old")).unwrap();
        fs::create_dir_all(folder.join("adapter")).unwrap();
        for name in
            ["ink.safetensors", "styles/oil.v2.safetensors", "styles/old/tin.pt", "notes.txt", ".hidden.safetensors"]
        {
            fs::write(folder.join(name), "").unwrap();
        }
        fs::write(folder.join("adapter/adapter_config.json"), "{}").unwrap();
        fs::write(folder.join("adapter/adapter_model.safetensors"), "").unwrap();
        std::os::unix::fs::symlink(&folder, folder.join("styles/again")).unwrap();
        assert_eq!(names(&[&folder]), ["adapter", "ink", "styles/oil.v2", "styles/old/tin"]);
        // A file by itself, of any ending, and one that is gone.
        assert_eq!(names(&[&folder.join("notes.txt"), &folder.join("gone.safetensors")]), ["notes"]);
    }
}
