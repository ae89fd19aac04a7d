//! The states of texts on one device: an encoder is loaded, run once and let go.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use tch::{Device, Tensor};
use tilewright_models::{
    ComputeFormat, EncoderFile, EncoderStates, Error as ModelError, LoadedEncoder, transformer::Residency,
};
use tilewright_nn::{Costs, Meter};
use tilewright_plan::{Dtype, Failure, Layout, Outcome, Precision, Release};

use crate::{
    Cancelled, Error, Machine, Observer, Result,
    task::{AttemptError, measure, settle},
};

/// A text encoder and embedded texts, on one device.
#[derive(Debug)]
pub struct TextJob<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The encoder.
    pub encoder: &'a EncoderFile,
    /// Texts [N, tokens, width], with positions, that are run in turn.
    pub embedded: &'a [Tensor],
    /// Blocks of an encoder of CLIP's kind that come after its inner states.
    pub left_out: usize,
    /// The type that products run in; f32 first, and bf16 if that does not fit, if none is given.
    pub precision: Option<Precision>,
    /// The most bytes to hold at once, weights included.
    pub memory_limit: u64,
}

/// Texts that are encoded.
#[derive(Debug)]
pub struct EncodedText {
    /// Of each text in f32, in host memory.
    pub states: Vec<EncoderStates<Tensor>>,
    /// The types that they were computed in.
    pub precision: Precision,
    /// The time and the memory of it.
    pub outcome: Outcome,
}

/// The expected cost of an encoder's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextCost {
    /// The most bytes beside the weights.
    pub peak_bytes: u64,
    /// Bytes of weights.
    pub weights_bytes: u64,
    /// The time, without loading.
    pub elapsed: Duration,
}

impl TextCost {
    /// The bytes that are held at once.
    pub fn held_bytes(&self) -> u64 {
        self.peak_bytes.saturating_add(self.weights_bytes)
    }
}

