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
//! | the policy itself does next to nothing | 15 µs |
//! | `fixed`, which gets its settings again | 20 µs |
//! | in an instance that lasts | 4 µs |
//! | without the pool of [`Limits::pool`] | 100 µs |
//!
//! A decode takes seconds. A new instance is made while a policy learns, so that the next question
//! finds it ready.
//!
//! [`Limits::pool`]: crate::limits::Limits::pool

mod decided;
mod failures;
mod instance;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tilewright_plan::{
    Candidate, CostModel, Decision, Fallback, FallbackReason, LearnReport, LogLine, Planner, PolicyIdentity, Question,
    Stage, Value,
};

pub use self::decided::Governed;
pub(crate) use self::{
    decided::Decided,
    instance::{CallFailure, RunningInstance},
};
use self::{
    decided::{Pending, PendingDecision},
    failures::Failures,
};
use crate::{
    PolicyError, check, exact,
    fallback_planner::fallback_decision,
    guest::{Prices, clean},
    host::{Description, PolicyParts},
    outcome_memory::{OutcomeMemory, PastOutcome},
    time_budget::TimeBudget,
};

/// A loaded policy with its settings and a warm instance. Decides; never fails.
pub struct Policy {
    loaded: Arc<PolicyParts>,
    settings: Vec<(String, Value)>,
    identity: PolicyIdentity,
    /// The stages that it answers.
    stages: Vec<Stage>,
    /// The policy's settings ask for blended parts by name, which allows them.
    asks_for_blended: bool,
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
        description: &Description,
        time_budget: Option<Arc<TimeBudget>>,
    ) -> Result<Self, PolicyError> {
        let stages = description.stages.clone();
        let asks_for_blended = exact::asks_for_blended(&identity, &description.settings);
        let mut policy = Self {
            loaded,
            settings,
            identity,
            stages,
            asks_for_blended,
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
                policy.memory_bytes = live.memory_bytes();
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

    /// Processor time that all copies of the policy have taken of its budget; none without one.
    pub fn time_taken(&self) -> Duration {
        self.time_budget.as_ref().map_or(Duration::ZERO, |time_budget| time_budget.taken())
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
        W::of_mut(&mut live.state().questions).prices = Some(prices.clone());
        let (answer, fuel) = live.call(&self.loaded, |guest, store| W::part_of(guest)?.decide(store, question));
        let state = live.state();
        let questions = W::of_mut(&mut state.questions);
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
        let asks_for_blended = self.asks_for_blended;
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
            if !asks_for_blended && let Some((allowed, notes)) = W::allowed(&plan, question, &**costs) {
                adjusted.extend(notes);
                return Ok(allowed);
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
        *W::of_mut(&mut self.pending) = cost.map(|cost| PendingDecision::new(request, &plan, cost, prices));
        Decision { answer: answered, plan, adjusted, fallback, elapsed: started.elapsed(), fuel, candidates, log }
    }
}

impl Policy {
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
            prices: W::of(&self.pending).as_ref().and_then(|decided| decided.prices(request, plan)),
            fuel: 0,
        };
        self.memory_bytes = 0;
        let time_budget = self.time_budget.clone();
        let told = TimeBudget::count(time_budget.as_deref(), || {
            let live = RunningInstance::ready(&mut self.live, &self.loaded, &self.settings, &mut self.past_outcomes)?;
            let (told, fuel) = live.pass_outcome(&self.loaded, &past_outcome);
            (report.fuel, past_outcome.fuel) = (fuel, fuel);
            self.memory_bytes = live.memory_bytes();
            told
        });
        let limits = self.loaded.limits;
        let Err(CallFailure { reason, detail, is_starved }) = told else {
            self.failures.count(false, limits.failures);
            // The instance has learned from outcomes only, so it is ready for the next question.
            self.past_outcomes.add(W::any(past_outcome), limits.fuel);
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

impl<W: Decided> Planner<W> for Policy {
    fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn decide(&mut self, question: &Question<'_, W>, costs: Arc<dyn CostModel<W>>) -> Decision<W> {
        let time_budget = self.time_budget.clone();
        TimeBudget::count(time_budget.as_deref(), || self.answer(question, costs))
    }

    /// The fallback plan after the policy's attempts.
    fn fallback(&mut self, question: &Question<'_, W>, costs: &dyn CostModel<W>) -> Option<Decision<W>> {
        let started = Instant::now();
        let plan = W::last_resort(question, costs)?;
        let detail =
            format!("after {} failed attempts the host's own plan is the last resort", question.attempts.len());
        Some(fallback_decision(started, plan, FallbackReason::Exhausted, detail))
    }

    fn learn(&mut self, question: &Question<'_, W>, plan: &W::Plan, outcome: &W::Outcome) -> LearnReport {
        self.learn_work(question, plan, outcome)
    }
}
