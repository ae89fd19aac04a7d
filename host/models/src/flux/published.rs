//! Flux.1's facts: the tensors that its files are known by, usual settings, ComfyUI's nodes.

use tilewright_sampling::{Shift, Times};

use super::config::{Config, PATCH};
use crate::{
    EncoderKind, Family,
    denoiser::{Architecture, Sign},
    published::{ComfyUi, Facts, Published, Start, Usual, Widths},
    transformer::Layout,
};

/// The guidance of the network that has it as an input (ComfyUI's `FluxGuidance`).
const GUIDANCE: f64 = 3.5;

/// The denoiser's name, as in "Flux.1's transformer".
pub(crate) const NAME: &str = "Flux.1's";

/// The signs of a file with the network.
pub(crate) const SIGNS: &[Sign] = &[
    Sign {
        part: "Flux.1's transformer",
        layout: Layout::ComfyUi,
        mark: "img_in.weight",
        companion: Some(".norm.query_norm.weight"),
    },
    Sign { part: "Flux.1's transformer", layout: Layout::Original, mark: "img_in.weight", companion: None },
    Sign {
        part: "Flux.1's transformer (diffusers)",
        layout: Layout::Diffusers,
        mark: "x_embedder.weight",
        companion: None,
    },
];

const SCHNELL: Published = Published {
    scales: [8, 1],
    usual: Usual {
        size: [1024, 1024],
        frames: 1,
        steps: 4,
        cfg: 1.0,
        sampler: "euler",
        shifts: [Shift::Flow(1.0), Shift::Flow(1.0)],
    },
    usual_of_experts: None,
    boundary: 0.0,
    times: Times::Pipeline,
    text_tokens: [256, 512],
    comfyui: ComfyUi { clip_type: "flux", shift: "ModelSamplingAuraFlow", empty_latent: "EmptySD3LatentImage" },
};

const DEV: Published = Published {
    usual: Usual { steps: 20, shifts: [Shift::Exponential(1.15), Shift::BySize], ..SCHNELL.usual },
    ..SCHNELL
};

impl Architecture for Config {
    fn model(&self) -> String {
        let kind =
            if self.guidance { "with guidance as an input (dev)" } else { "without guidance as an input (schnell)" };
        format!("Flux.1 {kind}")
    }

    fn shape(&self) -> String {
        format!(
            "{} heads in a width of {}, {} double and {} single blocks, {} latent channels",
            self.heads, self.hidden, self.double_blocks, self.single_blocks, self.latent_channels
        )
    }

    fn facts(&self) -> Facts {
        Facts {
            family: Family::Flux,
            latent_channels: self.latent_channels,
            condition_channels: 0,
            is_video: false,
            patch: PATCH,
            widths: Widths { text: self.text, pooled: Some(self.pooled), image: None },
            guidance: self.guidance.then_some(GUIDANCE),
            start: Some(Start::Latent),
            published: if self.guidance { &DEV } else { &SCHNELL },
        }
    }

    fn text_encoders(&self) -> Vec<(EncoderKind, i64)> {
        vec![(EncoderKind::Clip, self.pooled), (EncoderKind::T5, self.text)]
    }
}
