//! A policy's costs: time and fuel of each function, the first time and warm, and memory.
//!
//! A call is measured as the host makes it: with the work around the guest that a decision needs,
//! including the check of its answer. The clock's own time is subtracted.

mod report;
mod spread;

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tilewright_gate::{golden::GoldenRequest, work::Judged};
use tilewright_plan::{
    Attempt, CostModel, Decision, Failure, FallbackReason, FieldOf, LearnReport, Planner, Stage, Trial, VariantOf,
    each, of_any, of_each, of_kinds,
};
use tilewright_policy::{CacheDir, Limits, LoadedPolicy, Policy, PolicyError, PolicyHost, TimeBudget};

use crate::simulate::Simulated;

pub use self::{
    report::{Beside, Call, Cold, Decisions, Estimates, Function, Lasting, Memory, Report},
    spread::Spread,
};

/// Nanoseconds above which a load is timed once: a language's runtime takes many seconds to
/// compile.
const SLOW_LOAD: f64 = 0.4e9;

/// A function that loads the measured policy into any host.
pub type Load<'a> = dyn Fn(&PolicyHost) -> Result<LoadedPolicy, PolicyError> + 'a;

/// The extent of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Runs of every function; by default as many as fit into `budget`.
    pub iterations: Option<u32>,
    /// Time for all functions together, without loading.
    pub budget: Duration,
    /// The policy's limits.
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Self {
        Self { iterations: None, budget: Duration::from_secs(2), limits: Limits::default() }
    }
}

/// Loads a policy and measures it, on the golden requests of the stages that it answers.
///
/// # Errors
/// Any [`PolicyError`] of a policy that can't be loaded or refuses its settings. Later failures are
/// part of the measurement.
pub fn measure(load: &Load<'_>, settings: &[(String, String)], options: &Options) -> Result<Report, PolicyError> {
    let clock = clock();
    let (loaded, load_ns, cached_ns) = loads(load, options.limits)?;
    // A module that is costly to compile has used its time already.
    let budget = if load_ns < SLOW_LOAD { options.budget } else { options.budget / 4 };
    let options = &Options { budget, ..*options };
    // Five functions, and decisions in an instance that lasts; each runs at most as often again to
    // warm up.
    let runs = 12 * options.iterations.unwrap_or(0) as usize;
    let time_budget = loaded.time_budget(budget + options.limits.time_budget(runs));
    let stages = &loaded.description().stages;
    let asked = of_kinds!(W => requests::<W>(stages));
    let cold = TimeBudget::count(Some(&time_budget), || first(&loaded, settings, &asked, load_ns, cached_ns))?;
    // All kinds of work share the budget.
    let kinds: u32 = of_each!(&asked, asked => u32::from(!asked.is_empty())).into_iter().sum();
    let options = &Options { budget: budget / kinds.max(1), ..*options };
    let bench = Bench { loaded: &loaded, settings, asked: &asked.vae, options, time_budget: &time_budget, clock };
    let mut calls = vec![bench.describe()?, bench.configure()?];
    let mut policy = loaded.configure(settings)?;
    let measured = of_kinds!(W => Beside {
        key: W::KEY,
        heading: W::HEADING,
        decisions: bench.on(W::of(&asked).as_slice()).decisions(&mut policy)?,
    });
    // The first kind of work that a policy answers has its figures in the report itself, so that
    // the first of all is never beside another.
    let mut beside: Vec<Beside> = measured.into_iter().collect();
    let main = beside.iter_mut().find_map(|kind| kind.decisions.take()).unwrap_or_default();
    beside.remove(0);
    let inspection = loaded.inspection();
    let identity = policy.identity();
    calls.extend(main.calls);
    Ok(Report {
        policy: identity.name.clone(),
        version: identity.version.clone(),
        digest: identity.digest.clone(),
        settings: identity.settings.clone(),
        kind: inspection.kind,
        size_bytes: inspection.size_bytes,
        requests: main.requests,
        memory: Memory { linear_bytes: policy.memory_bytes(), code_bytes: loaded.code_bytes() },
        cold,
        decisions_per_second: main.decisions_per_second,
        estimates: main.estimates,
        lasting: main.lasting,
        calls,
        beside,
    })
}

