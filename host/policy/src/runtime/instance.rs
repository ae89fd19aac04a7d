//! An instance of a policy's module, and its calls.

use tilewright_plan::{FallbackReason, Value, of_any};
use wasmtime::{Store, Trap};

use super::decided::Decided;
use crate::{
    contract::Instance,
    guest::{Guest, LimitExceeded, clean},
    host::PolicyParts,
    limits::Limits,
    load::one_line,
    outcome_memory::{OutcomeMemory, PastOutcome},
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
        let mut store = Store::new(&loaded.sandbox.engine, Guest::new(*limits, loaded.sandbox.clock.clone()));
        limits.apply(&mut store);
        let guest = limits.reset_allowance(&mut store).and_then(|()| loaded.linked.component.instantiate(&mut store));
        let guest = guest.map_err(|error| CallFailure::new(&error, loaded, store.data()));
        loaded.sandbox.clock.burn(limits.fuel - store.get_fuel().unwrap_or(0));
        let guest = guest?;
        Ok(Self { store, guest })
    }

    /// Compares the types of its functions with the contract's.
    pub fn check_types(&mut self) -> wasmtime::Result<()> {
        self.guest.check_types(&mut self.store)
    }

    /// The host's side of the instance: questions, prices and notes.
    pub fn state(&mut self) -> &mut Guest {
        self.store.data_mut()
    }

    /// Bytes of its linear memory.
    pub fn memory_bytes(&self) -> usize {
        self.store.data().usage.memory_bytes()
    }

    /// The current instance, or a new one that has learned from the earlier outcomes.
    pub fn ready<'a>(
        warm: &'a mut Option<Self>,
        loaded: &PolicyParts,
        settings: &[(String, Value)],
        past_outcomes: &mut OutcomeMemory,
    ) -> Result<&'a mut Self, CallFailure> {
        if let Some(live) = warm {
            return Ok(live);
        }
        let mut live = Self::new_configured(loaded, settings)?;
        let told = past_outcomes
            .iter()
            .try_for_each(|past_outcome| of_any!(past_outcome, one => live.pass_outcome(loaded, one).0));
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
    pub(super) fn pass_outcome<W: Decided>(
        &mut self,
        loaded: &PolicyParts,
        past_outcome: &PastOutcome<W>,
    ) -> (Result<(), CallFailure>, u64) {
        let PastOutcome { plan, outcome, prices, .. } = past_outcome;
        W::of_mut(&mut self.store.data_mut().questions).prices.clone_from(prices);
        let question = past_outcome.question();
        let report = self.call(loaded, |guest, store| W::part_of(guest)?.learn(store, &question, plan, outcome));
        W::of_mut(&mut self.store.data_mut().questions).prices = None;
        report
    }

    /// Makes one call with a new allowance; also returns the fuel that it used.
    pub fn call<R>(
        &mut self,
        loaded: &PolicyParts,
        call: impl FnOnce(&dyn Instance, &mut Store<Guest>) -> wasmtime::Result<R>,
    ) -> (Result<R, CallFailure>, u64) {
        let answer = loaded.limits.reset_allowance(&mut self.store).and_then(|()| call(&*self.guest, &mut self.store));
        let fuel = loaded.limits.fuel - self.store.get_fuel().unwrap_or(0);
        let answer = answer.map_err(|error| {
            let mut failure = CallFailure::new(&error, loaded, self.store.data());
            if let Some(complaint) = self.store.data().complaint() {
                failure.detail = format!("{}; it said: {complaint}", failure.detail);
            }
            failure
        });
        loaded.sandbox.clock.burn(fuel);
        (answer, fuel)
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
    /// The failure of a guest's call that has just ended.
    fn new(error: &wasmtime::Error, loaded: &PolicyParts, guest: &Guest) -> Self {
        let most = loaded.limits.call_time();
        let (reason, detail) = match (error.downcast_ref::<LimitExceeded>(), error.downcast_ref::<Trap>()) {
            (Some(exceeded @ (LimitExceeded::Memory { .. } | LimitExceeded::Table { .. })), _) => {
                (FallbackReason::OutOfMemory, exceeded.to_string())
            }
            (Some(exceeded), _) => (FallbackReason::Trap, exceeded.to_string()),
            (_, Some(Trap::OutOfFuel)) => {
                (FallbackReason::OutOfFuel, format!("all {} units of fuel used up", loaded.limits.fuel))
            }
            (_, Some(Trap::Interrupt)) if guest.ran() < most => {
                let (most, ran) = ((most * Limits::PATIENCE).as_millis(), guest.ran().as_millis());
                let busy = "the machine was busy, and the policy had the processor for";
                let detail = format!("no answer within {most} ms: {busy} {ran} ms of them");
                return Self { reason: FallbackReason::Timeout, detail, is_starved: true };
            }
            (_, Some(Trap::Interrupt)) => {
                (FallbackReason::Timeout, format!("no answer within {} ms", most.as_millis()))
            }
            (_, Some(trap)) => (FallbackReason::Trap, one_line(trap.to_string().trim_start_matches("wasm trap: "))),
            (None, None) => (FallbackReason::Trap, one_line(&error.root_cause().to_string())),
        };
        Self { reason, detail, is_starved: false }
    }
}
