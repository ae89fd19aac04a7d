//! Decodes and encodes.

mod prices;
mod rows;

use std::sync::Arc;

use tilewright_plan::{
    Backend, Capabilities, Cost, CostModel, Device, Dtype, Hint, HostMemory, LEAST_TILE, Layout, MOST_AHEAD,
    MOST_BATCH, Objective, Options, Outcome, Plan, PlanOption, Precision, Record, Release, Request, Space, Stage, Tile,
    Time, UnderWay, Vae,
};
use tilewright_policy::oracle;

use self::{
    prices::Prices,
    rows::{CHUNKS, DEARER, ROWS, SLOW_WHOLE},
};
use super::{Judged, SLOWER, more};
use crate::{
    golden::{CallResult, Events, FailureKind, GoldenRequest, MemoryLimit, Numbers, drawn},
    machines::{MACHINES, Machine, WEIGHTS, Weights},
};

/// The main properties of a plan.
#[derive(Clone, Copy, Debug)]
struct Shape {
    form: Form,
    precision: Precision,
    /// Frames of a carried chunk; 0 for whole in time.
    chunk: u32,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Whole,
    Bands(u32),
    Tiles(u32),
}

/// One request of the set: a row of the table.
#[derive(Clone, Copy, Debug)]
struct Row {
    machine: &'static Machine,
    weights: &'static Weights,
    width: u32,
    height: u32,
    frames: u32,
    batch: u32,
    room: MemoryLimit,
    objective: Objective,
    stage: Stage,
    /// The host can run f32 only.
    is_bare: bool,
    /// The user allows blended tiles where an exact plan fits.
    may_blend: bool,
    /// Earlier measurements: the plan, and the ratios of its time and memory to its price.
    tried: &'static [(Shape, f64, f64)],
    then: Events,
    /// The shape of the clip that is under way, if one is, and its frames that are delivered.
    begun: Option<(Shape, u32)>,
}

impl Judged for Vae {
    fn golden() -> Vec<GoldenRequest> {
        ROWS.iter().map(GoldenRequest::new).collect()
    }

    fn draw(seed: u32) -> Vec<GoldenRequest> {
        drawn(u64::from(seed), DRAWN, "", |numbers| GoldenRequest::new(&row(numbers)))
    }

    fn formula(stage: Stage, request: &Request, device: &Device, of: &Capabilities) -> Arc<dyn CostModel> {
        Arc::new(Prices::new(stage, request, device, of))
    }

    /// The capabilities in a record's field or hints; the engine's if it has neither.
    fn capabilities_of(record: &Record) -> Capabilities {
        if let Some(capabilities) = &record.capabilities {
            return capabilities.clone();
        }
        let request = &record.request;
        let hint = |name: &str| request.hints.iter().find(|hint| hint.name == name).map(|hint| hint.value.as_str());
        let number = |name: &str, otherwise: u32| hint(name).and_then(|text| text.parse().ok()).unwrap_or(otherwise);
        let flag = |name: &str, otherwise: bool| hint(name).map_or(otherwise, |text| text == "true");
        let is_clip = request.frames > 1;
        let scale = request.model.spatial_scale.max(1);
        let dtypes = hint("offer.dtypes").map(|names| names.split(',').filter_map(|name| name.parse().ok()).collect());
        Capabilities {
            dtypes: dtypes.unwrap_or_else(|| vec![Dtype::F32]),
            tile_unit: number("offer.tile-unit", scale),
            tile_least: number("offer.tile-least", scale * LEAST_TILE),
            batch_most: number("offer.batch-most", if is_clip { 1 } else { MOST_BATCH }),
            exact: flag("offer.exact", true),
            carried: flag("offer.carried", is_clip),
            offload: flag("offer.offload", false),
            prefetch_most: number("offer.prefetch-most", 0),
            options: Vec::new(),
        }
    }

    fn in_type(plan: Plan, dtype: Dtype) -> Plan {
        Plan { precision: Precision::Uniform(dtype), ..plan }
    }

    /// `blended 512×512/64, carried 4, bf16`.
    fn show(plan: &Plan) -> String {
        let time = if plan.time == Time::Whole { String::new() } else { format!(", {}", plan.time) };
        let batch = if plan.batch > 1 { format!(", {} together", plan.batch) } else { String::new() };
        format!("{}{time}, {}{batch}", plan.space, plan.precision)
    }

    fn odd(golden: &GoldenRequest) -> Plan {
        Plan { layout: Layout::ChannelsFirst, ..golden.plain() }
    }

