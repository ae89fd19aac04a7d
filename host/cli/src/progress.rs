//! How a decode goes on: a bar with the time left on a terminal, plain lines otherwise. All on standard error.

use std::{
    io::{self, IsTerminal},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::SIGTERM;
use tilewright_engine::Observer;
use tilewright_plan::{Decision, FailedAttempt, Time};

/// Steps of the bar.
const STEPS: u64 = 1000;

/// How long a layer may take after Ctrl-C.
const PATIENCE: Duration = Duration::from_millis(700);

/// How often a plain line is printed.
const INTERVAL: Duration = Duration::from_secs(10);

/// Shows progress, and ends the decode when the user interrupts.
pub struct Progress {
    bar: Option<ProgressBar>,
    interrupted: Arc<AtomicBool>,
    started: Instant,
    spoken: Instant,
}

impl Progress {
    /// Takes over Ctrl-C and SIGTERM: the first ends the decode at the next layer, a second Ctrl-C the program.
    pub fn new() -> Self {
        Self::abandoning(|| ())
    }

    /// The same, where work lies about that must not stay: where a layer takes too long after Ctrl-C, it is abandoned and the program ends.
    pub fn abandoning(abandon: impl FnOnce() + Send + 'static) -> Self {
        let interrupted = Arc::new(AtomicBool::new(false));
        let flag = interrupted.clone();
        let mut abandon = Some(abandon);
        let set = ctrlc::set_handler(move || {
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(1);
            }
            let Some(abandon) = abandon.take() else { return };
            std::thread::spawn(move || {
                std::thread::sleep(PATIENCE);
                abandon();
                eprintln!("error: interrupted");
                std::process::exit(1);
            });
        });
        if let Err(error) = set {
            tracing::debug!(%error, "Ctrl-C ends the program at once");
        }
        if let Err(error) = signal_hook::flag::register(SIGTERM, interrupted.clone()) {
            tracing::debug!(%error, "SIGTERM ends the program at once");
        }
        let bar = io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg} [{bar:30}] {percent:>3} %  {elapsed} elapsed, {eta} left");
            ProgressBar::new(STEPS)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "))
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

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
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
                eprintln!("{:3.0} % done, about {left:.0} s left", share * 100.0);
            }
            None => {}
        }
        !self.interrupted.load(Ordering::Relaxed)
    }
}
