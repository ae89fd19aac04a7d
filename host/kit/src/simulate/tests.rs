use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tilewright_plan::{
    Backend, Capabilities, Cost, CostModel, Decision, Device, Dtype, Each, Failure, HostMemory, Layout, LearnReport,
    Model, Objective, Outcome, Plan, Planner, PolicyIdentity, Precision, Question, Release, Request, Space, Tile, Vae,
    of_kinds,
};
use tilewright_policy::FallbackPlanner;

use super::*;

fn plan(side: u32) -> Plan {
    Plan {
        space: match side {
            0 => Space::Whole,
            side => Space::Blended(Tile { height: side, width: side, overlap: side / 8 }),
        },
        ..Plan::plain()
    }
}

fn entry(side: u32, elapsed_ms: f64, peak_bytes: u64) -> Entry {
    let elapsed = Duration::from_secs_f64(elapsed_ms / 2e3);
    Entry {
        plan: plan(side),
        estimate: Some(Cost { peak_bytes, elapsed, tiles: 1, shapes: 1, rework: 1.0, weights_bytes: 0 }),
        elapsed_ms: Some(elapsed_ms),
        peak_bytes: Some(peak_bytes),
        runs: 1,
        failure: None,
    }
}

fn table() -> Table {
    let request = Request {
        model: Model {
            family: "flux".into(),
            stored: Dtype::Bf16,
            quantized: false,
            parameter_bytes: 1,
            spatial_scale: 8,
            temporal_scale: 1,
        },
        batch: 1,
        frames: 1,
        height: 1024,
        width: 1024,
        memory_limit: 1 << 30,
        limit_counts_weights: false,
        allows_blended: true,
        objective: Objective::Balanced,
        hints: Vec::new(),
        host: HostMemory::default(),
    };
    let capabilities = Capabilities {
        dtypes: vec![Dtype::F32],
        tile_unit: 8,
        tile_least: 64,
        batch_most: 1,
        exact: true,
        carried: false,
        offload: false,
        prefetch_most: 0,
        options: Vec::new(),
    };
    let device = Device {
        backend: Backend::Cpu,
        name: "a table".into(),
        arch: "x86-64-v4".into(),
        compute_units: 2,
        total_bytes: 5000,
        free_bytes: 5000,
        unified: true,
        fast_dtypes: vec![Dtype::F32],
        hints: Vec::new(),
    };
    let plans = vec![entry(0, 100.0, 3000), entry(512, 150.0, 1500), entry(256, 300.0, 600), entry(64, 200.0, 100)];
    let cases = vec![Case { stage: None, request, capabilities, plans }];
    Table::new("t".into(), "made up for a test".into(), device, Cases { vae: cases, ..Cases::default() })
}

/// Tries plans one after the other, and counts its trials.
struct Stub {
    identity: PolicyIdentity,
    plans: Vec<Plan>,
    trials: std::rc::Rc<std::cell::RefCell<Vec<usize>>>,
}

fn entrant(plans: &[Plan]) -> (Entrant, std::rc::Rc<std::cell::RefCell<Vec<usize>>>) {
    let trials = std::rc::Rc::default();
    let identity = PolicyIdentity {
        name: "stub".into(),
        version: "1".into(),
        digest: "sha256:00".into(),
        settings: BTreeMap::new(),
    };
    let planner = Stub { identity, plans: plans.to_vec(), trials: std::rc::Rc::clone(&trials) };
    let identity = Planner::<Vae>::identity(&planner).clone();
    let standby = || Box::new(FallbackPlanner::new(identity.clone(), "of decodes alone"));
    (
        Entrant {
            label: "stub".into(),
            planners: Each { vae: Box::new(planner), denoise: standby(), text: standby() },
        },
        trials,
    )
}

impl Planner for Stub {
    fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn decide(&mut self, question: &Question<'_>, costs: Arc<dyn CostModel>) -> Decision {
        self.trials.borrow_mut().push(costs.trials(256).len());
        let plan = self.plans[question.attempts.len().min(self.plans.len() - 1)].clone();
        let _ = costs.estimate_one(&plan);
        Decision {
            answer: Some(plan.clone()),
            plan,
            adjusted: Vec::new(),
            fallback: None,
            elapsed: Duration::ZERO,
            fuel: 3,
            candidates: Vec::new(),
            log: Vec::new(),
        }
    }

