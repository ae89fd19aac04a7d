//! The text stage: prompts become conditioning.

#[cfg(feature = "torch")]
mod conditioning;
mod embeddings;
mod encoders;
#[cfg(feature = "torch")]
mod kept;
mod notes;
#[cfg(feature = "torch")]
mod run;
#[cfg(feature = "torch")]
mod stage;
#[cfg(feature = "torch")]
mod weigh;

use tilewright_plan::{Objective, Text};
use tilewright_prices::{AskStore, Basis, Quote, TextsShape, check_lengths};
use tilewright_sampling::Convention;
use tilewright_tokenizer::{Chunk, Reading, Tokens};

use self::encoders::TextEncoder;
pub(crate) use self::encoders::files as encoder_files;
#[cfg(feature = "torch")]
pub use self::{
    conditioning::{Conditioning, ConditioningOutput},
    kept::KeptConditionings,
    run::{Encoded, EncoderRun, Machines, TextPlanning, UnfinishedRun},
    stage::{PlacedConditioning, TextStage},
};
pub use self::{
    embeddings::EmbeddingFolder,
    encoders::{Purpose, TextEncoders},
    notes::prompt_notes,
};
use crate::{Error, Result};

/// Blocks of an encoder of CLIP's kind that come after the inner states that are taken.
const LEFT_OUT: usize = 1;

/// The way in which prompts are encoded.
#[derive(Clone, Debug)]
pub struct TextRequest<'a> {
    /// The prompts: a row of the conditioning each.
    pub prompts: &'a [String],
    /// The program whose reading of prompts is followed.
    pub convention: Convention,
    /// The tokens that a text encoder without positions of its own is trained for, where they are
    /// fewer than the published ones' (T5: 256 as ComfyUI and 512 as diffusers).
    pub tokens: Option<u32>,
    /// Embeddings that prompts may name.
    pub embeddings: Option<&'a EmbeddingFolder>,
    /// The most bytes of the device's memory to hold at once, weights included.
    pub memory_limit: u64,
    /// The aim of decisions.
    pub objective: Objective,
}

/// A prompt for one encoder: its chunks, and an empty one if some token weighs more or less.
struct Prepared {
    tokens: Tokens,
    empty: Option<Chunk>,
}

impl TextEncoders {
    /// Checks that prompts make rows of one conditioning.
    ///
    /// # Errors
    /// A prompt can't be read, or has more tokens than another.
    pub fn check_lengths(&self, request: &TextRequest<'_>) -> Result<()> {
        if request.prompts.len() < 2 {
            return Ok(());
        }
        for encoder in self.encoders().iter().filter(|encoder| !self.takes_pooled_alone(encoder)) {
            let count = |prompt: &String| -> Result<usize> {
                let tokens = self.read(encoder, prompt, request)?.tokens;
                Ok(tokens.chunks.iter().map(|chunk| chunk.tokens.len()).sum())
            };
            let counts = request.prompts.iter().map(count).collect::<Result<Vec<_>>>()?;
            if let Some(other) = counts.iter().find(|count| **count != counts[0]) {
                return Err(Error::Prompt(format!(
                    "prompts of {} and {other} tokens have no conditioning of one shape: encode each into a file of its own",
                    counts[0]
                )));
            }
        }
        Ok(())
    }

    /// The prompts as an encoder reads them.
    fn read_all(&self, encoder: &TextEncoder, request: &TextRequest<'_>) -> Result<Vec<Prepared>> {
        request.prompts.iter().map(|prompt| self.read(encoder, prompt, request)).collect()
    }

    /// The runs of all encoders, each to be decided on, without a vector of a token in memory.
    /// `store` is the answer of the store of their weights.
    ///
    /// # Errors
    /// A prompt can't be read; not even the leanest plan fits.
    pub fn quotes(
        &self,
        basis: &Basis,
        host: Option<&Basis>,
        request: &TextRequest<'_>,
        store: AskStore<'_>,
    ) -> Result<Vec<Quote<Text>>> {
        self.check_lengths(request)?;
        let quote = |encoder: &TextEncoder| {
            let prompts = self.read_all(encoder, request)?;
            let shapes = texts(&prompts).map(|chunk| [1, encoder.tokens_run(chunk) as i64]).collect();
            quote_of(encoder, (basis, host), request, shapes, store)
        };
        self.encoders().iter().map(quote).collect()
    }

    /// The same of texts by their tokens, in place of the request's prompts.
    ///
    /// # Errors
    /// Not even the leanest plan fits.
    pub fn quotes_of(
        &self,
        basis: &Basis,
        host: Option<&Basis>,
        request: &TextRequest<'_>,
        tokens: &[u32],
        store: AskStore<'_>,
    ) -> Result<Vec<Quote<Text>>> {
        let shapes: Vec<[i64; 2]> = tokens.iter().map(|tokens| [1, i64::from(*tokens)]).collect();
        let quote = |encoder: &TextEncoder| quote_of(encoder, (basis, host), request, shapes.clone(), store);
        self.encoders().iter().map(quote).collect()
    }

    fn read(&self, encoder: &TextEncoder, prompt: &str, request: &TextRequest<'_>) -> Result<Prepared> {
        let named = request.embeddings.map(|folder| folder.of(encoder));
        let named = named.as_ref().map(|named| named as &dyn tilewright_tokenizer::Embeddings);
        let kind = encoder.reads_as();
        let mut tokens =
            kind.tokens(&encoder.tokenizer, prompt, reading(request.convention), named, encoder.length(request))?;
        if self.takes_pooled_alone(encoder) {
            tokens.chunks.truncate(1);
        }
        let weighs = tokens.weighted() && !self.takes_pooled_alone(encoder);
        let empty = weighs.then(|| kind.empty(&encoder.tokenizer, tokens.longest())).transpose()?;
        Ok(Prepared { tokens, empty })
    }
}

/// The run of an encoder on texts of some samples and tokens.
fn quote_of(
    encoder: &TextEncoder,
    (basis, host): (&Basis, Option<&Basis>),
    request: &TextRequest<'_>,
    shapes: Vec<[i64; 2]>,
    store: AskStore<'_>,
) -> Result<Quote<Text>> {
    let texts = TextsShape { encoder: &encoder.file, shapes, left_out: LEFT_OUT, store };
    check_lengths(basis, host, texts.clone(), request.memory_limit)?;
    Ok(Quote::text(basis, host, texts, request.memory_limit, request.objective)?)
}

/// The texts of prompts that an encoder runs on: their chunks, and empty ones that they are weighed
/// against.
fn texts(prompts: &[Prepared]) -> impl Iterator<Item = &Chunk> {
    prompts.iter().flat_map(|prompt| prompt.tokens.chunks.iter().chain(&prompt.empty))
}

fn reading(convention: Convention) -> Reading {
    match convention {
        Convention::ComfyUi => Reading::ComfyUi,
        Convention::Diffusers => Reading::Diffusers,
    }
}
