//! Options beside the fields of a plan: what is offered reaches a policy, and what it names is
//! brought into what is offered.

mod by_hand;

use std::{sync::Arc, time::Duration};

use by_hand::{DECODE, device, put_to_work};
use tilewright_plan::{
    Attempt, Capabilities, Cost, CostModel, Decision, Dtype, Failure, FallbackReason, HostMemory, Model, Objective,
    Options, Plan, PlanOption, Planner, Question, Request, Stage, Value, Values,
};
use tilewright_policy::{CacheDir, Limits, PolicyHost};

/// One price for all plans.
struct Prices;

impl CostModel for Prices {
    fn estimate_one(&self, _: &Plan) -> Result<Cost, String> {
        let elapsed = Duration::from_millis(9);
        Ok(Cost { peak_bytes: 1, weights_bytes: 0, elapsed, tiles: 1, shapes: 1, rework: 1.0 })
    }
}

fn request() -> Request {
    Request {
        model: Model {
            family: "flux".into(),
            stored: Dtype::F16,
            quantized: false,
            parameter_bytes: 1 << 27,
            spatial_scale: 8,
            temporal_scale: 1,
        },
        batch: 1,
        frames: 1,
        height: 1024,
        width: 1024,
        memory_limit: 1 << 36,
        limit_counts_weights: false,
        host: HostMemory::default(),
        allows_blended: false,
        objective: Objective::Balanced,
        hints: Vec::new(),
    }
}

fn option(name: &str, values: Values, default: Value) -> PlanOption {
    PlanOption { name: name.into(), summary: "for a test".into(), values, default, lossy: false }
}

fn capabilities() -> Capabilities {
    let words = ["usual", "direct"].map(str::to_owned).to_vec();
    Capabilities {
        dtypes: vec![Dtype::F32],
        tile_unit: 8,
        tile_least: 64,
        batch_most: 1,
        exact: true,
        carried: false,
        offload: false,
        prefetch_most: 0,
        options: vec![
            option("kernel", Values::Text { words }, Value::Text("usual".into())),
            option("ahead", Values::Integer { least: 0, most: 8 }, Value::Integer(1)),
            option("share", Values::Number { least: 0.0, most: 1.0 }, Value::Number(0.5)),
            option("pinned", Values::Flag, Value::Flag(false)),
        ],
    }
}

/// An option as a guest names it: its value's case and the bits of that.
type Named<'a> = (&'a str, u8, Bits<'a>);

#[derive(Clone, Copy)]
enum Bits<'a> {
    Number(i64),
    Text(&'a str),
}

