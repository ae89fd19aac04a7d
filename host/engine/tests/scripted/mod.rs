//! A planner that answers from a list, and the fixtures that jobs are run on. Each test binary uses
//! a part of it.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::{
    collections::{BTreeMap, VecDeque},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::Duration,
};

use serde_json::Value;
use tch::{Kind, Tensor};
use tilewright_engine::{AnyFailed, Machine, Observer, Overrides, Probe, VaeFile};
use tilewright_fixtures::fixture;
use tilewright_models::{Checkpoint, Latent};
use tilewright_plan::{
    Attempt, Candidate, CostModel, Decision, Dtype, Failure, Fallback, FallbackReason, Layout, LearnReport, Plan,
    Planner, PolicyIdentity, Precision, Question, Release, Space, Tile, Trial, Vae, Work,
};
use tilewright_torch::device::Choice;

/// Answers plan after plan; the last one again and again.
pub struct Script<W: Work> {
    identity: PolicyIdentity,
    plans: VecDeque<W::Plan>,
    /// Plans of the host that stands in, one after the other.
    pub own: VecDeque<W::Plan>,
    /// The attempts that each later question carried.
    pub recovered: Vec<Vec<Attempt<W>>>,
    /// The outcomes that `learn` received.
    pub learned: Vec<(W::Plan, W::Outcome)>,
    /// The trials that the last decision could see.
    pub trials: Vec<Trial<W>>,
}

/// For decodes and encodes.
pub type Scripted = Script<Vae>;

impl<W: Work> Script<W> {
    pub fn new(plans: impl IntoIterator<Item = W::Plan>) -> Self {
        let identity = PolicyIdentity {
            name: "scripted".into(),
            version: "1.0.0".into(),
            digest: "sha256:00".into(),
            settings: BTreeMap::from([("tile".into(), tilewright_plan::Value::Integer(64))]),
        };
        Self {
            identity,
            plans: plans.into_iter().collect(),
            own: VecDeque::new(),
            recovered: Vec::new(),
            learned: Vec::new(),
            trials: Vec::new(),
        }
    }

    fn next(&mut self, facts: &dyn CostModel<W>) -> Decision<W> {
        self.trials = facts.trials(9);
        let plan = if self.plans.len() > 1 { self.plans.pop_front() } else { self.plans.front().cloned() }.unwrap();
        Decision {
            answer: Some(plan.clone()),
            candidates: vec![Candidate { plan: plan.clone(), cost: facts.estimate_one(&plan) }],
            plan,
            adjusted: vec!["overlap 300 → 192: at most a quarter of the tile".into()],
            fallback: None,
            elapsed: Duration::from_micros(4),
            fuel: 5532,
            log: Vec::new(),
        }
    }
}

impl<W: Work> Planner<W> for Script<W> {
    fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn decide(&mut self, question: &Question<'_, W>, costs: Arc<dyn CostModel<W>>) -> Decision<W> {
        if !question.attempts.is_empty() {
            self.recovered.push(question.attempts.to_vec());
        }
        self.next(&*costs)
    }

    fn fallback(&mut self, question: &Question<'_, W>, _: &dyn CostModel<W>) -> Option<Decision<W>> {
        let plan = self.own.pop_front()?;
        let detail = format!("after {} failed attempts", question.attempts.len());
        Some(Decision {
            answer: None,
            plan,
            adjusted: Vec::new(),
            fallback: Some(Fallback { reason: FallbackReason::Exhausted, detail }),
            elapsed: Duration::ZERO,
            fuel: 0,
            candidates: Vec::new(),
            log: Vec::new(),
        })
    }

    fn learn(&mut self, _: &Question<'_, W>, plan: &W::Plan, outcome: &W::Outcome) -> LearnReport {
        self.learned.push((plan.clone(), *outcome));
        LearnReport::default()
    }
}

/// Watches nothing.
pub struct Quiet;

impl Observer for Quiet {}

/// Hears of failed decodes and encodes.
#[derive(Default)]
pub struct Hears(pub Vec<Failure>);

impl Observer for Hears {
    fn failed(&mut self, failed: AnyFailed<'_>) {
        let AnyFailed::Vae(failed) = failed else { panic!("of another kind of work: {failed:?}") };
        self.0.push(failed.attempt.failure);
    }
}

pub fn plan(space: Space, batch: u32, precision: Precision, layout: Layout) -> Plan {
    Plan {
        space,
        batch,
        precision,
        layout,
        release: Release::AtEnd,
        reason: "the script says so".into(),
        ..Plan::plain()
    }
}

pub fn single(space: Space) -> Plan {
    plan(space, 1, Precision::Uniform(Dtype::F32), Layout::ChannelsFirst)
}

pub fn square(side: u32, overlap: u32) -> Space {
    Space::Blended(Tile { height: side, width: side, overlap })
}

/// The CPU, measured once per test binary.
pub fn machine() -> &'static Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    MACHINE.get_or_init(|| {
        // These networks are too small to share out.
        tilewright_torch::set_threads(1);
        Machine::open(Choice::Cpu, Probe::Fresh).unwrap()
    })
}

/// The memory counters and the limit are the process's: whoever looks at them, or may disturb them,
/// runs alone.
pub fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// True if a plan is left out of a long list, by its number in it. Two of four are compared: lists
/// whose lengths are no multiples of four have each kind of plan for some size. A processor without
/// instructions for a type is up to a hundred times slower in it: there it is one of four.
pub fn is_spared(precision: Precision, number: usize) -> bool {
    let dtype = precision.dtype();
    let is_slow = dtype != Dtype::F32 && !machine().facts.fast_dtypes.contains(&dtype);
    number % 4 >= if is_slow { 1 } else { 2 }
}

pub fn cases(list: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(fixture("cases.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    all[list].as_array().unwrap().clone()
}

pub fn vae(path: &Path) -> VaeFile {
    VaeFile::open(path, Overrides::default()).unwrap()
}

/// The network of ×8 with widths like the published ones', only narrower.
pub fn flux() -> VaeFile {
    vae(&fixture("flux-bfl/ae.safetensors"))
}

/// A latent that is the same in every run.
pub fn latent(shape: [i64; 4]) -> Tensor {
    let values = Tensor::arange(shape.iter().product::<i64>(), (Kind::Float, tch::Device::Cpu));
    (values * 0.7).sin().reshape(shape)
}

pub fn stored_latent(case: &Value) -> Tensor {
    Latent::read(&fixture(case["latent"].as_str().unwrap()), None).unwrap().pictures().unwrap()
}

pub fn reference(case: &Value) -> Tensor {
    let file = Checkpoint::open(&fixture(case["reference"].as_str().unwrap())).unwrap();
    let shape = file.shape("sample").unwrap().to_vec();
    file.load("sample", &shape, Kind::Float, tch::Device::Cpu).unwrap()
}

pub fn largest(tensor: &Tensor) -> f64 {
    f64::try_from(tensor.abs().max()).unwrap()
}