    fn leanest(golden: &GoldenRequest) -> Vec<Plan> {
        let request = &golden.request;
        let least = golden.capabilities.tile_least;
        let side = |side: u32| Space::Blended(Tile { height: side, width: side, overlap: 0 });
        let spaces =
            [Space::Whole, Space::Exact(Tile { height: least, width: request.width, overlap: 0 }), side(least)];
        let times = [Time::Whole, Time::Carried { frames: 1 }];
        let precisions = golden.capabilities.dtypes.iter().map(|dtype| Precision::Uniform(*dtype));
        let plans = precisions.flat_map(move |precision| {
            spaces.into_iter().flat_map(move |space| {
                times.into_iter().map(move |time| Plan {
                    space,
                    time,
                    batch: 1,
                    precision,
                    layout: Layout::ChannelsFirst,
                    release: Release::EachStep,
                    offload: golden.capabilities.offload,
                    prefetch: 0,
                    options: Options::none(),
                    reason: String::new(),
                })
            })
        });
        plans.collect()
    }

    fn is_replaced(answer: &Plan, golden: &GoldenRequest, result: &CallResult) -> bool {
        let under_way = result.under_way.as_ref();
        let question = golden.question().going_on(under_way).after(&result.attempts);
        let legal = Self::legal(answer.clone(), golden, under_way);
        let carried_out = result.decision.as_ref().map(|decision| &decision.plan);
        // Settings may allow what the request does not: then the answer stands.
        legal.is_some_and(|legal| {
            let exact = oracle::exact_in_place_of(&legal, &question, &*golden.costs());
            exact.is_some() && exact.as_ref() == carried_out
        })
    }

    fn outcome(cost: Option<Cost>) -> Outcome {
        Outcome {
            elapsed: cost.map(|cost| cost.elapsed.mul_f64(SLOWER)).unwrap_or_default(),
            peak_bytes: cost.map_or(1 << 30, |cost| more(cost.peak_bytes)),
            attempts: 1,
            ..Outcome::default()
        }
    }
}

impl GoldenRequest {
    fn new(row: &Row) -> Self {
        let Row { machine, weights, width, height, frames, batch, .. } = *row;
        let device = machine.device();
        let is_video = weights.frames > 1;
        let on_gpu = machine.backend != Backend::Cpu;
        let is_bare = row.is_bare;
        let capabilities = Capabilities {
            dtypes: if is_bare { vec![Dtype::F32] } else { machine.dtypes.to_vec() },
            tile_unit: weights.scale,
            tile_least: weights.scale * LEAST_TILE,
            batch_most: if is_video || is_bare { 1 } else { MOST_BATCH },
            exact: row.stage == Stage::Decode && !is_bare,
            carried: is_video && !is_bare,
            offload: is_video && on_gpu && !is_bare,
            prefetch_most: if is_video && on_gpu && row.stage == Stage::Decode && !is_bare { MOST_AHEAD } else { 0 },
            options: PlanOption::offered(row.stage, |_| !is_bare, |_| true),
        };
        let mut request = Request {
            model: weights.model(),
            batch,
            frames,
            height,
            width,
            memory_limit: device.free_bytes / 10 * 8,
            limit_counts_weights: false,
            objective: row.objective,
            allows_blended: row.may_blend,
            hints: Vec::new(),
            host: HostMemory::default(),
        };
        let prices = Prices::new(row.stage, &request, &device, &capabilities);
        let whole = Shape { form: Form::Whole, precision: Precision::Uniform(Dtype::F32), chunk: 0 };
        request.memory_limit = row.room.bytes(request.memory_limit, &prices, &whole.plan(row));
        if !is_bare && weights.sample_size > 0 {
            request.hints.push(Hint { name: "sample-size".into(), value: weights.sample_size.to_string() });
        }
        let tried: Vec<_> = row.tried.iter().map(|(shape, time, memory)| (shape.plan(row), *time, *memory)).collect();
        let costs = Arc::new(Prices::new(row.stage, &request, &device, &capabilities).with_trials(&tried));
        let under_way = row.begun.map(|(shape, done)| UnderWay { done, plan: shape.plan(row) });
        Self { name: row.name(), stage: row.stage, request, device, capabilities, costs, then: row.then, under_way }
    }

    pub(crate) fn plain(&self) -> Plan {
        plain(Space::Whole, Time::Whole, Precision::Uniform(Dtype::F32))
    }
}

