//! The state behind a policy's imports, and its use of its limits. One struct per store.

use std::{fmt, sync::Arc, time::Duration};

pub(crate) use tilewright_plan::terminal::blank_unprintable as clean;
use tilewright_plan::{Candidate, CostModel, FieldOf, LogLevel, LogLine, Trial, Work, each, of_each};
use wasmtime::{ResourceLimiter, Result, Trap};

use crate::{check, clock::Clock, limits::Limits, work::Planned};

/// Memory and tables in use, over all of a store's instances.
#[derive(Debug)]
pub(crate) struct Usage {
    limits: Limits,
    memory_bytes: usize,
    table_elements: usize,
    /// The last growth that was granted, undone if it fails nevertheless.
    granted: (usize, usize),
}

/// The guest went over a limit, which ends the call.
#[derive(Clone, Debug)]
pub(crate) enum LimitExceeded {
    Memory { asked: usize, most: usize },
    Table { asked: usize, most: usize },
    Copied { most: usize },
    Calls { most: usize },
}

impl fmt::Display for LimitExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitExceeded::Memory { asked, most } => write!(f, "asked for {asked} bytes of memory, of {most} allowed"),
            LimitExceeded::Table { asked, most } => write!(f, "asked for {asked} table elements, of {most} allowed"),
            LimitExceeded::Copied { most } => write!(f, "passed more than {most} bytes to the host in one call"),
            LimitExceeded::Calls { most } => write!(f, "asked the host more than {most} times in one call"),
        }
    }
}

impl std::error::Error for LimitExceeded {}

impl Usage {
    /// Bytes of all linear memories together.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}

impl ResourceLimiter for Usage {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        let asked = (self.memory_bytes - current).saturating_add(desired);
        if asked > self.limits.memory_bytes {
            return Err(LimitExceeded::Memory { asked, most: self.limits.memory_bytes }.into());
        }
        self.memory_bytes = asked;
        self.granted.0 = desired - current;
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> Result<()> {
        self.memory_bytes -= std::mem::take(&mut self.granted.0);
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        let asked = (self.table_elements - current).saturating_add(desired);
        if asked > self.limits.table_elements {
            return Err(LimitExceeded::Table { asked, most: self.limits.table_elements }.into());
        }
        self.table_elements = asked;
        self.granted.1 = desired - current;
        Ok(true)
    }

    fn table_grow_failed(&mut self, _error: wasmtime::Error) -> Result<()> {
        self.table_elements -= std::mem::take(&mut self.granted.1);
        Ok(())
    }

    fn instances(&self) -> usize {
        self.limits.core_instances
    }

    fn tables(&self) -> usize {
        self.limits.tables
    }

    fn memories(&self) -> usize {
        self.limits.memories
    }
}

/// The prices that a guest may ask for in its current call.
pub(crate) struct Prices<W: Planned> {
    pub costs: Arc<dyn CostModel<W>>,
    pub bounds: W::Bounds,
}

/// The questions about one kind of work in the current call.
#[derive(Default)]
pub(crate) struct Questions<W: Planned> {
    /// Set during `decide` and, for the decided plan, during `learn`.
    pub prices: Option<Arc<Prices<W>>>,
    pub candidates: Vec<Candidate<W>>,
}

/// The questions about every kind of work in the current call.
pub(crate) type AllQuestions = each!(Questions);

/// Work that guests may ask about.
pub(crate) trait Asked: Planned + FieldOf<AllQuestions, Field = Questions<Self>> {}

impl<W: Planned + FieldOf<AllQuestions, Field = Questions<W>>> Asked for W {}

/// The state of a store.
pub(crate) struct Guest {
    pub usage: Usage,
    pub questions: AllQuestions,
    pub log: Vec<LogLine>,
    copied_bytes: usize,
    calls: usize,
    /// The line that is being printed, and the last complete one on standard error.
    printed: Vec<u8>,
    complaint: Option<String>,
    is_ending: bool,
    random: u64,
    limits: Limits,
    clock: Arc<dyn Clock>,
    /// The wall clock and this thread's processor time at the beginning of the call.
    began: (Duration, Duration),
}

/// The seed of a guest's random numbers, in every call.
const SEED: u64 = 0x7469_6c65_7772_6967;

impl Guest {
    pub fn new(limits: Limits, clock: Arc<dyn Clock>) -> Self {
        let usage = Usage { limits, memory_bytes: 0, table_elements: 0, granted: (0, 0) };
        Self {
            usage,
            questions: AllQuestions::default(),
            log: Vec::new(),
            copied_bytes: 0,
            calls: 0,
            printed: Vec::new(),
            complaint: None,
            is_ending: false,
            random: SEED,
            limits,
            clock,
            began: (Duration::ZERO, Duration::ZERO),
        }
    }

