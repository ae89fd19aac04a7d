//! The states of texts by one encoder: the decisions about its run, and the attempts to carry them
//! out.

use std::{path::Path, sync::Arc, time::Duration};

use serde::Serialize;
use tilewright_wording::Setting;

use tch::{Device, Tensor};
use tilewright_models::{ComputeFormat, EncoderFile, EncoderStates, LoadedEncoder, transformer::Residency};
use tilewright_plan::{Failure, Objective, Place, Planner, Release, Stage, Text, TextOutcome, TextPlan};
use tilewright_prices::{AskStore, Quote, Stored, TextsShape, check_lengths, format, is_held_alike};
use tilewright_torch::{
    device, non_finite,
    profile::{self, Part},
};

use crate::{
    Finished, Job, Machine, Observer, Result, Unfinished, WeightKey, WeightStore,
    capturing::{Inputs, Values},
    profiling::repeated,
    run::{is_hopeless, run},
    task::{Allowance, AttemptContext, AttemptError, Attempted, Task, load, measure, settle},
    work::{Attempts, Runnable},
};

/// Texts for one encoder.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a> {
    /// The encoder.
    pub encoder: &'a Arc<EncoderFile>,
    /// The store that its weights are leased from. Policies may keep the encoder loaded where the
    /// store has room for it.
    pub weights: &'a WeightStore,
    /// Texts [N, tokens, width], with positions, that are run in turn.
    pub embedded: &'a [Tensor],
    /// Blocks of an encoder of CLIP's kind that come after its inner states.
    pub left_out: usize,
}

/// A request for the states of texts: of each text in f32, in host memory.
pub type TextJob<'a> = Job<'a, Text, Texts<'a>>;

impl Runnable for Text {
    fn with_attempts(outcome: TextOutcome, Attempts { count, load, .. }: Attempts) -> TextOutcome {
        TextOutcome { attempts: count, load, ..outcome }
    }
}

impl<'a> Texts<'a> {
    /// The weights of a plan, as their store knows them.
    fn key(&self, device: Device, place: Place, format: ComputeFormat, residency: Residency) -> WeightKey {
        let device = if place == Place::Host { Device::Cpu } else { device };
        WeightKey::of_transformer(self.encoder.file(), device, format, residency)
    }

    /// The answers of the store, for an encoder on this device or on the host.
    fn ask_store(self, device: Device) -> impl Fn(Place, ComputeFormat, Residency, u64) -> Stored {
        move |place, format, residency, bytes| {
            let key = self.key(device, place, format, residency);
            Stored { may_stay: self.weights.may_keep(key.device, bytes), is_idle: self.weights.has_idle(&key) }
        }
    }

    fn shaped<'s>(&'s self, shapes: Vec<[i64; 2]>, store: AskStore<'s>) -> TextsShape<'s> {
        TextsShape { encoder: self.encoder, shapes, left_out: self.left_out, store }
    }
}

impl<'a> TextJob<'a> {
    /// A job, within a limit of the device's memory that counts the weights. `host` is the
    /// processor beside a GPU, if the encoder may run there.
    ///
    /// # Errors
    /// [`crate::Refusal::EncoderDoesNotFit`] if not even the leanest plan fits, and
    /// [`crate::Refusal::PromptTooLong`] if it would with a shorter text.
    pub fn new(
        machine: &'a Machine,
        host: Option<&Machine>,
        texts: Texts<'a>,
        memory_limit: u64,
        objective: Objective,
    ) -> Result<Self> {
        let shapes = texts.embedded.iter().map(|text| text.size3().map(|(samples, tokens, _)| [samples, tokens]));
        let shapes = shapes.collect::<std::result::Result<Vec<_>, _>>()?;
        let (basis, host) = (machine.basis(), host.map(Machine::basis));
        let store = texts.ask_store(machine.device);
        let quote = Quote::text(&basis, host.as_ref(), texts.shaped(shapes, &store), memory_limit, objective)?;
        Ok(Self::new_unchecked(machine, quote, texts))
    }

    /// Checks texts by their tokens, before they are embedded: the vectors of a long one take
    /// gigabytes. `texts` needs no embedded ones yet.
    ///
    /// # Errors
    /// As [`TextJob::new`].
    pub fn check_lengths(
        machine: &Machine,
        host: Option<&Machine>,
        texts: Texts<'_>,
        tokens: &[i64],
        memory_limit: u64,
    ) -> Result<()> {
        let shapes = tokens.iter().map(|tokens| [1, *tokens]).collect();
        let (basis, host) = (machine.basis(), host.map(Machine::basis));
        let store = texts.ask_store(machine.device);
        Ok(check_lengths(&basis, host.as_ref(), texts.shaped(shapes, &store), memory_limit)?)
    }

    /// Decides and carries out: the encoder is loaded, run on each text and let go, unless the plan
    /// keeps it. After a failure all texts run again, by a plan that avoids it.
    ///
    /// # Errors
    /// The encoder can't be loaded, memory is out, the states are not finite, or the user ended it.
    pub fn run(
        &self,
        planner: &mut dyn Planner<Text>,
        observer: &mut dyn Observer,
    ) -> std::result::Result<Finished<Vec<EncoderStates<Tensor>>, Text>, Unfinished<Text>> {
        run(self, &mut TextTask { job: self }, planner, observer)
    }
}

/// The facts that running texts again takes.
#[derive(Serialize)]
struct TextFacts<'a> {
    text_encoder: &'a Path,
    /// The beginning of its names in the file, which may hold several.
    prefix: &'a str,
    left_out: usize,
}