fn plain(space: Space, time: Time, precision: Precision) -> Plan {
    Plan { space, time, precision, layout: Layout::ChannelsLast, ..Plan::plain() }
}

impl Shape {
    fn plan(self, row: &Row) -> Plan {
        let space = match self.form {
            Form::Whole => Space::Whole,
            Form::Bands(height) => Space::Exact(Tile { height, width: row.width, overlap: 0 }),
            Form::Tiles(side) => Space::Blended(Tile { height: side, width: side, overlap: side / 8 }),
        };
        let time = if self.chunk == 0 { Time::Whole } else { Time::Carried { frames: self.chunk } };
        plain(space, time, self.precision)
    }
}

impl Row {
    fn name(&self) -> String {
        let Row { machine, weights, width, height, frames, batch, .. } = self;
        let mut name = format!("{} {} {width}×{height}", machine.label.to_lowercase(), weights.label);
        if *frames > 1 {
            name += &format!(" {frames}f");
        }
        if *batch > 1 {
            name += &format!(" ×{batch}");
        }
        name += &self.room.words(self.objective);
        if self.stage == Stage::Encode {
            name += ", encode";
        }
        if self.is_bare {
            name += ", bare offer";
        }
        if self.may_blend {
            name += ", may blend";
        }
        if !self.tried.is_empty() {
            name += ", measured";
        }
        let form = match self.begun.map(|(shape, _)| shape.form) {
            None => "",
            Some(Form::Whole) => " whole",
            Some(Form::Bands(_)) => " in bands",
            Some(Form::Tiles(_)) => " in tiles",
        };
        name + &self.then.words(form)
    }
}

/// The number of drawn decodes and encodes.
const DRAWN: u32 = 33;

/// The failures that may follow a decision. One each: a policy that has nothing smaller to offer
/// may give up.
const FAILURES: [&[FailureKind]; 3] =
    [&[FailureKind::OutOfMemory], &[FailureKind::OverLimit], &[FailureKind::NonFinite]];