/// The golden requests of every kind of work.
type AllRequests = each!(Vec<GoldenRequest>);

/// The golden requests of these stages.
fn requests<W: Judged>(stages: &[Stage]) -> Vec<GoldenRequest<W>> {
    W::golden().into_iter().filter(|golden| stages.contains(&golden.stage)).collect()
}

fn decide<W: Judged>(asked: &GoldenRequest<W>, policy: &mut Policy) -> Decision<W>
where
    Policy: Planner<W>,
{
    policy.decide(&asked.question(), asked.costs())
}

/// Loads a policy in two ways, compiled and from a cache of its own, and returns the nanoseconds of
/// both. A policy that loads quickly is loaded a few times, and the lowest time counts.
fn loads(load: &Load<'_>, limits: Limits) -> Result<(LoadedPolicy, f64, f64), PolicyError> {
    let timed = |host: &PolicyHost| -> Result<(LoadedPolicy, f64), PolicyError> {
        let started = Instant::now();
        let loaded = load(host)?;
        Ok((loaded, nanoseconds(started.elapsed())))
    };
    let least = |host: &PolicyHost, mut least: f64| -> Result<f64, PolicyError> {
        for _ in 0..3 {
            if least < SLOW_LOAD {
                least = least.min(timed(host)?.1);
            }
        }
        Ok(least)
    };
    let place = tempfile::tempdir();
    let cache = place.as_ref().map_or(CacheDir::Off, |place| CacheDir::At(place.path().join("policies")));
    // The first load fills the cache, so that a policy that is costly to compile is compiled only
    // once.
    let cached = PolicyHost::new(limits, &cache)?;
    let (loaded, first) = timed(&cached)?;
    let load_ns = least(&PolicyHost::new(limits, &CacheDir::Off)?, first)?;
    let cached_ns = if cache == CacheDir::Off { f64::NAN } else { least(&cached, timed(&cached)?.1)? };
    Ok((loaded, load_ns, cached_ns))
}

/// The first calls of a new instance.
fn first(
    loaded: &LoadedPolicy,
    settings: &[(String, String)],
    asked: &AllRequests,
    load_ns: f64,
    cached_ns: f64,
) -> Result<Cold, PolicyError> {
    let timed = |started: Instant| nanoseconds(started.elapsed());
    let started = Instant::now();
    let mut probe = loaded.probe(settings)?;
    let instantiate_ns = timed(started);
    let started = Instant::now();
    probe.configure()?;
    let configure_ns = timed(started);
    let mut policy = loaded.configure(settings)?;
    let asked = of_kinds!(W => W::of(asked).first().map(W::any)).into_iter().flatten().next();
    let started = Instant::now();
    if let Some(asked) = asked {
        of_any!(asked, asked => drop(black_box(decide(asked, &mut policy))));
    }
    let decide_ns = timed(started);
    Ok(Cold { load_ns, cached_ns, instantiate_ns, configure_ns, decide_ns })
}

/// The clock's own nanoseconds between two readings.
fn clock() -> f64 {
    let mut gaps: Vec<f64> = (0..1000)
        .map(|_| {
            let started = Instant::now();
            nanoseconds(black_box(started).elapsed())
        })
        .collect();
    Spread::of(&mut gaps).median_ns
}

fn nanoseconds(elapsed: Duration) -> f64 {
    elapsed.as_nanos() as f64
}

/// The inputs that all functions share.
struct Bench<'a, W: Judged> {
    loaded: &'a LoadedPolicy,
    settings: &'a [(String, String)],
    asked: &'a [GoldenRequest<W>],
    options: &'a Options,
    /// For all runs together. Counted around a run: a budget of the policy's own would read a slow
    /// clock within each call.
    time_budget: &'a TimeBudget,
    /// Nanoseconds.
    clock: f64,
}

