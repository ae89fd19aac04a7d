//! The states of texts by one encoder: the decisions about its run, and the attempts to carry them
//! out.

mod costs;

use std::{
    cell::RefCell,
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use tch::{Device, Tensor};
use tilewright_models::{EncoderFile, EncoderStates, Error as ModelError, LoadedEncoder};
use tilewright_plan::{
    Attempt, Candidate, CostModel, Decision, Device as Facts, Dtype, FailedAttempt, Failure, LogLine, Objective,
    Planner, Question, Release, Text, TextCapabilities, TextCost, TextOutcome, TextPlan, TextRecord, TextRequest, Work,
};
use tilewright_torch::device;

use self::costs::{TextCosts, format, is_held_alike, model};
use crate::{
    Cancelled, Error, Machine, Observer, Result, Unfinished,
    record::record,
    run::{ASKED, MOST_WITH_OWN, is_torch, one_line},
    task::{AttemptError, measure, of_sound_files, settle},
};

/// Texts for one encoder.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a> {
    /// The encoder.
    pub encoder: &'a Arc<EncoderFile>,
    /// Texts [N, tokens, width], with positions, that are run in turn.
    pub embedded: &'a [Tensor],
    /// Blocks of an encoder of CLIP's kind that come after its inner states.
    pub left_out: usize,
}

/// A place for an encoder that stays loaded for the next run of the same one in this process.
#[derive(Debug, Default)]
pub struct EncoderSlot(RefCell<Option<(TextPlan, LoadedEncoder)>>);

impl EncoderSlot {
    /// Lets the encoder go.
    pub fn clear(&self) {
        self.0.take();
    }

    /// The plan that the encoder was loaded by, if one is there.
    pub fn plan(&self) -> Option<TextPlan> {
        self.0.borrow().as_ref().map(|(plan, _)| plan.clone())
    }

    /// Takes the encoder if it serves a plan; another one goes.
    fn take_for(&self, plan: &TextPlan) -> Option<LoadedEncoder> {
        let (loaded_by, loaded) = self.0.take()?;
        is_held_alike(&loaded_by, plan).then_some(loaded)
    }
}

/// A request for the states of texts.
#[derive(Debug)]
pub struct TextJob<'a> {
    texts: Texts<'a>,
    slot: Option<&'a EncoderSlot>,
    costs: Arc<TextCosts>,
    facts: Facts,
    capabilities: TextCapabilities,
    request: TextRequest,
}

/// Texts that are encoded.
#[derive(Debug)]
pub struct EncodedText {
    /// Of each text in f32, in host memory.
    pub states: Vec<EncoderStates<Tensor>>,
    /// The decision and what was measured.
    pub record: TextRecord,
    /// The plans that the policy asked the price of.
    pub candidates: Vec<Candidate<Text>>,
    /// The lines that the policy logged for its last decision.
    pub log: Vec<LogLine>,
}

impl<'a> TextJob<'a> {
    /// A job, within a limit of the device's memory that counts the weights. `host` is the
    /// processor beside a GPU, if the encoder may run there.
    ///
    /// # Errors
    /// [`Error::EncoderDoesNotFit`] if not even the leanest plan fits.
    pub fn new(
        machine: &Machine,
        host: Option<&Machine>,
        texts: Texts<'a>,
        memory_limit: u64,
        objective: Objective,
    ) -> Result<Self> {
        let Texts { encoder, embedded, left_out } = texts;
        let shapes = embedded.iter().map(|text| text.size3().map(|(samples, tokens, _)| [samples, tokens]));
        let shapes = shapes.collect::<std::result::Result<Vec<_>, _>>()?;
        let tokens = shapes.iter().map(|[samples, tokens]| (samples * tokens) as u32).collect();
        let costs = TextCosts::new(machine, host, encoder, shapes, left_out);
        let memory = device::system_memory().ok();
        let request = TextRequest {
            model: model(encoder),
            tokens,
            memory_limit,
            objective,
            host_total_bytes: memory.map_or(0, |memory| memory.total),
            host_free_bytes: memory.map_or(0, |memory| memory.available),
            transfer_rate: machine.measured.transfer_bytes_per_second.map_or(0, |rate| rate as u64),
        };
        let (facts, capabilities) = (machine.facts_now(), costs.capabilities(false));
        let job = Self { texts, slot: None, costs: Arc::new(costs), facts, capabilities, request };
        match job.least_bytes() {
            Some(least) if least > memory_limit => {
                Err(Error::EncoderDoesNotFit { encoder: encoder.config.model(), limit: memory_limit, least })
            }
            _ => Ok(job),
        }
    }

    /// Offers policies to keep the encoder loaded, in this slot.
    #[must_use]
    pub fn keeping_in(self, slot: &'a EncoderSlot) -> Self {
        let capabilities = self.costs.capabilities(true);
        let job = self.with_costs(|costs| costs.with_loaded(slot.plan()));
        Self { slot: Some(slot), capabilities, ..job }
    }

