//! The runs of text encoders, and the conditionings that they make.

use std::path::PathBuf;

use tch::Tensor;
use tilewright_engine::{self as engine, Finished, Machine, Observer, TextJob, Unfinished};
use tilewright_models::{EncoderFile, EncoderKind, EncoderStates};
use tilewright_plan::{Candidate, Exchange, LogLine, Recorded, Text, TextOutcome, TextRecord};
use tilewright_tokenizer::Chunk;

use super::{Conditioning, Prepared, TextEncoders, TextRequest, encoders::TextEncoder, texts, weigh};
use crate::{Error, Result, Trials};

/// The device, and the processor beside a GPU, if encoders may run there.
pub type Machines<'a> = (&'a Machine, Option<&'a Machine>);

/// The planner of encoders' runs, and what was measured before.
pub struct TextPlanning<'a> {
    /// The planner.
    pub planner: &'a mut dyn Recorded<Text>,
    /// Earlier runs on the device.
    pub trials: &'a mut Trials,
}

/// A decision about one encoder, and its run.
#[derive(Debug)]
pub struct EncoderRun {
    /// The encoder's file.
    pub path: PathBuf,
    /// The encoder, in words.
    pub model: String,
    /// The tokens of the prompts and of empty ones that they are weighed against.
    pub tokens: usize,
    /// The decision and what was measured; without an outcome if nothing was carried out.
    pub record: TextRecord,
    /// The calls of the policy, if they are recorded.
    pub exchange: Option<Exchange<Text>>,
    /// The lines that the policy logged for its last decision.
    pub log: Vec<LogLine>,
    /// The plans that the policy asked the price of.
    pub candidates: Vec<Candidate<Text>>,
}

/// An encoder's run that ended without states.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct UnfinishedRun {
    /// The reason.
    pub error: engine::Error,
    /// The record as far as the run came; none if nothing was decided.
    pub record: Option<Box<TextRecord>>,
    /// The calls of the policy, if they are recorded.
    pub exchange: Option<Exchange<Text>>,
}

impl EncoderRun {
    /// The run of a decision, with nothing beside it.
    pub(crate) fn of(encoder: &EncoderFile, tokens: usize, record: TextRecord) -> Self {
        let (path, model) = (encoder.file().file().path().to_owned(), encoder.config.model());
        Self { path, model, tokens, record, exchange: None, log: Vec::new(), candidates: Vec::new() }
    }

    /// The measurements; none if nothing was carried out.
    pub fn outcome(&self) -> Option<&TextOutcome> {
        self.record.outcome.as_ref()
    }
}

impl TextPlanning<'_> {
    /// Carries a job out; the policy's calls come with the run's end, whichever it is.
    pub(crate) fn run(
        &mut self,
        job: TextJob<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(EncodedTexts, Option<Exchange<Text>>)> {
        let ended = self.trials.remind(job).run(self.planner, observer);
        let exchange = self.planner.take();
        match ended {
            Ok(encoded) => Ok((encoded, exchange)),
            Err(Unfinished { error, record }) => {
                Err(Error::Encoder(Box::new(UnfinishedRun { error, record, exchange })))
            }
        }
    }
}

/// The states of texts, and the run that made them.
type EncodedTexts = Finished<Vec<EncoderStates<Tensor>>, Text>;

/// Conditioning, and the runs that it took.
#[derive(Debug)]
pub struct Encoded {
    /// The tensors.
    pub conditioning: Conditioning,
    /// The run of each encoder.
    pub runs: Vec<EncoderRun>,
}

