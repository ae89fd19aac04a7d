//! The published facts of a denoiser, which stand in its folder: the sizes and settings that it was
//! trained and released with.

use tilewright_sampling::{Shift, Times};

use crate::Family;

/// The facts that running a denoiser takes: those that its weights show, and those of its release.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The family whose latents it makes.
    pub family: Family,
    /// Channels of a latent.
    pub latent_channels: i64,
    /// Channels of a condition beside the latent: a mask's and a latent's.
    pub condition_channels: i64,
    /// True if latents have frames.
    pub is_video: bool,
    /// Pixels of a latent along the side of a token.
    pub patch: i64,
    /// The widths of its conditioning.
    pub widths: Widths,
    /// The usual guidance of a network that has it as an input.
    pub guidance: Option<f64>,
    /// The place of a picture to begin with, if there is one.
    pub start: Option<Start>,
    /// The settings that it was released with.
    pub published: &'static Published,
}

/// The widths of a denoiser's conditioning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Widths {
    /// The width of each token of the text.
    pub text: i64,
    /// The width of the text's vector.
    pub pooled: Option<i64>,
    /// The width of each token of a picture.
    pub image: Option<i64>,
}

/// The place of a picture to begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The picture's latent is noised and sampled again.
    Latent,
    /// The picture's latent, with grey frames behind it, stands in channels next to the noise.
    Condition,
    /// The picture's latent is the first frame, and stays as it is, without noise.
    FirstFrame,
}

/// The settings that denoisers of a kind were released with.
#[derive(Debug)]
pub struct Published {
    /// Pixels to a latent pixel along a side, and frames to a latent frame after the first.
    pub scales: [u32; 2],
    /// The usual settings.
    pub usual: Usual,
    /// The usual settings of two experts, where there are such.
    pub usual_of_experts: Option<Usual>,
    /// The sigma at which two experts change.
    pub boundary: f64,
    /// The part of diffusers that sets the times: they differ in the last one.
    pub times: Times,
    /// The least tokens that a prompt is padded to for T5 and UMT5: by ComfyUI, by diffusers.
    pub text_tokens: [u32; 2],
    /// The names of ComfyUI's nodes for it.
    pub comfyui: ComfyUi,
}

/// The usual settings of a denoiser.
#[derive(Debug)]
pub struct Usual {
    /// Width and height in pixels.
    pub size: [u32; 2],
    /// Frames: 1 of a picture.
    pub frames: u32,
    /// Steps.
    pub steps: u32,
    /// The scale of classifier-free guidance; 1 runs no negative prompt.
    pub cfg: f64,
    /// The sampler as ComfyUI.
    pub sampler: &'static str,
    /// The shifts of sigmas, as ComfyUI and as diffusers.
    pub shifts: [Shift; 2],
}

/// The names by which ComfyUI 0.30.0 knows a denoiser's parts.
#[derive(Debug)]
pub struct ComfyUi {
    /// The type that loaders of its text encoders are given.
    pub clip_type: &'static str,
    /// The node that shifts its sigmas by a factor. Of the two that do so, ModelSamplingAuraFlow is
    /// for networks whose times go from 0 to 1, ModelSamplingSD3 for those from 0 to 1000.
    pub shift: &'static str,
    /// The node that makes its empty latents.
    pub empty_latent: &'static str,
}
