//! The stages of a replay: each opens the model that was captured, or the one in its place, and
//! gives it the captured inputs.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use serde::Deserialize;
use tch::{Kind, Tensor};
use tilewright_capture::StageEntry;
use tilewright_engine::{
    Budget, DenoiseJob, DenoiserFacts, MemoryLimit, Observer, Overrides, Sampled, Sampling, SamplingFacts, Sink,
    TextJob, Texts, WeightStore,
};
use tilewright_models::{Checkpoint, EncoderFile, Error as ModelError};
use tilewright_plan::{Denoise, Planner, Record, Text, Vae, Work};

use super::{Ran, Replay, comparison, planner::AS_CAPTURED};
use crate::{Decode, Encode, EncodeInput, Error, LoraRequest, Model, Result, SampleModel, VaeJob};

/// The facts of a decode or an encode.
#[derive(Deserialize)]
struct VaeFacts {
    vae: PathBuf,
}

/// The facts of a sample.
#[derive(Deserialize)]
struct SampleFacts {
    sampling: SamplingFacts,
    transformer: DenoiserFacts,
}

/// The facts of texts.
#[derive(Deserialize)]
struct TextFacts {
    text_encoder: PathBuf,
    prefix: String,
    left_out: usize,
}

/// Frames of clips by sample and first frame.
#[derive(Default)]
struct Kept(Vec<(String, Tensor)>);

impl Sink for Kept {
    fn frames(
        &mut self,
        sample: u32,
        first: u32,
        frames: &Tensor,
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.0.push((format!("{sample}.from_frame.{first}"), frames.shallow_clone()));
        Ok(())
    }
}

