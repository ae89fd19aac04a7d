//! A policy in use, asked through the [`Planner`] trait.
//!
//! **An instance answers one question.** After an answer it is dropped, and the next question goes
//! to a new one that has learned from the policy's earlier outcomes, one by one. So a policy
//! remembers only what it has learned from outcomes: a decision changes no later one, whatever the
//! module does, and a recorded decision can be made again. The gate alone could not ensure that: a
//! module that counts would behave for as many questions as the gate asks.
//!
//! The cost, as `tests/soak.rs` prints it for two virtual cores, in processor time:
//!
//! | question | cost |
//! | --- | --- |
//! | the policy itself does next to nothing | 26 µs |
//! | `fixed`, which gets its settings again | 40 µs |
//! | in an instance that lasts | 4 µs |
//! | without the pool of [`Limits::pool`] | 100 µs |
//!
//! A decode takes seconds. A new instance is made while a policy learns, so that the next question
//! finds it ready.
//!
//! [`Limits::pool`]: crate::limits::Limits::pool

use std::{sync::Arc, time::Instant};

use tilewright_plan::{
    Candidate, CostModel, Decision, Denoise, DenoiseOutcome, DenoisePlan, Fallback, FallbackReason, LearnReport,
    LogLine, Outcome, Plan, Planner, PolicyIdentity, Question, Stage, Vae, Value,
};
use wasmtime::{Store, Trap};

use crate::{
    PolicyError, check,
    contract::{Answered, Instance},
    fallback::HostPlans,
    fallback_planner::fallback_decision,
    guest::{Asked, Guest, LimitExceeded, Prices, clean},
    host::PolicyParts,
    load::one_line,
    outcome_memory::{AnyOutcome, DecidedCosts, OutcomeMemory, PastOutcome},
    time_budget::TimeBudget,
};

/// An instance with its store. After a failed call it is dropped: wasmtime promises nothing about
/// its state.
pub(crate) struct RunningInstance {
    store: Store<Guest>,
    guest: Box<dyn Instance>,
}

/// The reason why a call gave no answer.
#[derive(Debug)]
pub(crate) struct CallFailure {
    pub reason: FallbackReason,
    pub detail: String,
    /// True if time ran out while other processes had the processor for most of it: the policy is
    /// not to blame.
    pub is_starved: bool,
}

impl RunningInstance {
    /// Instantiates; the module's start function runs under the same limits as a call.
    pub fn new(loaded: &PolicyParts) -> Result<Self, CallFailure> {
        let limits = &loaded.limits;
        let mut store = Store::new(&loaded.sandbox.engine, Guest::new(*limits));
        limits.apply(&mut store);
        let guest = limits.reset_allowance(&mut store).and_then(|()| loaded.linked.component.instantiate(&mut store));
        let guest = guest.map_err(|error| CallFailure::new(&error, loaded))?;
        Ok(Self { store, guest })
    }