/// The result of a run.
#[derive(Clone, Copy)]
struct Run {
    elapsed: Duration,
    fuel: u64,
    fallback: Option<FallbackReason>,
}

/// A few runs before the counted ones.
const WARM_UP: u32 = 20;

/// Shares of the budget, in percent.
const DESCRIBE: u32 = 10;
const CONFIGURE: u32 = 15;
const DECIDE: u32 = 30;
const LASTING: u32 = 10;
const RECOVER: u32 = 20;
const LEARN: u32 = 15;

impl<'a, W: Judged> Bench<'a, W>
where
    Policy: Planner<W>,
{
    /// The same on other requests.
    fn on<V: Judged>(&self, asked: &'a [GoldenRequest<V>]) -> Bench<'a, V> {
        let &Self { loaded, settings, options, time_budget, clock, .. } = self;
        Bench { loaded, settings, asked, options, time_budget, clock }
    }

    /// Runs a function as often as asked for, or as its share of the budget allows; the function
    /// gets the run's number.
    fn runs(
        &self,
        function: Function,
        share: u32,
        mut run: impl FnMut(usize) -> Result<Run, PolicyError>,
    ) -> Result<Call, PolicyError> {
        let budget = self.options.budget * share / 100;
        let mut counted = |index: usize| {
            let run = TimeBudget::count(Some(self.time_budget), || run(index))?;
            self.time_budget.check(&self.loaded.description().name)?;
            Ok::<Run, PolicyError>(run)
        };
        let started = Instant::now();
        for index in 0..self.options.iterations.unwrap_or(WARM_UP).min(WARM_UP) {
            counted(index as usize)?;
            if self.options.iterations.is_none() && started.elapsed() >= budget / 4 {
                break;
            }
        }
        // Whole rounds, so that every request has the same weight, unless the last round goes
        // beyond twice the budget.
        let round = self.asked.len().max(1);
        let (started, mut runs) = (Instant::now(), Vec::new());
        loop {
            let elapsed = started.elapsed();
            let is_done = match self.options.iterations {
                Some(most) => runs.len() >= most as usize,
                None => !runs.is_empty() && elapsed >= budget && (runs.len() % round == 0 || elapsed >= budget * 5 / 4),
            };
            if is_done {
                break;
            }
            runs.push(counted(runs.len())?);
        }
        let mut times: Vec<f64> = runs.iter().map(|run| (nanoseconds(run.elapsed) - self.clock).max(0.0)).collect();
        let medians = (0..round.min(times.len())).map(|first| {
            let mut of_request: Vec<f64> = times.iter().skip(first).step_by(round).copied().collect();
            Spread::of(&mut of_request).median_ns
        });
        let typical_ns = medians.sum::<f64>() / round.min(times.len()).max(1) as f64;
        let time = Spread::of(&mut times);
        let fell_back = |is_error: bool| {
            let reasons = runs.iter().filter_map(|run| run.fallback);
            reasons.filter(|reason| reason.is_failure() != is_error).count() as u32
        };
        Ok(Call {
            function,
            time,
            typical_ns,
            per_second: 1e9 / typical_ns.max(1.0),
            fuel_mean: runs.iter().map(|run| run.fuel as f64).sum::<f64>() / runs.len().max(1) as f64,
            fuel_most: runs.iter().map(|run| run.fuel).max().unwrap_or(0),
            declined: fell_back(true),
            failed: fell_back(false),
        })
    }

    fn describe(&self) -> Result<Call, PolicyError> {
        let mut probe = self.loaded.probe(self.settings)?;
        self.runs(Function::Describe, DESCRIBE, |_| {
            let started = Instant::now();
            let fuel = probe.describe()?;
            Ok(Run { elapsed: started.elapsed(), fuel, fallback: None })
        })
    }

    /// A new instance each time: a policy is configured once.
    fn configure(&self) -> Result<Call, PolicyError> {
        self.runs(Function::Configure, CONFIGURE, |_| {
            let mut probe = self.loaded.probe(self.settings)?;
            let started = Instant::now();
            let fuel = probe.configure()?;
            Ok(Run { elapsed: started.elapsed(), fuel, fallback: None })
        })
    }

    /// The functions that decide and learn, in a new policy in place of this one; none without
    /// requests.
    fn decisions(&self, policy: &mut Policy) -> Result<Option<Decisions>, PolicyError> {
        if self.asked.is_empty() {
            return Ok(None);
        }
        // One that has learned from outcomes would pass them to each new instance.
        *policy = self.loaded.configure(self.settings)?;
        let decide = self.run_decisions(policy, DECIDE, |bench| bench.loaded.configure(bench.settings))?;
        let estimates = TimeBudget::count(Some(self.time_budget), || self.estimates(policy, decide.typical_ns));
        let lasting = self.measure_lasting(estimates.as_ref())?;
        let recover = self.recover(policy)?;
        let learn = self.learn(policy)?;
        Ok(Some(Decisions {
            requests: self.asked.len(),
            decisions_per_second: decide.per_second,
            estimates,
            lasting,
            calls: vec![decide, recover, learn],
        }))
    }

    /// Decisions in one instance: without making a new one, only the question and its answer are
    /// left.
    fn measure_lasting(&self, estimates: Option<&Estimates>) -> Result<Lasting, PolicyError> {
        let fresh = |bench: &Self| Ok(bench.loaded.configure(bench.settings)?.lasting());
        let Call { typical_ns, .. } = self.run_decisions(&mut fresh(self)?, LASTING, fresh)?;
        let host_ns = estimates.map_or(0.0, |estimates| estimates.host_ns);
        Ok(Lasting { typical_ns, beside_ns: (typical_ns - host_ns).max(0.0) })
    }

    /// Decisions over all requests in turn. A policy that was taken out of service is loaded again.
    fn run_decisions(
        &self,
        policy: &mut Policy,
        share: u32,
        fresh: impl Fn(&Self) -> Result<Policy, PolicyError>,
    ) -> Result<Call, PolicyError> {
        self.runs(Function::Decide, share, |index| {
            if policy.is_out_of_service() {
                *policy = fresh(self)?;
            }
            let asked = &self.asked[index % self.asked.len()];
            let started = Instant::now();
            let decision = black_box(decide(asked, policy));
            let elapsed = started.elapsed();
            Ok(Run { elapsed, fuel: decision.fuel, fallback: decision.fallback.map(|fallback| fallback.reason) })
        })
    }

    fn recover(&self, policy: &mut Policy) -> Result<Call, PolicyError> {
        let mut plans = Plans::new(self)?;
        self.runs(Function::Recover, RECOVER, |index| {
            self.in_service(policy)?;
            let place = index % self.asked.len();
            let attempts = [Attempt { plan: plans.at(place)?, failure: Failure::OutOfMemory { bytes: 256 << 20 } }];
            let asked = &self.asked[place];
            let started = Instant::now();
            let decision = black_box(policy.decide(&asked.question().after(&attempts), asked.costs()));
            let elapsed = started.elapsed();
            Ok(Run { elapsed, fuel: decision.fuel, fallback: decision.fallback.map(|fallback| fallback.reason) })
        })
    }

    /// The last function, since learning may change decisions.
    fn learn(&self, policy: &mut Policy) -> Result<Call, PolicyError> {
        let mut plans = Plans::new(self)?;
        self.runs(Function::Learn, LEARN, |index| {
            self.in_service(policy)?;
            let place = index % self.asked.len();
            let plan = plans.at(place)?;
            let question = self.asked[place].question();
            let outcome = W::outcome(self.asked[place].costs().estimate_one(&plan).ok());
            let started = Instant::now();
            let LearnReport { fuel, failure } = policy.learn(&question, &plan, &outcome);
            let elapsed = started.elapsed();
            Ok(Run { elapsed, fuel, fallback: failure.map(|failure| failure.reason) })
        })
    }

    /// Replaces a policy that was taken out of service, so that the fallback is not measured in its
    /// place.
    fn in_service(&self, policy: &mut Policy) -> Result<(), PolicyError> {
        if policy.is_out_of_service() {
            *policy = self.loaded.configure(self.settings)?;
        }
        Ok(())
    }

    /// The share of a decision that the host spends pricing plans, each price timed. `decide_ns` is
    /// a decision's time without that.
    fn estimates(&self, policy: &mut Policy, decide_ns: f64) -> Option<Estimates> {
        const ROUNDS: usize = 5;
        let (mut count, mut decided, mut host_ns) = (0, 0, f64::INFINITY);
        let started = Instant::now();
        for round in 0..ROUNDS {
            if round > 0 && started.elapsed() > self.options.budget / 4 {
                break;
            }
            let (mut asked_for, mut answered, mut elapsed) = (0, 0, 0.0);
            for asked in self.asked {
                if started.elapsed() > self.options.budget / 2 {
                    break;
                }
                self.in_service(policy).ok()?;
                let costs = asked.costs();
                let timed = Arc::new(TimedCostModel { costs, count: AtomicU64::new(0), elapsed_ns: AtomicU64::new(0) });
                let decision = policy.decide(&asked.question(), timed.clone());
                if decision.fallback.is_some() {
                    // The prices may be those of the search for the host's own plan.
                    continue;
                }
                answered += 1;
                // Prices that the host computes for itself don't count as the policy's.
                asked_for += decision.candidates.len() as u64;
                elapsed += timed.elapsed_ns.load(Ordering::Relaxed) as f64;
            }
            (count, decided) = (asked_for, answered);
            host_ns = host_ns.min((elapsed - self.clock * asked_for as f64).max(0.0));
        }
        let requests = f64::from(decided.max(1));
        let host_ns = host_ns / requests;
        (count > 0).then(|| Estimates {
            count: count as f64 / requests,
            host_ns,
            beside_ns: (decide_ns - host_ns).max(0.0),
        })
    }
}

/// The decisions of a policy, made by an instance of its own and only when needed: a slow policy
/// can't answer every request.
struct Plans<'a, W: Judged> {
    bench: &'a Bench<'a, W>,
    policy: Policy,
    decided: Vec<Option<W::Plan>>,
}

