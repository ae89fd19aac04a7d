//! A policy at work: one warm instance, asked through the [`Planner`] trait.

use std::{sync::Arc, time::Instant};

use tilewright_plan::{
    Attempt, Candidate, Decision, Device, Facts, Fallback, FallbackReason, LogLine, Offer, Outcome, Plan, Planner,
    PolicyIdentity, Request, Value,
};
use wasmtime::{Store, Trap};

use crate::{
    PolicyError,
    check::{self, Bounds},
    contract::{Case, Instance},
    guest::{Exceeded, Guest, Question, clean},
    host::Loaded,
    load::one_line,
    native,
};

/// An instance with its store. After a failed call it is thrown away: wasmtime promises nothing about what is left in it.
pub(crate) struct Live {
    store: Store<Guest>,
    guest: Box<dyn Instance>,
}

/// Why a call gave no answer.
#[derive(Debug)]
pub(crate) struct CallFailure {
    pub reason: FallbackReason,
    pub detail: String,
}

impl Live {
    /// Instantiates; the module's start function runs under the same limits as a call.
    pub fn new(loaded: &Loaded) -> Result<Self, CallFailure> {
        let limits = &loaded.limits;
        let mut store = Store::new(&loaded.sandbox.engine, Guest::new(*limits));
        limits.settle(&mut store);
        let guest = limits.allow(&mut store).and_then(|()| loaded.fitted.linked.instantiate(&mut store));
        let guest = guest.map_err(|error| CallFailure::new(&error, loaded))?;
        Ok(Self { store, guest })
    }

    /// One call under a fresh allowance; the fuel that it used comes along.
    pub fn call<R>(
        &mut self,
        loaded: &Loaded,
        call: impl FnOnce(&dyn Instance, &mut Store<Guest>) -> wasmtime::Result<R>,
    ) -> (Result<R, CallFailure>, u64) {
        let answer = loaded.limits.allow(&mut self.store).and_then(|()| call(&*self.guest, &mut self.store));
        let left = self.store.get_fuel().unwrap_or(0);
        let answer = answer.map_err(|error| {
            let mut failure = CallFailure::new(&error, loaded);
            if let Some(complaint) = self.store.data().complaint() {
                failure.detail = format!("{}; it said: {complaint}", failure.detail);
            }
            failure
        });
        (answer, loaded.limits.fuel - left)
    }

    pub fn configure(
        &mut self,
        loaded: &Loaded,
        settings: &[(String, Value)],
    ) -> Result<Result<(), String>, CallFailure> {
        let (answer, _) = self.call(loaded, |guest, store| guest.configure(store, settings));
        Ok(answer?.map_err(|reason| clean(reason, loaded.limits.text_chars)))
    }
}

