//! Samples of the golden set: denoisers, sizes and room, and prices by formula.
//!
//! **Weights** that are held: all of them as stored, or expanded to the plan's type; of streamed
//! ones, the blocks that are read ahead and two more.
//!
//! **Memory** beside them: 24 values of the network's width per token (queries, keys, values, the
//! feed-forward layer's fourfold width in its parts, and copies), for the samples and passes that
//! run together; scores of attention, if it is not fused.
//!
//! **Time** of a step: two operations per weight and token and four per pair of tokens, width and
//! block, over the device's speed in the type; expansion of quantized weights takes a tenth more.
//! Streamed blocks come at 20 GB/s beside the work, or after it.

use std::{sync::Arc, time::Duration};

use tilewright_plan::{
    Attention, Backend, CostModel, Denoise, DenoiseCapabilities, DenoiseCost, DenoiseOutcome, DenoisePlan,
    DenoiseRequest, DenoiserModel, Device, Dtype, GuidanceOrder, LEAST_QUERIES, MOST_BLOCKS_AHEAD, MOST_PARTS,
    Objective, Precision, Products, Release, Stage, StepReuse, StoredType, UnderWay, WeightForm,
};

use super::{Judged, NetworkPrices, SLOWER, more};
use crate::{
    golden::{Events, FailureKind, GoldenRequest, MemoryLimit, Network, Numbers, drawn, networks, room_and_events},
    machines::{
        ARM, GFX942, GFX1030, GFX1100, GFX1151, GFX1201, MACHINES, Machine, SM_75, SM_89, SM_90, X86_AMX, X86_V3,
        X86_V4,
    },
};

// Label, family, stored as; bits; weights; blocks and their width; experts.
networks! {
    NETWORKS:
    FLUX_BF16:  "flux-bf16"     "flux"    "bf16"    16 bits, 11900 M, 57 x 3072, 1;
    FLUX_F8:    "flux-f8"       "flux"    "f8_e4m3"  8 bits, 11900 M, 57 x 3072, 1;
    FLUX_Q4:    "flux-q4_k"     "flux"    "q4_k"     5 bits, 11900 M, 57 x 3072, 1;
    WAN_1B:     "wan-1.3b-bf16" "wan-2.1" "bf16"    16 bits,  1420 M, 30 x 1536, 1;
    WAN_14B:    "wan-14b-f16"   "wan-2.1" "f16"     16 bits, 14300 M, 40 x 5120, 1;
    WAN_A14B:   "wan-a14b-q8_0" "wan-2.1" "q8_0"     9 bits, 14300 M, 40 x 5120, 2;
    WAN_5B:     "wan-5b-f32"    "wan-2.2" "f32"     32 bits,  5000 M, 30 x 3072, 1;
}

/// One request: a row of the table.
#[derive(Clone, Copy, Debug)]
struct Row {
    machine: &'static Machine,
    network: &'static Network,
    /// Latent pixels.
    side: u32,
    frames: u32,
    batch: u32,
    passes: u32,
    room: MemoryLimit,
    objective: Objective,
    /// The reuse that the user allows.
    reuse: f64,
    /// The plan that is under way, if any, has finished steps.
    then: Events,
}

const fn ask(
    machine: &'static Machine,
    network: &'static Network,
    side: u32,
    room: MemoryLimit,
    objective: Objective,
) -> Row {
    let then = Events::Nothing;
    Row { machine, network, side, frames: 1, batch: 1, passes: 1, room, objective, reuse: 0.0, then }
}

impl Row {
    const fn frames(self, frames: u32) -> Self {
        Self { frames, ..self }
    }

    const fn guided(self, batch: u32) -> Self {
        Self { batch, passes: 2, ..self }
    }

    const fn reusing(self, reuse: f64) -> Self {
        Self { reuse, ..self }
    }

    const fn then(self, then: Events) -> Self {
        Self { then, ..self }
    }

    fn name(&self) -> String {
        let Row { machine, network, side, frames, batch, passes, .. } = self;
        let mut name = format!("{} {} {side}×{side} latent", machine.label.to_lowercase(), network.label);
        if *frames > 1 {
            name += &format!(" {frames}f");
        }
        if *batch > 1 {
            name += &format!(" ×{batch}");
        }
        if *passes > 1 {
            name += " guided";
        }
        name += &self.room.words(self.objective);
        if self.reuse > 0.0 {
            name += ", reuses";
        }
        name + &self.then.words("")
    }
}

