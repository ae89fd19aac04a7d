//! Earlier measurements, for policies: read before a decision, and added to after it.

use std::path::{Path, PathBuf};

#[cfg(feature = "torch")]
use tilewright_engine::{Job, Runnable};
use tilewright_history::{Error, History, Kept, ProfileSummary, Query};
use tilewright_plan::{Record, Stage};
use tilewright_prices::{Priced, Quote};

/// The most trials that a policy receives for one decision: as many as the sandbox passes at once.
const MOST_TRIALS: u32 = 256;

/// A fault of the history. Work goes on without it.
#[derive(Debug)]
pub enum HistoryFault {
    /// It can't be opened or read: nothing is read or added from now on.
    Unusable(Error),
    /// A trial could not be added. Later trials are still added if possible; of several failures in
    /// a row, the first one is reported.
    NotAdded(Error),
    /// It was damaged: it is under this name now, and a new one has begun.
    Quarantined(PathBuf),
}

/// The history of one device.
pub struct Trials {
    history: Option<History>,
    device: String,
    has_failed: bool,
    report: Box<dyn FnMut(HistoryFault)>,
}

impl Trials {
    /// A history that is neither read nor written.
    pub fn none() -> Self {
        Self { history: None, device: String::new(), has_failed: false, report: Box::new(|_| {}) }
    }

    /// The history in a file, for a device by its fingerprint; faults go to `report`. Without
    /// `creates`, a missing file stays missing.
    pub fn open(path: &Path, fingerprint: &str, creates: bool, report: impl FnMut(HistoryFault) + 'static) -> Self {
        let mut trials =
            Self { history: None, device: fingerprint.to_owned(), has_failed: false, report: Box::new(report) };
        let opened = if creates { History::open(path).map(Some) } else { History::existing(path) };
        match opened {
            Ok(history) => trials.history = history,
            Err(error) => (trials.report)(HistoryFault::Unusable(error)),
        }
        trials
    }

    /// A job whose policy sees what was measured before of its like.
    #[cfg(feature = "torch")]
    pub fn remind<'a, W: Kept + Runnable, I>(&mut self, job: Job<'a, W, I>) -> Job<'a, W, I> {
        let before = self.before::<W>(job.stage(), job.request());
        job.with_history(&before)
    }

    /// A quote whose policy sees what was measured before of its like.
    pub fn remind_quote<W: Kept + Priced>(&mut self, quote: Quote<W>) -> Quote<W> {
        let before = self.before::<W>(quote.stage(), quote.request());
        quote.with_history(&before)
    }

    /// Earlier measurements on this device for this model at about this size, newest first.
    fn before<W: Kept>(&mut self, stage: Stage, request: &W::Request) -> Vec<Record<W>> {
        let Some(history) = &mut self.history else { return Vec::new() };
        let trials = history.trials::<W>(&Query { device: &self.device, stage, request }, MOST_TRIALS);
        self.report_quarantined();
        trials.unwrap_or_else(|error| {
            self.history = None;
            (self.report)(HistoryFault::Unusable(error));
            Vec::new()
        })
    }

    /// Adds a record, with the summary of its profile if the work was profiled.
    pub fn keep<W: Kept>(&mut self, record: &Record<W>, profile: Option<&ProfileSummary>) {
        let Some(history) = &mut self.history else { return };
        let added = history.append_profiled(&self.device, record, profile);
        self.report_quarantined();
        let had_failed = self.has_failed;
        self.has_failed = added.is_err();
        if let (Err(error), false) = (added, had_failed) {
            (self.report)(HistoryFault::NotAdded(error));
        }
    }

    fn report_quarantined(&mut self) {
        let paths = self.history.as_mut().map(History::take_quarantined).unwrap_or_default();
        paths.into_iter().for_each(|path| (self.report)(HistoryFault::Quarantined(path)));
    }
}
