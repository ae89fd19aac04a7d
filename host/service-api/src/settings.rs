//! The settings that a job from a prompt or a sample follows.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The settings of a job from a prompt, or of a sample, as they are carried out: those that were
/// asked for, and the model's defaults where nothing was. The names are those of requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct JobSettings {
    /// The prompt; none of a sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The prompt that guidance leads away from, if one was given; it counts if `cfg` is not 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub negative_prompt: Option<String>,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Frames: 1 of a picture.
    pub frames: u32,
    /// Pictures or clips.
    pub batch: u32,
    /// The seed of the whole batch, or one for each sample. One that was drawn is here.
    pub seeds: Vec<u64>,
    /// Steps; of sigmas by hand one less than those.
    pub steps: u32,
    /// Sigmas by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sigmas: Option<Vec<f64>>,
    /// The sampler.
    pub sampler: String,
    /// The scheduler; none for sigmas by hand, and as diffusers, which has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// The factor of guidance by the negative prompt or conditioning; 1 leaves it out.
    pub cfg: f64,
    /// The guidance of a transformer that has it as an input; none of others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guidance: Option<f64>,
    /// The shift of the sigmas; none for sigmas by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shift: Option<f64>,
    /// The part of the way from noise that is gone: 1 is all of it.
    pub denoise: f64,
    /// The change of the transformer's output up to which the last output serves once more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reuse: Option<f64>,
    /// It begins with a picture.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub image: bool,
    /// A mask says which part of the picture is made again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mask: bool,
    /// The tokens that T5 reads at least, and as diffusers at most; none of a sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_tokens: Option<u32>,
    /// The reference that is followed: comfyui or diffusers.
    #[serde(rename = "as")]
    pub convention: String,
    /// Frames per second of a clip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fps: Option<String>,
    /// The model's files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<ModelPart>,
    /// Changes of the transformer's weights.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loras: Vec<LoraSetting>,
    /// Names of the fields above that the request did not give: their values are defaults.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub defaults: Vec<String>,
}

/// A file of a model, without its path on the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ModelPart {
    /// The part of the model: transformer, text encoder, vision encoder or VAE.
    pub part: String,
    /// The file's name.
    pub name: String,
    /// Bytes of all its files.
    pub bytes: u64,
    /// A digest of its contents, by which it is known under another name or on another machine.
    pub digest: String,
}

/// A LoRA.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LoraSetting {
    /// The LoRA's name, as the request has it.
    pub name: String,
    /// As a model's.
    pub digest: String,
    /// The factor of its changes.
    pub strength: f64,
    /// The expert that it is for, by its number; all of them if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expert: Option<u32>,
    /// The part of it that has no place in the transformer, in a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}