/// Texts on their way. An attempt that fails leaves nothing to the next one.
struct TextTask<'a> {
    job: &'a TextJob<'a>,
}

impl TextTask<'_> {
    /// The states of one text, in host memory.
    fn states(
        &self,
        loaded: &LoadedEncoder,
        on: Device,
        embedded: &Tensor,
        context: &mut AttemptContext<'_, Text>,
    ) -> Attempted<EncoderStates<Tensor>> {
        if context.observer.progress(0.0).is_break() {
            return Err(AttemptError::Cancelled);
        }
        let states = loaded.states(embedded, self.job.input.left_out)?;
        device::synchronize(on)?;
        let there = |tensor: Tensor| tensor.f_to_device(Device::Cpu)?.f_contiguous();
        let states = EncoderStates { inner: states.inner.map(there).transpose()?, last: there(states.last)? };
        let mut values = 0;
        for tensor in [Some(&states.last), states.inner.as_ref()].into_iter().flatten() {
            values += non_finite(tensor)?;
        }
        if values == 0 { Ok(states) } else { Err(AttemptError::Failed(Failure::NonFinite { values })) }
    }
}

impl Task<Text> for TextTask<'_> {
    type Output = Vec<EncoderStates<Tensor>>;

    fn inputs(&mut self) -> tilewright_capture::Result<Inputs> {
        let Texts { encoder, embedded, left_out, .. } = self.job.input;
        let texts = embedded.iter().enumerate().map(|(index, text)| (format!("embedded.{index}"), text));
        let facts = TextFacts { text_encoder: encoder.file().file().path(), prefix: &encoder.file().prefix, left_out };
        Ok(Inputs::new(Values::of(texts)?, &facts))
    }

    fn outputs(&mut self, output: &Self::Output) -> tilewright_capture::Result<Values> {
        Values::of(output.iter().enumerate().flat_map(|(index, states)| {
            let inner = states.inner.as_ref().map(|inner| (format!("inner.{index}"), inner));
            [(format!("last.{index}"), &states.last)].into_iter().chain(inner)
        }))
    }

    fn attempt(
        &mut self,
        plan: &TextPlan,
        context: &mut AttemptContext<'_, Text>,
    ) -> Attempted<(Self::Output, TextOutcome)> {
        let _no_grad = tch::no_grad_guard();
        let (prices, request) = (self.job.prices(), self.job.request());
        let Texts { encoder, weights: store, embedded, .. } = self.job.input;
        let seat = prices.seat(plan.place)?;
        let on = if seat.place == Place::Host { Device::Cpu } else { self.job.machine.device };
        let residency = prices.residency(plan)?;
        let weights = prices.weight_bytes(plan)?;
        let format = format(plan.precision)?;
        let key = self.job.input.key(on, seat.place, format, residency);
        // The memory of a host beside a device has its own bounds.
        let limit = match (seat.is_apart, request.host.free_bytes) {
            (true, 0) => u64::MAX,
            (true, free) => free,
            (false, _) => request.memory_limit.saturating_sub(weights.mapped),
        };
        let reserved = store.reserve(on, limit.saturating_sub(weights.pooled), Some(&key))?;
        let idle = if store.has_idle(&key) { weights.pooled } else { 0 };
        let mut took = Duration::ZERO;
        let mut work = || -> Attempted<_> {
            let before = *context.load;
            let encoder = load(context, |step| {
                let leased = store.lease(&key, weights.pooled, || Ok(encoder.load(format, on, residency, step)?));
                leased.map(|(lease, took)| (if plan.kept { lease } else { lease.freed_after_use() }, took))
            })?;
            took = *context.load - before;
            let (states, aside) = repeated(context, (Stage::Text, on), |context| {
                let states = embedded.iter().enumerate().map(|(index, embedded)| {
                    let _text = profile::part(Part::Text, || format!("text {index}"));
                    self.states(&encoder, on, embedded, context)
                });
                states.collect::<Attempted<Vec<_>>>()
            })?;
            took += aside;
            Ok(states)
        };
        let measured = measure(on, Allowance::whole(limit.saturating_sub(idle)), || settle(on, Release::AtEnd, work()));
        drop(reserved);
        let (states, outcome) = measured?;
        // Weights that are loaded within the attempt are part of its peak.
        let peak = outcome.peak_bytes.saturating_sub(weights.pooled - idle);
        let [peak_bytes, weights_bytes, host_bytes] = match seat.is_apart {
            true => [0, 0, peak.saturating_add(weights.all())],
            false => [peak, weights.all(), 0],
        };
        let elapsed = outcome.elapsed.saturating_sub(took);
        let load = Duration::ZERO;
        let outcome =
            TextOutcome { elapsed, load, peak_bytes, weights_bytes, host_bytes, attempts: 1, pool: outcome.pool };
        Ok((states, outcome))
    }

    fn check_files(&self) -> Result<()> {
        Ok(self.job.input.encoder.file().check_unchanged()?)
    }

    fn advice(&self, plan: &TextPlan, failure: Failure) -> String {
        match failure {
            Failure::NonFinite { .. } if is_hopeless::<Text>(plan, failure) => {
                "in f32 too: the text encoder's weights are damaged, or an embedding that the prompt names".into()
            }
            Failure::NonFinite { .. } => format!("try {} text.precision=f32", Setting::Set),
            Failure::OutOfMemory { .. } | Failure::OverLimit { .. } => {
                format!("raise {}, or give a text encoder in FP8 or GGUF", Setting::MemoryLimit)
            }
        }
    }

    fn is_alike(&self, one: &TextPlan, other: &TextPlan) -> bool {
        is_held_alike(one, other)
    }
}