/// A guest that names options, as the canonical ABI has them: from 4096 on, with texts from 16384
/// on. Its plan has their address at 44.
fn names(named: &[Named<'_>]) -> Vec<u8> {
    let mut text = 16_384;
    let mut store = String::new();
    let mut put = |at: usize, word: &str| {
        let bytes: String = word.bytes().map(|byte| format!("\\{byte:02x}")).collect();
        let length = word.len();
        let stored = format!(
            "(memory.init $text{text} (i32.const {text}) (i32.const 0) (i32.const {length})) \
             (i32.store (i32.const {at}) (i32.const {text})) (i32.store (i32.const {}) (i32.const {length}))",
            at + 4
        );
        let segment = format!("(data $text{text} \"{bytes}\")");
        text += length.next_multiple_of(8).max(8);
        (stored, segment)
    };
    let mut segments = String::new();
    for (index, (name, case, bits)) in named.iter().enumerate() {
        let at = 4096 + 24 * index;
        let mut add = |(stored, segment): (String, String)| {
            store.push_str(&stored);
            segments.push_str(&segment);
        };
        add(put(at, name));
        match bits {
            Bits::Text(word) => add(put(at + 16, word)),
            Bits::Number(bits) => {
                add((format!("(i64.store (i32.const {}) (i64.const {bits}))", at + 16), String::new()))
            }
        }
        store.push_str(&format!("(i32.store8 (i32.const {}) (i32.const {case}))", at + 8));
    }
    store.push_str(&DECODE.word(44, 4096));
    store.push_str(&DECODE.word(48, named.len() as i64));
    // Segments stand beside functions, so that they follow the last one.
    DECODE.guest(&store, &format!(") {segments} (func"))
}

fn decided(named: &[Named<'_>]) -> Decision {
    let (request, device, capabilities) = (request(), device(), capabilities());
    let question = Question::new(Stage::Decode, &request, &device, &capabilities);
    put_to_work(&names(named)).decide(&question, Arc::new(Prices))
}

fn set(options: &[(&str, Value)]) -> Options {
    Options::new(options.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
}

#[test]
fn options_that_are_offered_are_carried_out() {
    let half = Bits::Number(0.25_f64.to_bits() as i64);
    let decision = decided(&[
        ("kernel", 3, Bits::Text("direct")),
        ("ahead", 1, Bits::Number(3)),
        ("share", 2, half),
        ("pinned", 0, Bits::Number(1)),
    ]);
    assert_eq!((decision.fallback, decision.adjusted), (None, Vec::new()));
    let expected = [
        ("kernel", Value::Text("direct".into())),
        ("ahead", Value::Integer(3)),
        ("share", Value::Number(0.25)),
        ("pinned", Value::Flag(true)),
    ];
    assert_eq!(decision.plan.options, set(&expected));
    assert!(decision.plan.to_string().ends_with("f32, kernel=direct, ahead=3, share=0.25, pinned=true"));
}

#[test]
fn options_beyond_the_offer_are_changed_with_a_note() {
    let not_a_number = Bits::Number(f64::NAN.to_bits() as i64);
    let decision = decided(&[
        ("speed\u{1b}[31m", 3, Bits::Text("high")),
        ("ahead", 1, Bits::Number(i64::MAX)),
        ("ahead", 1, Bits::Number(2)),
        ("share", 2, not_a_number),
        ("kernel", 1, Bits::Number(-1)),
    ]);
    assert_eq!(decision.fallback, None);
    assert_eq!(decision.plan.options, set(&[("ahead", Value::Integer(8))]));
    assert_eq!(
        decision.adjusted,
        [
            "option speed\\u{1b}[31m=high left out: not offered",
            "option ahead 9223372036854775807 → 8: a whole number from 0 to 8",
            "option ahead 2 → 8: named before",
            "option share NaN → 0.5: a number from 0 to 1",
            "option kernel -1 → usual: one of usual, direct",
            "option share=0.5 left out: the default",
            "option kernel=usual left out: the default",
        ]
    );
}

#[test]
fn too_many_options_and_long_names_do_no_harm() {
    let names: Vec<String> = (0..65).map(|number| format!("option-{number}")).collect();
    let named: Vec<Named<'_>> = names.iter().map(|name| (name.as_str(), 0, Bits::Number(1))).collect();
    let refused = decided(&named);
    let fallback = refused.fallback.unwrap();
    assert_eq!((fallback.reason, fallback.detail.as_str()), (FallbackReason::Nonsense, "more than 64 options"));
    assert_eq!(decided(&named[..64]).adjusted.len(), 64);
    let long = "x".repeat(20_000);
    let cut = decided(&[(&long, 3, Bits::Text(&long))]);
    assert!(cut.plan.options.is_empty() && cut.adjusted[0].len() < 200, "{:?}", cut.adjusted);
    assert!(cut.answer.unwrap().options.text_bytes() <= 512);
}

#[test]
fn a_plan_with_other_options_repeats_none_that_failed() {
    let (request, device, capabilities) = (request(), device(), capabilities());
    let question = Question::new(Stage::Decode, &request, &device, &capabilities);
    let direct = names(&[("kernel", 3, Bits::Text("direct"))]);
    let first = put_to_work(&direct).decide(&question, Arc::new(Prices));
    let failed = |plan: &Plan| [Attempt { plan: plan.clone(), failure: Failure::OutOfMemory { bytes: 1 } }];
    let again = put_to_work(&direct).decide(&question.after(&failed(&first.plan)), Arc::new(Prices));
    assert_eq!(again.fallback.unwrap().reason, FallbackReason::Nonsense);
    let plain = Plan { options: Options::none(), ..first.plan };
    let other = put_to_work(&direct).decide(&question.after(&failed(&plain)), Arc::new(Prices));
    assert_eq!(other.fallback, None);
}

#[test]
fn fixed_sets_options_that_are_offered() {
    let host = PolicyHost::new(Limits::default(), &CacheDir::Off).unwrap();
    let (request, device) = (request(), device());
    let decided = |options: &str, capabilities: &Capabilities| {
        let settings = [("options".to_owned(), options.to_owned())];
        let mut policy = host.load_shipped("fixed").unwrap().configure(&settings).unwrap();
        policy.decide(&Question::new(Stage::Decode, &request, &device, capabilities), Arc::new(Prices))
    };
    let offered = capabilities();
    let decision = decided("kernel=direct ahead=3 other=1", &offered);
    let expected = [("kernel", Value::Text("direct".into())), ("ahead", Value::Integer(3))];
    assert_eq!((decision.plan.options, decision.fallback), (set(&expected), None));
    let bare = Capabilities { options: Vec::new(), ..capabilities() };
    assert!(decided("kernel=direct", &bare).plan.options.is_empty());
    let fallback = decided("kernel=fast", &offered).fallback.unwrap();
    assert_eq!(fallback.detail, "kernel=fast: allowed is usual, direct");
}