    /// The current instance, or a new one that has learned from the earlier outcomes.
    fn ready<'a>(
        warm: &'a mut Option<Self>,
        loaded: &PolicyParts,
        settings: &[(String, Value)],
        past_outcomes: &mut OutcomeMemory,
    ) -> Result<&'a mut Self, CallFailure> {
        if let Some(live) = warm {
            return Ok(live);
        }
        let mut live = Self::new_configured(loaded, settings)?;
        let told = past_outcomes.iter().try_for_each(|past_outcome| match past_outcome {
            AnyOutcome::Vae(past_outcome) => live.pass_outcome(loaded, past_outcome).0,
            AnyOutcome::Denoise(past_outcome) => live.pass_outcome(loaded, past_outcome).0,
        });
        if let Err(failure) = told {
            // The policy took each of them before, but after others that are gone: without all of
            // them it begins anew.
            tracing::warn!("the policy lost its earlier outcomes: {}: {}", failure.reason, failure.detail);
            past_outcomes.clear();
            live = Self::new_configured(loaded, settings)?;
        }
        Ok(warm.insert(live))
    }

    fn new_configured(loaded: &PolicyParts, settings: &[(String, Value)]) -> Result<Self, CallFailure> {
        let mut live = Self::new(loaded)?;
        live.configure(loaded, settings)?.map_err(|reason| {
            let detail = format!("refused the settings that it had taken before: {reason}");
            CallFailure { reason: FallbackReason::Trap, detail, is_starved: false }
        })?;
        Ok(live)
    }

    /// Passes the guest an outcome; also returns the fuel that it took.
    fn pass_outcome<W: Decided>(
        &mut self,
        loaded: &PolicyParts,
        past_outcome: &PastOutcome<W>,
    ) -> (Result<(), CallFailure>, u64) {
        let PastOutcome { plan, outcome, prices, .. } = past_outcome;
        W::questions(self.store.data_mut()).prices.clone_from(prices);
        let question = past_outcome.question();
        let report = self.call(loaded, |guest, store| W::tell(guest, store, &question, plan, outcome));
        W::questions(self.store.data_mut()).prices = None;
        report
    }

    /// Makes one call with a new allowance; also returns the fuel that it used.
    pub fn call<R>(
        &mut self,
        loaded: &PolicyParts,
        call: impl FnOnce(&dyn Instance, &mut Store<Guest>) -> wasmtime::Result<R>,
    ) -> (Result<R, CallFailure>, u64) {
        let answer = loaded.limits.reset_allowance(&mut self.store).and_then(|()| call(&*self.guest, &mut self.store));
        let left = self.store.get_fuel().unwrap_or(0);
        let answer = answer.map_err(|error| {
            let mut failure = CallFailure::new(&error, loaded);
            if let Some(ran) = self.store.data().processor_time().filter(|_| failure.reason == FallbackReason::Timeout)
            {
                failure.is_starved = ran < loaded.limits.wall() / FAIR;
                if failure.is_starved {
                    let ran = ran.as_millis();
                    failure.detail = format!(
                        "{}: the machine was busy, and the policy had the processor for {ran} ms of them",
                        failure.detail
                    );
                }
            }
            if let Some(complaint) = self.store.data().complaint() {
                failure.detail = format!("{}; it said: {complaint}", failure.detail);
            }
            failure
        });
        (answer, loaded.limits.fuel - left)
    }

    pub fn configure(
        &mut self,
        loaded: &PolicyParts,
        settings: &[(String, Value)],
    ) -> Result<Result<(), String>, CallFailure> {
        let (answer, _) = self.call(loaded, |guest, store| guest.configure(store, settings));
        Ok(answer?.map_err(|reason| clean(reason, loaded.limits.text_chars)))
    }
}

impl CallFailure {
    fn new(error: &wasmtime::Error, loaded: &PolicyParts) -> Self {
        let (reason, detail) = match (error.downcast_ref::<LimitExceeded>(), error.downcast_ref::<Trap>()) {
            (Some(exceeded @ (LimitExceeded::Memory { .. } | LimitExceeded::Table { .. })), _) => {
                (FallbackReason::OutOfMemory, exceeded.to_string())
            }
            (Some(exceeded), _) => (FallbackReason::Trap, exceeded.to_string()),
            (_, Some(Trap::OutOfFuel)) => {
                (FallbackReason::OutOfFuel, format!("all {} units of fuel used up", loaded.limits.fuel))
            }
            (_, Some(Trap::Interrupt)) => {
                (FallbackReason::Timeout, format!("no answer within {} ms", loaded.limits.wall_ms))
            }
            (_, Some(trap)) => (FallbackReason::Trap, one_line(trap.to_string().trim_start_matches("wasm trap: "))),
            (None, None) => (FallbackReason::Trap, one_line(&error.root_cause().to_string())),
        };
        Self { reason, detail, is_starved: false }
    }
}

/// A loaded policy with its settings and a warm instance. Decides; never fails.
pub struct Policy {
    loaded: Arc<PolicyParts>,
    settings: Vec<(String, Value)>,
    identity: PolicyIdentity,
    /// The stages that it answers.
    stages: Vec<Stage>,
    /// The instance that answers the next question: configured, and with every earlier outcome
    /// learned.
    live: Option<RunningInstance>,
    /// True if one instance answers question after question: only for the gate, which checks that
    /// it remembers nothing.
    lasts: bool,
    /// Bytes of linear memory of the instance that was called last.
    memory_bytes: usize,
    past_outcomes: OutcomeMemory,
    /// The last decision of each kind of work, and its expected cost.
    pending: Pending,
    failures: Failures,
    time_budget: Option<Arc<TimeBudget>>,
}

