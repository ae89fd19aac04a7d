//! A sample's input as tensors and facts, from which it is made again.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};
use tilewright_sampling::{ModelSampling, Sampler};

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
        let sampling = Self {
            latents: needed("latents")?,
            noise: tensor("noise"),
            positive: prompts("positive", &facts.positive)?,
            negative: prompts("negative", &facts.negative)?,
            condition: tensor("condition"),
            kept,
            guidance: facts.guidance,
            cfg: facts.cfg,
            sigmas: facts.sigmas,
            sampler: facts.sampler.parse::<Sampler>()?,
            model: facts.model,
            whole_timesteps: facts.whole_timesteps,
            reuse: facts.reuse,
            seeds: facts.seeds,
        };
        sampling.check().map(|()| sampling)
    }

    /// Checks the shapes and numbers of an input that a file has.
    fn check(&self) -> std::result::Result<(), String> {
        const MOST_SIGMAS: usize = 1 << 16;
        let size = self.latents.size();
        let batch = size.first().copied().unwrap_or_default();
        let has_rank = |tensor: &Tensor, rank: usize| tensor.dim() == rank && tensor.numel() > 0;
        let serves = |tensor: &Tensor| tensor.size().first().is_some_and(|rows| [1, batch].contains(rows));
        let fits = |Prompt { tensors: ConditioningTensors { text, pooled, image }, within }: &Prompt| {
            let others = [(pooled, 2), (image, 3)];
            let of_rank = |(tensor, rank): &(&Option<Tensor>, usize)| {
                tensor.as_ref().is_none_or(|tensor| has_rank(tensor, *rank) && serves(tensor))
            };
            has_rank(text, 3)
                && serves(text)
                && others.iter().all(of_rank)
                && !within.iter().any(|sigma| sigma.is_nan())
        };
        let is_like = |tensor: &Tensor| tensor.size() == size;
        let masks = |mask: &Tensor| {
            let ends = |size: &[i64]| size[2.min(size.len())..].to_vec();
            mask.dim() == size.len() && ends(&mask.size()) == ends(&size) && mask.size()[..2] == [1, 1]
        };
        let tensors = [Some(&self.latents), self.noise.as_ref(), self.condition.as_ref()];
        let kept = self.kept.iter().flat_map(|kept| [&kept.latents, &kept.mask]);
        let mut all = tensors.into_iter().flatten().chain(kept);
        let rules = [
            ([4, 5].contains(&size.len()) && self.latents.numel() > 0, "its latents have 4 or 5 axes"),
            (all.all(|tensor| tensor.kind() == Kind::Float), "its latents, noise, condition and mask are f32"),
            (self.noise.as_ref().is_none_or(is_like), "its noise has the shape of the latents"),
            (self.kept.as_ref().is_none_or(|kept| is_like(&kept.latents)), "its kept latents have that shape"),
            (self.kept.as_ref().is_none_or(|kept| masks(&kept.mask)), "its mask covers the latents"),
            (
                self.condition.as_ref().is_none_or(|condition| has_rank(condition, size.len()) && serves(condition)),
                "its condition has the axes of the latents",
            ),
            (!self.positive.is_empty(), "it has a conditioning"),
            (self.positive.iter().chain(&self.negative).all(fits), "its conditionings are [N, tokens, width]"),
            ((2..=MOST_SIGMAS).contains(&self.sigmas.len()), "it has two sigmas or more"),
            (self.sigmas.iter().all(|sigma| sigma.is_finite() && *sigma >= 0.0), "its sigmas are 0 or more"),
            (self.sigmas.is_sorted_by(|one, other| one >= other), "its sigmas fall"),
            (self.seeds.len() == 1 || self.seeds.len() as i64 == batch, "it has a seed, or one of each sample"),
            (self.cfg.is_finite() && self.guidance.is_none_or(f32::is_finite), "its guidance is a number"),
            (self.reuse.is_none_or(|most| most.is_finite() && most >= 0.0), "its reuse is 0 or more"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(format!("{rule}, and the capture says otherwise")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    /// Changes what is written.
    type Change = fn(&mut serde_json::Value, &mut Vec<(String, Tensor)>);

    fn zeros(shape: &[i64]) -> Tensor {
        Tensor::zeros(shape, (Kind::Float, Device::Cpu))
    }

    fn read(change: Change) -> std::result::Result<Sampling, String> {
        let text = ConditioningTensors { text: zeros(&[1, 7, 8]), pooled: Some(zeros(&[1, 4])), image: None };
        let sampling = Sampling {
            latents: zeros(&[2, 4, 6, 6]),
            noise: Some(zeros(&[2, 4, 6, 6])),
            positive: vec![Prompt::whole(text)],
            negative: Vec::new(),
            condition: None,
            kept: Some(Kept { latents: zeros(&[2, 4, 6, 6]), mask: zeros(&[1, 1, 6, 6]), clean: false }),
            guidance: Some(3.5),
            cfg: 1.0,
            sigmas: vec![1.0, 0.5, 0.0],
            sampler: "euler".parse().unwrap(),
            model: ModelSampling::shifted(1.0),
            whole_timesteps: false,
            reuse: None,
            seeds: vec![1],
        };
        let (mut tensors, facts) = sampling.written();
        let mut facts = serde_json::to_value(facts).unwrap();
        change(&mut facts, &mut tensors);
        let facts = serde_json::from_value(facts).map_err(|error| error.to_string())?;
        Sampling::from_written(facts, |name| {
            tensors.iter().find(|(known, _)| known == name).map(|(_, tensor)| tensor.shallow_clone())
        })
    }

    fn put(tensors: &mut [(String, Tensor)], name: &str, tensor: Tensor) {
        for (known, there) in tensors {
            if known == name {
                *there = tensor.shallow_clone();
            }
        }
    }

    #[test]
    fn what_was_written_is_read_and_nothing_that_makes_no_sense() {
        assert_eq!(read(|_, _| ()).unwrap().sigmas, [1.0, 0.5, 0.0]);
        let changes: [(Change, &str); 12] = [
            (|_, tensors| put(tensors, "latents", zeros(&[2, 4])), "4 or 5 axes"),
            (|_, tensors| put(tensors, "latents", zeros(&[2, 4, 6, 6]).to_kind(Kind::Half)), "are f32"),
            (|_, tensors| put(tensors, "noise", zeros(&[1, 4, 6, 6])), "shape of the latents"),
            (|_, tensors| put(tensors, "kept.latents", zeros(&[2, 4, 5, 6])), "kept latents"),
            (|_, tensors| put(tensors, "kept.mask", zeros(&[1, 1, 5, 6])), "mask"),
            (|_, tensors| put(tensors, "positive.0.text", zeros(&[3, 7, 8])), "conditionings"),
            (|_, tensors| put(tensors, "positive.0.pooled", zeros(&[4])), "conditionings"),
            (|_, tensors| tensors.retain(|(name, _)| name != "latents"), "is missing"),
            (|facts, _| facts["sigmas"] = serde_json::json!([1.0]), "two sigmas"),
            (|facts, _| facts["sigmas"] = serde_json::json!([1.0, -1.0]), "0 or more"),
            (|facts, _| facts["sigmas"] = serde_json::json!([0.0, 1.0]), "fall"),
            (|facts, _| facts["seeds"] = serde_json::json!([1, 2, 3]), "a seed"),
        ];
        for (change, words) in changes {
            let error = read(change).map(drop).unwrap_err();
            assert!(error.contains(words), "{error}: {words}");
        }
    }
}