use self::{
    Events::{Fail, Learn, UnderWay as Begun},
    FailureKind::{NonFinite, OutOfMemory, OverLimit},
    MemoryLimit::{Hopeless, Percent, Plenty},
    Objective::{Balanced, Fastest, Leanest},
};

#[rustfmt::skip]
static ROWS: &[Row] = &[
    // Flux on consumer cards: whole where it fits, streamed where it does not.
    ask(&SM_89,   &FLUX_BF16, 128, Plenty,      Balanced),
    ask(&SM_90,   &FLUX_BF16, 128, Plenty,      Fastest).guided(4),
    ask(&GFX1100, &FLUX_F8,   128, Plenty,      Balanced),
    ask(&GFX1151, &FLUX_BF16, 128, Plenty,      Balanced),
    ask(&GFX1151, &FLUX_Q4,   128, Plenty,      Fastest),
    ask(&GFX1201, &FLUX_BF16, 192, Percent(40), Balanced),
    ask(&GFX1030, &FLUX_Q4,   128, Plenty,      Leanest),
    ask(&SM_75,   &FLUX_F8,   128, Percent(30), Balanced).then(Fail(&[OutOfMemory])),
    ask(&SM_89,   &FLUX_BF16, 256, Percent(20), Fastest).then(Fail(&[OverLimit, OutOfMemory])),
    ask(&GFX942,  &FLUX_BF16, 256, Plenty,      Leanest).guided(2),
    // WAN: long clips, two experts.
    ask(&GFX1151, &WAN_14B,    60, Plenty,      Balanced).frames(21).guided(1),
    ask(&SM_89,   &WAN_A14B,   90, Percent(50), Balanced).frames(21).guided(1),
    ask(&SM_90,   &WAN_14B,    90, Plenty,      Fastest).frames(21).guided(1).then(Fail(&[NonFinite])),
    ask(&GFX1100, &WAN_1B,     60, Plenty,      Balanced).frames(21).guided(1).then(Learn),
    ask(&SM_89,   &WAN_5B,     44, Plenty,      Balanced).frames(31).guided(1),
    // Processors.
    ask(&X86_V3,  &FLUX_Q4,    64, Plenty,      Balanced),
    ask(&X86_V4,  &FLUX_BF16,  64, Plenty,      Balanced).then(Fail(&[OutOfMemory])),
    ask(&X86_AMX, &FLUX_BF16, 128, Plenty,      Fastest),
    ask(&X86_V3,  &WAN_1B,     60, Plenty,      Balanced).frames(5).guided(1).then(Learn),
    ask(&ARM,     &FLUX_Q4,    64, Percent(60), Leanest),
    // The ends: nothing fits, values overflow again and again, a sample under way.
    ask(&SM_89,   &FLUX_BF16, 128, Hopeless,    Balanced),
    ask(&GFX1151, &FLUX_BF16, 128, Plenty,      Balanced).then(Fail(&[NonFinite, NonFinite])),
    ask(&GFX1151, &WAN_14B,    60, Plenty,      Balanced).frames(21).guided(1).then(Begun(&[OutOfMemory])),
    ask(&SM_90,   &FLUX_F8,   128, Plenty,      Balanced).reusing(0.2),
    ask(&SM_89,   &FLUX_F8,   128, Percent(35), Balanced).reusing(0.1).guided(3),
];

/// The number of drawn samples.
const DRAWN: u32 = 15;

fn row(numbers: &mut Numbers) -> Row {
    let network = *numbers.of(NETWORKS);
    let side = 16 + 2 * numbers.below(120) as u32;
    let frames = if network.family.starts_with("wan") { 1 + numbers.below(24) as u32 } else { 1 };
    let (room, then) = room_and_events(numbers);
    let batch = if numbers.below(3) == 0 { 2 + numbers.below(3) as u32 } else { 1 };
    let passes = 1 + numbers.below(2) as u32;
    let reuse = if numbers.below(5) == 0 { 0.15 } else { 0.0 };
    let objective = *numbers.of(&[Fastest, Balanced, Leanest]);
    let machine: &'static Machine = numbers.of::<&Machine>(MACHINES);
    Row { machine, network, side, frames, batch, passes, room, objective, reuse, then }
}

