//! Text encoders of the golden set: encoders, tokens and room, and prices by formula.
//!
//! **Weights** that are held: as stored, or expanded to the plan's type. **Memory** beside them: 16
//! values of the network's width per token in f32, and 8 in the plan's type.
//!
//! **Time**: two operations per weight and token over the speed in the type, which beside a GPU is
//! that of a processor; weights come at 2 GB/s from a disk and at 20 GB/s to a GPU, and expanded
//! ones take a quarter more.

use std::{sync::Arc, time::Duration};

use tilewright_plan::{
    Backend, CostModel, Device, Dtype, EncoderModel, Objective, Place, Precision, Stage, StoredType, Text,
    TextCapabilities, TextCost, TextOutcome, TextPlan, TextRequest, WeightForm,
};

use super::{Judged, NetworkPrices, SLOWER, more};
use crate::{
    golden::{Events, FailureKind, GoldenRequest, MemoryLimit, Network, Numbers, drawn, networks, room_and_events},
    machines::{
        ARM, GFX942, GFX1030, GFX1100, GFX1151, GFX1201, MACHINES, Machine, SM_75, SM_89, SM_90, X86_AMX, X86_V3,
        X86_V4,
    },
};

// Label, kind, stored as; bits; weights; blocks and their width; one expert.
networks! {
    ENCODERS:
    CLIP_L:    "clip-l-f16"     "clip-l"        "f16"     16 bits,   85 M, 12 x 768, 1;
    CLIP_G:    "clip-bigg-f16"  "openclip-bigg" "f16"     16 bits,  633 M, 32 x 1280, 1;
    T5_F16:    "t5-xxl-f16"     "t5-xxl"        "f16"     16 bits, 4630 M, 24 x 4096, 1;
    T5_F8:     "t5-xxl-f8"      "t5-xxl"        "f8_e4m3"  8 bits, 4630 M, 24 x 4096, 1;
    T5_Q5:     "t5-xxl-q5_k"    "t5-xxl"        "q5_k"     6 bits, 4630 M, 24 x 4096, 1;
    UMT5_BF16: "umt5-xxl-bf16"  "umt5-xxl"      "bf16"    16 bits, 4630 M, 24 x 4096, 1;
    UMT5_F8:   "umt5-xxl-f8"    "umt5-xxl"      "f8_e4m3"  8 bits, 4630 M, 24 x 4096, 1;
}

/// One request: a row of the table.
#[derive(Clone, Copy, Debug)]
struct Row {
    machine: &'static Machine,
    encoder: &'static Network,
    /// The tokens of each text.
    tokens: u32,
    texts: u32,
    room: MemoryLimit,
    objective: Objective,
    /// The encoder can stay loaded.
    kept: bool,
    then: Events,
}

const fn ask(
    machine: &'static Machine,
    encoder: &'static Network,
    tokens: u32,
    room: MemoryLimit,
    objective: Objective,
) -> Row {
    Row { machine, encoder, tokens, texts: 1, room, objective, kept: false, then: Events::Nothing }
}

impl Row {
    const fn texts(self, texts: u32) -> Self {
        Self { texts, ..self }
    }

    const fn keeping(self) -> Self {
        Self { kept: true, ..self }
    }

    const fn then(self, then: Events) -> Self {
        Self { then, ..self }
    }

    fn name(&self) -> String {
        let Row { machine, encoder, tokens, texts, .. } = self;
        let mut name = format!("{} {} {texts}×{tokens} tokens", machine.label.to_lowercase(), encoder.label);
        name += &self.room.words(self.objective);
        if self.kept {
            name += ", may stay";
        }
        name + &self.then.words("")
    }
}

use self::{
    Events::{Fail, Learn},
    FailureKind::{NonFinite, OutOfMemory, OverLimit},
    MemoryLimit::{Hopeless, Percent, Plenty},
    Objective::{Balanced, Fastest, Leanest},
};

