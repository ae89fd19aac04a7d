//! Text encoders: their memory against its estimate, and what goes wrong.

mod scripted;

use std::{
    ops::ControlFlow,
    sync::{Arc, LazyLock},
};

use scripted::{Quiet, Script, alone, machine};
use tch::{Device, Kind, Tensor};
use tilewright_engine::{
    AnyDecided, AnyFailed, Budget, Cancelled, Error, Observer, Refusal, TextJob, Texts, WeightStore,
};
use tilewright_fixtures::fixture;
use tilewright_models::{Checkpoint, EncoderFile};
use tilewright_plan::{Dtype, Failure, Objective, Place, Precision, Stage, Text, TextPlan, WeightForm};
use tilewright_torch::memory;

fn encoder(name: &str) -> Arc<EncoderFile> {
    let file = Arc::new(Checkpoint::open_part(&fixture(name), &[]).unwrap());
    Arc::new(EncoderFile::find_all(&file).unwrap().remove(0))
}

fn embedded(encoder: &EncoderFile, tokens: u32) -> [Tensor; 1] {
    let ids: Vec<u32> = (0..tokens).map(|id| id % encoder.config.vocabulary() as u32).collect();
    [encoder.add_positions(&encoder.embed(&ids).unwrap().unsqueeze(0)).unwrap()]
}

/// A job whose store has no room for idle weights.
fn job<'a>(encoder: &'a Arc<EncoderFile>, embedded: &'a [Tensor], memory_limit: u64) -> TextJob<'a> {
    static NONE: LazyLock<WeightStore> = LazyLock::new(|| WeightStore::new(Budget::Bytes(0)));
    job_in(&NONE, encoder, embedded, memory_limit)
}

fn job_in<'a>(
    weights: &'a WeightStore,
    encoder: &'a Arc<EncoderFile>,
    embedded: &'a [Tensor],
    memory_limit: u64,
) -> TextJob<'a> {
    let texts = Texts { encoder, weights, embedded, left_out: 1 };
    TextJob::new(machine(), None, texts, memory_limit, Objective::Balanced).unwrap()
}

/// A plan in a type, with weights as stored.
fn plan(precision: Precision) -> TextPlan {
    TextPlan { precision, ..TextPlan::plain(Place::Host) }
}

/// A planner that answers one plan again and again.
fn planner(plan: &TextPlan) -> Script<Text> {
    Script::new([plan.clone()])
}

#[test]
fn memory_is_what_was_estimated_and_is_given_back() {
    let _alone = alone();
    for (name, tokens) in [("text-t5", 512), ("text-umt5", 512), ("text-clip-l", 77), ("text-clip-g", 77)] {
        let encoder = encoder(name);
        let embedded = embedded(&encoder, tokens);
        let uniform = [Dtype::F32, Dtype::F16].map(Precision::Uniform);
        let mixed = [Dtype::Bf16, Dtype::F16].map(Precision::Mixed);
        for precision in [uniform, mixed].concat() {
            for weights in [WeightForm::Packed, WeightForm::Expanded] {
                let job = job(&encoder, &embedded, 1 << 34);
                let plan = TextPlan { weights, ..plan(precision) };
                drop(job.run(&mut planner(&plan), &mut Quiet).unwrap());
                let before = memory::of(Device::Cpu).unwrap().in_use;
                let encoded = job.run(&mut planner(&plan), &mut Quiet).unwrap();
                let expected = job.estimate(&plan).unwrap();
                let held = encoded.record.outcome.unwrap().held_bytes();
                let ratio = expected.held_bytes() as f64 / held as f64;
                assert!((0.98..=1.02).contains(&ratio), "{name} {plan}: {expected:?}, {held} measured");
                assert_eq!((encoded.record.stage, &encoded.record.plan), (Some(Stage::Text), &plan));
                drop(encoded);
                assert_eq!(memory::of(Device::Cpu).unwrap().in_use, before, "{name} {plan}");
            }
        }
    }
}

/// CLIP of a block whose feed-forward layer is so wide that it holds more than attention, as in the
/// published ones.
fn wide_clip(folder: &std::path::Path) -> Arc<EncoderFile> {
    let (hidden, wide, layer) = (64, 1024, "text_model.encoder.layers.0");
    let mut shapes = vec![
        ("text_model.embeddings.token_embedding.weight".to_owned(), vec![100, hidden]),
        ("text_model.embeddings.position_embedding.weight".to_owned(), vec![77, hidden]),
    ];
    let layers = [("mlp.fc1", [wide, hidden]), ("mlp.fc2", [hidden, wide])];
    let square = ["q_proj", "k_proj", "v_proj", "out_proj"].map(|name| format!("self_attn.{name}"));
    let square = square.iter().map(|name| (name.as_str(), [hidden, hidden]));
    for (name, [out, into]) in layers.into_iter().chain(square) {
        shapes.push((format!("{layer}.{name}.weight"), vec![out, into]));
        shapes.push((format!("{layer}.{name}.bias"), vec![out]));
    }
    for norm in [&format!("{layer}.layer_norm1"), &format!("{layer}.layer_norm2"), "text_model.final_layer_norm"] {
        shapes.extend(["weight", "bias"].map(|part| (format!("{norm}.{part}"), vec![hidden])));
    }
    let tensors: Vec<(String, Tensor)> = shapes
        .into_iter()
        .map(|(name, shape)| (name, Tensor::ones(shape, (Kind::Float, Device::Cpu)) * 0.01))
        .collect();
    let path = folder.join("clip.safetensors");
    Tensor::write_safetensors(&tensors, &path).unwrap();
    Arc::new(EncoderFile::find_all(&Arc::new(Checkpoint::open(&path).unwrap())).unwrap().remove(0))
}

