//! The golden set: the requests that every policy is asked before it is put to work. Some are rows
//! of the table in `rows`, the others are drawn from a seed.

use std::sync::Arc;

use tilewright_plan::{
    Backend, Capabilities, CostModel, Device, Dtype, Hint, HostMemory, LEAST_TILE, Layout, MOST_AHEAD, MOST_BATCH,
    Objective, Plan, PlanOption, Precision, Question, Record, Request, Space, Stage, Tile, Time, UnderWay, Vae, Work,
};

use crate::{
    machines::{Machine, Weights},
    prices::Prices,
    work::Judged,
};

pub use draw::{any_seed, is_drawn, shuffle};
pub use play::CallResult;

/// A published denoiser or text encoder.
#[derive(Debug)]
struct Network {
    label: &'static str,
    family: &'static str,
    stored: &'static str,
    /// Bits of a stored weight.
    bits: u64,
    /// Weights in 10⁶, of one expert.
    parameters: u64,
    blocks: u32,
    width: u32,
    experts: u32,
}

impl Network {
    /// Bytes of the stored weights.
    fn bytes(&self) -> u64 {
        self.parameters * 1_000_000 * self.bits / 8
    }

    /// The network whose size is nearest to a wanted one.
    fn nearest(list: &[&'static Self], size: impl Fn(&Self) -> u64, wanted: u64) -> &'static Self {
        let distance = |network: &&&Self| ((size(network) as f64 / wanted.max(1) as f64).ln().abs() * 1e6) as u64;
        list.iter().min_by_key(distance).copied().unwrap_or(list[0])
    }
}

macro_rules! networks {
    ($list:ident: $($id:ident: $label:literal $family:literal $stored:literal $bits:literal bits, $parameters:literal M, $blocks:literal x $width:literal, $experts:literal;)+) => {
        $(static $id: Network = Network {
            label: $label, family: $family, stored: $stored, bits: $bits, parameters: $parameters, blocks: $blocks,
            width: $width, experts: $experts,
        };)+
        static $list: &[&Network] = &[$(&$id),+];
    };
}

mod draw;
mod play;
mod rows;
mod samples;
mod texts;

/// Work that the golden set has requests of.
pub trait Golden: Work {
    /// The fixed part of the set, the same for every policy.
    fn golden() -> Vec<GoldenRequest<Self>>;

    /// The part that is drawn from a seed, the same everywhere.
    fn draw(seed: u32) -> Vec<GoldenRequest<Self>>;

    /// Prices by formula for any request: for records that carry none. They differ between plans
    /// and say little about a device.
    fn formula(
        stage: Stage,
        request: &Self::Request,
        device: &Device,
        capabilities: &Self::Capabilities,
    ) -> Arc<dyn CostModel<Self>>;

    /// The capabilities of a record; the least if it has none.
    fn capabilities_of(record: &Record<Self>) -> Self::Capabilities {
        record.capabilities.clone().unwrap_or_default()
    }
}

/// The memory limit of a request.
#[derive(Clone, Copy, Debug)]
enum MemoryLimit {
    /// 80 % of what the device has free, as by default.
    Plenty,
    /// A percentage of the memory of the whole decode in f32.
    Percent(u64),
    /// 1 MiB, which nothing fits into.
    Hopeless,
}

impl MemoryLimit {
    /// The limit in bytes, of a request with this one if there is plenty.
    fn bytes<W: Work>(self, plenty: u64, prices: &dyn CostModel<W>, whole: &W::Plan) -> u64 {
        match self {
            MemoryLimit::Plenty => plenty,
            MemoryLimit::Hopeless => 1 << 20,
            MemoryLimit::Percent(percent) => {
                prices.estimate_one(whole).map_or(1 << 30, |cost| W::held_bytes(&cost) / 100 * percent)
            }
        }
    }

    /// The limit and an objective, as names of requests have them.
    fn words(self, objective: Objective) -> String {
        let room = match self {
            MemoryLimit::Plenty => "plenty".to_owned(),
            MemoryLimit::Percent(percent) => format!("{percent}%"),
            MemoryLimit::Hopeless => "hopeless".to_owned(),
        };
        format!(" {room} {}", format!("{objective:?}").to_lowercase())
    }
}

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

/// The kind of failure of an attempt.
#[derive(Clone, Copy, Debug)]
enum FailureKind {
    OutOfMemory,
    OverLimit,
    NonFinite,
}

/// The events after the first decision.
#[derive(Clone, Copy, Debug)]
enum Events {
    Nothing,
    /// The policy's plans fail in these ways, one after the other.
    Fail(&'static [FailureKind]),
    /// The work goes on; then it fails in these ways.
    UnderWay(&'static [FailureKind]),
    /// The policy learns from an outcome of this plan and of one that it did not answer, and
    /// decides again.
    Learn,
}

impl Events {
    /// The end of a request's name; `form` is that of the plan under way.
    fn words(self, form: &str) -> String {
        let list = |fails: &[FailureKind]| fails.iter().map(|fails| fails.name()).collect::<Vec<_>>().join(" and ");
        match self {
            Events::Nothing => String::new(),
            Events::Fail(fails) => format!(", after {}", list(fails)),
            Events::UnderWay(fails) => format!(", under way{form}, after {}", list(fails)),
            Events::Learn => ", learns".to_owned(),
        }
    }
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

/// A request that policies are tried with, and the events after it.
#[derive(Clone)]
pub struct GoldenRequest<W: Work = Vae> {
    /// A unique name of a few words.
    pub name: String,
    /// The stage.
    pub stage: Stage,
    /// The request itself.
    pub request: W::Request,
    /// The device.
    pub device: Device,
    /// The plans that can be carried out.
    pub capabilities: W::Capabilities,
    costs: Arc<dyn CostModel<W>>,
    then: Events,
    under_way: Option<UnderWay<W>>,
}

impl Golden for Vae {
    fn golden() -> Vec<GoldenRequest> {
        rows::ROWS.iter().map(GoldenRequest::new).collect()
    }

    fn draw(seed: u32) -> Vec<GoldenRequest> {
        draw::drawn(u64::from(seed), draw::DRAWN, "", |numbers| GoldenRequest::new(&draw::row(numbers)))
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
}

impl<W: Judged> GoldenRequest<W> {
    /// True if the policy learns from an outcome of the first plan, which may change later
    /// decisions.
    pub fn learns(&self) -> bool {
        matches!(self.then, Events::Learn)
    }

    /// The first question to a policy.
    pub fn question(&self) -> Question<'_, W> {
        Question::first(self.stage, &self.request, &self.device, &self.capabilities)
    }

    /// Prices of plans for this request, and earlier measurements.
    pub fn costs(&self) -> Arc<dyn CostModel<W>> {
        self.costs.clone()
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

impl FailureKind {
    const fn name(self) -> &'static str {
        match self {
            FailureKind::OutOfMemory => "out-of-memory",
            FailureKind::OverLimit => "over-limit",
            FailureKind::NonFinite => "non-finite",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

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
}