impl GoldenRequest<Denoise> {
    fn sample(row: &Row) -> Self {
        let Row { machine, network, side, frames, batch, passes, .. } = *row;
        let stored_bytes = network.bytes();
        let is_gpu = machine.backend != Backend::Cpu;
        let request = DenoiseRequest {
            model: DenoiserModel {
                family: network.family.into(),
                parameters: network.parameters * 1_000_000,
                stored_bytes,
                stored: network.stored.into(),
                blocks: network.blocks,
                largest_block_bytes: stored_bytes / u64::from(network.blocks) * 5 / 4,
                experts: network.experts,
                stored_types: vec![StoredType { name: network.stored.into(), bytes: stored_bytes }],
            },
            batch,
            frames,
            height: side,
            width: side,
            text_tokens: 512,
            image_tokens: (side / 2) * (side / 2) * frames,
            steps: 20,
            passes,
            sampler: "euler".into(),
            sigmas: (0..=20).map(|step| 1.0 - f64::from(step) / 20.0).collect(),
            reuse: Some(row.reuse).filter(|reuse| *reuse > 0.0),
            memory_limit: machine.device().free_bytes / 10 * 8,
            objective: row.objective,
            host: machine.host(TRANSFER),
        };
        let capabilities = DenoiseCapabilities {
            dtypes: machine.product_dtypes(),
            fp8_products: machine.arch == "sm_90" && network.stored.starts_with("f8"),
            int8_products: !is_gpu && network.stored.starts_with('q'),
            fused_attention: machine.arch != "gfx1030",
            queries_least: LEAST_QUERIES,
            ahead_most: MOST_BLOCKS_AHEAD,
            parts_most: MOST_PARTS,
            reuse_most: row.reuse,
            options: Vec::new(),
        };
        let prices = NetworkPrices { request, network, machine, capabilities };
        let plain = DenoisePlan::plain();
        let golden = prices.golden(row.name(), row.room, &plain, row.then);
        let under_way = matches!(row.then, Begun(_)).then_some(UnderWay { done: 7, plan: plain });
        Self { under_way, ..golden }
    }
}

impl Judged for Denoise {
    fn golden() -> Vec<GoldenRequest<Self>> {
        ROWS.iter().map(GoldenRequest::sample).collect()
    }

    fn draw(seed: u32) -> Vec<GoldenRequest<Self>> {
        let seed = u64::from(seed) ^ 0x5a5a_5a5a_5a5a;
        drawn(seed, DRAWN, "sample ", |numbers| GoldenRequest::sample(&row(numbers)))
    }

    fn formula(
        _: Stage,
        request: &DenoiseRequest,
        device: &Device,
        capabilities: &DenoiseCapabilities,
    ) -> Arc<dyn CostModel<Self>> {
        let size = |network: &Network| network.parameters * 1_000_000;
        let network = Network::nearest(NETWORKS, size, request.model.parameters);
        NetworkPrices::near(network, request, device, capabilities)
    }

    fn in_type(plan: DenoisePlan, dtype: Dtype) -> DenoisePlan {
        DenoisePlan { precision: Precision::Uniform(dtype), products: Products::Precision, ..plan }
    }

    fn odd(_golden: &GoldenRequest<Self>) -> DenoisePlan {
        DenoisePlan { feed_forward: 3, guidance: GuidanceOrder::InTurn, ..DenoisePlan::plain() }
    }

    fn leanest(golden: &GoldenRequest<Self>) -> Vec<DenoisePlan> {
        let plan = |dtype: &Dtype| DenoisePlan {
            precision: Precision::Uniform(*dtype),
            weights: WeightForm::Packed,
            ahead: Some(0),
            samples: Some(1),
            feed_forward: 8,
            release: Release::EachStep,
            ..DenoisePlan::plain()
        };
        golden.capabilities.dtypes.iter().map(plan).collect()
    }

    fn outcome(cost: Option<DenoiseCost>) -> DenoiseOutcome {
        let step = cost.map(|cost| cost.step.mul_f64(SLOWER)).unwrap_or_default();
        DenoiseOutcome {
            elapsed: step * 20,
            step,
            peak_bytes: cost.map_or(1 << 30, |cost| more(cost.peak_bytes)),
            weights_bytes: cost.map_or(1 << 30, |cost| cost.weights_bytes),
            moved_bytes: cost.map_or(0, |cost| 20 * cost.moved_bytes),
            attempts: 1,
            ..DenoiseOutcome::default()
        }
    }
}

