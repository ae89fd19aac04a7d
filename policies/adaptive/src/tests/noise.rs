//! Machines that are busy now and then: the effect of one slow run on the next decision, and of a
//! thousand runs.

use tilewright_sdk::{Backend, Dtype, Objective, Outcome, Plan, Policy, Trial};

use super::{adaptive, last, prices::Case, prices::f32};

/// The newest trials that the host gives of one plan; of older ones, it gives the 16th, the 32nd
/// and so on.
const NEWEST: usize = 8;

/// A random number generator that is the same in every run: splitmix64.
struct Numbers(u64);

impl Numbers {
    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A history as the host keeps it, newest first.
#[derive(Clone, Default)]
struct History(Vec<Trial>);

impl History {
    fn add(&mut self, trial: Trial) {
        self.0.insert(0, trial);
    }

    /// The trials that the host gives from it.
    fn told(&self) -> Vec<Trial> {
        let mut measured: Vec<(&Plan, usize)> = Vec::new();
        let mut told = Vec::new();
        for trial in &self.0 {
            let known = measured.iter().position(|(plan, _)| plan.is_like(&trial.plan));
            let place = known.unwrap_or(measured.len());
            if known.is_none() {
                measured.push((&trial.plan, 0));
            }
            measured[place].1 += 1;
            if measured[place].1 <= NEWEST || measured[place].1.is_power_of_two() {
                told.push(trial.clone());
            }
        }
        told
    }
}

/// Plans of every kind that a machine may have been asked for before.
fn kinds(case: &Case) -> Vec<Plan> {
    let request = case.request();
    let mut plans = Vec::new();
    for plan in [f32(), last(f32())] {
        let tile = tilewright_sdk::Tile::square(512, 64);
        plans.extend([plan.clone(), plan.clone().exact(&request, 128), plan.blended(&request, tile)]);
    }
    plans
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for backend in [Backend::Cpu, Backend::Cuda, Backend::Rocm] {
        for (limit, objective) in [(100.0, Objective::Fastest), (1.2, Objective::Balanced), (0.7, Objective::Fastest)] {
            cases.push(Case { fast: vec![Dtype::Bf16], ..Case::new(backend, 1024, limit, objective) });
            cases.push(Case { fast: vec![Dtype::Bf16], ..Case::clip(backend, 512, limit, objective) });
        }
    }
    cases
}

#[test]
fn one_run_on_a_machine_four_times_slower_changes_nothing() {
    for case in cases() {
        let request = case.request();
        case.install(vec![]);
        let best = adaptive().decide(&request, &[]).unwrap();
        // Measured before: nothing, the plan itself, other plans, or all of them.
        let itself = vec![case.trial(&best, 1.0, 1.0)];
        let others: Vec<Trial> = kinds(&case).iter().map(|plan| case.trial(plan, 1.0, 1.0)).collect();
        let all = [itself.clone(), others.clone()].concat();
        for known in [vec![], itself, others, all] {
            case.install(known.clone());
            let best = adaptive().decide(&request, &[]).unwrap();
            let slow = case.trial(&best, 4.0, 1.0);
            case.install([vec![slow], known].concat());
            let next = adaptive().decide(&request, &[]).unwrap();
            assert!(next.is_like(&best), "{case:?}: {next:?} instead of {best:?}");
        }
        // A long-lived host without a history.
        case.install(vec![]);
        let mut policy = adaptive();
        policy.learn(&request, &best, &case.outcome(&best, 4.0, 1.0));
        let next = policy.decide(&request, &[]).unwrap();
        assert!(next.is_like(&best), "{case:?}: learnt {next:?} instead of {best:?}");
    }
}

/// The time of a thousand runs over that of the best plan in the same runs. The machine takes 1.3
/// times every price; `busy` is the share of runs in which it takes up to four times as much.
fn regret(case: &Case, busy: f64, mut history: History, learns: bool) -> f64 {
    let request = case.request();
    case.install(vec![]);
    let best = adaptive().decide(&request, &[]).unwrap();
    let mut numbers = Numbers(20_261_122);
    let mut policy = adaptive();
    let (mut taken, mut least) = (0.0, 0.0);
    for _ in 0..1000 {
        case.install(if learns { vec![] } else { history.told() });
        let plan = if learns { policy.decide(&request, &[]) } else { adaptive().decide(&request, &[]) }.unwrap();
        let slowness = if numbers.share() < busy { 1.5 + 2.5 * numbers.share() } else { 1.0 + 0.05 * numbers.share() };
        let outcome: Outcome = case.outcome(&plan, 1.3 * slowness, 1.0);
        taken += outcome.elapsed_ns as f64;
        least += case.outcome(&best, 1.3 * slowness, 1.0).elapsed_ns as f64;
        policy.learn(&request, &plan, &outcome);
        history.add(Trial { plan: Plan { reason: String::new(), ..plan }, outcome });
    }
    taken / least
}

#[test]
fn a_thousand_runs_with_slow_ones_take_what_the_best_plan_takes() {
    for case in cases() {
        let mut measured = History::default();
        for plan in kinds(&case) {
            measured.add(case.trial(&plan, 1.3, 1.0));
        }
        for busy in [0.05, 0.2, 0.4] {
            for (history, learns) in
                [(History::default(), false), (measured.clone(), false), (History::default(), true)]
            {
                let regret = regret(&case, busy, history, learns);
                assert!(regret <= 1.05, "{regret} times the best, {busy} busy, learns {learns}: {case:?}");
            }
        }
    }
}

#[test]
fn a_plan_that_is_slow_every_time_is_left() {
    let case = Case::new(Backend::Cpu, 1024, 100.0, Objective::Fastest);
    let request = case.request();
    let mut history = History::default();
    for plan in kinds(&case) {
        (0..3).for_each(|_| history.add(case.trial(&plan, 1.0, 1.0)));
    }
    // Whole takes twice as long as all other plans suggest; a few runs are enough to show it.
    history.0.retain(|trial| trial.plan.kind() != tilewright_sdk::Kind::Whole);
    let mut slow = 0;
    for _ in 0..20 {
        case.install(history.told());
        let plan = adaptive().decide(&request, &[]).unwrap();
        let is_whole = plan.kind() == tilewright_sdk::Kind::Whole;
        slow += u32::from(is_whole);
        let outcome = case.outcome(&plan, if is_whole { 2.0 } else { 1.0 }, 1.0);
        history.add(Trial { plan: Plan { reason: String::new(), ..plan }, outcome });
    }
    assert!((1..=6).contains(&slow), "{slow} runs of a plan that takes twice as long");
}