    fn learn(&mut self, _: &Question<'_>, _: &Plan, _: &Outcome) -> LearnReport {
        LearnReport::default()
    }
}

fn simulated(table: &Table, plans: &[Plan], limits: &[u64], nearest: bool) -> PolicyRow {
    let items: Vec<Item> = limits
        .iter()
        .map(|limit| Item { case: CaseIndex::Vae(0), memory_limit: *limit, objective: Objective::Fastest })
        .collect();
    run(table, &items, vec![entrant(plans).0], Options { nearest, allows_blended: true }).policies.remove(0)
}

#[test]
fn plans_take_what_was_measured_and_fail_over_the_limit() {
    let table = table();
    let row = simulated(&table, &[plan(0), plan(512)], &[4000, 2000], true);
    assert_eq!((row.done, row.failed, row.failed_attempts, row.not_in_table, row.stood_in), (2, 0, 1, 0, 0));
    let [first, second] = &row.requests[..] else { panic!("two requests") };
    assert_eq!((first.elapsed_ms, first.regret, first.lost_ms), (Some(100.0), Some(0.0), 0.0));
    // The whole plan's time was lost, and the tiles are the best within the limit: 250 of 150.
    assert_eq!((second.elapsed_ms, second.peak_bytes, second.lost_ms), (Some(150.0), Some(1500), 100.0));
    assert!((second.regret.unwrap() - 100.0 / 150.0).abs() < 1e-12, "{second:?}");
    assert_eq!((row.elapsed_ms, row.best_ms, row.fuel, row.prices_asked, row.prices_unknown), (350.0, 250.0, 9, 3, 0));
    // Four attempts fail, then the request is given up.
    let row = simulated(&table, &[plan(0)], &[2000], true);
    assert_eq!((row.failed, row.failed_attempts, row.requests[0].what), (1, 4, RequestResult::Failed));
    assert!((row.requests[0].regret.unwrap() - 1.0 - 400.0 / 150.0).abs() < 1e-12);
}

#[test]
fn what_is_not_in_the_table_is_not_made_up() {
    let table = table();
    let near = Plan { release: Release::EachStep, ..plan(480) };
    let row = simulated(&table, std::slice::from_ref(&near), &[4000], true);
    assert_eq!((row.done, row.stood_in, row.prices_unknown), (1, 1, 1));
    assert_eq!(row.requests[0].stands_in, Some(plan(512).into()));
    let row = simulated(&table, &[near], &[4000], false);
    assert_eq!((row.done, row.not_in_table, row.judged, row.mean_regret), (0, 1, 0, None));
    let narrow = Plan { precision: Precision::Uniform(Dtype::Bf16), ..plan(512) };
    for far in [plan(376), narrow, Plan { batch: 2, ..plan(512) }, Plan { layout: Layout::ChannelsLast, ..plan(0) }] {
        assert_eq!(simulated(&table, std::slice::from_ref(&far), &[4000], true).not_in_table, 1, "{far:?}");
    }
    // A plan's price does not depend on its release; its measurement may.
    let kept = Plan { release: Release::AtEnd, ..plan(0) };
    let row = simulated(&table, &[kept], &[4000], true);
    assert_eq!((row.prices_unknown, row.stood_in, row.done), (0, 1, 1));
}

