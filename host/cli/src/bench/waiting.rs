//! Progress of a long measurement, and its end by a signal. All on standard error.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use tilewright_bench::Watch;
use tilewright_plan::terminal::one_line;

use crate::{
    failure::Outcome,
    progress,
    signals::{self, StopMode},
    tell::tell,
};

/// The interval of plain lines.
const INTERVAL: Duration = Duration::from_secs(20);

/// Shows progress, and ends the measurement when the user interrupts.
struct Waiting {
    bar: Option<ProgressBar>,
    started: Instant,
    spoken: Instant,
}

/// The results of a measurement whose progress is shown.
pub fn watched<T>(measure: impl FnOnce(&mut dyn Watch) -> tilewright_bench::Result<T>) -> Outcome<T> {
    let mut waiting = Waiting::new();
    let measured = measure(&mut waiting)?;
    if let Some(bar) = &waiting.bar {
        bar.finish_and_clear();
    }
    Ok(measured)
}

impl Waiting {
    /// Starts a measurement that Ctrl-C or SIGTERM (the signal of `timeout`) ends at the next layer
    /// with the results so far; a second signal ends the program.
    fn new() -> Self {
        signals::manner(StopMode::Patiently);
        let bar = progress::bar("[{bar:24}] {pos}/{len}  {elapsed} elapsed, {eta} left  {wide_msg}", 0);
        let now = Instant::now();
        Self { bar, started: now, spoken: now }
    }
}

impl Watch for Waiting {
    fn say(&mut self, line: &str) {
        progress::say(self.bar.as_ref(), line);
    }

    fn advance(&mut self, done: usize, total: usize, what: &str) {
        if done == 0 {
            self.started = Instant::now();
        }
        match &self.bar {
            Some(bar) => {
                if done == 0 {
                    bar.reset();
                    bar.enable_steady_tick(Duration::from_millis(200));
                }
                bar.set_length(total as u64);
                bar.set_position(done as u64);
                bar.set_message(one_line(what).into_owned());
            }
            None if self.spoken.elapsed() > INTERVAL && done > 0 => {
                self.spoken = Instant::now();
                let left = self.started.elapsed().as_secs_f64() * (total - done) as f64 / done as f64;
                tell!("{done} of {total} runs done, about {left:.0} s left");
            }
            None => {}
        }
    }

    fn goes_on(&mut self) -> bool {
        !signals::is_received()
    }
}
