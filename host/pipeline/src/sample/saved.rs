//! The settings of sampling in a pipeline that diffusers saved, beside its weights.

use std::path::{Path, PathBuf};
use tilewright_wording::Setting;

use serde::Deserialize;
use serde_json::Value;
use tilewright_sampling::{FlowScheduler, Shift};

use crate::{Error, Result};

/// The description of a pipeline in its folder.
const DESCRIPTION: &str = "model_index.json";

/// The most bytes of a pipeline's description.
const MOST_DESCRIPTION: u64 = 1 << 20;

/// Settings of schedulers that change sigmas or steps in ways that are not followed.
const NOT_FOLLOWED: [&str; 7] = [
    "use_karras_sigmas",
    "use_exponential_sigmas",
    "use_beta_sigmas",
    "use_lu_lambdas",
    "shift_terminal",
    "invert_sigmas",
    "stochastic_sampling",
];

/// A pipeline's scheduler.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SavedScheduler {
    pub scheduler: FlowScheduler,
    shift: f64,
    /// The least and the largest μ, and the tokens that they are for, if the shift grows with
    /// size.
    by_size: Option<[f64; 4]>,
}

impl SavedScheduler {
    /// The scheduler in a pipeline's folder, if there is one.
    ///
    /// # Errors
    /// It is damaged, or one that is not followed.
    pub fn open(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join("scheduler/scheduler_config.json");
        let Some(saved) = read(&path)? else { return Ok(None) };
        let refused = |reason: String| Error::input(&path, reason);
        let class = saved["_class_name"].as_str().unwrap_or_default();
        let scheduler = FlowScheduler::of_class(class).ok_or_else(|| {
            let [sampler, of] = [Setting::Sampler, Setting::As];
            refused(format!("the scheduler '{class}' is not followed: choose {sampler}, or leave {of} diffusers out"))
        })?;
        let is_set = |name: &&str| !matches!(saved[*name], Value::Null | Value::Bool(false));
        if let Some(name) = NOT_FOLLOWED.iter().find(|name| is_set(name)) {
            let [sigmas, of] = [Setting::Sigmas, Setting::As];
            return Err(refused(format!("{name} is not followed: give {sigmas}, or leave {of} diffusers out")));
        }
        let is_usual = saved["solver_order"].as_u64().is_none_or(|order| order == 2)
            && saved["solver_type"].as_str().is_none_or(|kind| matches!(kind, "bh2" | "midpoint"));
        if !is_usual {
            return Err(refused("a solver of another order or type than the usual one (2; bh2, midpoint)".into()));
        }
        let number = |name: &str, usual: f64| saved[name].as_f64().unwrap_or(usual);
        let by_size = (saved["use_dynamic_shifting"] == true).then(|| {
            [
                number("base_shift", 0.5),
                number("max_shift", 1.15),
                number("base_image_seq_len", 256.0),
                number("max_image_seq_len", 4096.0),
            ]
        });
        let shift = saved["shift"].as_f64().or(saved["flow_shift"].as_f64()).unwrap_or(1.0);
        Ok(Some(Self { scheduler, shift, by_size }))
    }

    /// The shift for `tokens` tokens of the image.
    pub fn shift(&self, tokens: u64) -> Shift {
        match self.by_size {
            None => Shift::Flow(self.shift),
            Some([least, most, few, many]) => {
                let slope = (most - least) / (many - few);
                Shift::Exponential(slope * tokens as f64 + least - slope * few)
            }
        }
    }
}

/// The settings with which a model is meant to be run, in the entry `tilewright` of its pipeline's
/// description.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Defaults {
    /// Width and height in pixels.
    pub size: Option<[u32; 2]>,
    /// Frames of a clip.
    pub frames: Option<u32>,
    /// Steps.
    pub steps: Option<u32>,
    /// The factor of guidance by a negative conditioning.
    pub cfg: Option<f64>,
    /// The shift of sigmas.
    pub shift: Option<f64>,
}

impl Defaults {
    /// The defaults of the pipeline in a folder.
    ///
    /// # Errors
    /// The description is damaged.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(DESCRIPTION);
        let Some(mut saved) = read(&path)? else { return Ok(Self::default()) };
        match saved.get_mut("tilewright").map(Value::take) {
            None => Ok(Self::default()),
            Some(own) => serde_json::from_value(own)
                .map_err(|error| Error::input(path, format!("the entry tilewright: {error}"))),
        }
    }
}