    /// Gives policies earlier measurements on this device, of this encoder, newest first.
    #[must_use]
    pub fn with_history(self, records: &[TextRecord]) -> Self {
        self.with_costs(|costs| costs.with_history(records))
    }

    fn with_costs(self, change: impl FnOnce(TextCosts) -> TextCosts) -> Self {
        // The prices that `new` metered stay, unless a planner still holds them.
        let costs = Arc::try_unwrap(self.costs).unwrap_or_else(|costs| costs.anew());
        Self { costs: Arc::new(change(costs)), ..self }
    }

    /// The work itself.
    pub fn request(&self) -> &TextRequest {
        &self.request
    }

    /// The plans that can be carried out.
    pub fn capabilities(&self) -> &TextCapabilities {
        &self.capabilities
    }

    /// The price of a plan.
    ///
    /// # Errors
    /// One line, if it can't be carried out.
    pub fn estimate(&self, plan: &TextPlan) -> std::result::Result<TextCost, String> {
        self.costs.estimate_one(plan)
    }

    /// The bytes of the device's memory that the leanest plan is expected to hold, weights
    /// included; none if no plan has a price.
    fn least_bytes(&self) -> Option<u64> {
        let TextCapabilities { dtypes, places, weights, .. } = &self.capabilities;
        let plans = dtypes.iter().flat_map(|dtype| {
            let precision = tilewright_plan::Precision::Uniform(*dtype);
            places.iter().flat_map(move |place| {
                weights.iter().map(move |weights| TextPlan { precision, weights: *weights, ..TextPlan::plain(*place) })
            })
        });
        plans.filter_map(|plan| self.estimate(&plan).ok()).map(|cost| cost.held_bytes()).min()
    }