/// The last decisions, until their outcomes are known.
#[derive(Default)]
struct Pending {
    vae: Option<PendingDecision<Vae>>,
    denoise: Option<PendingDecision<Denoise>>,
}

/// The last decision, until its outcome is known.
struct PendingDecision<W: Decided> {
    request: W::Request,
    decided: Arc<DecidedCosts<W>>,
    /// Those of the decision: their bounds hold for the outcome too.
    prices: Arc<Prices<W>>,
}

impl<W: Decided> PendingDecision<W> {
    fn new(request: &W::Request, plan: &W::Plan, cost: W::Cost, prices: Arc<Prices<W>>) -> Self {
        let plan = W::without_reason(plan);
        Self { request: request.clone(), decided: Arc::new(DecidedCosts { plan, cost }), prices }
    }

    /// The prices to ask for while the policy learns from this outcome; `None` if it belongs to
    /// another decision.
    fn prices(&self, request: &W::Request, plan: &W::Plan) -> Option<Arc<Prices<W>>> {
        let costs: Arc<dyn CostModel<W>> = self.decided.clone();
        (W::is_same_model_and_size(&self.request, request) && W::is_same_work(&self.decided.plan, plan))
            .then(|| Arc::new(Prices { costs, bounds: self.prices.bounds.clone() }))
    }
}

/// Work that a policy decides.
trait Decided: Answered + Asked + HostPlans {
    /// The last decision about it.
    fn pending(pending: &mut Pending) -> &mut Option<PendingDecision<Self>>;

    /// An outcome to learn from again.
    fn remembered(past_outcome: PastOutcome<Self>) -> AnyOutcome;

    /// True if an outcome of one request tells the price of the other.
    fn is_same_model_and_size(one: &Self::Request, other: &Self::Request) -> bool;
}

impl Decided for Vae {
    fn pending(pending: &mut Pending) -> &mut Option<PendingDecision<Self>> {
        &mut pending.vae
    }

    fn remembered(past_outcome: PastOutcome<Self>) -> AnyOutcome {
        AnyOutcome::Vae(past_outcome)
    }

    fn is_same_model_and_size(one: &Self::Request, other: &Self::Request) -> bool {
        let size = |request: &Self::Request| (request.batch, request.frames, request.height, request.width);
        one.model == other.model && size(one) == size(other)
    }
}

impl Decided for Denoise {
    fn pending(pending: &mut Pending) -> &mut Option<PendingDecision<Self>> {
        &mut pending.denoise
    }

    fn remembered(past_outcome: PastOutcome<Self>) -> AnyOutcome {
        AnyOutcome::Denoise(past_outcome)
    }

    fn is_same_model_and_size(one: &Self::Request, other: &Self::Request) -> bool {
        let size = |request: &Self::Request| {
            let tokens = (request.text_tokens, request.image_tokens);
            (request.batch, request.frames, request.height, request.width, tokens, request.passes)
        };
        one.model == other.model && size(one) == size(other)
    }
}

/// A call that had the processor for less than one part in this many of its time is not to blame
/// for running out of it.
const FAIR: u32 = 10;

/// The number of last calls whose failures count, besides those in a row.
const RECENT: u32 = 40;

/// Failures of the last calls.
#[derive(Clone, Copy, Default)]
struct Failures {
    in_a_row: u32,
    /// One bit for each of the last calls, the newest lowest: set if the call failed.
    recent: u64,
    is_out: bool,
}

impl Failures {
    /// Counts a call. `most` failures in a row are too many, and so are more than `most` among the
    /// last 40 calls: a policy that keeps failing now and then is no better than one that always
    /// fails.
    fn count(&mut self, failed: bool, most: u32) {
        self.in_a_row = if failed { self.in_a_row.saturating_add(1) } else { 0 };
        self.recent = (self.recent << 1 | u64::from(failed)) & ((1 << RECENT) - 1);
        self.is_out |= self.in_a_row >= most || self.recent.count_ones() > most;
    }