    /// Forgets the state of the previous call.
    pub fn begin(&mut self) {
        of_each!(&mut self.questions, asked => asked.candidates.clear());
        self.log.clear();
        self.copied_bytes = 0;
        self.calls = 0;
        self.printed.clear();
        self.complaint = None;
        self.is_ending = false;
        self.random = SEED;
        self.began = (self.clock.wall(), self.clock.processor());
    }

    /// True if the call's time has run out, asked at a tick of the sandbox's clock and before each
    /// price of a list.
    ///
    /// The number of ticks means nothing: on a busy machine some come late and some not at all. So
    /// a tick is only the occasion to read the time. The same decision has to come out of a busy
    /// machine as of a quiet one, so the time is the processor's. A call that does not get the
    /// processor ends as well, since a user waits for it, but is not to blame.
    pub fn is_late(&self) -> bool {
        let (wall, most) = (self.clock.wall().saturating_sub(self.began.0), self.limits.call_time());
        // The processor's clock takes a system call, and is never ahead of the wall's.
        wall >= most && (self.ran() >= most || wall >= most * Limits::PATIENCE)
    }

    /// Processor time of the call so far.
    pub fn ran(&self) -> Duration {
        self.clock.processor().saturating_sub(self.began.1)
    }

    /// The last line that the guest printed on standard error in this call: a language's runtime
    /// says there why it stops.
    pub fn complaint(&self) -> Option<&str> {
        self.complaint.as_deref()
    }

    /// Logs the complete lines of a guest's output.
    pub fn print(&mut self, level: LogLevel, bytes: &[u8]) -> Result<()> {
        for byte in bytes {
            match byte {
                b'\n' => {
                    let line = String::from_utf8_lossy(&std::mem::take(&mut self.printed)).trim_end().to_owned();
                    if line.is_empty() {
                        continue;
                    }
                    // A Rust runtime's message about its own end would hide the reason.
                    self.is_ending |= line.starts_with("thread '");
                    if level == LogLevel::Warn && !(self.is_ending && self.complaint.is_some()) {
                        self.complaint = Some(clean(line.clone(), self.limits.text_chars));
                    }
                    self.log(level, line)?;
                }
                // A longer line is cut in the log, anyway.
                _ if self.printed.len() < self.limits.copied_bytes => self.printed.push(*byte),
                _ => {}
            }
        }
        Ok(())
    }

    /// The next of the numbers that stand for random ones (splitmix64).
    pub fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Counts a question and the bytes that came with it, and ends the guest's call if they are too
    /// many.
    pub fn count_question(&mut self, bytes: usize) -> Result<()> {
        self.calls += 1;
        if self.calls > self.limits.host_calls {
            return Err(LimitExceeded::Calls { most: self.limits.host_calls }.into());
        }
        self.count_bytes(bytes)
    }

    /// Counts bytes that came with a question.
    fn count_bytes(&mut self, bytes: usize) -> Result<()> {
        self.copied_bytes = self.copied_bytes.saturating_add(bytes);
        if self.copied_bytes > self.limits.copied_bytes {
            return Err(LimitExceeded::Copied { most: self.limits.copied_bytes }.into());
        }
        Ok(())
    }

    /// Logs a message of the guest, for the log and the record.
    pub fn log(&mut self, level: LogLevel, message: String) -> Result<()> {
        self.count_question(message.len())?;
        if self.log.len() < self.limits.log_lines {
            let message = clean(message, self.limits.text_chars);
            // Only the first warning of a call is shown by default; a policy must not fill a
            // terminal.
            let warned = self.log.iter().any(|line| line.level == LogLevel::Warn);
            match level {
                LogLevel::Warn if warned => tracing::info!(target: "tilewright::policy", "{message}"),
                LogLevel::Debug => tracing::debug!(target: "tilewright::policy", "{message}"),
                LogLevel::Info => tracing::info!(target: "tilewright::policy", "{message}"),
                LogLevel::Warn => tracing::warn!(target: "tilewright::policy", "{message}"),
            }
            self.log.push(LogLine { level, message });
        }
        Ok(())
    }