#[test]
fn values_that_are_not_finite_fail_under_any_limit_and_f32_is_hopeless() {
    let mut table = table();
    let failure = Some(Failure::NonFinite { values: 3 });
    table.cases.vae[0].plans.push(Entry {
        plan: Plan { precision: Precision::Uniform(Dtype::F16), ..plan(0) },
        estimate: None,
        elapsed_ms: None,
        peak_bytes: None,
        runs: 0,
        failure,
    });
    let narrow = Plan { precision: Precision::Uniform(Dtype::F16), ..plan(0) };
    let row = simulated(&table, &[narrow, plan(0)], &[4000], true);
    assert_eq!((row.done, row.failed_attempts), (1, 1));
    table.cases.vae[0].plans[0].failure = failure;
    let row = simulated(&table, &[plan(0)], &[4000], true);
    assert_eq!((row.failed, row.failed_attempts), (1, 1));
    // Even an attempt without a time counts as failed.
    table.cases.vae[0].plans[0].elapsed_ms = None;
    assert!(simulated(&table, &[plan(0)], &[4000], true).mean_regret.unwrap() >= 1.0);
}

#[test]
fn earlier_choices_are_told_as_trials() {
    let table = table();
    let (entrant, trials) = entrant(&[plan(0)]);
    let item = Item { case: CaseIndex::Vae(0), memory_limit: 4000, objective: Objective::Fastest };
    run(&table, &[item; 3], vec![entrant], Options { nearest: true, allows_blended: true });
    assert_eq!(*trials.borrow(), [0, 1, 2]);
}

#[test]
fn the_best_plan_is_the_sweeps() {
    let table = table();
    let of =
        |objective, limit, allows_blended| table.cases.vae[0].best(&table.device, objective, limit, allows_blended);
    let best = |objective, limit| of(objective, limit, true).map(|best| best.plan);
    assert_eq!(best(Objective::Fastest, 4000), Some(plan(0).into()));
    assert_eq!(best(Objective::Fastest, 1000), Some(plan(256).into()), "smaller tiles show seams");
    assert_eq!(best(Objective::Fastest, 200), Some(plan(64).into()), "and are better than nothing");
    assert_eq!(best(Objective::Leanest, 4000), Some(plan(256).into()), "within four times the quickest");
    assert_eq!(best(Objective::Fastest, 50), None);
    // Only plans that are allowed compete.
    let exact = |objective, limit| of(objective, limit, false).map(|best| best.plan);
    assert_eq!(exact(Objective::Leanest, 4000), Some(plan(0).into()));
    assert_eq!(exact(Objective::Leanest, 1000), Some(plan(256).into()), "where nothing exact fits");
}

#[test]
fn tables_are_written_as_they_are_read_and_damage_is_told() {
    let table = table();
    let text = table.text().unwrap();
    assert_eq!(Table::read(text.as_bytes()).unwrap(), table);
    assert!(text.lines().count() > 8, "a plan a line");
    let refused = |text: &str| Table::read(text.as_bytes()).unwrap_err().to_string();
    assert!(refused("[]").starts_with("not a device's table"));
    assert_eq!(refused(&text.replace("_table\":1", "_table\":2")), "a table of format 2, and this program reads 1");
    assert_eq!(
        refused(&text.replace("\"height\":1024", "\"height\":0")),
        "case 1: 0 rows of pixels: the table is damaged"
    );
    assert_eq!(
        refused(&text.replace("\"elapsed_ms\":100.0,\"peak", "\"elapsed_ms\":-1.0,\"peak")),
        "case 1: an invalid time: the table is damaged"
    );
    assert!(refused(&text.replace("\"cases\":[", "\"cases\":[],\"more\":[")).contains("0 cases"));
    assert!(refused(&text.replace("\"cases\":[", "\"samples\":[")).contains("missing field"));
    assert!(refused(&text.replace("\"cases\":[", "\"cases\":[],\"cases\":[")).contains("duplicate field `cases`"));
    assert!(refused(&text.replace("\"about\"", "\"more\"")).contains("missing field `about` at line "));
    let texts = text.trim_end().strip_suffix('}').unwrap().to_owned() + ",\n\"texts\":[]}";
    assert_eq!(Table::read(texts.as_bytes()).unwrap().text().unwrap(), text, "an empty list is left out");
}