    fn words(self, most: u32) -> String {
        match self.in_a_row >= most {
            true => format!("failed {} times in a row and is no longer asked", self.in_a_row),
            false => {
                format!("failed in {} of its last {RECENT} calls and is no longer asked", self.recent.count_ones())
            }
        }
    }
}

/// The guest's reply, or the reason why there is none.
struct GuestReply<W: Decided> {
    answer: Result<W::Plan, CallFailure>,
    fuel: u64,
    candidates: Vec<Candidate<W>>,
    log: Vec<LogLine>,
}

impl<W: Decided> GuestReply<W> {
    /// The reply of a guest that could not be asked.
    fn from_failure(failure: CallFailure) -> Self {
        Self { answer: Err(failure), fuel: 0, candidates: Vec::new(), log: Vec::new() }
    }
}

impl Policy {
    pub(crate) fn new(
        loaded: Arc<PolicyParts>,
        settings: Vec<(String, Value)>,
        identity: PolicyIdentity,
        stages: Vec<Stage>,
        time_budget: Option<Arc<TimeBudget>>,
    ) -> Result<Self, PolicyError> {
        let mut policy = Self {
            loaded,
            settings,
            identity,
            stages,
            live: None,
            lasts: false,
            memory_bytes: 0,
            past_outcomes: OutcomeMemory::default(),
            pending: Pending::default(),
            failures: Failures::default(),
            time_budget,
        };
        let configured = TimeBudget::count(policy.time_budget.as_deref(), || {
            let mut live = RunningInstance::new(&policy.loaded)?;
            let answer = live.configure(&policy.loaded, &policy.settings)?;
            Ok((live, answer))
        });
        match configured {
            Ok((live, Ok(()))) => {
                policy.memory_bytes = live.store.data().usage.memory_bytes();
                policy.live = Some(live);
                Ok(policy)
            }
            Ok((_, Err(reason))) => Err(PolicyError::Refused { policy: policy.identity.name, reason }),
            Err(failure) => Err(policy.loaded.describe_failure("configure", failure)),
        }
    }

    /// The same policy in an instance that lives on from question to question.
    #[must_use]
    pub fn lasting(self) -> Self {
        Self { lasts: true, ..self }
    }

    /// True if the policy failed too often, in a row or among its last calls, and is no longer
    /// asked.
    pub fn is_out_of_service(&self) -> bool {
        self.failures.is_out
    }

    /// True if the policy is asked about a stage; the host decides all others without it.
    pub fn answers(&self, stage: Stage) -> bool {
        self.stages.contains(&stage)
    }

    /// The policy, identified to the byte.
    pub fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn is_over_time_budget(&self) -> bool {
        self.time_budget.as_ref().is_some_and(|time_budget| time_budget.is_spent())
    }

