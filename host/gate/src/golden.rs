//! The golden set: the requests that every policy is asked before it is put to work. Some are rows
//! of tables, the others are drawn from a seed.

mod draw;
mod play;

use std::sync::Arc;

use tilewright_plan::{CostModel, Device, Objective, Question, Stage, UnderWay, Vae, Work};

use crate::work::Judged;

pub(crate) use draw::{Numbers, drawn, room_and_events};
pub use draw::{any_seed, is_drawn, shuffle};
pub use play::CallResult;

/// A published denoiser or text encoder.
#[derive(Debug)]
pub(crate) struct Network {
    pub label: &'static str,
    pub family: &'static str,
    pub stored: &'static str,
    /// Bits of a stored weight.
    pub bits: u64,
    /// Weights in 10⁶, of one expert.
    pub parameters: u64,
    pub blocks: u32,
    pub width: u32,
    pub experts: u32,
}

impl Network {
    /// Bytes of the stored weights.
    pub fn bytes(&self) -> u64 {
        self.parameters * 1_000_000 * self.bits / 8
    }

    /// The network whose size is nearest to a wanted one.
    pub fn nearest(list: &[&'static Self], size: impl Fn(&Self) -> u64, wanted: u64) -> &'static Self {
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

pub(crate) use networks;

/// The memory limit of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MemoryLimit {
    /// 80 % of what the device has free, as by default.
    Plenty,
    /// A percentage of the memory of the whole decode in f32.
    Percent(u64),
    /// 1 MiB, which nothing fits into.
    Hopeless,
}

impl MemoryLimit {
    /// The limit in bytes, of a request with this one if there is plenty.
    pub fn bytes<W: Work>(self, plenty: u64, prices: &dyn CostModel<W>, whole: &W::Plan) -> u64 {
        match self {
            MemoryLimit::Plenty => plenty,
            MemoryLimit::Hopeless => 1 << 20,
            MemoryLimit::Percent(percent) => {
                prices.estimate_one(whole).map_or(1 << 30, |cost| W::held_bytes(&cost) / 100 * percent)
            }
        }
    }

    /// The limit and an objective, as names of requests have them.
    pub fn words(self, objective: Objective) -> String {
        let room = match self {
            MemoryLimit::Plenty => "plenty".to_owned(),
            MemoryLimit::Percent(percent) => format!("{percent}%"),
            MemoryLimit::Hopeless => "hopeless".to_owned(),
        };
        format!(" {room} {}", format!("{objective:?}").to_lowercase())
    }
}

/// The kind of failure of an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FailureKind {
    OutOfMemory,
    OverLimit,
    NonFinite,
}

/// The events after the first decision.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Events {
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
    pub fn words(self, form: &str) -> String {
        let list = |fails: &[FailureKind]| fails.iter().map(|fails| fails.name()).collect::<Vec<_>>().join(" and ");
        match self {
            Events::Nothing => String::new(),
            Events::Fail(fails) => format!(", after {}", list(fails)),
            Events::UnderWay(fails) => format!(", under way{form}, after {}", list(fails)),
            Events::Learn => ", learns".to_owned(),
        }
    }
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
    pub(crate) costs: Arc<dyn CostModel<W>>,
    pub(crate) then: Events,
    pub(crate) under_way: Option<UnderWay<W>>,
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

impl FailureKind {
    const fn name(self) -> &'static str {
        match self {
            FailureKind::OutOfMemory => "out-of-memory",
            FailureKind::OverLimit => "over-limit",
            FailureKind::NonFinite => "non-finite",
        }
    }
}
