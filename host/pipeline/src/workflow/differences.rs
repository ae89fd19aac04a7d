//! Ways in which ComfyUI's own nodes can't do as a picture was made, in words for a note beside its
//! graph.

use tilewright_models::EncoderKind;
use tilewright_sampling::Convention;

use super::Workflow;

/// The tokens of CLIP at which diffusers' pipelines cut a prompt.
const CLIP_TOKENS: u32 = 77;

impl Workflow<'_> {
    /// A sentence on each way.
    pub(super) fn differences(&self) -> Vec<String> {
        let Self { request, sampling, text_tokens, image, .. } = self;
        let as_diffusers = request.convention == Convention::Diffusers;
        let first = sampling.sigmas.first().copied().unwrap_or(1.0);
        let begins_with_noise = as_diffusers && image.is_none() && self.scheduler().is_none() && first < 1.0;
        let encoders = match self.model.denoiser.config().text_encoders()[..] {
            [(EncoderKind::Clip, _), (other, _)] => {
                format!("{CLIP_TOKENS} tokens of CLIP and {text_tokens} of {}", other.name())
            }
            _ => format!("{text_tokens} tokens"),
        };
        let all = [
            (
                sampling.sampler.is_native(),
                format!(
                    "The sampler was diffusers' solver that stands for {}: ComfyUI's of that name is another one, so that the picture is another, too.",
                    sampling.sampler
                ),
            ),
            (
                sampling.whole_timesteps,
                "The network was told whole timesteps, cut off, as diffusers does: nodes tell it exact ones.".to_owned(),
            ),
            (
                begins_with_noise,
                format!("It began with the noise as it is, as diffusers does: nodes scale it by the first sigma, {first:.6}."),
            ),
            (as_diffusers, format!("Prompts were cut at {encoders}, as diffusers does: nodes read all of them.")),
            (
                as_diffusers && image.is_some() && self.facts().is_video,
                "All of the first frame's picture was scaled to the size, as diffusers does: the node takes its middle."
                    .to_owned(),
            ),
            (
                self.has_unread_loras(),
                "A LoRA's factors stand in settings, or it has biases or two experts' halves, which nodes don't read."
                    .to_owned(),
            ),
            (
                request.reuse.is_some(),
                format!(
                    "Outputs of the network were reused up to a change of {}: this graph computes each.",
                    request.reuse.unwrap_or_default()
                ),
            ),
        ];
        all.into_iter().filter(|(differs, _)| *differs).map(|(_, sentence)| sentence).collect()
    }

    /// True if a node's strength can't tell the factors of a LoRA.
    fn has_unread_loras(&self) -> bool {
        let experts = 0..self.model.denoiser.files().len();
        self.loras.iter().any(|lora| {
            let mut own = experts.clone().filter(|expert| lora.expert.is_none_or(|of| of == *expert));
            own.any(|expert| self.model.unread_factor(&lora.path, expert).is_none())
        })
    }
}
