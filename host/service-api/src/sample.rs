//! The part of a request that says how latents are sampled.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request for a sample. Names and defaults are those of `tilewright sample`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SampleFields {
    /// Files on the server, absolute, below one of the configured roots; left out if they are
    /// uploaded.
    #[serde(skip_serializing_if = "SamplePaths::is_empty")]
    pub paths: SamplePaths,
    /// Width of the picture or clip in pixels; of the latent, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 32768)]
    pub width: Option<u32>,
    /// Height in pixels.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 32768)]
    pub height: Option<u32>,
    /// Frames of a clip; the model's usual number if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 4096)]
    pub frames: Option<u32>,
    /// Samples; else as many as the noise, the latent or the conditioning has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1024)]
    pub batch: Option<u32>,
    /// The seed of the noise, or one for each sample; `random`, or -1, draws one, which the job
    /// shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<Seeds>,
    /// Steps; the model's usual number if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10000)]
    pub steps: Option<u32>,
    /// The sampler, by ComfyUI's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 64)]
    pub sampler: Option<String>,
    /// The scheduler, by ComfyUI's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 64)]
    pub scheduler: Option<String>,
    /// Sigmas by hand, one more than steps, in place of `steps`, `scheduler` and `denoise`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 10001)]
    pub sigmas: Option<Vec<f64>>,
    /// The factor of guidance by the negative conditioning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cfg: Option<f64>,
    /// The guidance of a transformer that has it as an input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guidance: Option<f64>,
    /// The shift of the sigmas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shift: Option<f64>,
    /// The part of the way from noise that is gone: above 0, at most 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denoise: Option<f64>,
    /// The first step that is taken, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_step: Option<u32>,
    /// The step before which it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_step: Option<u32>,
    /// The latent has the noise of the first sigma already.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_add_noise: bool,
    /// The noise of the last sigma stays in the result.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub leftover_noise: bool,
    /// The change of the transformer's output, over its size, up to which the last output serves
    /// once more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reuse: Option<f64>,
    /// A picture of the sample so far is kept after each step, for `/v1/jobs/{id}/preview`. The
    /// model needs a `vae`: the colours are fitted to it, once.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub preview: bool,
    /// The reference that is followed: comfyui or diffusers.
    #[serde(rename = "as", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^(comfyui|diffusers)$")]
    pub convention: Option<String>,
}

/// The files of a request for a sample, beside the latent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SamplePaths {
    /// Conditioning.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub conditioning: Option<String>,
    /// The conditioning that guidance leads away from.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub negative: Option<String>,
    /// Noise, in place of that of a seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub noise: Option<String>,
    /// A mask: 1 where the latent is made again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub mask: Option<String>,
    /// The picture that a prompt's picture begins with: `denoise` is the share of it that is made
    /// again, and `mask` the part.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub image: Option<String>,
}

impl SamplePaths {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Seeds of 64 bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a whole number from 0 to 18446744073709551615, a list of such numbers, \"random\" or -1"
)]
pub enum Seeds {
    /// One seed for the whole batch.
    Whole(u64),
    /// A seed for each sample.
    Each(Vec<u64>),
    /// One seed for the whole batch, drawn when the job is accepted.
    Drawn(Draw),
}

/// A seed that is drawn: `random`, or -1 as other programs have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase", try_from = "RawDraw")]
pub enum Draw {
    /// Any.
    Random,
}

/// A seed that is drawn, as requests write it.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawDraw {
    Name(String),
    Number(i64),
}

impl TryFrom<RawDraw> for Draw {
    type Error = &'static str;

    fn try_from(raw: RawDraw) -> Result<Self, Self::Error> {
        match raw {
            RawDraw::Name(name) if name == "random" => Ok(Self::Random),
            RawDraw::Number(-1) => Ok(Self::Random),
            _ => Err("expected \"random\" or -1"),
        }
    }
}

impl Seeds {
    /// One, or as many as samples; none if it is still to be drawn.
    pub fn list(&self) -> Vec<u64> {
        match self {
            Self::Whole(seed) => vec![*seed],
            Self::Each(seeds) => seeds.clone(),
            Self::Drawn(Draw::Random) => Vec::new(),
        }
    }
}
