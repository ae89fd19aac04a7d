//! The stage that denoises: the request, the capabilities, the plan, the cost and the outcome.

use std::{
    fmt,
    hash::{Hash, Hasher},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Device, Dtype, HostMemory, Objective, Options, PlanOption, PoolStatistics, Precision, Question, Record, Release,
    Stage, Work, bytes,
    exchange::mirrored,
    milliseconds,
    records::{MOST_EXTENT, MOST_HINTS},
    words::{did_you_mean, with_noun},
    work::named_alike,
};

/// Samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Denoise;

/// A denoiser, as far as plans depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DenoiserModel {
    /// "flux", "wan-2.1" or "wan-2.2": the family whose latents it makes.
    pub family: String,
    /// Weights in all; of two experts, those of one.
    pub parameters: u64,
    /// Bytes of the weights as stored; of two experts, those of one.
    pub stored_bytes: u64,
    /// The type that most of the weights are stored in, as files name it: `bf16`, `q4_k`.
    pub stored: String,
    /// Blocks of a pass.
    pub blocks: u32,
    /// Bytes of the largest block as stored.
    pub largest_block_bytes: u64,
    /// Experts that take turns.
    pub experts: u32,
    /// The types that the weights are stored in, the most common first.
    #[serde(default)]
    pub stored_types: Vec<StoredType>,
}

/// Weights that are stored in one type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoredType {
    /// As files name it: `bf16`, `q4_k`.
    pub name: String,
    /// Bytes of such weights.
    pub bytes: u64,
}

/// A request for a sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DenoiseRequest {
    /// The denoiser.
    pub model: DenoiserModel,
    /// Samples.
    pub batch: u32,
    /// Latent frames.
    pub frames: u32,
    /// Latent pixels.
    pub height: u32,
    /// Latent pixels.
    pub width: u32,
    /// Tokens of the text.
    pub text_tokens: u32,
    /// Tokens of pictures or frames.
    pub image_tokens: u32,
    /// Steps.
    pub steps: u32,
    /// Passes of a step: two with guidance by a negative conditioning.
    pub passes: u32,
    /// The sampler's name.
    pub sampler: String,
    /// The sigmas, one more than steps.
    pub sigmas: Vec<f64>,
    /// The change of the network's output, over its size, up to which the last output may serve
    /// once more; null if each is to be computed.
    #[serde(default)]
    pub reuse: Option<f64>,
    /// The most bytes to hold at once, weights included.
    pub memory_limit: u64,
    /// The aim.
    #[serde(default)]
    pub objective: Objective,
    /// Memory of the host, and its way to the device.
    #[serde(flatten)]
    pub host: HostMemory,
}

crate::names! {
    /// The form that weights are kept in.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum WeightForm {
        /// As stored, expanded where they are used.
        Packed = "packed",
        /// In the type of products.
        Expanded = "expanded",
    }
}

crate::names! {
    /// The operands of matrix products.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Products {
        /// In the plan's precision.
        #[default]
        Precision = "precision",
        /// In FP8 (E4M3) where the weights are stored so: activations are rounded to it by one
        /// scale for each product.
        Fp8 = "fp8",
        /// In 8-bit integers where the weights are stored in blocks of integers: activations are
        /// rounded to them by one scale for each 32, and the sums of a block are exact.
        Int8 = "int8",
    }
}

crate::names! {
    /// The order of a step's passes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum GuidanceOrder {
        /// One pass of both conditionings.
        Together = "together",
        /// One pass after the other.
        InTurn = "in-turn",
    }
}

/// The way in which attention is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Attention {
    /// In the device's fused kernel, without scores in memory, where it has one.
    #[default]
    Fused,
    /// In products, for the given number of queries at once: their scores are in memory meanwhile.
    Pieces {
        /// Queries.
        queries: u32,
    },
}

/// Reuse of the network's work from step to step, up to a change of its output over its size. It is
/// lossy, and a user has to allow it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum StepReuse {
    /// Each call is computed.
    #[default]
    Off,
    /// The last output serves while the change of the output, as estimated from that of the input,
    /// stays below the threshold (EasyCache, arXiv:2507.02860).
    Output {
        /// The change over the output's size.
        threshold: f64,
    },
    /// All blocks after the first are reused while the change that the first block makes differs
    /// from that of the last computed run by less than the threshold (first-block cache).
    FirstBlock {
        /// The difference over the change's size.
        threshold: f64,
    },
}