#[rustfmt::skip]
static ROWS: &[Row] = &[
    // Consumer cards: on the device where there is room, else in a narrow type or on the host.
    ask(&SM_89,   &CLIP_L,     77, Plenty,      Balanced),
    ask(&SM_89,   &T5_F16,    256, Plenty,      Balanced).texts(2),
    ask(&SM_75,   &T5_F8,     512, Percent(60), Fastest),
    ask(&GFX1100, &T5_Q5,     256, Plenty,      Fastest).then(Learn),
    ask(&GFX1151, &UMT5_BF16, 512, Plenty,      Balanced).texts(2),
    ask(&GFX1201, &UMT5_F8,    60, Percent(97), Leanest),
    ask(&GFX1030, &T5_F16,    256, Percent(40), Balanced),
    ask(&GFX1151, &T5_F8,     256, Plenty,      Fastest).keeping(),
    ask(&SM_90,   &CLIP_G,     77, Plenty,      Leanest).texts(3),
    ask(&GFX942,  &T5_F16,    512, Plenty,      Balanced).keeping().then(Learn),
    ask(&SM_89,   &UMT5_BF16, 512, Plenty,      Balanced).then(Fail(&[OutOfMemory])),
    ask(&GFX1100, &T5_F16,    256, Plenty,      Balanced).then(Fail(&[OverLimit, OutOfMemory])),
    ask(&SM_90,   &T5_F16,    256, Plenty,      Fastest).then(Fail(&[NonFinite])),
    // Processors.
    ask(&X86_V3,  &CLIP_L,     77, Plenty,      Balanced),
    ask(&X86_V3,  &T5_F16,    256, Percent(98), Balanced),
    ask(&X86_V4,  &UMT5_BF16, 512, Plenty,      Fastest).then(Fail(&[OutOfMemory])),
    ask(&X86_AMX, &T5_F8,     256, Plenty,      Leanest).keeping(),
    ask(&ARM,     &T5_Q5,     256, Plenty,      Balanced).then(Learn),
    // The ends: nothing fits, values overflow again and again.
    ask(&X86_V3,  &T5_F16,    256, Hopeless,    Balanced),
    ask(&GFX1151, &UMT5_F8,   512, Plenty,      Balanced).then(Fail(&[NonFinite, NonFinite])),
];

/// The number of drawn text encoders.
const DRAWN: u32 = 10;

fn row(numbers: &mut Numbers) -> Row {
    let encoder = *numbers.of(ENCODERS);
    let (room, then) = room_and_events(numbers);
    let tokens = 8 + numbers.below(505) as u32;
    let texts = 1 + numbers.below(4) as u32;
    let kept = numbers.below(3) == 0;
    let objective = *numbers.of(&[Fastest, Balanced, Leanest]);
    let machine: &'static Machine = numbers.of::<&Machine>(MACHINES);
    Row { machine, encoder, tokens, texts, room, objective, kept, then }
}

impl GoldenRequest<Text> {
    fn text(row: &Row) -> Self {
        let Row { machine, encoder, tokens, texts, .. } = *row;
        let parameter_bytes = encoder.bytes();
        let is_gpu = machine.backend != Backend::Cpu;
        let request = TextRequest {
            model: EncoderModel {
                kind: encoder.family.into(),
                stored_types: vec![StoredType { name: encoder.stored.into(), bytes: parameter_bytes }],
                parameter_bytes,
                blocks: encoder.blocks,
                width: encoder.width,
                head_width: 64,
            },
            tokens: vec![tokens; texts as usize],
            memory_limit: machine.device().free_bytes / 10 * 8,
            objective: row.objective,
            host: machine.host(TRANSFER),
        };
        let capabilities = TextCapabilities {
            dtypes: machine.product_dtypes(),
            places: if is_gpu { vec![Place::Device, Place::Host] } else { vec![Place::Host] },
            weights: vec![WeightForm::Packed, WeightForm::Expanded],
            kept: row.kept,
            options: Vec::new(),
        };
        let plain = TextPlan::plain(capabilities.usual_place());
        let prices = NetworkPrices { request, network: encoder, machine, capabilities };
        prices.golden(row.name(), row.room, &plain, row.then)
    }
}

impl Judged for Text {
    fn golden() -> Vec<GoldenRequest<Self>> {
        ROWS.iter().map(GoldenRequest::text).collect()
    }

    fn draw(seed: u32) -> Vec<GoldenRequest<Self>> {
        let seed = u64::from(seed) ^ 0x7e57_7e57_7e57;
        drawn(seed, DRAWN, "text ", |numbers| GoldenRequest::text(&row(numbers)))
    }

    fn formula(
        _: Stage,
        request: &TextRequest,
        device: &Device,
        capabilities: &TextCapabilities,
    ) -> Arc<dyn CostModel<Self>> {
        let encoder = Network::nearest(ENCODERS, Network::bytes, request.model.parameter_bytes);
        NetworkPrices::near(encoder, request, device, capabilities)
    }

    fn in_type(plan: TextPlan, dtype: Dtype) -> TextPlan {
        TextPlan { precision: Precision::Uniform(dtype), ..plan }
    }

    fn odd(_golden: &GoldenRequest<Self>) -> TextPlan {
        TextPlan { weights: WeightForm::Expanded, ..TextPlan::plain(Place::Host) }
    }

