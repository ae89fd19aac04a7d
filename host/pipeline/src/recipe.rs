//! The recipe of a picture or clip, kept in its texts: all that it followed from, without names of
//! folders, and the same as A1111's web UI writes it.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tilewright_media::{Texts, read_texts};
use tilewright_plan::Record;

use crate::{LoraIdentity, ModelIdentity, RECORD_KEYWORD, Settings};

/// The keyword of a recipe among a file's texts.
pub const RECIPE_KEYWORD: &str = "tilewright-generate";

/// The keyword of A1111's text.
pub const PARAMETERS_KEYWORD: &str = "parameters";

/// The most pictures of a recipe, and the tokens that T5 may read.
const MOST_SAMPLES: u32 = 1024;
const TEXT_TOKENS: std::ops::RangeInclusive<u32> = 3..=512;

/// All settings that a picture follows from, and the identity of its model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recipe {
    /// The prompt.
    pub prompt: String,
    /// The prompt that guidance led away from; none if it did not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub negative: Option<String>,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Frames: 1 of a picture.
    pub frames: u32,
    /// Frames per second of a clip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fps: Option<String>,
    /// One seed, or one for each picture.
    pub seeds: Vec<u64>,
    /// Pictures of one seed, if there is more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// Steps, unless sigmas were given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// Sigmas by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sigmas: Option<Vec<f64>>,
    /// The sampler, if it is not that of the pipeline as diffusers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampler: Option<String>,
    /// The scheduler that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// The shift that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shift: Option<f64>,
    /// The guidance that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guidance: Option<f64>,
    /// The factor of guidance by the negative prompt.
    pub cfg: f64,
    /// The reference that was followed.
    #[serde(rename = "as")]
    pub convention: String,
    /// It began with a picture.
    pub image: bool,
    /// A part of that picture was made again.
    pub mask: bool,
    /// The share of the way from noise that was gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denoise: Option<f64>,
    /// The tokens that the text encoder without positions read, if they were said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_tokens: Option<u32>,
    /// A folder of embeddings was given.
    pub embeddings: bool,
    /// The change up to which outputs served once more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reuse: Option<f64>,
    /// The sigma at which two experts changed, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boundary: Option<f64>,
    /// Settings of the text stage, and those of `fixed` that make the plan of the sample.
    pub settings: Vec<(String, String)>,
    /// The model; none in files of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelIdentity>,
    /// The LoRAs of the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loras: Vec<LoraIdentity>,
}

/// The reason that a file holds no recipe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRecipe {
    /// It has none.
    #[error("not made from a prompt here, or its texts are gone")]
    Missing,
    /// It has one that makes no sense.
    #[error("damaged settings: {0}")]
    Damaged(String),
}

impl Recipe {
    /// The recipe among a file's texts.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn of(texts: &Texts) -> Result<Self, NoRecipe> {
        let text = texts.iter().find(|(keyword, _)| keyword == RECIPE_KEYWORD).ok_or(NoRecipe::Missing)?;
        let damaged =
            |error: serde_json::Error| NoRecipe::Damaged(format!("not understood at byte {}", error.column()));
        serde_json::from_str::<Self>(&text.1).map_err(damaged)?.checked().map_err(NoRecipe::Damaged)
    }

    /// The same, if its values are such as the program takes.
    fn checked(self) -> Result<Self, String> {
        let is_number = |value: Option<f64>| value.is_none_or(f64::is_finite);
        let is_strength = |lora: &LoraIdentity| (lora.strength as f32).is_finite();
        let holds = [
            ("size", self.width > 0 && self.height > 0),
            ("batch", self.batch.is_none_or(|batch| (1..=MOST_SAMPLES).contains(&batch))),
            ("seeds", (1..=MOST_SAMPLES as usize).contains(&self.seeds.len())),
            ("text_tokens", self.text_tokens.is_none_or(|tokens| TEXT_TOKENS.contains(&tokens))),
            ("sigmas", self.sigmas.as_ref().is_none_or(|sigmas| sigmas.iter().all(|sigma| sigma.is_finite()))),
            ("denoise", self.denoise.is_none() || self.image),
            ("cfg", is_number(Some(self.cfg))),
            ("shift", is_number(self.shift)),
            ("guidance", is_number(self.guidance)),
            ("a LoRA's strength", self.loras.iter().all(is_strength)),
        ];
        match holds.into_iter().find(|(_, holds)| !holds) {
            Some((what, _)) => Err(format!("{what} is out of range")),
            None => Ok(self),
        }
    }

    /// The recipe of a file, and the record of its decode, if it has one.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn read(path: &Path) -> Result<(Self, Option<Record>), NoRecipe> {
        let texts = read_texts(path);
        let record = texts.iter().find(|(keyword, _)| keyword == RECORD_KEYWORD);
        let record = record.and_then(|(_, text)| serde_json::from_str(text).ok());
        Ok((Self::of(&texts)?, record))
    }

    /// The recipe as a file's text.
    pub fn text(&self) -> (String, String) {
        (RECIPE_KEYWORD.to_owned(), serde_json::to_string(self).unwrap_or_default())
    }

    /// The settings as A1111's web UI writes and reads them.
    pub fn parameters(&self, settings: &Settings) -> String {
        let negative = self.negative.as_deref().filter(|negative| !negative.is_empty());
        let negative = negative.map_or_else(String::new, |negative| format!("\nNegative prompt: {negative}"));
        let seeds: Vec<String> = self.seeds.iter().map(u64::to_string).collect();
        let scheduler = match (&settings.scheduler, &settings.sigmas) {
            (Some(scheduler), _) => scheduler,
            (None, Some(_)) => "sigmas by hand",
            (None, None) => "diffusers",
        };
        let mut facts = vec![
            format!("Steps: {}", settings.steps),
            format!("Sampler: {}", settings.sampler),
            format!("Schedule type: {scheduler}"),
            format!("CFG scale: {}", settings.cfg),
            format!("Seed: {}", seeds.join(",")),
            format!("Size: {}x{}", settings.width, settings.height),
        ];
        if settings.denoise < 1.0 {
            facts.push(format!("Denoising strength: {}", settings.denoise));
        }
        facts.extend(self.model.as_ref().map(|model| format!("Model: {}", quoted(&model.name))));
        facts.extend(settings.guidance.map(|guidance| format!("Distilled CFG Scale: {guidance}")));
        facts.extend(settings.shift.map(|shift| format!("Shift: {shift}")));
        facts.push(format!("Version: tilewright {}", env!("CARGO_PKG_VERSION")));
        format!("{}{negative}\n{}", self.prompt, facts.join(", "))
    }
}

/// A value of A1111's line: in quotes if it holds what parts values.
fn quoted(text: &str) -> String {
    let is_plain = !text.contains([',', ':', '\n', '"']);
    if is_plain { text.to_owned() } else { serde_json::to_string(text).unwrap_or_default() }
}
