//! Progress of a decode: a bar with the time left on a terminal, plain lines otherwise. All on
//! standard error.

use std::{
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use tilewright_engine::{
    AnyDecided, AnyFailed, Cancelled, Capturing, Decided, FinishedStep, Observer, Profiled, StopCheck,
};
use tilewright_plan::{FallbackReason, of_any};

use crate::{
    capture, printer, profile,
    signals::{self, StopMode},
    table,
    tell::tell,
    work::Reported,
};

/// Steps of the bar.
const STEPS: u64 = 1000;

/// The interval of plain lines.
const INTERVAL: Duration = Duration::from_secs(10);

/// The share of the work after which its pace alone gives the time left; until then the estimate
/// counts, less and less.
const KNOWN: f64 = 0.25;

/// The expected time from which work gets a warning before it begins.
const LONG: Duration = Duration::from_secs(60 * 60);

/// Shows progress, and ends the decode when the user interrupts.
pub struct Progress {
    bar: Option<ProgressBar>,
    pace: TimeLeft,
    spoken: Instant,
    /// The plan, as the bar shows it.
    plan: String,
    /// Steps of a sample.
    steps: u32,
    /// Called after each step of a sample.
    after_step: Option<AfterStep>,
    /// The user knows that the work takes long.
    has_warned: bool,
}

/// A function of each finished step of a sample.
pub type AfterStep = Box<dyn FnMut(&FinishedStep<'_>) -> tilewright_engine::Result<()>>;

impl Progress {
    /// Starts a piece of work that Ctrl-C and SIGTERM end at the next layer; if that takes too
    /// long, they end the program.
    pub fn new() -> Self {
        signals::manner(StopMode::Soon);
        let bar = bar("{msg} [{bar:30}] {percent:>3} %  {elapsed} elapsed{prefix}", STEPS);
        let (pace, spoken) = (TimeLeft::new(Instant::now()), Instant::now());
        Self { bar, pace, spoken, plan: String::new(), steps: 0, after_step: None, has_warned: false }
    }

    /// As [`Progress::new`]; `abandon` removes unfinished work if the program is ended.
    pub fn abandoning(abandon: impl FnOnce() + Send + 'static) -> Self {
        signals::on_abandon(abandon);
        Self::new()
    }

    /// The same for a sample of `steps` steps, with something to be done after each of them.
    pub fn of_steps(mut self, steps: u32, function: Option<AfterStep>) -> Self {
        (self.steps, self.after_step) = (steps, function);
        self
    }

    /// Begins a piece of work by a plan.
    fn begin<W: Reported>(&mut self, decided: &Decided<'_, W>) {
        let Decided { decision, expected, steps_done } = decided;
        self.pace = TimeLeft::new(Instant::now());
        self.spoken = Instant::now();
        let fallback = decision.fallback.as_ref();
        let is_noted = |reason| W::NOTES_UNANSWERED || reason != FallbackReason::NotAnswered;
        if let Some(fallback) = fallback.filter(|fallback| is_noted(fallback.reason)) {
            self.say(&format!("note: the host's default is used ({}: {})", fallback.reason, fallback.detail));
        }
        for adjusted in &decision.adjusted {
            self.say(&format!("note: {adjusted}"));
        }
        self.plan = decision.plan.to_string();
        if let Some(bar) = &self.bar {
            bar.reset();
            bar.set_message(self.plan.clone());
            bar.set_prefix("");
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        let steps_left = self.steps.saturating_sub(*steps_done);
        self.pace.expected = expected.map(|cost| W::expected_time(cost, steps_left));
        self.warn_of_time();
    }

    /// Begins the work on another file: a signal may end the program again.
    pub fn resume(&self) {
        signals::manner(StopMode::Soon);
    }

    /// Removes the bar after the work. The rest, giving files their names, is short and no longer
    /// interrupted.
    pub fn finish(&self) {
        signals::manner(StopMode::Finishing);
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Warns once of work that is expected to take hours.
    fn warn_of_time(&mut self) {
        let Some(expected) = self.pace.expected.filter(|expected| *expected >= LONG && !self.has_warned) else {
            return;
        };
        self.has_warned = true;
        let time = table::long_time(expected);
        self.say(&format!(
            "warning: this is expected to take {time}: Ctrl-C ends it; a smaller size or fewer steps take less"
        ));
    }

    fn say(&self, line: &str) {
        say(self.bar.as_ref(), line);
    }
}

/// A bar of some length, if bars are shown: on a terminal, without --quiet.
pub fn bar(template: &str, length: u64) -> Option<ProgressBar> {
    (!printer::is_quiet() && printer::stderr_is_terminal()).then(|| {
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(length).with_style(style.progress_chars("=> "))
    })
}

/// Prints a line above a bar.
pub fn say(bar: Option<&ProgressBar>, line: &str) {
    match bar {
        Some(bar) => bar.suspend(|| tell!("{line}")),
        None => tell!("{line}"),
    }
}

/// The time left: from the estimate at first, then more and more from the pace of the work so far.
struct TimeLeft {
    started: Instant,
    expected: Option<Duration>,
}

impl TimeLeft {
    fn new(now: Instant) -> Self {
        Self { started: now, expected: None }
    }

    /// The time left after `share` of the work; none if nothing is known yet.
    fn time_left(&self, share: f64, now: Instant) -> Option<Duration> {
        let passed = now.saturating_duration_since(self.started).as_secs_f64();
        let by_estimate = self.expected.map(|expected| (expected.as_secs_f64() * (1.0 - share), 1.0 - share / KNOWN));
        let by_pace = (share > 0.0).then(|| passed * (1.0 - share) / share);
        let seconds = match (by_estimate, by_pace) {
            (Some((estimate, trust)), Some(pace)) if trust > 0.0 => estimate * trust + pace * (1.0 - trust),
            (_, Some(pace)) => pace,
            // Nothing is done yet: the time passed is part of the estimate.
            (Some((estimate, _)), None) => (estimate - passed).max(0.0),
            (None, None) => return None,
        };
        Duration::try_from_secs_f64(seconds).ok()
    }
}

/// The time left, as a line of progress ends.
fn in_words(left: Duration) -> String {
    match left >= LONG {
        true => format!(", about {} left", table::long_time(left)),
        false => format!(", about {:.0} s left", left.as_secs_f64()),
    }
}

impl Observer for Progress {
    fn stop_check(&self) -> Option<StopCheck> {
        Some(Arc::new(signals::is_received))
    }

    fn capturing(&self) -> Option<Arc<Capturing>> {
        capture::capturing()
    }

    fn wants_profile(&self) -> bool {
        profile::is_wanted()
    }

    fn profiled(&mut self, profiled: Profiled) {
        profile::keep(profiled);
    }

    fn stepped(&mut self, step: &FinishedStep<'_>) -> tilewright_engine::Result<()> {
        let message = format!("{}, step {} of {}", self.plan, step.state.steps, step.steps);
        if let Some(bar) = &self.bar {
            bar.set_message(message);
        }
        self.after_step.as_mut().map_or(Ok(()), |function| function(step))
    }

    fn decided(&mut self, decided: AnyDecided<'_>) {
        of_any!(decided, decided: W => self.begin::<W>(&decided));
    }

    fn failed(&mut self, failed: AnyFailed<'_>) {
        let failure = of_any!(failed, failed: W => W::failure(&failed));
        self.say(&format!("note: {failure}"));
    }

    fn loading(&mut self) {
        if let Some(bar) = &self.bar {
            bar.set_message("loading weights");
            bar.set_prefix(
                self.pace.expected.map_or(String::new(), |expected| format!(", then about {}", table::time(expected))),
            );
        }
    }

    fn loading_progress(&mut self, share: f64) -> ControlFlow<Cancelled> {
        match &self.bar {
            Some(bar) => bar.set_position((share * STEPS as f64) as u64),
            None if self.spoken.elapsed() > INTERVAL => {
                self.spoken = Instant::now();
                tell!("loading weights: {:3.0} %", share * 100.0);
            }
            None => {}
        }
        Cancelled::unless(!signals::is_received())
    }

    fn loaded(&mut self) {
        // The estimate leaves the loading out.
        self.pace.started = Instant::now();
        if let Some(bar) = &self.bar {
            // First: the bar may be drawn in between, and nothing of the plan is done.
            bar.set_position(0);
            bar.set_message(self.plan.clone());
        }
    }

    fn progress(&mut self, share: f64) -> ControlFlow<Cancelled> {
        let now = Instant::now();
        let left = self.pace.time_left(share, now);
        match &self.bar {
            Some(bar) => {
                bar.set_position((share * STEPS as f64) as u64);
                bar.set_prefix(left.map_or(String::new(), in_words));
            }
            None if self.spoken.elapsed() > INTERVAL => {
                self.spoken = now;
                let left = left.map_or(String::new(), in_words);
                tell!("{:3.0} % done{left}", share * 100.0);
            }
            None => {}
        }
        Cancelled::unless(!signals::is_received())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_not_given_in_seconds() {
        let of = |seconds| in_words(Duration::from_secs(seconds));
        assert_eq!([of(3599), of(3600)], [", about 3599 s left", ", about 1 h 0 min left"]);
        assert_eq!(of(1_015_526), ", about 11 d 18 h left");
    }

    #[test]
    fn the_estimate_says_first_and_the_pace_later() {
        let start = Instant::now();
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let mut pace = TimeLeft::new(start);
        assert_eq!(pace.time_left(0.0, after(1)), None, "nothing is known");
        pace.expected = Some(Duration::from_secs(100));
        assert_eq!(pace.time_left(0.0, start), Some(Duration::from_secs(100)), "the estimate, before anything is done");
        assert_eq!(pace.time_left(0.0, after(10)), Some(Duration::from_secs(90)));
        // Twice as slow as expected: after an eighth of the work, estimate and pace count half
        // each.
        let left = pace.time_left(0.125, after(25)).unwrap().as_secs_f64();
        assert!((left - (87.5 + 175.0) / 2.0).abs() < 1e-6, "{left}");
        assert_eq!(pace.time_left(0.5, after(100)), Some(Duration::from_secs(100)), "the pace alone");
    }
}