    /// Bytes of linear memory that the last call left its instance with; 0 if the call failed.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    fn ask<W: Decided>(&mut self, question: &Question<'_, W>, prices: &Arc<Prices<W>>) -> GuestReply<W> {
        self.memory_bytes = 0;
        let live = match RunningInstance::ready(&mut self.live, &self.loaded, &self.settings, &mut self.past_outcomes) {
            Ok(live) => live,
            Err(failure) => return GuestReply::from_failure(failure),
        };
        W::questions(live.store.data_mut()).prices = Some(prices.clone());
        let (answer, fuel) = live.call(&self.loaded, |guest, store| W::ask(guest, store, question));
        let state = live.store.data_mut();
        let questions = W::questions(state);
        questions.prices = None;
        let (candidates, log) = (std::mem::take(&mut questions.candidates), std::mem::take(&mut state.log));
        let text_chars = self.loaded.limits.text_chars;
        if answer.is_ok() {
            self.memory_bytes = state.usage.memory_bytes();
        }
        if answer.is_err() || !self.lasts {
            self.live = None;
        }
        let declined = |reason: String| CallFailure {
            reason: FallbackReason::Error,
            detail: clean(reason, text_chars),
            is_starved: false,
        };
        let answer = answer.and_then(|answer| match answer {
            Ok(mut plan) => {
                let reason = W::reason_mut(&mut plan);
                *reason = clean(std::mem::take(reason), text_chars);
                Ok(plan)
            }
            Err(reason) => Err(declined(reason)),
        });
        GuestReply { answer, fuel, candidates, log }
    }

    fn answer<W: Decided>(&mut self, question: &Question<'_, W>, costs: Arc<dyn CostModel<W>>) -> Decision<W> {
        let started = Instant::now();
        let &Question { request, attempts, .. } = question;
        let prices = Arc::new(Prices { costs, bounds: W::bounds(question) });
        let Prices { costs, bounds } = &*prices;
        let GuestReply { answer, fuel, candidates, log } = if !self.answers(question.stage) {
            let stages: Vec<&str> = self.stages.iter().map(|stage| stage.name()).collect();
            let detail = format!("it answers {}, and leaves {} to the host", stages.join(" and "), question.stage);
            GuestReply::from_failure(CallFailure { reason: FallbackReason::NotAnswered, detail, is_starved: false })
        } else if self.is_out_of_service() {
            let detail = self.failures.words(self.loaded.limits.failures);
            GuestReply::from_failure(CallFailure { reason: FallbackReason::OutOfService, detail, is_starved: false })
        } else if self.is_over_time_budget() {
            let detail = "the processor time that policies have for this command is used up".to_owned();
            GuestReply::from_failure(CallFailure { reason: FallbackReason::OutOfService, detail, is_starved: false })
        } else {
            self.ask(question, &prices)
        };
        let mut adjusted = Vec::new();
        let mut answered = None;
        let checked = answer.and_then(|answer| {
            let mut plan = answer.clone();
            answered = Some(answer);
            let nonsense = |detail: &str| CallFailure {
                reason: FallbackReason::Nonsense,
                detail: detail.to_owned(),
                is_starved: false,
            };
            check::fit::<W>(&mut plan, bounds, &mut |note| adjusted.push(note.to_string())).map_err(nonsense)?;
            if attempts.iter().any(|attempt| W::repeats(&plan, attempt)) {
                return Err(nonsense(check::REPEATED));
            }
            Ok(plan)
        });
        let (plan, fallback) = match checked {
            Ok(plan) => {
                self.failures.count(false, self.loaded.limits.failures);
                (plan, None)
            }
            Err(CallFailure { reason, detail, is_starved }) => {
                // Failures that do not count: an error that the policy itself returns, which is an
                // answer; a stage that it leaves to the host; being out of service already; a busy
                // machine; a plan that repeats a failed one, which is useless, but policies of
                // older releases give such plans.
                let is_excused =
                    !reason.is_failure() || reason == FallbackReason::OutOfService || detail == check::REPEATED;
                if !is_excused && !is_starved {
                    self.failures.count(true, self.loaded.limits.failures);
                }
                adjusted.clear();
                let plan = W::host_plan(question, &**costs);
                (plan, Some(Fallback { reason, detail }))
            }
        };
        // The price is asked for here, so that it is recorded: a policy that learns gets no new
        // prices.
        let cost = costs.estimate_one(&plan).ok();
        *W::pending(&mut self.pending) = cost.map(|cost| PendingDecision::new(request, &plan, cost, prices));
        Decision { answer: answered, plan, adjusted, fallback, elapsed: started.elapsed(), fuel, candidates, log }
    }
}

impl Policy {
    fn decide_work<W: Decided>(&mut self, question: &Question<'_, W>, costs: Arc<dyn CostModel<W>>) -> Decision<W> {
        let time_budget = self.time_budget.clone();
        TimeBudget::count(time_budget.as_deref(), || self.answer(question, costs))
    }

    /// The host's own plan after the policy's attempts.
    fn last_resort<W: Decided>(question: &Question<'_, W>, costs: &dyn CostModel<W>) -> Option<Decision<W>> {
        let started = Instant::now();
        let plan = W::last_resort(question, costs)?;
        let detail =
            format!("after {} failed attempts the host's own plan is the last resort", question.attempts.len());
        Some(fallback_decision(started, plan, FallbackReason::Exhausted, detail))
    }