impl Replay<'_> {
    pub(super) fn decode(
        &self,
        entry: &StageEntry,
        record: &Record<Vae>,
        planner: &mut dyn Planner<Vae>,
        observer: &mut dyn Observer,
    ) -> Result<Ran<Vae>> {
        let model = self.vae(entry)?;
        let latents = self.input(entry, &self.inputs(entry)?, "input")?;
        self.check_shape(entry, &latents, if matches!(model, Model::Clip(_)) { 5 } else { 4 })?;
        let job = Decode::new(self.machine, &model, &latents, self.limit(record), record.request.objective)?;
        let job = job.allowing_blended(record.request.allows_blended);
        self.check(entry, job.estimate(&record.plan), planner, record)?;
        match job {
            VaeJob::Pictures(job) => {
                let finished = job.run(planner, observer).map_err(|unfinished| unfinished.error)?;
                Ok(Ran { outputs: vec![("output".into(), finished.output)], record: finished.record })
            }
            VaeJob::Clips(job) => {
                let mut kept = Kept::default();
                let finished = job.run(planner, observer, &mut kept, &[]).map_err(|unfinished| unfinished.error)?;
                Ok(Ran { outputs: kept.0, record: finished.record })
            }
        }
    }

    pub(super) fn encode(
        &self,
        entry: &StageEntry,
        record: &Record<Vae>,
        planner: &mut dyn Planner<Vae>,
        observer: &mut dyn Observer,
    ) -> Result<Ran<Vae>> {
        let (model, inputs) = (self.vae(entry)?, self.inputs(entry)?);
        let request = &record.request;
        let (input, frames) = match model {
            Model::Picture(_) => {
                let pictures = self.input(entry, &inputs, "input")?;
                self.check_shape(entry, &pictures, 4)?;
                (EncodeInput::Pictures(pictures), None)
            }
            Model::Clip(_) => {
                let mut pieces = Vec::new();
                while let Some(piece) = inputs.get(&format!("frames.{}", pieces.len())) {
                    pieces.push(piece.shallow_clone());
                }
                if pieces.is_empty() {
                    return Err(self.refused(entry, "it has no frames".into()));
                }
                let frames = Tensor::f_cat(&pieces, 0).map_err(tilewright_torch::Error::from);
                let frames = frames.map_err(tilewright_engine::Error::from)?;
                self.check_shape(entry, &frames, 4)?;
                let extents =
                    [u64::from(request.batch), request.frames.into(), request.height.into(), request.width.into()];
                if extents.contains(&0) {
                    return Err(self.refused(entry, "its record has no size".into()));
                }
                (EncodeInput::foreseen(&model, extents, 0)?, Some(frames))
            }
        };
        let job = Encode::new(self.machine, &model, &input, self.limit(record), request.objective)?;
        let job = job.allowing_blended(request.allows_blended);
        self.check(entry, job.estimate(&record.plan), planner, record)?;
        let (latents, record) = match job {
            VaeJob::Pictures(job) => {
                let finished = job.run(planner, observer).map_err(|unfinished| unfinished.error)?;
                (finished.output, finished.record)
            }
            VaeJob::Clips(job) => {
                let (frames, mut next) = (frames.unwrap_or_default(), 0);
                let mut source = |count: u32| -> std::result::Result<Tensor, Box<dyn std::error::Error + Send + Sync>> {
                    let all = frames.size().first().copied().unwrap_or_default();
                    let count = i64::from(count).min(all - next);
                    let part = frames.f_narrow(0, next, count)?;
                    next += count;
                    Ok(part)
                };
                let finished = job.run(planner, observer, &mut source).map_err(|unfinished| unfinished.error)?;
                (finished.output.latents, finished.record)
            }
        };
        Ok(Ran { outputs: vec![("output".into(), latents)], record })
    }

    pub(super) fn sample(
        &self,
        entry: &StageEntry,
        record: &Record<Denoise>,
        planner: &mut dyn Planner<Denoise>,
        observer: &mut dyn Observer,
    ) -> Result<Ran<Denoise>> {
        let SampleFacts { sampling, transformer } = self.parsed(entry, self.captured.facts(entry)?, "list of facts")?;
        let paths = if self.files.transformers.is_empty() { &transformer.paths } else { &self.files.transformers };
        let mut model = SampleModel::open(paths, transformer.boundary.filter(|_| paths.len() > 1))?;
        for lora in &transformer.loras {
            let request = LoraRequest { path: lora.path.clone(), strength: lora.strength, expert: Some(lora.expert) };
            model.add(&request)?;
        }
        let inputs = self.inputs(entry)?;
        let sampling = Sampling::from_written(sampling, |name| inputs.get(name).map(Tensor::shallow_clone));
        let sampling = sampling.map_err(|reason| self.refused(entry, reason))?;
        let limit = self.memory_limit(record.request.memory_limit);
        let job = DenoiseJob::new(self.machine, &model.denoiser, &sampling, limit, record.request.objective)?;
        self.check(entry, job.estimate(&record.plan), planner, record)?;
        let finished = job.run(planner, None, observer).map_err(|unfinished| unfinished.error)?;
        let Sampled { latents, noisy } = finished.output;
        let noisy = noisy.map(|(noisy, _)| ("noisy".to_owned(), noisy));
        Ok(Ran {
            outputs: [("output".to_owned(), latents)].into_iter().chain(noisy).collect(),
            record: finished.record,
        })
    }

    pub(super) fn read_texts(
        &self,
        entry: &StageEntry,
        record: &Record<Text>,
        planner: &mut dyn Planner<Text>,
        observer: &mut dyn Observer,
    ) -> Result<Ran<Text>> {
        let facts: TextFacts = self.parsed(entry, self.captured.facts(entry)?, "list of facts")?;
        let encoder = Arc::new(self.encoder(entry, &facts, record)?);
        let inputs = self.inputs(entry)?;
        let mut embedded = Vec::new();
        while let Some(text) = inputs.get(&format!("embedded.{}", embedded.len())) {
            embedded.push(text.shallow_clone());
        }
        if embedded.is_empty() {
            return Err(self.refused(entry, "it has no text".into()));
        }
        let store = WeightStore::new(Budget::Last);
        let texts = Texts { encoder: &encoder, weights: &store, embedded: &embedded, left_out: facts.left_out };
        let limit = self.memory_limit(record.request.memory_limit);
        let job = TextJob::new(self.machine, self.host, texts, limit, record.request.objective)?;
        self.check(entry, job.estimate(&record.plan), planner, record)?;
        let finished = job.run(planner, observer).map_err(|unfinished| unfinished.error)?;
        let outputs = finished.output.into_iter().enumerate().flat_map(|(index, states)| {
            let inner = states.inner.map(|inner| (format!("inner.{index}"), inner));
            [(format!("last.{index}"), states.last)].into_iter().chain(inner)
        });
        Ok(Ran { outputs: outputs.collect(), record: finished.record })
    }

    /// The encoder of the captured texts, or that of its kind among those in its place.
    fn encoder(&self, entry: &StageEntry, facts: &TextFacts, record: &Record<Text>) -> Result<EncoderFile> {
        let found = |path: &PathBuf| -> Result<Vec<EncoderFile>> {
            let checkpoint = Arc::new(Checkpoint::open(path).map_err(ModelError::from)?);
            let texts = EncoderFile::find_all(&checkpoint);
            match EncoderFile::find_vision(&checkpoint) {
                Ok(vision) => Ok(texts.unwrap_or_default().into_iter().chain([vision]).collect()),
                Err(_) => Ok(texts?),
            }
        };
        if self.files.text_encoders.is_empty() {
            let encoder = found(&facts.text_encoder)?.into_iter().find(|encoder| encoder.file().prefix == facts.prefix);
            return encoder
                .ok_or_else(|| Error::input(&facts.text_encoder, "has no text encoder any more as it was captured"));
        }
        for path in &self.files.text_encoders {
            let encoder = found(path)?.into_iter().find(|encoder| encoder.config.id() == record.request.model.kind);
            if let Some(encoder) = encoder {
                return Ok(encoder);
            }
        }
        Err(self.refused(entry, format!("none of the text encoders given is {}", record.request.model.kind)))
    }

    fn vae(&self, entry: &StageEntry) -> Result<Model> {
        let facts: VaeFacts = self.parsed(entry, self.captured.facts(entry)?, "list of facts")?;
        Model::open(self.files.vae.as_ref().unwrap_or(&facts.vae), Overrides::default())
    }

    fn inputs(&self, entry: &StageEntry) -> Result<BTreeMap<String, Tensor>> {
        let mut inputs = BTreeMap::new();
        for (name, stored) in self.captured.inputs(entry)? {
            inputs.extend(comparison::tensor(&stored)?.map(|tensor| (name, tensor)));
        }
        Ok(inputs)
    }

    fn input(&self, entry: &StageEntry, inputs: &BTreeMap<String, Tensor>, name: &str) -> Result<Tensor> {
        let input = inputs.get(name).map(Tensor::shallow_clone);
        input.ok_or_else(|| self.refused(entry, format!("the tensor {name} is missing")))
    }

    /// Checks that a tensor can be the input of a model: of its number of axes, of f32, and with
    /// values.
    fn check_shape(&self, entry: &StageEntry, input: &Tensor, axes: usize) -> Result<()> {
        let shape = input.size();
        let reason = match input.f_kind() {
            Ok(Kind::Float) if shape.len() == axes && shape.iter().all(|extent| *extent > 0) => return Ok(()),
            Ok(Kind::Float) => format!("its input {shape:?} is none of {axes} axes that the VAE takes"),
            _ => "its input is not f32".to_owned(),
        };
        Err(self.refused(entry, reason))
    }

    fn limit(&self, record: &Record<Vae>) -> MemoryLimit {
        let captured = &record.request;
        MemoryLimit { bytes: self.memory_limit(captured.memory_limit), counts_weights: captured.limit_counts_weights }
    }

    /// Refuses the captured plan where it can't be carried out; another planner answers for itself.
    fn check<W: Work>(
        &self,
        entry: &StageEntry,
        price: std::result::Result<W::Cost, String>,
        planner: &dyn Planner<W>,
        record: &Record<W>,
    ) -> Result<()> {
        if planner.identity().name != AS_CAPTURED {
            return Ok(());
        }
        price
            .map(drop)
            .map_err(|reason| self.refused(entry, format!("{}: {reason}; another policy may decide", record.plan)))
    }
}
