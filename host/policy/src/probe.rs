//! Single calls of a policy, for measurements: without [`Policy`](crate::Policy)'s work around a
//! decision, and with the memory of the instance.

use std::sync::Arc;

use tilewright_plan::Value;

use crate::{
    PolicyError,
    host::PolicyParts,
    runtime::{CallFailure, RunningInstance},
};

/// A new instance that was not asked anything yet. After a failed call it can't be used any more.
pub struct Probe {
    loaded: Arc<PolicyParts>,
    settings: Vec<(String, Value)>,
    live: RunningInstance,
}

impl Probe {
    pub(crate) fn new(loaded: Arc<PolicyParts>, settings: Vec<(String, Value)>) -> Result<Self, PolicyError> {
        let live =
            RunningInstance::new(&loaded).map_err(|failure| loaded.describe_failure(PolicyError::START, failure))?;
        Ok(Self { loaded, settings, live })
    }

    /// Calls `describe` once more and returns the fuel that it took.
    ///
    /// # Errors
    /// [`PolicyError::Failed`].
    pub fn describe(&mut self) -> Result<u64, PolicyError> {
        let (said, fuel) = self.live.call(&self.loaded, |guest, store| guest.describe(store));
        said.map(|_| fuel).map_err(|failure| self.loaded.describe_failure("describe", failure))
    }

    /// Passes the policy its settings and returns the fuel that it took.
    ///
    /// # Errors
    /// [`PolicyError::Failed`]; a refusal is one too, since the settings were accepted before.
    pub fn configure(&mut self) -> Result<u64, PolicyError> {
        let (answer, fuel) = self.live.call(&self.loaded, |guest, store| guest.configure(store, &self.settings));
        let refused =
            |reason| CallFailure { reason: tilewright_plan::FallbackReason::Error, detail: reason, is_starved: false };
        let taken = answer.and_then(|answer| answer.map_err(refused));
        taken.map(|()| fuel).map_err(|failure| self.loaded.describe_failure("configure", failure))
    }
}