impl StepReuse {
    /// The name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            StepReuse::Off => "off",
            StepReuse::Output { .. } => "output",
            StepReuse::FirstBlock { .. } => "first-block",
        }
    }

    /// The threshold; 0 if nothing is reused.
    pub const fn threshold(self) -> f64 {
        match self {
            StepReuse::Off => 0.0,
            StepReuse::Output { threshold } | StepReuse::FirstBlock { threshold } => threshold,
        }
    }

    /// The same reuse up to another threshold.
    #[must_use]
    pub const fn up_to(self, threshold: f64) -> Self {
        match self {
            StepReuse::Off => StepReuse::Off,
            StepReuse::Output { .. } => StepReuse::Output { threshold },
            StepReuse::FirstBlock { .. } => StepReuse::FirstBlock { threshold },
        }
    }
}

/// Equal to the bit: plans are looked up.
impl PartialEq for StepReuse {
    fn eq(&self, other: &Self) -> bool {
        self.threshold().to_bits() == other.threshold().to_bits()
            && std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl Eq for StepReuse {}

impl Hash for StepReuse {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        self.threshold().to_bits().hash(state);
    }
}

/// The plans of a sample that can be carried out. The default stands for capabilities that were not
/// recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DenoiseCapabilities {
    /// The types that products can run in on this device.
    pub dtypes: Vec<Dtype>,
    /// Products in FP8 can be run: the device has them and the weights are stored so.
    pub fp8_products: bool,
    /// Products in 8-bit integers can be run: the device has them and the weights are stored in
    /// blocks of integers.
    #[serde(default)]
    pub int8_products: bool,
    /// Attention runs in a fused kernel without scores in memory.
    pub fused_attention: bool,
    /// The fewest queries of a piece of attention.
    pub queries_least: u32,
    /// The most blocks that are read ahead.
    pub ahead_most: u32,
    /// The most parts of a feed-forward layer.
    pub parts_most: u32,
    /// The change of the network's output up to which the user allows the last one to serve again;
    /// 0 if each is to be computed.
    pub reuse_most: f64,
    /// The options that are offered beside a plan's fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<PlanOption>,
}

/// The way in which a sample is computed. None of it changes what was asked for; narrow types are
/// lossy, and their names say so.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct DenoisePlan {
    /// The types that it is computed in.
    pub precision: Precision,
    /// The operands of matrix products.
    #[serde(default)]
    pub products: Products,
    /// The form that weights are kept in.
    pub weights: WeightForm,
    /// Blocks of weights that are read ahead while the one before computes, after which they are
    /// given back: with 0, a block comes from the host when its turn does. Null if all are kept.
    pub ahead: Option<u32>,
    /// The way in which attention is computed.
    #[serde(default)]
    pub attention: Attention,
    /// The order of a step's passes.
    pub guidance: GuidanceOrder,
    /// Samples of a pass that go through the network together; null for all of them.
    #[serde(default)]
    pub samples: Option<u32>,
    /// The parts of the tokens that go through a feed-forward layer one after the other.
    #[serde(default = "one")]
    pub feed_forward: u32,
    /// Reuse of the network's work from step to step.
    #[serde(default)]
    pub reuse: StepReuse,
    /// The time at which unused memory of the pool is freed.
    #[serde(default = "kept")]
    pub release: Release,
    /// The options that are set beside these fields.
    #[serde(default, skip_serializing_if = "Options::is_empty")]
    pub options: Options,
    /// The reason, for people.
    pub reason: String,
}

const fn one() -> u32 {
    1
}

const fn kept() -> Release {
    Release::Keep
}

/// A setting of a plan: its name, its values in words, and the way to set it; none if the value is
/// not valid.
type Setting = (&'static str, &'static str, fn(&mut DenoisePlan, &str) -> Option<()>);

