//! Texts: the states of text encoders of published width.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tch::Tensor;
use tempfile::TempDir;
use tilewright_bench::{Transformer, TransformerWeights};
use tilewright_engine::{Budget, Machine, TextJob, Texts, WeightStore};
use tilewright_models::{Checkpoint, EncoderFile, Stored};
use tilewright_plan::{Dtype, Objective, Place, Precision, Text, TextPlan, WeightForm};

use super::samples::types;
use crate::{
    Context, Finding,
    compared::{Compared, network_tolerance},
    step::widest,
    work::{OnePlan, Quiet, Turns, cpu},
};

/// Encoders, the types that their weights are stored in, and the tokens of a text.
const CASES: [(Transformer, Stored, u32); 3] = [
    (Transformer::T5, Stored::Bf16, 256),
    (Transformer::T5, Stored::F8E4m3, 256),
    (Transformer::CLIP, Stored::Bf16, 77),
];

/// The time after which no text begins: a slow device checks what comes first.
const QUICK: Duration = Duration::from_secs(160);
const FULL: Duration = Duration::from_secs(200);

/// An encoder in a file of its own.
struct Encoder {
    file: Arc<EncoderFile>,
    embedded: [Tensor; 1],
    _folder: TempDir,
}

impl Encoder {
    fn new(transformer: Transformer, stored: Stored, tokens: u32) -> Result<Self, String> {
        let folder =
            TempDir::with_prefix("tilewright-check-").map_err(|error| format!("a temporary folder: {error}"))?;
        let path = folder.path().join("encoder");
        let weights = TransformerWeights { transformer, stored, seed: 1 };
        weights.write(&path).map_err(|error| error.to_string())?;
        let file = Checkpoint::open(&path).map_err(|error| error.to_string())?;
        let mut found = EncoderFile::find_all(&Arc::new(file)).map_err(|error| error.to_string())?;
        let file = found.pop().ok_or("the generated file holds no text encoder")?;
        let ids: Vec<u32> = (0..tokens).map(|token| token * 7 % file.config.vocabulary() as u32).collect();
        let embedded = file.embed(&ids).and_then(|embedded| file.add_positions(&embedded.f_unsqueeze(0)?));
        Ok(Self { file: Arc::new(file), embedded: [embedded.map_err(|error| error.to_string())?], _folder: folder })
    }

    /// The states after the last block.
    fn states(&self, machine: &Machine, plan: &TextPlan) -> Result<Tensor, String> {
        let weights = WeightStore::new(Budget::Bytes(0));
        let texts = Texts { encoder: &self.file, weights: &weights, embedded: &self.embedded, left_out: 1 };
        let job = TextJob::new(machine, None, texts, u64::MAX / 4, Objective::Fastest);
        let job = job.map_err(|error| error.to_string())?;
        let mut finished = job.run(&mut OnePlan::<Text>::new(plan), &mut Quiet).map_err(|end| end.error.to_string())?;
        finished.output.pop().map(|states| states.last).ok_or_else(|| "a text without states".into())
    }
}

/// Text encoders in every type and form of weights.
pub fn texts(context: &Context) -> Result<Finding, String> {
    let (machine, cpu) = (context.machine()?, cpu()?);
    let mut compared = Compared::on(machine.device);
    let mut turns = Turns::until(if context.is_quick() { QUICK } else { FULL });
    let of = |dtype| [Precision::Uniform(dtype), Precision::Mixed(dtype)];
    let precisions = types(context, &machine).into_iter().flat_map(|dtype| {
        // There is no mixture of f32 with itself.
        of(dtype).into_iter().take(if dtype == Dtype::F32 { 1 } else { 2 })
    });
    let forms = [WeightForm::Expanded, WeightForm::Packed];
    let ways: Vec<_> = precisions.flat_map(|precision| forms.map(|weights| (precision, weights))).collect();
    let place = |machine: &Machine| if machine.device == tch::Device::Cpu { Place::Host } else { Place::Device };
    for (published, stored, tokens) in CASES {
        if !turns.begin_all(ways.len()) {
            continue;
        }
        let transformer = widest(published, i64::from(tokens), &[&machine, &cpu]);
        let encoder = Encoder::new(transformer, stored, tokens)?;
        let exact = TextPlan { weights: WeightForm::Expanded, ..TextPlan::plain(place(&cpu)) };
        let expected = encoder.states(&cpu, &exact)?;
        for &(precision, weights) in &ways {
            if !turns.begin() {
                continue;
            }
            let plan = TextPlan { precision, weights, ..TextPlan::plain(place(&machine)) };
            let name =
                format!("{} of {} wide in {stored}, {weights}, {precision}", transformer.name, transformer.width());
            let row = json!({
                "encoder": transformer.name, "width": transformer.width(), "stored": stored.name(),
                "weights": weights, "precision": precision,
            });
            let found = encoder.states(&machine, &plan);
            compared.add(name, found, &expected, network_tolerance(precision.dtype()), row)?;
        }
    }
    Ok(compared.finding(turns))
}