impl<'a, W: Judged> Plans<'a, W>
where
    Policy: Planner<W>,
{
    fn new(bench: &'a Bench<'a, W>) -> Result<Self, PolicyError> {
        let policy = bench.loaded.configure(bench.settings)?;
        Ok(Self { bench, policy, decided: vec![None; bench.asked.len()] })
    }

    fn at(&mut self, place: usize) -> Result<W::Plan, PolicyError> {
        if let Some(plan) = &self.decided[place] {
            return Ok(plan.clone());
        }
        self.bench.in_service(&mut self.policy)?;
        let plan = decide(&self.bench.asked[place], &mut self.policy).plan;
        Ok(self.decided[place].insert(plan).clone())
    }
}

/// A cost model that measures its own time.
struct TimedCostModel<W: Judged> {
    costs: Arc<dyn CostModel<W>>,
    count: AtomicU64,
    elapsed_ns: AtomicU64,
}

impl<W: Judged> CostModel<W> for TimedCostModel<W> {
    fn estimate_one(&self, plan: &W::Plan) -> Result<W::Cost, String> {
        let started = Instant::now();
        let cost = self.costs.estimate_one(plan);
        self.elapsed_ns.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        cost
    }

    fn trials(&self, most: u32) -> Vec<Trial<W>> {
        self.costs.trials(most)
    }
}