#[test]
fn wide_feed_forward_layers_hold_what_is_estimated() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let encoder = wide_clip(folder.path());
    // So many that a product's scratch is less.
    let embedded = embedded(&encoder, 77).map(|text| text.repeat([4, 1, 1]));
    let plan = plan(Precision::Uniform(Dtype::F32));
    let job = job(&encoder, &embedded, 1 << 34);
    drop(job.run(&mut planner(&plan), &mut Quiet).unwrap());
    let held = job.run(&mut planner(&plan), &mut Quiet).unwrap().record.outcome.unwrap().held_bytes();
    let ratio = job.estimate(&plan).unwrap().held_bytes() as f64 / held as f64;
    assert!((0.98..=1.02).contains(&ratio), "{ratio}");
}

#[test]
fn narrow_types_come_near_f32() {
    let _alone = alone();
    let encoder = encoder("text-t5");
    let embedded = embedded(&encoder, 64);
    let of = |precision| {
        let job = job(&encoder, &embedded, 1 << 34);
        job.run(&mut planner(&plan(precision)), &mut Quiet).unwrap().output.remove(0).last
    };
    let (exact, mixed) = (of(Precision::Uniform(Dtype::F32)), of(Precision::Mixed(Dtype::Bf16)));
    let apart = ((&mixed - &exact).abs().max() / exact.abs().max()).double_value(&[]);
    assert!(apart > 0.0 && apart < 6e-2, "{apart}");
}

#[test]
fn too_little_memory_is_said() {
    let _alone = alone();
    let encoder = encoder("text-t5");
    let embedded = embedded(&encoder, 512);
    let store = WeightStore::new(Budget::Last);
    let texts = Texts { encoder: &encoder, weights: &store, embedded: &embedded, left_out: 1 };
    let error = TextJob::new(machine(), None, texts, 1 << 16, Objective::Balanced).unwrap_err();
    assert!(matches!(error, Error::Refused(Refusal::EncoderDoesNotFit { .. })), "{error}");
    assert!(error.to_string().contains("too little for T5 of width 64"), "{error}");
}

#[test]
fn a_text_that_is_too_long_is_said_with_what_fits() {
    let _alone = alone();
    let encoder = encoder("text-t5");
    let store = WeightStore::new(Budget::Last);
    let texts = Texts { encoder: &encoder, weights: &store, embedded: &[], left_out: 1 };
    let limit = 64 << 20;
    let check = |tokens: &[i64]| TextJob::check_lengths(machine(), None, texts, tokens, limit);
    let error = check(&[256, 1 << 20]).unwrap_err();
    let Error::Refused(Refusal::PromptTooLong { tokens, most, .. }) = error else { panic!("{error}") };
    assert!(tokens == 1 << 20 && most > 512, "{error}");
    let words = format!("the prompt is too long: it has 1048576 tokens for T5 of width 64, and about {most} fit");
    assert!(error.to_string().starts_with(&words), "{error}");
    let most = most as i64;
    assert!(check(&[256, most]).is_ok() && check(&[256, most + 1]).is_err());
    // If not even a usual prompt fits, the prompt is not at fault.
    let error = TextJob::check_lengths(machine(), None, texts, &[1 << 20], 1 << 16).unwrap_err();
    assert!(matches!(error, Error::Refused(Refusal::EncoderDoesNotFit { .. })), "{error}");
}

#[test]
fn damaged_weights_are_said() {
    let _alone = alone();
    let encoder = encoder("text-t5");
    let embedded = embedded(&encoder, 8).map(|tensor| tensor * f64::NAN);
    let mut planner = planner(&plan(Precision::Uniform(Dtype::F32)));
    let unfinished = job(&encoder, &embedded, 1 << 34).run(&mut planner, &mut Quiet).unwrap_err();
    assert_eq!(unfinished.record.unwrap().attempts.len(), 1);
    let error = unfinished.error.to_string();
    assert!(error.contains("NaN or infinite") && error.contains("in f32 too"), "{error}");
}

/// Ends the load.
struct Impatient;

impl Observer for Impatient {
    fn loading_progress(&mut self, _: f64) -> ControlFlow<Cancelled> {
        ControlFlow::Break(Cancelled)
    }
}