const SETTINGS: [Setting; 10] = [
    ("precision", "f32, bf16, f16, mixed-bf16 or mixed-f16", |plan, value| {
        put(&mut plan.precision, Precision::of_tokens(value))
    }),
    ("products", "precision, fp8 or int8", |plan, value| put(&mut plan.products, Products::of_name(value))),
    ("weights", "packed or expanded", |plan, value| put(&mut plan.weights, WeightForm::of_name(value))),
    ("ahead", "all, or a number of blocks from 0 to 64", |plan, value| {
        put(&mut plan.ahead, if value == "all" { Some(None) } else { number(value, 0, MOST_BLOCKS_AHEAD).map(Some) })
    }),
    ("attention", "fused, or a number of queries from 16 on", |plan, value| {
        let pieces = || number(value, LEAST_QUERIES, u32::MAX).map(|queries| Attention::Pieces { queries });
        put(&mut plan.attention, if value == "fused" { Some(Attention::Fused) } else { pieces() })
    }),
    ("guidance", "together or in-turn", |plan, value| put(&mut plan.guidance, GuidanceOrder::of_name(value))),
    ("samples", "all, or a number from 1 on", |plan, value| {
        put(&mut plan.samples, if value == "all" { Some(None) } else { number(value, 1, u32::MAX).map(Some) })
    }),
    ("feed-forward", "a number of parts from 1 to 64", |plan, value| {
        put(&mut plan.feed_forward, number(value, 1, MOST_PARTS))
    }),
    ("reuse", "off, or output or first-block where the sample allows reuse", |plan, value| {
        let threshold = plan.reuse.threshold();
        let kinds = [StepReuse::Off, StepReuse::Output { threshold }, StepReuse::FirstBlock { threshold }];
        let is_allowed = |reuse: &StepReuse| threshold > 0.0 || matches!(reuse, StepReuse::Off);
        put(&mut plan.reuse, kinds.into_iter().find(|reuse| reuse.name() == value).filter(is_allowed))
    }),
    ("release", "keep, at-end or each-step", |plan, value| put(&mut plan.release, Release::of_name(value))),
];

/// The most blocks that are read ahead.
pub const MOST_BLOCKS_AHEAD: u32 = 64;

/// The fewest queries of a piece of attention, and the most parts of a feed-forward layer: with
/// less at once, a product is all overhead.
pub const LEAST_QUERIES: u32 = 16;
/// See [`LEAST_QUERIES`].
pub const MOST_PARTS: u32 = 64;

fn put<T>(place: &mut T, value: Option<T>) -> Option<()> {
    *place = value?;
    Some(())
}

fn number(value: &str, least: u32, most: u32) -> Option<u32> {
    value.parse().ok().filter(|number| (least..=most).contains(number))
}

impl DenoisePlan {
    /// The plan that changes least: f32, and everything kept as it is and at once, but for the two
    /// passes of guidance.
    pub fn plain() -> Self {
        Self {
            precision: Precision::Uniform(Dtype::F32),
            products: Products::Precision,
            weights: WeightForm::Packed,
            ahead: None,
            attention: Attention::Fused,
            guidance: GuidanceOrder::InTurn,
            samples: None,
            feed_forward: 1,
            reuse: StepReuse::Off,
            release: Release::Keep,
            options: Options::none(),
            reason: String::new(),
        }
    }

    /// Changes a setting of the plan.
    ///
    /// # Errors
    /// One line: the setting or its value is unknown.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let Some((_, expected, set)) = SETTINGS.iter().find(|(known, ..)| *known == name) else {
            let names = SETTINGS.map(|(known, ..)| known);
            let meant = did_you_mean(name, names);
            return Err(format!("unknown setting '{name}'{meant}: denoise plans have {}", names.join(", ")));
        };
        set(self, value).ok_or_else(|| format!("{name}={value}: {expected} was expected"))
    }
}

impl fmt::Display for DenoisePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weights = match self.weights {
            WeightForm::Packed => "weights as stored",
            WeightForm::Expanded => "weights expanded",
        };
        let products = match self.products {
            Products::Precision => "",
            Products::Fp8 => ", products in FP8",
            Products::Int8 => ", products in INT8",
        };
        write!(f, "{}{products}, {weights}", self.precision)?;
        match self.ahead {
            None => Ok(()),
            Some(0) => f.write_str(", read block by block"),
            Some(1) => f.write_str(", read a block ahead"),
            Some(blocks) => write!(f, ", read {blocks} blocks ahead"),
        }?;
        if let Attention::Pieces { queries } = self.attention {
            write!(f, ", attention of {queries} queries at once")?;
        }
        if self.guidance == GuidanceOrder::Together {
            f.write_str(", passes together")?;
        }
        if let Some(samples) = self.samples {
            write!(f, ", {} at once", with_noun(samples, "sample"))?;
        }
        if self.feed_forward > 1 {
            write!(f, ", feed-forward in {} parts", self.feed_forward)?;
        }
        match self.reuse {
            StepReuse::Off => Ok(()),
            StepReuse::Output { threshold } => write!(f, ", outputs reused up to {threshold}"),
            StepReuse::FirstBlock { threshold } => write!(f, ", blocks after the first reused up to {threshold}"),
        }?;
        self.options.fmt(f)
    }
}