impl CallFailure {
    fn new(error: &wasmtime::Error, loaded: &Loaded) -> Self {
        let (reason, detail) = match (error.downcast_ref::<Exceeded>(), error.downcast_ref::<Trap>()) {
            (Some(exceeded @ (Exceeded::Memory { .. } | Exceeded::Table { .. })), _) => {
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
        Self { reason, detail }
    }
}

/// A loaded policy with its settings and a warm instance. Decides; never fails.
pub struct Policy {
    loaded: Arc<Loaded>,
    settings: Vec<(String, Value)>,
    identity: PolicyIdentity,
    live: Option<Live>,
    failures: u32,
}

/// What came of asking the guest.
struct Asked {
    answer: Result<Plan, CallFailure>,
    fuel: u64,
    candidates: Vec<Candidate>,
    log: Vec<LogLine>,
}

impl Policy {
    pub(crate) fn new(
        loaded: Arc<Loaded>,
        settings: Vec<(String, Value)>,
        identity: PolicyIdentity,
    ) -> Result<Self, PolicyError> {
        let mut policy = Self { loaded, settings, identity, live: None, failures: 0 };
        let configured = Live::new(&policy.loaded).and_then(|mut live| {
            let answer = live.configure(&policy.loaded, &policy.settings)?;
            Ok((live, answer))
        });
        match configured {
            Ok((live, Ok(()))) => {
                policy.live = Some(live);
                Ok(policy)
            }
            Ok((_, Err(reason))) => Err(PolicyError::Refused { policy: policy.identity.name, reason }),
            Err(failure) => Err(policy.loaded.failed("configure", failure)),
        }
    }

    /// The policy failed too often in a row; it is no longer asked.
    pub fn is_out_of_service(&self) -> bool {
        self.failures >= self.loaded.limits.failures
    }

    /// The instance, made anew where the last call spoilt it.
    fn live(&mut self) -> Result<&mut Live, CallFailure> {
        if self.live.is_none() {
            let mut live = Live::new(&self.loaded)?;
            if let Err(reason) = live.configure(&self.loaded, &self.settings)? {
                let detail = format!("refused the settings that it had taken before: {reason}");
                return Err(CallFailure { reason: FallbackReason::Trap, detail });
            }
            self.live = Some(live);
        }
        self.live.as_mut().ok_or(CallFailure { reason: FallbackReason::Trap, detail: "no instance".into() })
    }

    fn ask(&mut self, case: Case<'_>, question: Question, attempts: Option<&[Attempt]>) -> Asked {
        let loaded = self.loaded.clone();
        let live = match self.live() {
            Ok(live) => live,
            Err(failure) => return Asked { answer: Err(failure), fuel: 0, candidates: Vec::new(), log: Vec::new() },
        };
        live.store.data_mut().question = Some(question);
        let (answer, fuel) = live.call(&loaded, |guest, store| match attempts {
            None => guest.decide(store, case),
            Some(attempts) => guest.recover(store, case, attempts),
        });
        let state = live.store.data_mut();
        state.question = None;
        let (candidates, log) = (std::mem::take(&mut state.candidates), std::mem::take(&mut state.log));
        let text_chars = loaded.limits.text_chars;
        let answer = match answer {
            Ok(Ok(plan)) => Ok(Plan { reason: clean(plan.reason, text_chars), ..plan }),
            Ok(Err(reason)) => Err(CallFailure { reason: FallbackReason::Error, detail: clean(reason, text_chars) }),
            Err(failure) => {
                self.live = None;
                Err(failure)
            }
        };
        Asked { answer, fuel, candidates, log }
    }

    fn plan(
        &mut self,
        request: &Request,
        device: &Device,
        offer: &Offer,
        facts: Arc<dyn Facts>,
        attempts: Option<&[Attempt]>,
    ) -> Decision {
        let started = Instant::now();
        let bounds = Bounds::new(request, offer);
        let Asked { answer, fuel, candidates, log } = if self.is_out_of_service() {
            let detail = format!("failed {} times in a row and is no longer asked", self.failures);
            let answer = Err(CallFailure { reason: FallbackReason::OutOfService, detail });
            Asked { answer, fuel: 0, candidates: Vec::new(), log: Vec::new() }
        } else {
            let question = Question { facts: facts.clone(), bounds: bounds.clone() };
            self.ask(Case { request, device, offer: Some(offer) }, question, attempts)
        };
        let mut adjusted = Vec::new();
        let mut answered = None;
        let checked = answer.and_then(|answer| {
            let mut plan = answer.clone();
            answered = Some(answer);
            let nonsense = |detail: &str| CallFailure { reason: FallbackReason::Nonsense, detail: detail.to_owned() };
            check::fit(&mut plan, &bounds, &mut |note| adjusted.push(note.to_string())).map_err(nonsense)?;
            let failed_before = |attempt: &Attempt| Plan { reason: String::new(), ..attempt.plan.clone() };
            let bare = Plan { reason: String::new(), ..plan.clone() };
            if attempts.is_some_and(|attempts| attempts.iter().any(|attempt| failed_before(attempt) == bare)) {
                return Err(nonsense("a plan that has failed before"));
            }
            Ok(plan)
        });
        let (plan, fallback) = match checked {
            Ok(plan) => {
                self.failures = 0;
                (plan, None)
            }
            Err(CallFailure { reason, detail }) => {
                // An honest error is an answer, and being out of service is no new failure.
                if !matches!(reason, FallbackReason::Error | FallbackReason::OutOfService) {
                    self.failures += 1;
                }
                adjusted.clear();
                let plan = match attempts {
                    None => native::decide(request, device, offer, &*facts),
                    Some(attempts) => native::recover(request, device, offer, &*facts, attempts),
                };
                (plan, Some(Fallback { reason, detail }))
            }
        };
        Decision { answer: answered, plan, adjusted, fallback, elapsed: started.elapsed(), fuel, candidates, log }
    }
}

impl Planner for Policy {
    fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn decide(&mut self, request: &Request, device: &Device, offer: &Offer, facts: Arc<dyn Facts>) -> Decision {
        self.plan(request, device, offer, facts, None)
    }

    fn recover(
        &mut self,
        request: &Request,
        device: &Device,
        offer: &Offer,
        facts: Arc<dyn Facts>,
        attempts: &[Attempt],
    ) -> Decision {
        self.plan(request, device, offer, facts, Some(attempts))
    }

    fn learn(&mut self, request: &Request, device: &Device, plan: &Plan, outcome: &Outcome) {
        if self.is_out_of_service() {
            return;
        }
        let loaded = self.loaded.clone();
        let case = Case { request, device, offer: None };
        let learnt =
            self.live().and_then(|live| live.call(&loaded, |guest, store| guest.learn(store, case, plan, outcome)).0);
        if let Err(failure) = learnt {
            self.live = None;
            self.failures += 1;
            tracing::warn!("policy {} failed to learn: {}: {}", self.identity.name, failure.reason, failure.detail);
        }
    }
}