    /// The question before anything was carried out.
    fn question(&self) -> Question<'_, Text> {
        Question::text(&self.request, &self.facts, &self.capabilities)
    }

    /// Decides without carrying anything out.
    pub fn decide(&self, planner: &mut dyn Planner<Text>) -> (TextRecord, Vec<Candidate<Text>>) {
        let decision = planner.decide(&self.question(), self.costs.clone());
        (self.record(planner, &decision, Vec::new(), None), decision.candidates)
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
    ) -> std::result::Result<EncodedText, Unfinished<Text>> {
        let mut decision = planner.decide(&self.question(), self.costs.clone());
        let mut attempts: Vec<Attempt<Text>> = Vec::new();
        let mut failed: Vec<FailedAttempt<Text>> = Vec::new();
        let mut has_broken = false;
        loop {
            let expected = tilewright_plan::predict_cost(&*self.costs, &decision.plan);
            let expected = expected.or_else(|| self.estimate(&decision.plan).ok());
            observer.text_decided(&decision, expected.as_ref());
            let ended = self.attempt(&decision.plan, observer);
            let failure = match of_sound_files(ended, || Ok(self.texts.encoder.file().check_unchanged()?)) {
                Ok((states, outcome)) => {
                    let outcome = TextOutcome { attempts: attempts.len() as u32 + 1, ..outcome };
                    planner.learn(&self.question(), &decision.plan, &outcome);
                    let record = self.record(planner, &decision, failed, Some(outcome));
                    let Decision { candidates, log, .. } = decision;
                    return Ok(EncodedText { states, record, candidates, log });
                }
                Err(AttemptError::Failed(failure)) => failure,
                // The plan alone may be at fault, and another one need not fail: a policy's is not
                // the last word.
                Err(AttemptError::Broken(error)) if is_torch(&error) && decision.answer.is_some() && !has_broken => {
                    has_broken = true;
                    tracing::warn!(%error, plan = %decision.plan, "the plan can't be carried out");
                    let own = planner.fallback(&self.question().after(&attempts), &*self.costs);
                    let Some(mut own) = own.filter(|own| !Text::is_same_work(&own.plan, &decision.plan)) else {
                        return Err(self.unfinished(error, planner, &decision, failed));
                    };
                    if let Some(fallback) = &mut own.fallback {
                        fallback.detail = format!("the policy's plan can't be carried out: {}", one_line(&error));
                    }
                    decision = own;
                    continue;
                }
                Err(AttemptError::Broken(error)) => return Err(self.unfinished(error, planner, &decision, failed)),
                Err(AttemptError::AskAgain | AttemptError::Cancelled) => {
                    return Err(self.unfinished(Error::Interrupted, planner, &decision, failed));
                }
            };
            tracing::info!(%failure, plan = %decision.plan, "the encoder failed");
            attempts.push(Attempt { plan: decision.plan.clone(), failure });
            let attempt = FailedAttempt::new(decision.clone(), failure);
            let Some(next) = self.decide_again(planner, &attempts) else {
                failed.push(attempt);
                let advice = match failure {
                    Failure::NonFinite { .. } => "in f32 too: the text encoder's weights are damaged",
                    _ => "raise --memory-limit, or give a text encoder in FP8 or GGUF",
                };
                let error = Error::Exhausted { attempts: attempts.len(), last: failure, advice: advice.into() };
                return Err(self.unfinished(error, planner, &decision, failed));
            };
            observer.text_failed(&attempt, &next.plan);
            failed.push(attempt);
            decision = next;
        }
    }

    /// The decision to try after these attempts; none if it is time to give up.
    fn decide_again(&self, planner: &mut dyn Planner<Text>, attempts: &[Attempt<Text>]) -> Option<Decision<Text>> {
        let last = attempts.last()?;
        // Nothing mends values that are not finite in f32.
        let is_hopeless =
            matches!(last.failure, Failure::NonFinite { .. }) && last.plan.precision.dtype() == Dtype::F32;
        if is_hopeless || attempts.len() >= MOST_WITH_OWN {
            return None;
        }
        let question = self.question().after(attempts);
        let next = match attempts.len() {
            ..ASKED => Some(planner.decide(&question, self.costs.clone())),
            _ => planner.fallback(&question, &*self.costs),
        };
        next.filter(|next| attempts.iter().all(|attempt| !is_held_alike(&attempt.plan, &next.plan)))
    }

    /// The states of one text, in host memory.
    fn states(
        &self,
        loaded: &LoadedEncoder,
        on: Device,
        embedded: &Tensor,
        observer: &mut dyn Observer,
    ) -> std::result::Result<EncoderStates<Tensor>, AttemptError> {
        if observer.progress(0.0).is_break() {
            return Err(AttemptError::Cancelled);
        }
        let states = loaded.states(embedded, self.texts.left_out)?;
        device::synchronize(on)?;
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
        plan: &TextPlan,
        observer: &mut dyn Observer,
    ) -> std::result::Result<(Vec<EncoderStates<Tensor>>, TextOutcome), AttemptError> {
        let _no_grad = tch::no_grad_guard();
        let seat = self.costs.seat(plan.place)?;
        let on = seat.device;
        let residency = self.costs.residency(plan)?;
        let weights = self.costs.weight_bytes(plan)?;
        let format = format(plan.precision)?;
        // Another plan's encoder goes before anything is measured.
        let mut ready = self.slot.and_then(|slot| slot.take_for(plan));
        let held = if ready.is_some() { weights.pooled } else { 0 };
        let mut load = Duration::ZERO;
        let mut work = || -> std::result::Result<_, AttemptError> {
            let encoder = match ready.take() {
                Some(encoder) => encoder,
                None => {
                    let begun = Instant::now();
                    observer.loading();
                    let mut step = |share| match observer.loading_progress(share) {
                        ControlFlow::Continue(()) => Ok(()),
                        ControlFlow::Break(Cancelled) => Err(ModelError::Cancelled),
                    };
                    let encoder = self.texts.encoder.load(format, on, residency, &mut step)?;
                    load = begun.elapsed();
                    encoder
                }
            };
            observer.loaded();
            let texts = self.texts.embedded.iter();
            let states = texts.map(|embedded| self.states(&encoder, on, embedded, observer));
            let states = states.collect::<std::result::Result<Vec<_>, _>>()?;
            Ok((states, plan.kept.then_some(encoder)))
        };
        // The memory of a host beside a device has its own bounds.
        let limit = match (seat.is_apart, self.request.host_free_bytes) {
            (true, 0) => u64::MAX,
            (true, free) => free,
            (false, _) => self.request.memory_limit.saturating_sub(weights.mapped),
        };
        let limit = limit.saturating_sub(held);
        let measured = measure(on, limit, 0, 0, || settle(on, Release::AtEnd, work()));
        let ((states, loaded), outcome) = measured?;
        if let (Some(slot), Some(loaded)) = (self.slot, loaded) {
            slot.0.replace(Some((plan.without_reason(), loaded)));
        }
        // Weights that are loaded within the attempt are part of its peak.
        let peak = outcome.peak_bytes.saturating_sub(weights.pooled - held);
        let [peak_bytes, weights_bytes, host_bytes] = match seat.is_apart {
            true => [0, 0, peak.saturating_add(weights.all())],
            false => [peak, weights.all(), 0],
        };
        let elapsed = outcome.elapsed.saturating_sub(load);
        let outcome =
            TextOutcome { elapsed, load, peak_bytes, weights_bytes, host_bytes, attempts: 1, pool: outcome.pool };
        Ok((states, outcome))
    }

    /// The end of a run without states. A record without an outcome says that the plan failed, so
    /// that an error which is not the plan's has none.
    fn unfinished(
        &self,
        error: Error,
        planner: &dyn Planner<Text>,
        decision: &Decision<Text>,
        failed: Vec<FailedAttempt<Text>>,
    ) -> Unfinished<Text> {
        let record = error.is_of_the_plan().then(|| self.record(planner, decision, failed, None));
        Unfinished { error, record: record.map(Box::new) }
    }

    /// The record of a decision and what it led to.
    fn record(
        &self,
        planner: &dyn Planner<Text>,
        decision: &Decision<Text>,
        attempts: Vec<FailedAttempt<Text>>,
        outcome: Option<TextOutcome>,
    ) -> TextRecord {
        record(&self.question(), &*self.costs, planner, decision, attempts, outcome)
    }
}