fn row(numbers: &mut Numbers) -> Row {
    let weights = numbers.of(WEIGHTS);
    let scale = weights.scale;
    // From 64 to 4096 pixels, every doubling equally likely.
    let mut side = || {
        let least = 64_u64 << numbers.below(6);
        ((least + numbers.below(least)) as u32).next_multiple_of(scale)
    };
    let (width, height) = (side(), side());
    let frames = if weights.frames > 1 && numbers.below(4) > 0 { 1 + 4 * numbers.below(30) as u32 } else { 1 };
    let batch = if numbers.below(5) == 0 { 2 + numbers.below(7) as u32 } else { 1 };
    let room = match numbers.below(20) {
        0 => MemoryLimit::Hopeless,
        1..=7 => MemoryLimit::Plenty,
        _ => MemoryLimit::Percent(5 + numbers.below(150)),
    };
    let (stage, is_bare) = match numbers.below(20) {
        0 => (Stage::Decode, true),
        1..=3 => (Stage::Encode, false),
        _ => (Stage::Decode, false),
    };
    let then = match numbers.below(10) {
        0..=1 => Events::Nothing,
        2..=3 => Events::Learn,
        6 if frames > 9 && stage == Stage::Decode && !is_bare => Events::UnderWay(&[FailureKind::OutOfMemory]),
        _ if matches!(room, MemoryLimit::Plenty) => {
            Events::Fail(FAILURES[numbers.below(FAILURES.len() as u64) as usize])
        }
        _ => Events::Nothing,
    };
    let then = match then {
        // A picture hardly larger than the least tile can't be divided much further.
        Events::Fail(_) if width.min(height) < 512 => Events::Nothing,
        then => then,
    };
    let begun = Shape { form: Form::Whole, precision: Precision::Uniform(Dtype::F32), chunk: 4 };
    let begun = matches!(then, Events::UnderWay(_)).then_some((begun, 5));
    let tried: &[_] = match numbers.below(3) {
        0 if frames > 1 => CHUNKS,
        0 => SLOW_WHOLE,
        1 => DEARER,
        _ => &[],
    };
    let objective = *numbers.of(&[Objective::Fastest, Objective::Balanced, Objective::Leanest]);
    let (machine, may_blend) = (numbers.of(MACHINES), numbers.below(4) == 0);
    Row {
        machine,
        weights,
        width,
        height,
        frames,
        batch,
        room,
        objective,
        stage,
        is_bare,
        may_blend,
        tried,
        then,
        begun,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::golden::{any_seed, shuffle};

    #[test]
    fn the_set_is_as_wide_as_it_claims() {
        let set = Vae::golden();
        assert!(set.len() >= 60, "{}", set.len());
        let all = |of: fn(&GoldenRequest) -> String| set.iter().map(of).collect::<BTreeSet<_>>();
        assert_eq!(all(|golden| golden.name.clone()).len(), set.len(), "no two are called the same");
        let archs = all(|golden| golden.device.arch.clone());
        for arch in ["gfx1030", "gfx1100", "gfx1151", "gfx1201", "gfx942", "sm_75", "sm_89", "sm_90"] {
            assert!(archs.contains(arch), "{arch}");
        }
        assert!(["x86-64-v3", "x86-64-v4", "aarch64"].iter().all(|arch| archs.contains(*arch)));
        let frames: BTreeSet<u32> = set.iter().map(|golden| golden.request.frames).collect();
        assert!([1, 17, 33, 81, 121].iter().all(|count| frames.contains(count)), "{frames:?}");
        let stored = all(|golden| golden.request.model.stored.to_string());
        assert!(["f32", "bf16", "f16", "f8-e4m3", "i8", "i4"].iter().all(|name| stored.contains(*name)), "{stored:?}");
        assert_eq!(all(|golden| format!("{:?}", golden.request.objective)).len(), 3);
        assert!(set.iter().any(|golden| golden.under_way.is_some()));
        assert!(set.iter().any(|golden| golden.request.batch > 1));
    }

    #[test]
    fn a_record_s_capabilities_are_read_off_its_field_or_its_hints() {
        let hints = [
            ("dtypes", "f32,bf16"),
            ("tile-unit", "8"),
            ("tile-least", "64"),
            ("batch-most", "16"),
            ("exact", "true"),
            ("carried", "false"),
            ("offload", "true"),
            ("prefetch-most", "3"),
        ];
        let told = Capabilities {
            dtypes: vec![Dtype::F32, Dtype::Bf16],
            tile_unit: 8,
            tile_least: 64,
            batch_most: 16,
            exact: true,
            carried: false,
            offload: true,
            prefetch_most: 3,
            options: Vec::new(),
        };
        for golden in Vae::golden() {
            let mut record: Record = serde_json::from_value(serde_json::json!({
                "tilewright": "0.1.0", "time": "", "request": golden.request, "device": golden.device,
                "policy": {"name": "p", "version": "1", "digest": "", "settings": {}},
                "answer": null, "plan": golden.plain(), "adjusted": [], "fallback": null, "decision_ms": 0.0, "fuel": 0,
                "estimate": null, "attempts": [], "outcome": null,
            }))
            .unwrap();
            let hint = |(name, value): (&str, &str)| Hint { name: format!("offer.{name}"), value: value.into() };
            record.request.hints.extend(hints.map(hint));
            assert_eq!(Vae::capabilities_of(&record), told, "{}", golden.name);
            assert_eq!(record.capabilities().unwrap(), told, "{}", golden.name);
            record.capabilities = Some(golden.capabilities.clone());
            assert_eq!(Vae::capabilities_of(&record), golden.capabilities, "{}", golden.name);
        }
    }

    #[test]
    fn a_seed_gives_the_same_requests_and_another_gives_others() {
        let asked = |seed| Vae::draw(seed).into_iter().map(|golden| (golden.name, golden.request)).collect::<Vec<_>>();
        assert_eq!(asked(7), asked(7));
        assert!(asked(7).iter().zip(asked(8)).filter(|(one, other)| **one == *other).count() < 3);
        let names: BTreeSet<String> = asked(7).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), DRAWN as usize);
        assert_ne!([any_seed(), any_seed(), any_seed()], [any_seed(); 3]);
        let order = shuffle((0..100).collect::<Vec<u32>>(), 7);
        assert_eq!(order.iter().copied().collect::<BTreeSet<u32>>().len(), 100);
        assert_ne!(order, shuffle((0..100).collect(), 8));
    }

    #[test]
    fn what_is_drawn_can_be_asked() {
        for golden in (0..200).flat_map(Vae::draw) {
            let request = &golden.request;
            let scale = request.model.spatial_scale;
            assert!(request.width.is_multiple_of(scale) && request.height.is_multiple_of(scale), "{}", golden.name);
            assert!((64..=4096 + 16).contains(&request.width) && request.memory_limit > 0, "{}", golden.name);
            assert!(golden.costs().estimate_one(&golden.plain()).is_ok(), "{}", golden.name);
        }
    }
}