/// The expected cost of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DenoiseCost {
    /// The highest memory use beside the weights, in bytes.
    pub peak_bytes: u64,
    /// Bytes of weights that are held at once.
    pub weights_bytes: u64,
    /// Bytes of weights that come to the device again in each step.
    #[serde(default)]
    pub moved_bytes: u64,
    /// Time of a step.
    #[serde(rename = "step_ms", with = "milliseconds")]
    #[schemars(with = "f64")]
    pub step: Duration,
}

impl DenoiseCost {
    /// Bytes held at once, weights included: what a memory limit is compared with.
    pub const fn held_bytes(&self) -> u64 {
        self.peak_bytes.saturating_add(self.weights_bytes)
    }
}

/// The measurements of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DenoiseOutcome {
    /// Time of all steps, without loading.
    #[serde(rename = "elapsed_ms", with = "milliseconds")]
    #[schemars(with = "f64")]
    pub elapsed: Duration,
    /// Time spent reading and converting the weights before the first step.
    #[serde(rename = "load_ms", with = "milliseconds")]
    #[schemars(with = "f64")]
    pub load: Duration,
    /// Mean time of a step.
    #[serde(rename = "step_ms", with = "milliseconds")]
    #[schemars(with = "f64")]
    pub step: Duration,
    /// The highest memory use beside weights that are kept as stored, in bytes.
    pub peak_bytes: u64,
    /// Bytes of weights that were held at once.
    pub weights_bytes: u64,
    /// Bytes of weights that were read again, in all steps.
    pub moved_bytes: u64,
    /// Attempts, the one that succeeded included.
    #[serde(default = "one")]
    pub attempts: u32,
    /// Calls of the network that the last output served, or runs of it that the last blocks did.
    #[serde(default)]
    pub reused: u32,
    /// The largest change that was passed over so, over the size of what changed.
    #[serde(default)]
    pub reuse_deviation: f64,
    /// The memory pool's work.
    pub pool: PoolStatistics,
}

impl DenoiseOutcome {
    /// Bytes that were held at once, weights included.
    pub const fn held_bytes(&self) -> u64 {
        self.peak_bytes.saturating_add(self.weights_bytes)
    }
}

/// A sample's decision and outcome.
pub type DenoiseRecord = Record<Denoise>;

impl fmt::Display for DenoiseRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.batch > 1 {
            write!(f, "{} × ", self.batch)?;
        }
        write!(f, "{}×{}", self.width, self.height)?;
        if self.frames > 1 {
            write!(f, "×{}", self.frames)?;
        }
        write!(f, " latent, {} steps, limit {}", self.steps, bytes::display(self.memory_limit))
    }
}

/// A [`DenoiseCost`], exact to the nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExactDenoiseCost {
    /// The highest memory use beside the weights, in bytes.
    pub peak_bytes: u64,
    /// Bytes of weights that are held at once.
    pub weights_bytes: u64,
    /// Bytes of weights that come to the device again in each step.
    pub moved_bytes: u64,
    /// Time of a step, in nanoseconds.
    pub step_ns: u64,
}

/// The part of a [`DenoiseOutcome`] that policies get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DenoiseMeasured {
    /// Time of all steps without loading, in nanoseconds.
    pub elapsed_ns: u64,
    /// Time of loading, in nanoseconds.
    #[serde(default)]
    pub load_ns: u64,
    /// Mean time of a step, in nanoseconds.
    pub step_ns: u64,
    /// The highest memory use beside the weights, in bytes.
    pub peak_bytes: u64,
    /// Bytes of weights that were held at once.
    pub weights_bytes: u64,
    /// Bytes of weights that came to the device again, in all steps.
    pub moved_bytes: u64,
    /// Attempts, the one that succeeded included.
    pub attempts: u32,
}

