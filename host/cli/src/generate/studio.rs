//! The surroundings that all stages of a prompt's picture or clip share.

use std::{
    cell::OnceCell,
    path::{Path, PathBuf},
};

use tilewright_engine::{Machine, MemoryLimit};
use tilewright_media::STANDARD;
use tilewright_models::Start;
use tilewright_outputs::folder_of;
use tilewright_pipeline::{Decode, EmbeddingFolder, Encode, EncodeInput, EncoderRun, Model, Parts};
use tilewright_plan::{Candidate, Loss, Objective, Record, Stage, Vae, words::with_noun};

use crate::{args::Generate, failure::Outcome, table, tell::tell, text_stage};

/// A decision, with what was measured of it, and the plans that it was made among.
pub type Decided<W = Vae> = (Record<W>, Vec<Candidate<W>>);

/// The surroundings of all stages.
pub struct Studio<'a> {
    pub arguments: &'a Generate,
    pub parts: &'a Parts,
    pub machine: &'a Machine,
    pub vae: &'a Model,
    /// The most bytes that a stage may hold, its weights included.
    pub limit: u64,
    /// The prompts: the negative one comes second, if it counts.
    pub prompts: Vec<String>,
    /// The tokens of the text encoder without positions, if somebody says them.
    pub text_tokens: Option<u32>,
    /// Embeddings that prompts may name.
    pub embeddings: Option<EmbeddingFolder>,
    /// The picture to begin with, and its place in what the model makes.
    pub start: Option<(Start, &'a Path)>,
    /// The processor beside a GPU, opened when an encoder is about to run.
    pub host: OnceCell<Option<Machine>>,
}

impl Studio<'_> {
    /// The machine, and the processor beside a GPU.
    pub fn machines(&self) -> (&Machine, Option<&Machine>) {
        (self.machine, self.host.get_or_init(|| text_stage::processor(self.machine)).as_ref())
    }

    pub fn objective(&self) -> Objective {
        self.arguments.run.objective()
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit { bytes: self.limit, counts_weights: true }
    }

    /// The encode of the picture to begin with, to be decided on.
    ///
    /// # Errors
    /// It does not fit.
    pub fn encode<'j>(&'j self, input: &'j EncodeInput) -> Outcome<Encode<'j>> {
        let job = Encode::new(self.machine, self.vae, input, self.memory_limit(), self.objective())?;
        Ok(job.allowing_blended(Loss::allows_blended(&self.arguments.allow, Stage::Encode)))
    }

    /// The decode of latents in the VAE's own space, to be decided on.
    ///
    /// # Errors
    /// It does not fit.
    pub fn decode<'j>(&'j self, latents: &'j tch::Tensor) -> Outcome<Decode<'j>> {
        let job = Decode::new(self.machine, self.vae, latents, self.memory_limit(), self.objective())?;
        Ok(job.allowing_blended(Loss::allows_blended(&self.arguments.allow, Stage::Decode)))
    }

    /// The folder for files of the run's own, beside the output.
    pub fn folder(&self) -> PathBuf {
        match self.arguments.output.as_os_str() == STANDARD {
            true => std::env::temp_dir(),
            false => folder_of(&self.arguments.output).to_owned(),
        }
    }
}

/// A note of an encoder that has run; `verb` is what it did with its tokens.
pub fn tell_run(run: &EncoderRun, verb: &str) {
    let time = run.outcome().map_or_else(String::new, |outcome| table::time(outcome.elapsed));
    tell!("{}: {} {verb} {} in {time}", Stage::Text, run.model, with_noun(run.tokens, "token"));
}
