//! How a decode goes on: a bar with the time left on a terminal, plain lines otherwise. All on standard error.

use std::{
    io::{self, IsTerminal},
    process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::{consts::SIGTERM, iterator::Signals};
use tilewright_engine::Observer;
use tilewright_plan::{Decision, FailedAttempt, Time};

use crate::tell::tell;

/// Steps of the bar.
const STEPS: u64 = 1000;

/// How long a layer, or what comes before the first one, may take after a signal.
const PATIENCE: Duration = Duration::from_millis(500);

/// How often a plain line is printed.
const INTERVAL: Duration = Duration::from_secs(10);

/// Shows progress, and ends the decode when the user interrupts.
pub struct Progress {
    bar: Option<ProgressBar>,
    interrupted: Arc<AtomicBool>,
    /// Whether a signal may end the program in the middle of what it does. Held by who ends it, until the end.
    endable: Arc<Mutex<bool>>,
    started: Instant,
    spoken: Instant,
}

impl Progress {
    /// Takes over Ctrl-C and SIGTERM: the first ends the work at the next layer, or the program where that takes too long; a second one the
    /// program at once.
    pub fn new() -> Self {
        Self::abandoning(|| ())
    }

    /// The same, where work lies about that must not stay when the program is ended: `abandon` takes it away.
    pub fn abandoning(abandon: impl FnOnce() + Send + 'static) -> Self {
        let interrupted = Arc::new(AtomicBool::new(false));
        let endable = Arc::new(Mutex::new(true));
        match signals() {
            Ok(signals) => {
                let (flag, endable) = (interrupted.clone(), endable.clone());
                thread::spawn(move || end_at(&signals, &flag, &endable, abandon));
            }
            Err(error) => tracing::debug!(%error, "signals end the program at once"),
        }
        let bar = io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg} [{bar:30}] {percent:>3} %  {elapsed} elapsed, {eta} left");
            ProgressBar::new(STEPS)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "))
        });
        let now = Instant::now();
        Self { bar, interrupted, endable, started: now, spoken: now }
    }

    /// Another work begins: a signal may end the program again.
    pub fn resume(&self) {
        *self.endable.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Whether the user has asked for the end.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// The work has ended: takes the bar away. What follows, giving files their names, is short and no longer interrupted.
    pub fn finish(&self) {
        *self.endable.lock().unwrap_or_else(PoisonError::into_inner) = false;
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| tell!("{line}")),
            None => tell!("{line}"),
        }
    }
}

/// Ctrl-C and SIGTERM as they come.
fn signals() -> anyhow::Result<Receiver<()>> {
    let (sender, signals) = mpsc::channel();
    let mut terminations = Signals::new([SIGTERM])?;
    let other = sender.clone();
    thread::spawn(move || terminations.forever().try_for_each(|_| other.send(())));
    ctrlc::set_handler(move || {
        let _ = sender.send(());
    })?;
    Ok(signals)
}

/// Waits for a signal and ends the program, unless the work comes to its end by itself in time.
fn end_at(signals: &Receiver<()>, interrupted: &AtomicBool, endable: &Mutex<bool>, abandon: impl FnOnce()) {
    if signals.recv().is_err() {
        return;
    }
    interrupted.store(true, Ordering::Relaxed);
    // Until a second one, or the time is up.
    let _ = signals.recv_timeout(PATIENCE);
    let endable = endable.lock().unwrap_or_else(PoisonError::into_inner);
    if *endable {
        abandon();
        tell!("error: interrupted");
        process::exit(1);
    }
}

impl Observer for Progress {
    fn decided(&mut self, decision: &Decision) {
        self.started = Instant::now();
        self.spoken = self.started;
        if let Some(fallback) = &decision.fallback {
            self.say(&format!("note: the host's default is used ({}: {})", fallback.reason, fallback.detail));
        }
        for adjusted in &decision.adjusted {
            self.say(&format!("note: {adjusted}"));
        }
        if let Some(bar) = &self.bar {
            bar.reset();
            let time = match decision.plan.time {
                Time::Whole => String::new(),
                time => format!(" {time}"),
            };
            bar.set_message(format!("{}{time} {}", decision.plan.space, decision.plan.precision));
            bar.enable_steady_tick(Duration::from_millis(200));
        }
    }

    fn failed(&mut self, attempt: &FailedAttempt) {
        self.say(&format!(
            "note: {} {} failed: {}; trying another plan",
            attempt.plan.space, attempt.plan.precision, attempt.failure
        ));
    }

    fn progress(&mut self, share: f64) -> bool {
        match &self.bar {
            Some(bar) => bar.set_position((share * STEPS as f64) as u64),
            None if self.spoken.elapsed() > INTERVAL && share > 0.0 => {
                self.spoken = Instant::now();
                let left = self.started.elapsed().as_secs_f64() * (1.0 - share) / share;
                tell!("{:3.0} % done, about {left:.0} s left", share * 100.0);
            }
            None => {}
        }
        !self.interrupted.load(Ordering::Relaxed)
    }
}