/// Values of the network's width that a token takes: the feed-forward layer's, and the others.
const FEED_FORWARD: f64 = 8.0;
const OTHERS: f64 = 16.0;

/// Bytes a second from host memory to a GPU.
const TRANSFER: f64 = 20e9;

/// The share of time that expansion takes.
const EXPANSION: f64 = 0.1;

impl CostModel<Denoise> for NetworkPrices<Denoise> {
    fn estimate_one(&self, plan: &DenoisePlan) -> Result<DenoiseCost, String> {
        let dtype = plan.precision.dtype();
        if dtype != Dtype::F32 && !self.capabilities.dtypes.contains(&dtype) {
            return Err(format!("{} can't be run on this device", plan.precision));
        }
        let Network { width, blocks, .. } = *self.network;
        let model = &self.request.model;
        let bytes = f64::from(dtype.bits()) / 8.0;
        let tokens = f64::from(self.request.text_tokens + self.request.image_tokens);
        let samples = f64::from(plan.samples.unwrap_or(self.request.batch).min(self.request.batch));
        let passes = f64::from(self.request.passes);
        let together = if plan.guidance == GuidanceOrder::Together { passes } else { 1.0 };
        let at_once = samples * together;
        let values = FEED_FORWARD / f64::from(plan.feed_forward.max(1)) + OTHERS;
        let queries = match plan.attention {
            Attention::Fused if self.capabilities.fused_attention => 0.0,
            Attention::Fused => tokens,
            Attention::Pieces { queries } => f64::from(queries).min(tokens),
        };
        let scores = queries * tokens * f64::from(width / 128) * bytes;
        let peak = at_once * (tokens * f64::from(width) * values * bytes + scores);

        let expanded = model.parameters as f64 * bytes;
        let is_gpu = self.machine.backend != Backend::Cpu;
        let (weights, moved) = match (plan.weights, plan.ahead) {
            (WeightForm::Expanded, _) => (expanded, 0.0),
            (WeightForm::Packed, None) => (model.stored_bytes as f64, 0.0),
            (WeightForm::Packed, Some(ahead)) => {
                let blocks = f64::from(ahead + 2) * model.largest_block_bytes as f64;
                let runs = passes / together * (f64::from(self.request.batch) / samples).ceil();
                (blocks.min(model.stored_bytes as f64), model.stored_bytes as f64 * runs)
            }
        };
        let pairs = 4.0 * tokens * tokens * f64::from(width) * f64::from(blocks);
        let work = (2.0 * model.parameters as f64 * tokens + pairs) * f64::from(self.request.batch) * passes;
        let is_expanded = plan.weights == WeightForm::Packed && self.network.stored != plan.precision.to_string();
        // A batch fills a device better, and a divided layer less.
        let filling = 1.0 + 0.05 / at_once + 0.01 * f64::from(plan.feed_forward);
        let seconds =
            work / self.machine.speed(plan.precision) * filling * if is_expanded { 1.0 + EXPANSION } else { 1.0 };
        let copying = if is_gpu { moved / TRANSFER } else { moved / 100e9 };
        let seconds = if plan.ahead == Some(0) { seconds + copying } else { seconds.max(copying) };
        let seconds = if plan.reuse == StepReuse::Off { seconds } else { seconds * 0.7 };
        let [peak_bytes, weights_bytes, moved_bytes] = [peak, weights, moved].map(|bytes| bytes as u64);
        Ok(DenoiseCost { peak_bytes, weights_bytes, moved_bytes, step: Duration::from_secs_f64(seconds) })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn samples_have_names_of_their_own_and_prices() {
        let all = [Denoise::golden(), Denoise::draw(7), Denoise::draw(8)].concat();
        let names: BTreeSet<&str> = all.iter().map(|golden| golden.name.as_str()).collect();
        assert!(names.len() >= all.len() - 1 && all.len() >= 50, "{}", all.len());
        for golden in &all {
            assert!(golden.costs().estimate_one(&DenoisePlan::plain()).is_ok(), "{}", golden.name);
        }
        assert!(all.iter().any(|golden| golden.under_way.is_some()));
        assert!(all.iter().any(|golden| golden.capabilities.reuse_most > 0.0));
    }
}
