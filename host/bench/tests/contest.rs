//! Contests on a tiny network, with planners made for the tests.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tch::{Kind, Tensor};
use tilewright_bench::{Contest, Entry, Latents, Rounds, Spelling, Watch, sweep};
use tilewright_engine::{Machine, Overrides, Probe};
use tilewright_fixtures::fixture;
use tilewright_pipeline::Model;
use tilewright_plan::{
    CostModel, Decision, Dtype, Layout, LearnReport, Objective, Outcome, Plan, Planner, PolicyIdentity, Precision,
    Question, Space, Tile, Time,
};
use tilewright_torch::device::Choice;

/// A planner that always answers one plan.
struct Stubborn {
    identity: PolicyIdentity,
    plan: Plan,
}

impl Stubborn {
    fn decision(&self) -> Decision {
        Decision {
            answer: Some(self.plan.clone()),
            plan: self.plan.clone(),
            adjusted: Vec::new(),
            fallback: None,
            elapsed: Duration::ZERO,
            fuel: 0,
            candidates: Vec::new(),
            log: Vec::new(),
        }
    }
}

impl Planner for Stubborn {
    fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn decide(&mut self, _: &Question<'_>, _: Arc<dyn CostModel>) -> Decision {
        self.decision()
    }

    fn learn(&mut self, _: &Question<'_>, _: &Plan, _: &Outcome) -> LearnReport {
        LearnReport::default()
    }
}

/// `whole`, `f16` (which overflows on large latents), `fixed:space=…` as the sweep spells it, or an
/// error.
fn planner(spelling: &Spelling) -> Result<Box<dyn Planner>, Box<dyn std::error::Error + Send + Sync>> {
    let setting = |name: &str| spelling.settings.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let side = |name: &str| setting(name).and_then(|text| text.parse().ok()).unwrap_or(0);
    let tile = Tile { height: side("tile"), width: side("tile"), overlap: side("overlap") };
    let space = match setting("space") {
        Some("blended") => Space::Blended(tile),
        // The host would run exact tiles as blended ones.
        Some("exact") => Space::Blended(tile),
        _ => Space::Whole,
    };
    let precision = match spelling.policy.as_str() {
        "f16" => Precision::Uniform(Dtype::F16),
        "whole" | "fixed" if setting("precision") == Some("bf16") => Precision::Uniform(Dtype::Bf16),
        "whole" | "fixed" => Precision::Uniform(Dtype::F32),
        other => return Err(format!("nobody is called {other}").into()),
    };
    let layout = if setting("layout") == Some("channels-last") { Layout::ChannelsLast } else { Layout::ChannelsFirst };
    let plan = Plan {
        space,
        time: match side("chunk") {
            0 => Time::Whole,
            frames => Time::Carried { frames },
        },
        batch: side("batch").max(1),
        precision,
        layout,
        ..Plan::plain()
    };
    let identity = PolicyIdentity {
        name: spelling.policy.clone(),
        version: "1".into(),
        digest: String::new(),
        settings: BTreeMap::new(),
    };
    Ok(Box::new(Stubborn { identity, plan }))
}

/// Ends the measurement after a number of calls of `goes_on`.
struct Patience(usize);

impl Watch for Patience {
    fn goes_on(&mut self) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 > 0
    }
}

/// The pool counts for the whole process: a concurrent decode's memory would be ascribed to this
/// one.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

const PATIENT: usize = usize::MAX;
const ROUNDS: Rounds = Rounds { first_apart: true, warmup: 1, iterations: 2, profiled: false };

fn vae() -> Model {
    Model::open(&fixture("flux-bfl/ae.safetensors"), Overrides::default()).unwrap()
}

fn machine() -> Machine {
    tilewright_torch::set_threads(1);
    Machine::open(Choice::Cpu, Probe::Kept).unwrap()
}

fn entry(name: &str, memory_limit: u64) -> Entry {
    Entry { spelling: name.parse().unwrap(), memory_limit, objective: Objective::Fastest }
}

fn large_latents() -> Tensor {
    Tensor::f_ones([1, 16, 8, 8], (Kind::Float, tch::Device::Cpu)).unwrap() * 1e6
}

#[test]
fn a_policy_that_fails_is_a_row_and_the_others_go_on() {
    let _turn = alone();
    let (machine, vae, latents) = (machine(), vae(), large_latents());
    let contest = Contest {
        machine: &machine,
        model: &vae,
        latents: &latents,
        entries: vec![entry("whole", 1 << 32), entry("f16", 1 << 32), entry("nobody", 1 << 32), entry("whole", 1)],
        against: Some("whole".parse().unwrap()),
        rounds: ROUNDS,
        allows_blended: false,
    };
    let report = contest.run(&planner, &mut Patience(PATIENT)).unwrap();
    let errors: Vec<Option<&str>> = report.runs.iter().map(|row| row.error.as_deref()).collect();
    assert_eq!(errors[0], None);
    assert!(errors[1].is_some(), "f16 overflows on every attempt");
    assert_eq!(errors[2], Some("nobody is called nobody"));
    assert!(errors[3].unwrap().contains("memory limit"));
    assert_eq!((report.runs[0].finished, report.runs[0].samples_ms.len()), (4, 2));
    assert_eq!((report.runs[1].finished, report.runs[1].samples_ms.len()), (0, 0));
    assert!(report.runs[1].ratio.is_none() && report.runs[1].difference.is_none());
    assert_eq!(report.runs[0].difference.unwrap().max, 0.0);
    assert!(!report.interrupted);
    assert!(serde_json::to_value(&report).unwrap()["runs"][1]["median_ms"].is_null());
}

