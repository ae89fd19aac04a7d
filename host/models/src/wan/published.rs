//! WAN's published facts: names of files, sizes and settings.

use tilewright_sampling::{Shift, Times};

use super::config::{Config, PATCH};
use crate::{
    EncoderKind, Family,
    denoiser::{Architecture, Sign},
    published::{ComfyUi, Facts, Published, Start, Usual, Widths},
    transformer::Layout,
};

/// The tensor of a file with the authors' names. A picture's encoder beside it has a
/// patch_embedding, too.
const MARK: &str = "blocks.0.self_attn.norm_k.weight";

/// The channels of latents of WAN 2.2's own autoencoder; its larger models keep that of 2.1.
const CHANNELS_22: i64 = 48;

/// The denoiser's name, as in "Flux.1's transformer".
pub(crate) const NAME: &str = "WAN's";

/// The signs of a file with the network.
pub(crate) const SIGNS: &[Sign] = &[
    Sign { part: "WAN's transformer", layout: Layout::Original, mark: MARK, companion: None },
    Sign { part: "WAN's transformer, image to video", layout: Layout::Original, mark: MARK, companion: None },
    Sign {
        part: "WAN's transformer (diffusers)",
        layout: Layout::Diffusers,
        mark: "condition_embedder.time_proj.weight",
        companion: None,
    },
];

const USUAL_21: Usual = Usual {
    size: [832, 480],
    frames: 81,
    steps: 20,
    cfg: 6.0,
    sampler: "uni_pc",
    shifts: [Shift::Flow(8.0), Shift::Flow(3.0)],
};

/// WAN 2.1, and 2.2 with two experts (the boundary is that of github.com/Wan-Video/Wan2.2,
/// wan/configs, from text).
const FROM_TEXT: Published = Published {
    scales: [8, 4],
    usual: USUAL_21,
    usual_of_experts: Some(Usual { cfg: 3.5, sampler: "euler", ..USUAL_21 }),
    boundary: 0.875,
    times: Times::Scheduler,
    text_tokens: [512, 512],
    comfyui: ComfyUi { clip_type: "wan", shift: "ModelSamplingSD3", empty_latent: "EmptyHunyuanLatentVideo" },
};

/// The same from a picture.
const FROM_PICTURE: Published = Published { boundary: 0.9, ..FROM_TEXT };

/// WAN 2.2 of 5 billion parameters, from text or a picture.
const WAN_22: Published = Published {
    scales: [16, 4],
    usual: Usual { size: [1280, 704], frames: 121, cfg: 5.0, shifts: [Shift::Flow(8.0), Shift::Flow(5.0)], ..USUAL_21 },
    usual_of_experts: None,
    comfyui: ComfyUi { empty_latent: "Wan22ImageToVideoLatent", ..FROM_TEXT.comfyui },
    ..FROM_TEXT
};

impl Architecture for Config {
    fn model(&self) -> String {
        let task = match (self.input_channels == self.latent_channels, self.image, self.latent_channels) {
            (true, _, CHANNELS_22) => "WAN 2.2, text or image to video (TI2V)",
            (true, ..) => "WAN 2.1 or 2.2, text to video (T2V)",
            (false, Some(_), _) => "WAN 2.1, image to video (I2V)",
            (false, None, _) => "WAN 2.2, image to video (I2V): one of two experts",
        };
        let experts = if self.hidden == 5120 && self.input_channels == self.latent_channels {
            ": of 2.2, one of two experts"
        } else {
            ""
        };
        format!("{task}{experts}")
    }

    fn shape(&self) -> String {
        format!(
            "{} heads in a width of {}, {} blocks, {} channels in, {} latent channels",
            self.heads, self.hidden, self.blocks, self.input_channels, self.latent_channels
        )
    }

    fn facts(&self) -> Facts {
        let condition_channels = self.input_channels - self.latent_channels;
        let (family, start, published) = match (self.latent_channels, condition_channels) {
            (CHANNELS_22, 0) => (Family::Wan22, Some(Start::FirstFrame), &WAN_22),
            (CHANNELS_22, _) => (Family::Wan22, Some(Start::Condition), &WAN_22),
            (_, 0) => (Family::Wan21, None, &FROM_TEXT),
            _ => (Family::Wan21, Some(Start::Condition), &FROM_PICTURE),
        };
        Facts {
            family,
            latent_channels: self.latent_channels,
            condition_channels,
            is_video: true,
            patch: PATCH,
            widths: Widths { text: self.text, pooled: None, image: self.image },
            guidance: None,
            start,
            published,
        }
    }

    fn text_encoders(&self) -> Vec<(EncoderKind, i64)> {
        vec![(EncoderKind::Umt5, self.text)]
    }
}
