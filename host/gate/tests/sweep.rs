//! The choices of `adaptive` for samples, against every plan of a long list, by the prices of the
//! golden set.

use tilewright_gate::work::Judged;
use tilewright_plan::{
    Attention, Backend, Denoise, DenoiseCost, DenoisePlan, DenoiseRequest, Dtype, GuidanceOrder, Objective, Planner,
    Precision, Question, StepReuse, WeightForm,
};
use tilewright_policy::{CacheDir, Limits, PolicyHost, oracle};

/// Every plan of a long list that the host can carry out for a sample.
fn every_plan(question: &Question<'_, Denoise>) -> Vec<DenoisePlan> {
    let gpu = question.device.backend != Backend::Cpu;
    // On a CPU the policy keeps to f32, and f16 may overflow: the sweep is of what it may choose.
    let narrow = gpu && question.device.fast_dtypes.contains(&Dtype::Bf16);
    let dtypes = if narrow { &[Dtype::F32, Dtype::Bf16][..] } else { &[Dtype::F32] };
    let mut plans = Vec::new();
    for precision in dtypes.iter().flat_map(|dtype| [Precision::Uniform(*dtype), Precision::Mixed(*dtype)]) {
        for (weights, ahead) in [
            (WeightForm::Expanded, None),
            (WeightForm::Packed, None),
            (WeightForm::Packed, Some(1)),
            (WeightForm::Packed, Some(2)),
            (WeightForm::Packed, Some(0)),
        ] {
            for guidance in [GuidanceOrder::InTurn, GuidanceOrder::Together] {
                for samples in [None, Some(2), Some(1)] {
                    for feed_forward in [1, 4, 8, 32] {
                        for attention in [Attention::Fused, Attention::Pieces { queries: 1024 }] {
                            let mut plan = DenoisePlan {
                                precision,
                                weights,
                                ahead,
                                guidance,
                                samples,
                                feed_forward,
                                attention,
                                ..DenoisePlan::plain()
                            };
                            if question.capabilities.reuse_most > 0.0 {
                                plan.reuse = StepReuse::Output { threshold: question.capabilities.reuse_most };
                            }
                            if oracle::check_answer(&mut plan, question).is_ok() && !plans.contains(&plan) {
                                plans.push(plan);
                            }
                        }
                    }
                }
            }
        }
    }
    plans
}

#[test]
fn adaptive_takes_nearly_the_best_of_every_plan_for_a_sample() {
    let host = PolicyHost::new(Limits::default(), &CacheDir::Off).unwrap();
    let mut policy = host.load_shipped("adaptive").unwrap().configure(&[]).unwrap();
    let (mut cases, mut tight, mut worst) = (0, 0, 1.0_f64);
    for golden in Denoise::golden() {
        for objective in [Objective::Fastest, Objective::Leanest] {
            let request = DenoiseRequest { objective, ..golden.request.clone() };
            let question = Question::denoise(&request, &golden.device, &golden.capabilities);
            let costs = golden.costs();
            let held = |cost: &DenoiseCost| cost.held_bytes();
            let all: Vec<DenoiseCost> =
                every_plan(&question).iter().filter_map(|plan| costs.estimate_one(plan).ok()).collect();
            let fitting: Vec<&DenoiseCost> = all.iter().filter(|cost| held(cost) <= request.memory_limit).collect();
            let Some(fastest) = fitting.iter().map(|cost| cost.step.as_secs_f64()).reduce(f64::min) else { continue };
            let decision = policy.decide(&question, costs.clone());
            let chosen = costs.estimate_one(&decision.plan).unwrap();
            assert!(decision.fallback.is_none() && held(&chosen) <= request.memory_limit, "{}", golden.name);
            let ratio = match objective {
                Objective::Fastest => chosen.step.as_secs_f64() / fastest,
                // Plans beyond four times the time are none; three, since the policy counts more.
                _ => {
                    let within = fitting.iter().filter(|cost| cost.step.as_secs_f64() <= 3.0 * fastest);
                    let least = within.map(|cost| held(cost)).min().unwrap();
                    held(&chosen) as f64 / least as f64
                }
            };
            println!("{} {objective:?}: {ratio:.3} of the best of {}: {}", golden.name, fitting.len(), decision.plan);
            cases += 1;
            tight += usize::from(fitting.len() < all.len());
            worst = worst.max(ratio);
            assert!(ratio <= 1.05, "{} {objective:?}: {ratio:.3}: {}", golden.name, decision.plan);
        }
    }
    println!("{cases} cases, {tight} of them with plans that do not fit: {worst:.3} at worst");
    assert!(cases >= 12 && tight >= 12, "{cases} {tight}");
}