impl TextJob<'_> {
    /// The place of weights: in their file on a CPU, as they are stored on a GPU.
    fn residency(&self) -> Residency {
        if self.machine.device == Device::Cpu { Residency::Mapped } else { Residency::Packed }
    }

    /// The price of a run in a precision.
    ///
    /// # Errors
    /// The device can't compute in it.
    pub fn estimate(&self, precision: Precision) -> Result<TextCost> {
        let format = ComputeFormat::new(precision, Layout::ChannelsFirst)?;
        let measured = &self.machine.measured;
        let speed = measured.speeds.iter().find(|speed| speed.dtype == precision.dtype());
        let speed = speed.ok_or_else(|| Error::NotOffered(format!("{precision} can't be run on this device")))?;
        let meter = Meter::new(format, Costs::new(speed, measured));
        let mut kept = Vec::new();
        for embedded in self.embedded {
            let (samples, tokens, _) = embedded.size3()?;
            let states = self.encoder.meter(&meter, [samples, tokens], self.left_out)?;
            // On a CPU they stay where they are.
            kept.extend((self.machine.device == Device::Cpu).then_some(states));
        }
        drop(kept);
        let resident = self.encoder.resident_bytes(format, self.residency())?;
        let mapped = if self.residency() == Residency::Mapped { self.encoder.stored_bytes } else { 0 };
        Ok(TextCost {
            peak_bytes: meter.peak_bytes(),
            weights_bytes: resident + mapped,
            elapsed: Duration::try_from_secs_f64(meter.seconds()).unwrap_or(Duration::MAX),
        })
    }

    /// The precisions whose price is within the limit, in the order in which they are tried.
    ///
    /// # Errors
    /// [`Error::EncoderDoesNotFit`] if none is.
    fn fitting(&self) -> Result<Vec<Precision>> {
        let mut least = u64::MAX;
        let mut fitting = Vec::new();
        for precision in self.precisions() {
            let held = self.estimate(precision)?.held_bytes();
            least = least.min(held);
            fitting.extend((held <= self.memory_limit).then_some(precision));
        }
        match fitting.is_empty() {
            false => Ok(fitting),
            true => {
                Err(Error::EncoderDoesNotFit { encoder: self.encoder.config.model(), limit: self.memory_limit, least })
            }
        }
    }

    /// The precisions that are tried, in order.
    fn precisions(&self) -> Vec<Precision> {
        match self.precision {
            Some(precision) => vec![precision],
            // Sums stay f32, since T5's overflow in f16.
            None => vec![Precision::Uniform(Dtype::F32), Precision::Mixed(Dtype::Bf16)],
        }
    }

    /// Loads the encoder, runs it and lets it go. If memory runs out, a narrower type is tried; if
    /// values are not finite, f32.
    ///
    /// # Errors
    /// The encoder can't be loaded, memory is out, the states are not finite, or the user ended it.
    pub fn run(&self, observer: &mut dyn Observer) -> Result<EncodedText> {
        let mut tried = Vec::new();
        let mut waiting = self.fitting()?;
        waiting.reverse();
        let mut last = Failure::OutOfMemory { bytes: 0 };
        while let Some(precision) = waiting.pop() {
            let failure = match self.attempt(precision, observer) {
                Ok((states, outcome)) => return Ok(EncodedText { states, precision, outcome }),
                Err(AttemptError::Failed(failure)) => failure,
                Err(AttemptError::Broken(error)) => return Err(error),
                Err(AttemptError::AskAgain | AttemptError::Cancelled) => return Err(Error::Interrupted),
            };
            tracing::info!(%failure, %precision, "the encoder failed");
            tried.push(precision);
            last = failure;
            let single = Precision::Uniform(Dtype::F32);
            if matches!(failure, Failure::NonFinite { .. }) {
                waiting.clear();
                waiting.extend((!tried.contains(&single)).then_some(single));
            }
        }
        let advice = match last {
            Failure::NonFinite { .. } => "in f32 too: the text encoder's weights are damaged",
            _ => "raise --memory-limit, or give a text encoder in FP8 or GGUF",
        };
        Err(Error::Exhausted { attempts: tried.len(), last, advice: advice.into() })
    }

    /// The states of one text, in host memory.
    fn states(
        &self,
        loaded: &LoadedEncoder,
        embedded: &Tensor,
        observer: &mut dyn Observer,
    ) -> std::result::Result<EncoderStates<Tensor>, AttemptError> {
        if observer.progress(0.0).is_break() {
            return Err(AttemptError::Cancelled);
        }
        let states = loaded.states(embedded, self.left_out)?;
        tilewright_torch::device::synchronize(self.machine.device)?;
        let there = |tensor: Tensor| tensor.f_to_device(Device::Cpu)?.f_contiguous();
        let states = EncoderStates { inner: states.inner.map(there).transpose()?, last: there(states.last)? };
        let not_finite = states.last.f_isfinite()?.f_logical_not()?.f_sum(tch::Kind::Int64)?;
        match u64::try_from(not_finite.f_int64_value(&[])?) {
            Ok(0) => Ok(states),
            values => Err(AttemptError::Failed(Failure::NonFinite { values: values.unwrap_or(1) })),
        }
    }

    fn attempt(
        &self,
        precision: Precision,
        observer: &mut dyn Observer,
    ) -> std::result::Result<(Vec<EncoderStates<Tensor>>, Outcome), AttemptError> {
        let _no_grad = tch::no_grad_guard();
        let device = self.machine.device;
        let format = ComputeFormat::new(precision, Layout::ChannelsFirst).map_err(Error::from)?;
        let mapped = if self.residency() == Residency::Mapped { self.encoder.stored_bytes } else { 0 };
        let mut load = Duration::ZERO;
        let mut work = || -> std::result::Result<Vec<EncoderStates<Tensor>>, AttemptError> {
            let begun = Instant::now();
            observer.loading();
            let mut step = |share| match observer.loading_progress(share) {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(Cancelled) => Err(ModelError::Cancelled),
            };
            let loaded = self.encoder.load(format, device, self.residency(), &mut step)?;
            observer.loaded();
            load = begun.elapsed();
            self.embedded.iter().map(|embedded| self.states(&loaded, embedded, observer)).collect()
        };
        let limit = self.memory_limit.saturating_sub(mapped);
        let (states, outcome) = measure(device, limit, 0, 0, || settle(device, Release::AtEnd, work()))?;
        let elapsed = outcome.elapsed.saturating_sub(load);
        Ok((states, Outcome { elapsed, load, ..outcome }))
    }
}