#[test]
fn an_interruption_leaves_what_was_measured() {
    let _turn = alone();
    let (machine, vae, latents) = (machine(), vae(), large_latents());
    let entries = vec![entry("whole", 1 << 32), entry("whole", 1 << 32)];
    let contest = |against: Option<Spelling>| Contest {
        machine: &machine,
        model: &vae,
        latents: &latents,
        entries: entries.clone(),
        against,
        rounds: Rounds { first_apart: true, warmup: 0, iterations: 50, profiled: false },
        allows_blended: false,
    };
    let report = contest(None).run(&planner, &mut Patience(200)).unwrap();
    let measured: Vec<usize> = report.runs.iter().map(|row| row.samples_ms.len()).collect();
    assert!(report.interrupted && measured.iter().all(|count| *count < 50), "{measured:?}");
    assert!(report.runs.iter().all(|row| row.error.is_none()), "an interruption is nobody's failure");
    // Not even the reference was reached.
    let report = contest(Some("whole".parse().unwrap())).run(&planner, &mut Patience(1)).unwrap();
    assert!(report.interrupted && report.against.is_none() && report.runs.len() == 2);
}

#[test]
fn a_sweep_does_not_count_what_was_run_as_something_else() {
    let _turn = alone();
    let (machine, vae) = (machine(), vae());
    let sweep = |plans| sweep::Sweep {
        machine: &machine,
        model: &vae,
        sizes: vec![256],
        limits: vec![sweep::Limit::Ample, sweep::Limit::Bytes(1)],
        objectives: vec![Objective::Fastest],
        iterations: 1,
        policy: "whole".parse().unwrap(),
        plans: Some(plans),
        any_precision: false,
        allows_blended: false,
        seed: 0,
    };
    let report = sweep(8).run(&planner, &mut Patience(PATIENT)).unwrap();
    assert!(report.plans.len() >= 8 && !report.interrupted);
    for row in &report.plans {
        let exact = matches!(row.plan.space, Space::Exact(_));
        assert_eq!(row.elapsed_ms.is_none(), exact, "{row:?}");
        assert_eq!(row.error.as_ref().is_some_and(|error| error.contains("instead")), exact);
    }
    let measured = report.plans.iter().filter(|row| row.elapsed_ms.is_some()).count();
    assert_eq!(report.honesty.plans, measured);
    let [ample, none] = &report.cases[..] else { panic!("two limits, one objective") };
    assert!(ample.best.is_some() && ample.chosen.as_ref().unwrap().plan.space == Space::Whole && ample.ratio.is_some());
    assert!(none.best.is_none() && !none.met && none.note.contains("memory limit"), "{none:?}");
    let interrupted = sweep(8).run(&planner, &mut Patience(60)).unwrap();
    assert!(interrupted.interrupted && interrupted.plans.len() == 8);
}

#[test]
fn clips_take_turns_and_all_their_frames_are_compared() {
    let _turn = alone();
    let machine = machine();
    let vae = Model::open(&fixture("wan21-original/Wan2.1_VAE.safetensors"), Overrides::default()).unwrap();
    let latents = Latents { batch: 2, channels: 16, height: 8, width: 14, frames: Some(3), seed: 0 };
    let shape: Vec<i64> = latents.shape().into_iter().map(|extent| extent as i64).collect();
    let latents = Tensor::from_slice(&latents.values()).view(&shape[..]);
    let entries = ["whole:chunk=4", "whole:chunk=8", "fixed:space=blended,tile=64,overlap=16,chunk=4", "nobody"]
        .map(|name| entry(name, 1 << 32));
    let contest = |against: Option<&str>, rounds| Contest {
        machine: &machine,
        model: &vae,
        latents: &latents,
        entries: entries.to_vec(),
        against: against.map(|name| name.parse().unwrap()),
        rounds,
        allows_blended: false,
    };
    let rounds = Rounds { first_apart: true, warmup: 0, iterations: 1, profiled: false };
    let report = contest(Some("whole"), rounds).run(&planner, &mut Patience(PATIENT)).unwrap();
    let request = report.request.unwrap();
    assert_eq!((request.batch, request.frames, request.height, request.width), (2, 9, 64, 112));
    let [four, eight, tiles, nobody] = &report.runs[..] else { panic!("four rows") };
    for row in [four, eight, tiles] {
        assert_eq!((row.finished, row.samples_ms.len(), &row.error), (2, 1, &None));
        assert!(row.peak_bytes.is_some_and(|bytes| bytes > 0));
    }
    assert_eq!(four.plan.as_ref().unwrap().time, Time::Carried { frames: 4 });
    // The causal cache is carried: chunks change nothing. Tiles do.
    for row in [four, eight] {
        let difference = row.difference.unwrap();
        assert!(difference.max < 1e-5 && difference.border_mean.is_none(), "{difference:?}");
    }
    let difference = tiles.difference.unwrap();
    assert!(difference.max > 1e-4 && difference.border_mean.unwrap() > 1e-4, "{difference:?}");
    assert_eq!(nobody.error.as_deref(), Some("nobody is called nobody"));
    let report = contest(None, Rounds { first_apart: false, ..rounds }).run(&planner, &mut Patience(PATIENT)).unwrap();
    assert!(report.runs.iter().all(|row| row.difference.is_none()) && report.runs[0].finished == 1);
}