#[test]
fn a_load_ends_when_it_is_cancelled() {
    let _alone = alone();
    let encoder = encoder("text-umt5");
    let embedded = [Tensor::zeros([1, 8, encoder.config.hidden()], (Kind::Float, Device::Cpu))];
    let mut planner = planner(&plan(Precision::Uniform(Dtype::F32)));
    let error = job(&encoder, &embedded, 1 << 34).run(&mut planner, &mut Impatient).unwrap_err().error;
    assert!(matches!(error, Error::Interrupted), "{error}");
}

/// Notes what was decided and what failed.
#[derive(Default)]
struct Heard(Vec<String>);

impl Observer for Heard {
    fn decided(&mut self, decided: AnyDecided<'_>) {
        let AnyDecided::Text(decided) = decided else { panic!("{decided:?}") };
        assert!(decided.expected.is_some());
        self.0.push(decided.decision.plan.to_string());
    }

    fn failed(&mut self, failed: AnyFailed<'_>) {
        let AnyFailed::Text(failed) = failed else { panic!("{failed:?}") };
        assert!(matches!(failed.attempt.failure, Failure::NonFinite { .. }), "{}", failed.attempt.failure);
        self.0.extend(failed.next.map(|next| format!("then {next}")));
    }
}

#[test]
fn values_that_are_not_finite_are_told_and_another_plan_follows_until_f32() {
    let _alone = alone();
    let encoder = encoder("text-t5");
    let embedded = embedded(&encoder, 8).map(|tensor| tensor * f64::NAN);
    let (narrow, wide) = (plan(Precision::Mixed(Dtype::Bf16)), plan(Precision::Uniform(Dtype::F32)));
    let mut planner = Script::<Text>::new([narrow.clone(), wide.clone()]);
    let mut heard = Heard::default();
    let unfinished = job(&encoder, &embedded, 1 << 34).run(&mut planner, &mut heard).unwrap_err();
    assert_eq!(heard.0, [narrow.to_string(), format!("then {wide}"), wide.to_string()]);
    assert!(matches!(unfinished.error, Error::Exhausted { attempts: 2, .. }), "{}", unfinished.error);
    assert_eq!(unfinished.record.unwrap().attempts.len(), 2);
    assert_eq!((planner.recovered.len(), planner.learned.len()), (1, 0));
}

#[test]
fn an_encoder_that_is_kept_is_not_loaded_again() {
    let _alone = alone();
    let encoder = encoder("text-t5");
    let embedded = embedded(&encoder, 16);
    assert!(!job(&encoder, &embedded, 1 << 34).capabilities().kept, "there is no room for it");
    let store = WeightStore::new(Budget::Bytes(1 << 30));
    let expanded = TextPlan { weights: WeightForm::Expanded, kept: true, ..plan(Precision::Uniform(Dtype::F32)) };
    let before = memory::of(Device::Cpu).unwrap().in_use;
    let run = |plan: &TextPlan| {
        let job = job_in(&store, &encoder, &embedded, 1 << 34);
        assert!(job.capabilities().kept);
        let expected = job.estimate(plan).unwrap();
        let encoded = job.run(&mut planner(plan), &mut Quiet).unwrap();
        (expected.load, encoded.record.outcome.unwrap(), encoded.output.into_iter().next().unwrap().last)
    };
    let usage = || {
        let usage = store.usage(Device::Cpu);
        (usage.loads, usage.hits, usage.idle_bytes > 0)
    };
    let (load, first, states) = run(&expanded);
    assert!(load > std::time::Duration::ZERO && first.load > std::time::Duration::ZERO);
    assert!(memory::of(Device::Cpu).unwrap().in_use > before);
    assert_eq!(usage(), (1, 0, true));
    let (load, second, again) = run(&expanded);
    assert_eq!((load, second.load), Default::default());
    assert_eq!(usage(), (1, 1, true));
    assert_eq!(second.weights_bytes, first.weights_bytes);
    assert!(second.peak_bytes.abs_diff(first.peak_bytes) <= first.peak_bytes / 20, "{first:?} {second:?}");
    assert!(states.equal(&again));
    // A plan that keeps nothing lets the encoder go.
    let (_, third, _) = run(&TextPlan { kept: false, ..expanded });
    assert_eq!((third.load, usage()), (std::time::Duration::ZERO, (1, 2, false)));
    drop((states, again));
    assert_eq!(memory::of(Device::Cpu).unwrap().in_use, before);
}

#[test]
fn earlier_runs_are_told_at_todays_price() {
    let _alone = alone();
    let encoder = encoder("text-t5");
    let embedded = embedded(&encoder, 16);
    let plan = plan(Precision::Uniform(Dtype::F32));
    let record = job(&encoder, &embedded, 1 << 34).run(&mut planner(&plan), &mut Quiet).unwrap().record;
    let mut planner = planner(&plan);
    let job = job(&encoder, &embedded, 1 << 34).with_history(std::slice::from_ref(&record));
    let (again, candidates) = job.decide(&mut planner);
    assert_eq!((planner.trials.len(), candidates.len()), (1, 1));
    assert!(again.outcome.is_none() && again.expected.is_some());
    assert_eq!(record.request.model.kind, "t5-64");
    assert_eq!(record.request.tokens, [16]);
}
