//! The engine that all policies of a host share, and its clocks.

use std::{
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use wasmtime::{Config, Engine};

use crate::{
    PolicyError,
    clock::Clock,
    limits::{Limits, TICK},
};

/// wasmtime's engine under the design's limits, with a thread that advances its epoch. The thread
/// ends with it.
pub(crate) struct Sandbox {
    pub engine: Engine,
    /// The clocks that calls are timed by.
    pub clock: Arc<dyn Clock>,
    stop: Option<Sender<()>>,
    ticker: Option<JoinHandle<()>>,
}

impl Sandbox {
    pub fn new(limits: &Limits, clock: Arc<dyn Clock>) -> Result<Self, PolicyError> {
        let sandbox = |detail: String| PolicyError::Sandbox { detail };
        let mut config = Config::new();
        limits.configure(&mut config);
        let pooled = limits.pool().map(|pool| Engine::new(config.clone().allocation_strategy(pool)));
        // If the address space is limited, there may be no room for a pool: instances work as well
        // without one.
        let engine = match pooled {
            Some(Ok(engine)) => engine,
            Some(Err(_)) | None => Engine::new(&config).map_err(|error| sandbox(format!("{error:#}")))?,
        };
        let (stop, stopped) = mpsc::channel();
        let ticking = engine.clone();
        let tick = move || {
            let mut next = Instant::now() + TICK;
            while let Err(RecvTimeoutError::Timeout) =
                stopped.recv_timeout(next.saturating_duration_since(Instant::now()))
            {
                ticking.increment_epoch();
                // Missed ticks are skipped: at each tick a call checks its own time.
                next = Instant::now().max(next) + TICK;
            }
        };
        let ticker = thread::Builder::new().name("policy-clock".into()).spawn(tick);
        let ticker = ticker.map_err(|error| sandbox(format!("no thread for its clock: {error}")))?;
        Ok(Self { engine, clock, stop: Some(stop), ticker: Some(ticker) })
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(ticker) = self.ticker.take() {
            // A clock that panicked has nothing left to report.
            let _ = ticker.join();
        }
    }
}