    /// The price of a guest's plan after checking.
    pub fn estimate<W: Asked>(&mut self, plan: W::Plan) -> Result<Price<W>> {
        self.count_question(W::reason(&plan).len() + W::options(&plan).text_bytes())?;
        Ok(self.price::<W>(plan, None))
    }

    /// The prices of a guest's plans, in their order. The clock is read before each of them, since
    /// a list is one question. Equal plans of a list are priced once.
    pub fn estimate_all<W: Asked>(&mut self, plans: impl ExactSizeIterator<Item = W::Plan>) -> Result<Vec<Price<W>>> {
        self.count_question(0)?;
        let mut costs = Vec::with_capacity(plans.len());
        // One plan has no equals. A list is short, since its bytes are limited: a search from its
        // beginning takes less time than a hash.
        let mut known = (plans.len() > 1).then(|| Vec::with_capacity(plans.len().min(self.limits.candidates)));
        for plan in plans {
            if self.is_late() {
                return Err(Trap::Interrupt.into());
            }
            self.count_bytes(W::reason(&plan).len() + W::options(&plan).text_bytes())?;
            costs.push(self.price::<W>(plan, known.as_mut()));
        }
        Ok(costs)
    }

    fn price<W: Asked>(&mut self, mut plan: W::Plan, known: Option<&mut Vec<(W::Plan, Price<W>)>>) -> Price<W> {
        let limits = self.limits;
        let Questions { prices, candidates } = W::of_mut(&mut self.questions);
        let Some(prices) = prices else {
            return Err("a price can be asked for only in decide and learn, and for the stage at hand".into());
        };
        if candidates.len() >= limits.candidates {
            return Err(format!("no more than {} plans are priced per decision", limits.candidates));
        }
        let reason = W::reason_mut(&mut plan);
        *reason = clean(std::mem::take(reason), limits.text_chars);
        let mut legal = W::without_reason(&plan);
        let cost = match check::fit::<W>(&mut legal, &prices.bounds, &mut |_| {}) {
            Ok(()) => match known {
                None => prices.costs.estimate_one(&legal),
                Some(known) => match known.iter().find(|(plan, _)| *plan == legal) {
                    Some((_, cost)) => cost.clone(),
                    None => {
                        let cost = prices.costs.estimate_one(&legal);
                        known.push((legal, cost.clone()));
                        cost
                    }
                },
            },
            Err(nonsense) => Err(nonsense.to_string()),
        };
        if candidates.is_empty() {
            // A policy that asks for one price usually asks for a dozen.
            candidates.reserve(USUAL_CANDIDATES);
        }
        candidates.push(Candidate { plan, cost: cost.clone() });
        cost
    }

    /// Earlier measurements, newest first, at most `most`.
    pub fn trials<W: Asked>(&mut self, most: u32) -> Result<Vec<Trial<W>>> {
        self.count_question(0)?;
        let prices = W::of(&self.questions).prices.as_ref();
        let mut trials = prices.map(|prices| prices.costs.trials(most.min(TRIALS))).unwrap_or_default();
        trials.truncate(most as usize);
        Ok(trials)
    }
}

/// A price, or the reason why there is none.
type Price<W> = std::result::Result<<W as Work>::Cost, String>;

/// About as many plans as a policy that searches asks the price of.
const USUAL_CANDIDATES: usize = 32;

/// The most trials that a guest gets at once.
const TRIALS: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MachineClock;

    #[test]
    fn memories_count_together() {
        let mut usage = Guest::new(Limits { memory_bytes: 3 << 16, ..Limits::default() }, Arc::new(MachineClock)).usage;
        assert!(usage.memory_growing(0, 1 << 16, None).unwrap());
        assert!(usage.memory_growing(0, 2 << 16, None).unwrap());
        assert!(usage.memory_growing(1 << 16, 2 << 16, None).is_err());
        usage.memory_grow_failed(wasmtime::Error::msg("no")).unwrap();
        assert!(usage.memory_growing(0, 2 << 16, None).unwrap());
        assert!(!usage.memory_growing(0, 2 << 16, Some(1 << 16)).unwrap());
    }
}
