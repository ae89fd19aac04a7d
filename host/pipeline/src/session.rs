//! The device of a command, measured on first use, and the history of its runs.

use tilewright_engine::{Found, Machine, Probe};
use tilewright_torch::device::Choice;

use crate::{Error, Result, Trials};

/// Opens the history of a device.
type OpenTrials = Box<dyn FnOnce(&Machine) -> Trials>;

/// A device, measured only when the first sound file needs it.
pub struct Session {
    found: Option<(Found, OpenTrials)>,
    ready: Option<(Machine, Trials)>,
}

impl Session {
    /// Finds the device; its history is opened when it is measured.
    ///
    /// # Errors
    /// The device is not there: found before any work begins.
    pub fn find(choice: Choice, trials: impl FnOnce(&Machine) -> Trials + 'static) -> Result<Self> {
        Ok(Self { found: Some((Machine::find(choice)?, Box::new(trials))), ready: None })
    }

    /// The measured device, and the history of its runs.
    ///
    /// # Errors
    /// The device can't be measured.
    pub fn ready(&mut self) -> Result<(&Machine, &mut Trials)> {
        if let Some((found, trials)) = self.found.take() {
            let machine = found.measure(Probe::Kept)?;
            let trials = trials(&machine);
            self.ready = Some((machine, trials));
        }
        match &mut self.ready {
            Some((machine, trials)) => Ok((machine, trials)),
            None => Err(Error::Unmeasured),
        }
    }
}
