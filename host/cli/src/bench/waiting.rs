//! How a long measurement goes on, and how it is ended from outside. All on standard error.

use std::{
    io::{self, IsTerminal},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};
use tilewright_bench::Watch;

use crate::tell::tell;

/// How often a plain line is printed.
const INTERVAL: Duration = Duration::from_secs(20);

/// Shows progress, and ends the measurement when the user interrupts.
pub struct Waiting {
    bar: Option<ProgressBar>,
    interrupted: Arc<AtomicBool>,
    started: Instant,
    spoken: Instant,
}

impl Waiting {
    /// Takes over Ctrl-C and SIGTERM (what `timeout` sends): the first ends the measurement at the next layer, with what was
    /// measured; a second one the program.
    pub fn new() -> Self {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order, so that the first signal arms the second's shutdown.
            let set = flag::register_conditional_shutdown(signal, 1, interrupted.clone())
                .and_then(|_| flag::register(signal, interrupted.clone()));
            if let Err(error) = set {
                tracing::debug!(signal, %error, "the signal ends the program at once");
            }
        }
        let bar = io::stderr().is_terminal().then(|| {
            let style =
                ProgressStyle::with_template("[{bar:24}] {pos}/{len}  {elapsed} elapsed, {eta} left  {wide_msg}");
            ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "))
        });
        let now = Instant::now();
        Self { bar, interrupted, started: now, spoken: now }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Watch for Waiting {
    fn say(&mut self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| tell!("{line}")),
            None => tell!("{line}"),
        }
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
                bar.set_message(what.to_owned());
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
        !self.interrupted.load(Ordering::Relaxed)
    }
}