/// The folder of the pipeline that a transformer is of: its own path, or the folder around that of
/// the part, for a path of the part's folder or of a file in it.
pub(super) fn pipeline_of(path: &Path, parts: &[&str]) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    if path.join(DESCRIPTION).is_file() {
        return Some(path);
    }
    let part = if path.is_dir() { &*path } else { path.parent()? };
    let is_part = part.file_name().is_some_and(|name| parts.iter().any(|part| name == *part));
    let folder = part.parent().filter(|_| is_part)?;
    folder.join(DESCRIPTION).is_file().then(|| folder.to_owned())
}

/// The boundary that the description of a pipeline in its folder names.
///
/// # Errors
/// The description is damaged.
pub(super) fn boundary(folder: &Path) -> Result<Option<f64>> {
    Ok(read(&folder.join(DESCRIPTION))?.and_then(|saved| saved["boundary_ratio"].as_f64()))
}

/// The tokens that the text encoder of a pipeline in a folder reads at most, by its description.
///
/// # Errors
/// The description is damaged.
pub(crate) fn text_tokens(folder: &Path) -> Result<Option<u32>> {
    let saved = read(&folder.join(DESCRIPTION))?;
    let tokens = saved.and_then(|saved| saved["max_sequence_length"].as_u64());
    Ok(tokens.and_then(|tokens| u32::try_from(tokens).ok()))
}

fn read(path: &Path) -> Result<Option<Value>> {
    if !tilewright_files::is_there(path) {
        return Ok(None);
    }
    let refused = |reason: String| Error::input(path, reason);
    let text = tilewright_files::read_text(path, MOST_DESCRIPTION).map_err(|error| refused(error.to_string()))?;
    let saved = serde_json::from_str(&text);
    saved.map(Some).map_err(|error| {
        refused(format!("no sound description of a pipeline ({})", tilewright_files::json_fault(&error)))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn defaults_of_a_pipeline_are_read_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Defaults::open(folder.path()).unwrap(), Defaults::default());
        let open = |text: &str| {
            fs::write(folder.path().join(DESCRIPTION), text).unwrap();
            Defaults::open(folder.path())
        };
        assert_eq!(open(r#"{"_class_name": "FluxPipeline"}"#).unwrap(), Defaults::default());
        let own = open(r#"{"tilewright": {"size": [128, 96], "steps": 12, "shift": 3.0}}"#).unwrap();
        let expected = Defaults { size: Some([128, 96]), steps: Some(12), shift: Some(3.0), ..Defaults::default() };
        assert_eq!(own, expected);
        let error = open(r#"{"tilewright": {"stepz": 12}}"#).unwrap_err().to_string();
        assert!(error.contains("the entry tilewright: unknown field `stepz`"), "{error}");
    }

    #[test]
    fn the_pipeline_of_a_part_is_found_by_any_path_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let (part, file) = (folder.path().join("transformer"), folder.path().join("transformer/x.safetensors"));
        fs::create_dir(&part).unwrap();
        fs::write(&file, "").unwrap();
        let of = |path: &Path| pipeline_of(path, &["transformer"]);
        assert_eq!([of(folder.path()), of(&part), of(&file)], [None, None, None]);
        fs::write(folder.path().join(DESCRIPTION), "{}").unwrap();
        let found = Some(folder.path().to_owned());
        assert_eq!([of(folder.path()), of(&part), of(&file)], [found.clone(), found.clone(), found]);
        // A file of another kind beside the description is of no pipeline.
        assert_eq!(of(&folder.path().join("x.safetensors")), None);
    }

    #[test]
    fn a_saved_scheduler_is_followed_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(SavedScheduler::open(folder.path()).unwrap(), None);
        fs::create_dir(folder.path().join("scheduler")).unwrap();
        let open = |text: &str| {
            fs::write(folder.path().join("scheduler/scheduler_config.json"), text).unwrap();
            SavedScheduler::open(folder.path())
        };
        let unipc = open(r#"{"_class_name": "UniPCMultistepScheduler", "flow_shift": 5.0, "solver_order": 2}"#);
        let unipc = unipc.unwrap().unwrap();
        assert_eq!((unipc.scheduler, unipc.shift(9)), (FlowScheduler::UniPc, Shift::Flow(5.0)));
        let flux = open(r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": true}"#);
        assert_eq!(flux.unwrap().unwrap().shift(256), Shift::Exponential(0.5));
        for (text, words) in [
            (r#"{"_class_name": "DDIMScheduler"}"#, "the scheduler 'DDIMScheduler' is not followed"),
            (r#"{"_class_name": "UniPCMultistepScheduler", "solver_order": 3}"#, "another order or type"),
            (
                r#"{"_class_name": "UniPCMultistepScheduler", "use_karras_sigmas": true}"#,
                "use_karras_sigmas is not followed",
            ),
            ("[", "no sound description"),
        ] {
            let error = open(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
