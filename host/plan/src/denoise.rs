//! The stage that denoises: the request, the plan, the cost and the outcome, and their record.

use std::{fmt, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Device, Dtype, Failure, PolicyIdentity, PoolStatistics, Precision, Stage, bytes, milliseconds, words::did_you_mean,
};

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
}

/// The form that weights are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WeightForm {
    /// As stored, expanded where they are used.
    Packed,
    /// In the type of products.
    Expanded,
}

/// The operands of matrix products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Products {
    /// In the plan's precision.
    #[default]
    Precision,
    /// In FP8 (E4M3) where the weights are stored so: activations are rounded to it by one scale
    /// for each product.
    Fp8,
}

/// The order of a step's passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GuidanceOrder {
    /// One pass of both conditionings.
    Together,
    /// One pass after the other.
    InTurn,
}

/// The way in which a sample is computed. None of it changes what was asked for; narrow types are
/// lossy, and their names say so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DenoisePlan {
    /// The types that it is computed in.
    pub precision: Precision,
    /// The operands of matrix products.
    #[serde(default)]
    pub products: Products,
    /// The form that weights are kept in.
    pub weights: WeightForm,
    /// Blocks of weights that are read ahead while the one before computes, after which they are
    /// given back; null if all are kept.
    pub ahead: Option<u32>,
    /// The order of a step's passes.
    pub guidance: GuidanceOrder,
    /// The reason, for people.
    pub reason: String,
}

/// A setting of a plan by name, and its values.
const SETTINGS: [(&str, &str); 5] = [
    ("precision", "f32, bf16, f16, mixed-bf16 or mixed-f16"),
    ("products", "precision or fp8"),
    ("weights", "packed or expanded"),
    ("ahead", "all, or a number of blocks from 1 to 64"),
    ("guidance", "together or in-turn"),
];

/// The most blocks that are read ahead.
const MOST_AHEAD: u32 = 64;

impl DenoisePlan {
    /// Changes a setting of the plan.
    ///
    /// # Errors
    /// One line: the setting or its value is unknown.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let Some((_, expected)) = SETTINGS.iter().find(|(known, _)| *known == name) else {
            let names = SETTINGS.map(|(known, _)| known);
            let meant = did_you_mean(name, names);
            return Err(format!("unknown setting '{name}'{meant}: denoise plans have {}", names.join(", ")));
        };
        let refused = || format!("{name}={value}: {expected} was expected");
        match name {
            "precision" => self.precision = precision(value).ok_or_else(refused)?,
            "products" => {
                self.products = match value {
                    "precision" => Products::Precision,
                    "fp8" => Products::Fp8,
                    _ => return Err(refused()),
                }
            }
            "weights" => {
                self.weights = match value {
                    "packed" => WeightForm::Packed,
                    "expanded" => WeightForm::Expanded,
                    _ => return Err(refused()),
                }
            }
            "ahead" => {
                self.ahead = match value.parse() {
                    _ if value == "all" => None,
                    Ok(blocks) if (1..=MOST_AHEAD).contains(&blocks) => Some(blocks),
                    _ => return Err(refused()),
                }
            }
            _ => {
                self.guidance = match value {
                    "together" => GuidanceOrder::Together,
                    "in-turn" => GuidanceOrder::InTurn,
                    _ => return Err(refused()),
                }
            }
        }
        Ok(())
    }
}

/// A precision by its name.
fn precision(name: &str) -> Option<Precision> {
    let types = [Dtype::F32, Dtype::Bf16, Dtype::F16];
    let uniform = types.into_iter().map(Precision::Uniform);
    let mixed = types.into_iter().skip(1).map(Precision::Mixed);
    uniform.chain(mixed).find(|precision| precision.to_string().replace(' ', "-") == name)
}

impl fmt::Display for DenoisePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weights = match self.weights {
            WeightForm::Packed => "weights as stored",
            WeightForm::Expanded => "weights expanded",
        };
        let products = if self.products == Products::Fp8 { ", products in FP8" } else { "" };
        write!(f, "{}{products}, {weights}", self.precision)?;
        match self.ahead {
            None => Ok(()),
            Some(1) => f.write_str(", read a block ahead"),
            Some(blocks) => write!(f, ", read {blocks} blocks ahead"),
        }
    }
}

/// The expected cost of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DenoiseCost {
    /// The highest memory use beside the weights, in bytes.
    pub peak_bytes: u64,
    /// Bytes of weights that are held at once.
    pub weights_bytes: u64,
    /// Time of a step.
    #[serde(rename = "step_ms", with = "milliseconds")]
    #[schemars(with = "f64")]
    pub step: Duration,
}

/// The measurements of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// Calls of the network that the last output served.
    #[serde(default)]
    pub reused: u32,
    /// The largest change of the output that was passed over so, as estimated, over its size.
    #[serde(default)]
    pub reuse_deviation: f64,
    /// The memory pool's work.
    pub pool: PoolStatistics,
}

/// A plan that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DenoiseAttempt {
    /// The plan.
    pub plan: DenoisePlan,
    /// The reason of the failure.
    pub failure: Failure,
    /// Steps that were finished before it: the next plan went on from there.
    #[serde(default)]
    pub step: u32,
}

/// A sample's decision and outcome. Sizes are bytes, times milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Tilewright denoise record")]
pub struct DenoiseRecord {
    /// The host's version.
    pub tilewright: String,
    /// The time of the decision, RFC 3339 in UTC.
    pub time: String,
    /// The stage: denoise.
    pub stage: Stage,
    /// The request.
    pub request: DenoiseRequest,
    /// The device that the work runs on.
    pub device: Device,
    /// The policy that decided.
    pub policy: PolicyIdentity,
    /// The plan that was carried out.
    pub plan: DenoisePlan,
    /// The plan's price; null if it has none.
    pub estimate: Option<DenoiseCost>,
    /// The attempts that failed before, in order.
    pub attempts: Vec<DenoiseAttempt>,
    /// The measurements; null if nothing was sampled.
    pub outcome: Option<DenoiseOutcome>,
}

/// The JSON Schema of [`DenoiseRecord`], as published in `denoise-record.schema.json`.
pub fn denoise_record_schema() -> serde_json::Value {
    schemars::schema_for!(DenoiseRecord).to_value()
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_set_by_name() {
        let mut plan = DenoisePlan {
            precision: Precision::Uniform(Dtype::F32),
            products: Products::Precision,
            weights: WeightForm::Packed,
            ahead: None,
            guidance: GuidanceOrder::InTurn,
            reason: String::new(),
        };
        for (name, value) in
            [("precision", "mixed-bf16"), ("weights", "expanded"), ("ahead", "2"), ("guidance", "together")]
        {
            plan.set(name, value).unwrap();
        }
        assert_eq!(plan.precision, Precision::Mixed(Dtype::Bf16));
        assert_eq!((plan.weights, plan.ahead, plan.guidance), (WeightForm::Expanded, Some(2), GuidanceOrder::Together));
        assert_eq!(plan.to_string(), "mixed bf16, weights expanded, read 2 blocks ahead");
        plan.set("ahead", "all").unwrap();
        assert_eq!(plan.ahead, None);
        for (name, value, words) in [
            ("precison", "f32", "unknown setting 'precison' (did you mean precision?)"),
            ("precision", "i4", "precision=i4: f32, bf16"),
            ("ahead", "0", "ahead=0: all, or a number"),
            ("weights", "", "weights=: packed or expanded"),
        ] {
            let found = plan.set(name, value).unwrap_err();
            assert!(found.starts_with(words), "{found}");
        }
    }
}