    fn learn_work<W: Decided>(
        &mut self,
        question: &Question<'_, W>,
        plan: &W::Plan,
        outcome: &W::Outcome,
    ) -> LearnReport {
        let mut report = LearnReport::default();
        if !self.answers(question.stage) || self.is_out_of_service() || self.is_over_time_budget() {
            return report;
        }
        let &Question { stage, request, device, capabilities, .. } = question;
        let mut past_outcome = PastOutcome {
            stage,
            request: request.clone(),
            device: device.clone(),
            capabilities: capabilities.clone(),
            plan: plan.clone(),
            outcome: *outcome,
            prices: W::pending(&mut self.pending).as_ref().and_then(|decided| decided.prices(request, plan)),
            fuel: 0,
        };
        self.memory_bytes = 0;
        let time_budget = self.time_budget.clone();
        let told = TimeBudget::count(time_budget.as_deref(), || {
            let live = RunningInstance::ready(&mut self.live, &self.loaded, &self.settings, &mut self.past_outcomes)?;
            let (told, fuel) = live.pass_outcome(&self.loaded, &past_outcome);
            (report.fuel, past_outcome.fuel) = (fuel, fuel);
            self.memory_bytes = live.store.data().usage.memory_bytes();
            told
        });
        let limits = self.loaded.limits;
        let Err(CallFailure { reason, detail, is_starved }) = told else {
            self.failures.count(false, limits.failures);
            // The instance has learned from outcomes only, so it is ready for the next question.
            self.past_outcomes.add(W::remembered(past_outcome), limits.fuel);
            return report;
        };
        self.live = None;
        self.memory_bytes = 0;
        if !is_starved {
            self.failures.count(true, limits.failures);
        }
        tracing::warn!("policy {} failed to learn: {reason}: {detail}", self.identity.name);
        report.failure = Some(Fallback { reason, detail });
        report
    }
}

impl Planner for Policy {
    fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn decide(&mut self, question: &Question<'_>, costs: Arc<dyn CostModel>) -> Decision {
        self.decide_work(question, costs)
    }

    fn fallback(&mut self, question: &Question<'_>, costs: &dyn CostModel) -> Option<Decision> {
        Self::last_resort(question, costs)
    }

    fn learn(&mut self, question: &Question<'_>, plan: &Plan, outcome: &Outcome) -> LearnReport {
        self.learn_work(question, plan, outcome)
    }
}

impl Planner<Denoise> for Policy {
    fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn decide(&mut self, question: &Question<'_, Denoise>, costs: Arc<dyn CostModel<Denoise>>) -> Decision<Denoise> {
        self.decide_work(question, costs)
    }

    fn fallback(
        &mut self,
        question: &Question<'_, Denoise>,
        costs: &dyn CostModel<Denoise>,
    ) -> Option<Decision<Denoise>> {
        Self::last_resort(question, costs)
    }

    fn learn(&mut self, question: &Question<'_, Denoise>, plan: &DenoisePlan, outcome: &DenoiseOutcome) -> LearnReport {
        self.learn_work(question, plan, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls after which a policy that fails in every `nth` is out of service; `None` if 1000 are
    /// not enough.
    fn out_after(nth: u32) -> Option<u32> {
        let mut failures = Failures::default();
        (1..=1000).find(|call| {
            failures.count(call % nth == 0, 3);
            failures.is_out
        })
    }

    #[test]
    fn whoever_fails_again_and_again_is_no_longer_asked() {
        assert_eq!([1, 2, 3, 4, 10].map(out_after), [Some(3), Some(8), Some(12), Some(16), Some(40)]);
        assert_eq!(out_after(14), None, "three of forty");
        let mut failures = Failures::default();
        (0..9).for_each(|call| failures.count(call % 3 == 2, 3));
        assert!(!failures.is_out);
        (0..3).for_each(|call| failures.count(call == 2, 3));
        assert_eq!(failures.words(3), "failed in 4 of its last 40 calls and is no longer asked");
    }
}
