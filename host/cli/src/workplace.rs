//! The device of a command, measured on first use, and the history of its earlier runs.

use tilewright_engine::{Found, Machine, Probe};
use tilewright_torch::device::Choice;

use crate::{
    failure::{Failure, Outcome},
    history::Trials,
};

/// A device, measured only when the first sound file needs it.
pub struct Workplace {
    found: Option<Found>,
    ready: Option<(Machine, Trials)>,
    no_history: bool,
    dry_run: bool,
}

impl Workplace {
    /// Finds the device; a fault of it is reported before any work begins.
    pub fn find(choice: Choice, no_history: bool, dry_run: bool) -> Outcome<Self> {
        Ok(Self { found: Some(Machine::find(choice)?), ready: None, no_history, dry_run })
    }

    /// The measured device, and the history of its runs.
    pub fn ready(&mut self) -> Outcome<(&Machine, &mut Trials)> {
        if let Some(found) = self.found.take() {
            let machine = found.measured(Probe::Kept)?;
            let history = if self.no_history { Trials::none() } else { Trials::of(&machine, self.dry_run) };
            self.ready = Some((machine, history));
        }
        match &mut self.ready {
            Some((machine, history)) => Ok((machine, history)),
            None => Err(Failure::work("the device could not be measured before, and is not tried again")),
        }
    }
}
