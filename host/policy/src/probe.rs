//! Single calls of a policy under a measuring hand: what [`Policy`](crate::Policy) does around a decision left out, and what an
//! instance holds told.

use std::sync::Arc;

use tilewright_plan::Value;

use crate::{
    PolicyError,
    host::Loaded,
    runtime::{CallFailure, Live},
};

/// A fresh instance that nobody has asked anything yet. Like any, it is spent after a failed call.
pub struct Probe {
    loaded: Arc<Loaded>,
    settings: Vec<(String, Value)>,
    live: Live,
}

impl Probe {
    pub(crate) fn new(loaded: Arc<Loaded>, settings: Vec<(String, Value)>) -> Result<Self, PolicyError> {
        let live = Live::new(&loaded).map_err(|failure| loaded.failed(PolicyError::START, failure))?;
        Ok(Self { loaded, settings, live })
    }

    /// Has the policy describe itself once more; the fuel that it took.
    ///
    /// # Errors
    /// [`PolicyError::Failed`].
    pub fn describe(&mut self) -> Result<u64, PolicyError> {
        let (said, fuel) = self.live.call(&self.loaded, |guest, store| guest.describe(store));
        said.map(|_| fuel).map_err(|failure| self.loaded.failed("describe", failure))
    }

    /// Hands the policy its settings; the fuel that it took.
    ///
    /// # Errors
    /// [`PolicyError::Failed`]; a refusal counts as one, since the settings were taken before.
    pub fn configure(&mut self) -> Result<u64, PolicyError> {
        let (answer, fuel) = self.live.call(&self.loaded, |guest, store| guest.configure(store, &self.settings));
        let refused =
            |reason| CallFailure { reason: tilewright_plan::FallbackReason::Error, detail: reason, is_starved: false };
        let taken = answer.and_then(|answer| answer.map_err(refused));
        taken.map(|()| fuel).map_err(|failure| self.loaded.failed("configure", failure))
    }
}