mirrored!(
    ExactDenoiseCost from DenoiseCost, DenoiseCost from &ExactDenoiseCost:
    peak_bytes, weights_bytes, moved_bytes; step_ns = step
);
mirrored!(
    DenoiseMeasured from &DenoiseOutcome, DenoiseOutcome from DenoiseMeasured:
    peak_bytes, weights_bytes, moved_bytes, attempts;
    elapsed_ns = elapsed, load_ns = load, step_ns = step; Self::default()
);
impl Work for Denoise {
    const STAGES: &'static [Stage] = &[Stage::Denoise];

    const RECORD_TITLE: &'static str = "Tilewright denoise record";

    type Request = DenoiseRequest;
    type Capabilities = DenoiseCapabilities;
    type Plan = DenoisePlan;
    type Cost = DenoiseCost;
    type Outcome = DenoiseOutcome;
    type ExactCost = ExactDenoiseCost;
    type Measured = DenoiseMeasured;

    named_alike!(step);

    fn is_continued(_: &DenoiseRequest) -> bool {
        true
    }

    fn family(request: &DenoiseRequest) -> &str {
        &request.model.family
    }

    fn extents(request: &DenoiseRequest) -> [u32; 4] {
        [request.batch, request.frames, request.height, request.width]
    }

    fn held_bytes(cost: &DenoiseCost) -> u64 {
        cost.held_bytes()
    }

    fn measured_bytes(outcome: &DenoiseOutcome) -> u64 {
        outcome.held_bytes()
    }

    fn fault_of_request(request: &DenoiseRequest) -> Option<String> {
        let extents = [
            ("samples", request.batch),
            ("frames", request.frames),
            ("rows of a latent", request.height),
            ("columns of a latent", request.width),
            ("passes", request.passes),
            ("blocks", request.model.blocks),
        ];
        let odd = extents.into_iter().find(|(_, extent)| !(1..=MOST_EXTENT).contains(extent));
        let lists = [("sigmas", request.sigmas.len()), ("types of weights", request.model.stored_types.len())];
        let long = lists.into_iter().find(|(_, length)| *length > MOST_EXTENT as usize);
        let long = long.map(|(what, length)| format!("{length} {what}"));
        odd.map(|(what, extent)| format!("{extent} {what}")).or(long)
    }

    fn fault_of_capabilities(capabilities: &DenoiseCapabilities) -> Option<String> {
        let types = capabilities.dtypes.len();
        (types > MOST_HINTS).then(|| format!("{types} types"))
    }
}

impl<'a> Question<'a, Denoise> {
    /// A first question about a sample.
    pub const fn denoise(
        request: &'a DenoiseRequest,
        device: &'a Device,
        capabilities: &'a DenoiseCapabilities,
    ) -> Self {
        Self::first(Stage::Denoise, request, device, capabilities)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_set_by_name() {
        let mut plan = DenoisePlan::plain();
        for (name, value) in [
            ("precision", "mixed-bf16"),
            ("weights", "expanded"),
            ("ahead", "2"),
            ("guidance", "together"),
            ("samples", "1"),
        ] {
            plan.set(name, value).unwrap();
        }
        assert_eq!(plan.precision, Precision::Mixed(Dtype::Bf16));
        assert_eq!((plan.weights, plan.ahead, plan.guidance), (WeightForm::Expanded, Some(2), GuidanceOrder::Together));
        assert_eq!(
            plan.to_string(),
            "mixed bf16, weights expanded, read 2 blocks ahead, passes together, 1 sample at once"
        );
        plan.set("ahead", "all").unwrap();
        assert_eq!(plan.ahead, None);
        for (name, value, words) in [
            ("precison", "f32", "unknown setting 'precison' (did you mean precision?)"),
            ("precision", "i4", "precision=i4: f32, bf16"),
            ("ahead", "65", "ahead=65: all, or a number"),
            ("attention", "8", "attention=8: fused, or a number"),
            ("reuse", "on", "reuse=on: off, or output or first-block"),
            ("weights", "", "weights=: packed or expanded"),
        ] {
            let found = plan.set(name, value).unwrap_err();
            assert!(found.starts_with(words), "{found}");
        }
    }
}
