//! A sample's input as tensors and facts, from which it is made again.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tch::Tensor;
use tilewright_sampling::ModelSampling;

use super::{ConditioningTensors, Kept, Prompt, Sampling};

/// All of a [`Sampling`] that is no tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingFacts {
    /// The sigmas from and down to which each positive conditioning counts; none for no bound.
    positive: Vec<[Option<f64>; 2]>,
    negative: Vec<[Option<f64>; 2]>,
    /// Kept latents go in as they are; none if none are kept.
    kept_clean: Option<bool>,
    guidance: Option<f32>,
    cfg: f64,
    sigmas: Vec<f64>,
    sampler: String,
    model: ModelSampling,
    whole_timesteps: bool,
    reuse: Option<f64>,
    seeds: Vec<u64>,
}

/// The files of a denoiser.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DenoiserFacts {
    /// A transformer, or two experts.
    pub paths: Vec<PathBuf>,
    /// The sigma at which two experts change.
    pub boundary: Option<f64>,
    /// The LoRAs of each.
    pub loras: Vec<LoraFacts>,
}

/// A LoRA of a denoiser.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoraFacts {
    /// The file.
    pub path: PathBuf,
    /// The factor of its changes.
    pub strength: f64,
    /// The number of the expert that it changes.
    pub expert: usize,
}

/// The names of a conditioning's tensors.
fn names(side: &str, index: usize) -> [String; 3] {
    ["text", "pooled", "image"].map(|part| format!("{side}.{index}.{part}"))
}

impl Sampling {
    /// The tensors by name, and the rest.
    pub fn written(&self) -> (Vec<(String, Tensor)>, SamplingFacts) {
        let Self { latents, noise, positive, negative, condition, kept, .. } = self;
        let mut tensors = vec![("latents".to_owned(), latents.shallow_clone())];
        let mut add = |name: String, tensor: Option<&Tensor>| {
            tensors.extend(tensor.map(|tensor| (name, tensor.shallow_clone())));
        };
        add("noise".into(), noise.as_ref());
        add("condition".into(), condition.as_ref());
        add("kept.latents".into(), kept.as_ref().map(|kept| &kept.latents));
        add("kept.mask".into(), kept.as_ref().map(|kept| &kept.mask));
        for (side, prompts) in [("positive", positive), ("negative", negative)] {
            for (index, Prompt { tensors: ConditioningTensors { text, pooled, image }, .. }) in
                prompts.iter().enumerate()
            {
                let [of_text, of_pooled, of_image] = names(side, index);
                add(of_text, Some(text));
                add(of_pooled, pooled.as_ref());
                add(of_image, image.as_ref());
            }
        }
        // JSON has no infinity.
        let within = |prompts: &[Prompt]| {
            prompts.iter().map(|prompt| prompt.within.map(|sigma| sigma.is_finite().then_some(sigma))).collect()
        };
        let facts = SamplingFacts {
            positive: within(positive),
            negative: within(negative),
            kept_clean: kept.as_ref().map(|kept| kept.clean),
            guidance: self.guidance,
            cfg: self.cfg,
            sigmas: self.sigmas.clone(),
            sampler: self.sampler.to_string(),
            model: self.model.clone(),
            whole_timesteps: self.whole_timesteps,
            reuse: self.reuse,
            seeds: self.seeds.clone(),
        };
        (tensors, facts)
    }

    /// The input that was written down, with a tensor by its name.
    ///
    /// # Errors
    /// One line: a tensor is missing, or a fact makes no sense.
    pub fn from_written(
        facts: SamplingFacts,
        tensor: impl Fn(&str) -> Option<Tensor>,
    ) -> std::result::Result<Self, String> {
        let needed = |name: &str| tensor(name).ok_or_else(|| format!("the tensor {name} is missing"));
        let prompts = |side: &str, within: &[[Option<f64>; 2]]| {
            let prompt = |(index, [from, to]): (usize, &[Option<f64>; 2])| -> std::result::Result<Prompt, String> {
                let [text, pooled, image] = names(side, index);
                let tensors =
                    ConditioningTensors { text: needed(&text)?, pooled: tensor(&pooled), image: tensor(&image) };
                Ok(Prompt { tensors, within: [from.unwrap_or(f64::INFINITY), to.unwrap_or_default()] })
            };
            within.iter().enumerate().map(prompt).collect::<std::result::Result<Vec<_>, String>>()
        };
        let kept = match facts.kept_clean {
            Some(clean) => Some(Kept { latents: needed("kept.latents")?, mask: needed("kept.mask")?, clean }),
            None => None,
        };
        if facts.positive.is_empty() || facts.sigmas.len() < 2 || facts.seeds.is_empty() {
            return Err("a sample has a conditioning, two sigmas and a seed".into());
        }
        Ok(Self {
            latents: needed("latents")?,
            noise: tensor("noise"),
            positive: prompts("positive", &facts.positive)?,
            negative: prompts("negative", &facts.negative)?,
            condition: tensor("condition"),
            kept,
            guidance: facts.guidance,
            cfg: facts.cfg,
            sigmas: facts.sigmas,
            sampler: facts.sampler.parse().map_err(|error| format!("{error}"))?,
            model: facts.model,
            whole_timesteps: facts.whole_timesteps,
            reuse: facts.reuse,
            seeds: facts.seeds,
        })
    }
}