#[test]
fn workloads_are_the_same_every_time_and_wrong_ones_are_told() {
    let table = table();
    let items = builtin(&table);
    assert_eq!((items.len(), &items), (27, &builtin(&table)));
    assert!(items[..9].iter().all(|item| items[9..18].contains(item)), "every round has every request");
    let limits: std::collections::BTreeSet<_> = items.iter().map(|item| item.memory_limit).collect();
    assert_eq!(limits.into_iter().collect::<Vec<_>>(), [1000, 1500, 4000]);
    let read = |text: &str| read_workload(&table, text.as_bytes()).map_err(|error| error.to_string());
    let found = read(
        r#"{"requests": [{"width": 1024, "height": 1024, "memory_limit": "third", "times": 2}, {"width": 1024, "height": 1024, "memory_limit": 77, "objective": "leanest"}]}"#,
    );
    let third = Item { case: CaseIndex::Vae(0), memory_limit: 1000, objective: Objective::Balanced };
    assert_eq!(found.unwrap(), [third, third, Item { memory_limit: 77, objective: Objective::Leanest, ..third }]);
    for (text, words) in [
        ("{}", "missing field `requests`"),
        (r#"{"requests": []}"#, "no request in it"),
        (
            r#"{"requests": [{"width": 8, "height": 8}]}"#,
            "the table has nothing of 1 × 8×8, 1 frames: it has 1024×1024 flux",
        ),
        (r#"{"requests": [{"width": 1024, "height": 1024, "memory_limit": "much"}]}"#, "'much' is no limit"),
        (r#"{"requests": [{"width": 1024, "height": 1024, "times": 4000000000}]}"#, "more than 100000 requests"),
        (r#"{"requests": [{"width": 1024, "hight": 1024}]}"#, "unknown field `hight`"),
    ] {
        assert!(read(text).unwrap_err().contains(words), "{text}");
    }
}

#[test]
fn a_policy_is_simulated_on_a_table_of_samples() {
    use tilewright_gate::work::Judged;
    use tilewright_plan::{Attention, Denoise, DenoisePlan, GuidanceOrder, WeightForm};
    use tilewright_policy::{CacheDir, Limits, PolicyHost};

    let golden = Denoise::golden().into_iter().find(|golden| golden.device.backend == Backend::Cuda).unwrap();
    let costs = golden.costs();
    let mut plans = Vec::new();
    for (weights, ahead) in [(WeightForm::Packed, None), (WeightForm::Packed, Some(1)), (WeightForm::Expanded, None)] {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            for feed_forward in [1, 4] {
                for guidance in [GuidanceOrder::InTurn, GuidanceOrder::Together] {
                    let precision = Precision::Uniform(dtype);
                    let attention = Attention::Fused;
                    let plain = DenoisePlan::plain();
                    plans.push(DenoisePlan { precision, weights, ahead, feed_forward, guidance, attention, ..plain });
                }
            }
        }
    }
    let entries = plans.into_iter().filter_map(|plan| {
        let cost = costs.estimate_one(&plan).ok()?;
        let held = cost.held_bytes();
        let elapsed_ms = Some(cost.step.as_secs_f64() * 1e3);
        Some(Entry { plan, estimate: Some(cost), elapsed_ms, peak_bytes: Some(held), runs: 1, failure: None })
    });
    let case = Case::<Denoise> {
        stage: Some(golden.stage),
        request: golden.request.clone(),
        capabilities: golden.capabilities.clone(),
        plans: entries.collect(),
    };
    let cases = Cases { denoise: vec![case], ..Cases::default() };
    let table = Table { cases, device: golden.device.clone(), ..table() };
    // It is read back as it was written.
    let table = Table::read(table.text().unwrap().as_bytes()).unwrap();
    assert_eq!(table.cases.denoise.len(), 1);
    let host = PolicyHost::new(Limits::default(), &CacheDir::Off).unwrap();
    let policy = || Box::new(host.load_shipped("adaptive").unwrap().configure(&[]).unwrap());
    let planners = of_kinds!(W => policy() as PlannerOf<W>);
    let entrant = Entrant { label: "adaptive".into(), planners };
    let workload = builtin(&table);
    assert_eq!(workload.len(), 27);
    let report = run(&table, &workload, vec![entrant], Options { nearest: true, allows_blended: true });
    let row = &report.policies[0];
    assert!(row.done >= 9, "{row:?}");
    assert!(report.cases[0].starts_with("latent "), "{:?}", report.cases);
    assert!(row.requests.iter().all(|row| matches!(row.plan, tilewright_plan::AnyPlan::Denoise(_))));
}

#[test]
fn a_policy_is_simulated_on_a_table_of_text_encoders() {
    use tilewright_gate::work::Judged;
    use tilewright_plan::{Place, Text, TextPlan, WeightForm};
    use tilewright_policy::{CacheDir, Limits, PolicyHost};

    let golden = Text::golden().into_iter().find(|golden| golden.name.contains("t5-xxl-f16")).unwrap();
    let costs = golden.costs();
    let mut plans = Vec::new();
    for place in [Place::Device, Place::Host] {
        for weights in [WeightForm::Packed, WeightForm::Expanded] {
            for precision in [Precision::Uniform(Dtype::F32), Precision::Mixed(Dtype::Bf16)] {
                plans.push(TextPlan { precision, weights, ..TextPlan::plain(place) });
            }
        }
    }
    let entries = plans.into_iter().filter_map(|plan| {
        let cost = costs.estimate_one(&plan).ok()?;
        let elapsed_ms = Some((cost.elapsed + cost.load).as_secs_f64() * 1e3);
        let peak_bytes = Some(cost.held_bytes());
        Some(Entry { plan, estimate: Some(cost), elapsed_ms, peak_bytes, runs: 1, failure: None })
    });
    let case = Case::<Text> {
        stage: Some(golden.stage),
        request: golden.request.clone(),
        capabilities: golden.capabilities.clone(),
        plans: entries.collect(),
    };
    let cases = Cases { text: vec![case], ..Cases::default() };
    let table = Table { cases, device: golden.device.clone(), ..table() };
    let table = Table::read(table.text().unwrap().as_bytes()).unwrap();
    assert_eq!(table.words(), ["t5-xxl 512 tokens in 2 texts"]);
    let host = PolicyHost::new(Limits::default(), &CacheDir::Off).unwrap();
    let policy = || Box::new(host.load_shipped("adaptive").unwrap().configure(&[]).unwrap());
    let planners = of_kinds!(W => policy() as PlannerOf<W>);
    let entrant = Entrant { label: "adaptive".into(), planners };
    let workload = builtin(&table);
    assert_eq!(workload.len(), 27);
    let report = run(&table, &workload, vec![entrant], Options { nearest: true, allows_blended: true });
    let row = &report.policies[0];
    assert!(row.done == 27 && row.fallbacks == 0, "{row:?}");
    assert!(row.requests.iter().all(|row| matches!(row.plan, tilewright_plan::AnyPlan::Text(_))));
}

#[test]
fn sweeps_of_a_device_are_one_table_whatever_was_free_and_found_fast() {
    let table = table();
    let case = &table.cases.vae[0];
    let mut request = serde_json::to_value(&case.request).unwrap();
    request["capabilities"] = serde_json::to_value(&case.capabilities).unwrap();
    let sweep = |device: &Device| {
        let plan = serde_json::json!({
            "width": case.request.width, "height": case.request.height, "plan": plan(0),
            "samples_ms": [100.0], "peak_bytes": 3000,
        });
        serde_json::to_vec(&serde_json::json!({ "device": device, "requests": [request], "plans": [plan] })).unwrap()
    };
    let built = |other: Device| {
        let mut builder = Builder::new(None, false);
        builder.sweep(&sweep(&table.device)).unwrap();
        builder.sweep(&sweep(&other)).unwrap();
        builder.finish("t".into(), String::new())
    };
    let later = Device { free_bytes: 1, fast_dtypes: vec![Dtype::Bf16, Dtype::F32], ..table.device.clone() };
    let cases = built(later).unwrap().cases.vae;
    assert_eq!((cases.len(), cases[0].plans[0].runs), (1, 2));
    let larger = Device { total_bytes: 6000, ..table.device.clone() };
    assert!(matches!(built(larger), Err(TableError::Devices { found }) if found.len() == 2));
}