    fn leanest(golden: &GoldenRequest<Self>) -> Vec<TextPlan> {
        let capabilities = &golden.capabilities;
        let plan = |dtype: &Dtype| {
            let precision = Precision::Uniform(*dtype);
            let weights = capabilities.weights.iter();
            let plans = weights.flat_map(move |weights| {
                capabilities.places.iter().map(move |place| TextPlan {
                    precision,
                    weights: *weights,
                    ..TextPlan::plain(*place)
                })
            });
            plans.collect::<Vec<_>>()
        };
        capabilities.dtypes.iter().flat_map(plan).collect()
    }

    fn outcome(cost: Option<TextCost>) -> TextOutcome {
        let slower = |time: Duration| time.mul_f64(SLOWER);
        TextOutcome {
            elapsed: cost.map(|cost| slower(cost.elapsed)).unwrap_or_default(),
            load: cost.map(|cost| slower(cost.load)).unwrap_or_default(),
            peak_bytes: cost.map_or(1 << 30, |cost| more(cost.peak_bytes)),
            weights_bytes: cost.map_or(1 << 30, |cost| cost.weights_bytes),
            host_bytes: cost.map_or(0, |cost| cost.host_bytes),
            attempts: 1,
            ..TextOutcome::default()
        }
    }
}

/// Bytes a second from a disk, and from host memory to a GPU.
const DISK: f64 = 2e9;
const TRANSFER: f64 = 20e9;

/// The share of time that expansion takes.
const EXPANSION: f64 = 0.25;

/// Values of the network's width that a token takes in f32, and in the plan's type.
const IN_F32: f64 = 16.0;
const IN_TYPE: f64 = 8.0;

impl CostModel<Text> for NetworkPrices<Text> {
    fn estimate_one(&self, plan: &TextPlan) -> Result<TextCost, String> {
        let dtype = plan.precision.dtype();
        if dtype != Dtype::F32 && !self.capabilities.dtypes.contains(&dtype) {
            return Err(format!("{} can't be run here", plan.precision));
        }
        let model = &self.request.model;
        let bytes = f64::from(dtype.bits()) / 8.0;
        let parameters = self.network.parameters as f64 * 1e6;
        let longest = f64::from(self.request.tokens.iter().copied().max().unwrap_or(1));
        let peak = longest * f64::from(self.network.width) * (IN_F32 * 4.0 + IN_TYPE * bytes);
        let weights = match plan.weights {
            WeightForm::Packed => model.parameter_bytes as f64,
            WeightForm::Expanded => parameters * bytes,
        };
        let is_gpu = self.machine.backend != Backend::Cpu;
        let is_beside = is_gpu && plan.place == Place::Host;
        let machine = if is_beside { &X86_V3 } else { self.machine };
        let work = 2.0 * parameters * self.request.all_tokens() as f64;
        let each = if plan.weights == WeightForm::Packed { 1.0 + EXPANSION } else { 1.0 };
        let elapsed = work / machine.speed(plan.precision) * each;
        let expansion = if plan.weights == WeightForm::Expanded { 1.0 + EXPANSION } else { 1.0 };
        let moving = if is_gpu && !is_beside { weights / TRANSFER } else { 0.0 };
        let load = (model.parameter_bytes as f64 / DISK + moving) * expansion;
        let [peak, weights] = [peak, weights].map(|bytes| bytes as u64);
        // Memory that a device shares with its processor is the device's.
        let is_apart = is_beside && !self.machine.unified;
        let [peak_bytes, weights_bytes, host_bytes] =
            if is_apart { [0, 0, peak + weights] } else { [peak, weights, 0] };
        let [elapsed, load] = [elapsed, load].map(Duration::from_secs_f64);
        Ok(TextCost { elapsed, load, peak_bytes, weights_bytes, host_bytes })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn text_encoders_have_names_of_their_own_and_prices() {
        let all = [Text::golden(), Text::draw(7), Text::draw(8)].concat();
        let names: BTreeSet<&str> = all.iter().map(|golden| golden.name.as_str()).collect();
        assert!(names.len() >= all.len() - 1 && all.len() >= 40, "{}", all.len());
        for golden in &all {
            let plan = TextPlan::plain(golden.capabilities.usual_place());
            assert!(golden.costs().estimate_one(&plan).is_ok(), "{}", golden.name);
        }
        assert!(all.iter().any(|golden| golden.capabilities.kept));
        assert!(all.iter().any(|golden| golden.capabilities.places.len() == 2));
    }
}