impl TextEncoders {
    /// Encodes prompts, by one encoder after the other, each as the planner decides.
    ///
    /// # Errors
    /// A prompt can't be read, is too long or has weights that lead beyond numbers; an encoder
    /// can't be loaded or run; memory is out; the user ended it.
    pub fn encode(
        &self,
        machines: Machines<'_>,
        request: &TextRequest<'_>,
        planning: &mut TextPlanning<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Encoded> {
        self.check_lengths(request)?;
        let (rows, runs) = self.run_all(machines, request, planning, observer)?;
        let rows: Vec<&[Row]> = rows.iter().map(Vec::as_slice).collect();
        Ok(Encoded { conditioning: self.conditioning(request, &rows)?, runs })
    }

    /// Encodes prompts into a conditioning each, with one load of each encoder.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_each(
        &self,
        machines: Machines<'_>,
        request: &TextRequest<'_>,
        planning: &mut TextPlanning<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(Vec<Conditioning>, Vec<EncoderRun>)> {
        let (rows, runs) = self.run_all(machines, request, planning, observer)?;
        let each = request.prompts.iter().enumerate().map(|(index, prompt)| {
            let own = TextRequest { prompts: std::slice::from_ref(prompt), ..request.clone() };
            let rows: Vec<&[Row]> = rows.iter().map(|rows| &rows[index..=index]).collect();
            self.conditioning(&own, &rows)
        });
        Ok((each.collect::<Result<_>>()?, runs))
    }

    /// The rows of each encoder, and its run.
    fn run_all(
        &self,
        machines: Machines<'_>,
        request: &TextRequest<'_>,
        planning: &mut TextPlanning<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(Vec<Vec<Row>>, Vec<EncoderRun>)> {
        let _no_grad = tch::no_grad_guard();
        // An encoder that does not fit is refused before another one runs in vain.
        for encoder in self.encoders() {
            let (_, embedded) = self.prepare(encoder, machines, request)?;
            job(encoder, machines, &embedded, request)?;
        }
        let each = self.encoders().iter().map(|encoder| self.run(encoder, machines, request, planning, observer));
        Ok(each.collect::<Result<Vec<_>>>()?.into_iter().unzip())
    }

    /// Decides about each encoder's run without carrying anything out.
    ///
    /// # Errors
    /// A prompt can't be read; not even the leanest plan fits.
    pub fn decide(
        &self,
        machines: Machines<'_>,
        request: &TextRequest<'_>,
        planning: &mut TextPlanning<'_>,
    ) -> Result<Vec<EncoderRun>> {
        let decide = |encoder: &TextEncoder| {
            let (_, embedded) = self.prepare(encoder, machines, request)?;
            let job = planning.trials.remind(job(encoder, machines, &embedded, request)?);
            let (record, candidates) = job.decide(planning.planner);
            let exchange = planning.planner.take();
            Ok(EncoderRun { exchange, candidates, ..EncoderRun::of(&encoder.file, tokens(&embedded), record) })
        };
        self.encoders().iter().map(decide).collect()
    }

    /// The prompts, and the vectors of their tokens.
    fn prepare(
        &self,
        encoder: &TextEncoder,
        (machine, host): Machines<'_>,
        request: &TextRequest<'_>,
    ) -> Result<(Vec<Prepared>, Vec<Tensor>)> {
        let prompts = self.read_all(encoder, request)?;
        let chunks = || texts(&prompts);
        // Before the vectors are made: those of a long prompt take gigabytes.
        let lengths: Vec<i64> = chunks().map(|chunk| encoder.tokens_run(chunk) as i64).collect();
        TextJob::check_lengths(machine, host, encoder.texts(&[]), &lengths, request.memory_limit)?;
        let embedded = chunks().map(|chunk| encoder.embed(chunk, request.embeddings)).collect::<Result<Vec<_>>>()?;
        Ok((prompts, embedded))
    }

    /// Runs an encoder on all prompts.
    fn run(
        &self,
        encoder: &TextEncoder,
        machines: Machines<'_>,
        request: &TextRequest<'_>,
        planning: &mut TextPlanning<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(Vec<Row>, EncoderRun)> {
        let (prompts, embedded) = self.prepare(encoder, machines, request)?;
        let tokens = tokens(&embedded);
        let ended = planning.run(job(encoder, machines, &embedded, request)?, observer)?;
        let (Finished { output, record, candidates, log }, exchange) = ended;
        drop(embedded);
        let mut states = output.into_iter();
        let mut rows = Vec::new();
        for (prompt, words) in prompts.iter().zip(request.prompts) {
            let count = prompt.tokens.chunks.len() + usize::from(prompt.empty.is_some());
            let states: Vec<EncoderStates<Tensor>> = states.by_ref().take(count).collect();
            rows.push(self.row(encoder, (prompt, words), &states)?);
        }
        Ok((rows, EncoderRun { exchange, log, candidates, ..EncoderRun::of(&encoder.file, tokens, record) }))
    }

    /// The row of a prompt's states: of each chunk, and of the empty prompt at last.
    fn row(
        &self,
        encoder: &TextEncoder,
        (prompt, words): (&Prepared, &str),
        of: &[EncoderStates<Tensor>],
    ) -> Result<Row> {
        let chunks = &prompt.tokens.chunks;
        let (Some(first), Some(chunk)) = (of.first(), chunks.first()) else {
            return Err(encoder.refused("a prompt without tokens".into()));
        };
        let pooled = match encoder.file.config.kind() {
            EncoderKind::Clip | EncoderKind::OpenClip => {
                let pooled = first.last.f_select(1, chunk.end as i64)?;
                let projected = if self.purpose().projects() { encoder.file.project(&pooled)? } else { None };
                Some(projected.unwrap_or(pooled))
            }
            EncoderKind::T5 | EncoderKind::Umt5 => None,
        };
        if self.takes_pooled_alone(encoder) {
            return Ok(Row { text: None, pooled });
        }
        let wanted = |states: &EncoderStates<Tensor>| match (&states.inner, self.purpose().takes_inner()) {
            (Some(inner), true) => inner.shallow_clone(),
            _ => states.last.shallow_clone(),
        };
        // An encoder whose padding is hidden ran without it.
        let whole = |states: Tensor, chunk: &Chunk| encoder.with_padding(&states, chunk.tokens.len());
        let empty = prompt.empty.as_ref().zip(of.last());
        let empty = empty.map(|(chunk, states)| whole(wanted(states), chunk)).transpose()?;
        let mut parts = Vec::new();
        for (chunk, states) in chunks.iter().zip(of) {
            let states = whole(wanted(states), chunk)?;
            parts.push(match &empty {
                Some(empty) => {
                    let weighted = weigh::weigh(&states, empty, &chunk.weights)?;
                    weigh::check(&weighted, words, &encoder.file.config.model())?;
                    weighted
                }
                None => states,
            });
        }
        Ok(Row { text: Some(Tensor::f_cat(&parts, 1)?), pooled })
    }

    /// Puts the rows of all encoders together.
    fn conditioning(&self, request: &TextRequest<'_>, rows: &[&[Row]]) -> Result<Conditioning> {
        let mut texts = Vec::new();
        let mut pooled = Vec::new();
        for of_encoder in rows {
            let text: Vec<Tensor> =
                of_encoder.iter().filter_map(|row| row.text.as_ref().map(Tensor::shallow_clone)).collect();
            if !text.is_empty() {
                texts.push(Tensor::f_cat(&text, 0)?);
            }
            let vectors: Vec<Tensor> =
                of_encoder.iter().filter_map(|row| row.pooled.as_ref().map(Tensor::shallow_clone)).collect();
            if !vectors.is_empty() {
                pooled.push(Tensor::f_cat(&vectors, 0)?);
            }
        }
        let text = self.purpose().join(texts)?;
        let pooled = pooled.pop();
        Ok(Conditioning { text, pooled, image: None, condition: None, texts: self.texts(request) })
    }
}

/// A prompt's row from one encoder: states [1, tokens, width] and a vector [1, width].
struct Row {
    text: Option<Tensor>,
    pooled: Option<Tensor>,
}

fn job<'a>(
    encoder: &'a TextEncoder,
    (machine, host): Machines<'a>,
    embedded: &'a [Tensor],
    request: &TextRequest<'_>,
) -> Result<TextJob<'a>> {
    Ok(TextJob::new(machine, host, encoder.texts(embedded), request.memory_limit, request.objective)?)
}

/// Tokens of all texts.
fn tokens(embedded: &[Tensor]) -> usize {
    embedded.iter().map(|text| text.size()[1] as usize).sum()
}
