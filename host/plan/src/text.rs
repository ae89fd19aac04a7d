//! The stage that encodes texts: the request, the capabilities, the plan, the cost and the outcome.

use std::{fmt, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Device, Dtype, HostMemory, Objective, Options, PlanOption, PoolStatistics, Precision, Question, Record, Stage,
    StoredType, WeightForm, Work, bytes,
    exchange::mirrored,
    milliseconds,
    records::{MOST_EXTENT, MOST_HINTS, MOST_TEXTS},
    words::with_noun,
    work::named_alike,
};

/// Runs of text encoders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Text;

/// An encoder, as far as plans depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EncoderModel {
    /// "clip-l", "openclip-bigg", "t5-xxl", "umt5-xxl", "clip-vision-h" or "clip-vision-l"; of
    /// another width, kind and width, as "t5-1024".
    pub kind: String,
    /// The types that the weights are stored in, the most common first.
    pub stored_types: Vec<StoredType>,
    /// Bytes of the weights as stored, without the tables that tokens are looked up in.
    pub parameter_bytes: u64,
    /// Blocks.
    pub blocks: u32,
    /// The width of a token.
    pub width: u32,
    /// The width of an attention head.
    pub head_width: u32,
}

/// A request for the states of texts by one encoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TextRequest {
    /// The encoder.
    pub model: EncoderModel,
    /// The tokens of each text.
    pub tokens: Vec<u32>,
    /// The most bytes of the device's memory to hold at once, weights included.
    pub memory_limit: u64,
    /// The aim.
    #[serde(default)]
    pub objective: Objective,
    /// Memory of the host, and its way to the device.
    #[serde(flatten)]
    pub host: HostMemory,
}

crate::names! {
    /// The place that an encoder runs in.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Place {
        /// The device of the request.
        Device = "device",
        /// The host's processor, beside a device of its own; the only place if there is no other.
        Host = "host",
    }
}

/// The plans of an encoder's run that can be carried out. The default stands for capabilities that
/// were not recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TextCapabilities {
    /// The types that products can run in.
    pub dtypes: Vec<Dtype>,
    /// The places that the encoder can run in.
    pub places: Vec<Place>,
    /// The forms that weights can be held in.
    pub weights: Vec<WeightForm>,
    /// The encoder can stay loaded for the next run in this process.
    pub kept: bool,
    /// The options that are offered beside a plan's fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<PlanOption>,
}

/// The way in which texts are encoded. Narrow types are lossy, and their names say so.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct TextPlan {
    /// The types that it is computed in.
    pub precision: Precision,
    /// The place that it runs in.
    pub place: Place,
    /// The form that weights are held in; packed ones stay in the file's pages on a processor.
    pub weights: WeightForm,
    /// The encoder stays loaded afterwards; otherwise its memory is freed.
    pub kept: bool,
    /// The options that are set beside these fields.
    #[serde(default, skip_serializing_if = "Options::is_empty")]
    pub options: Options,
    /// The reason, for people.
    pub reason: String,
}

impl TextPlan {
    /// The plan that changes least: f32, weights as they are stored, and nothing kept.
    pub const fn plain(place: Place) -> Self {
        Self {
            precision: Precision::Uniform(Dtype::F32),
            place,
            weights: WeightForm::Packed,
            kept: false,
            options: Options::none(),
            reason: String::new(),
        }
    }
}

impl TextCapabilities {
    /// The place that a plan without wishes runs in: the device, where there is one.
    pub fn usual_place(&self) -> Place {
        if self.places.contains(&Place::Device) { Place::Device } else { Place::Host }
    }
}

impl TextRequest {
    /// Tokens of all texts.
    pub fn all_tokens(&self) -> u64 {
        self.tokens.iter().copied().map(u64::from).sum()
    }
}

/// The expected cost of a plan. A processor's memory, and memory that a device shares with it, is
/// the device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TextCost {
    /// Time of all texts, without loading.
    #[serde(rename = "elapsed_ms", with = "milliseconds")]
    #[schemars(with = "f64")]
    pub elapsed: Duration,
    /// Time of loading; 0 if the encoder is loaded already.
    #[serde(rename = "load_ms", with = "milliseconds")]
    #[schemars(with = "f64")]
    pub load: Duration,
    /// The highest use of the device's memory beside the weights, in bytes.
    pub peak_bytes: u64,
    /// Bytes of weights in the device's memory.
    pub weights_bytes: u64,
    /// The highest use of the host's memory beside a device of its own, in bytes, weights included.
    pub host_bytes: u64,
}

impl TextCost {
    /// Bytes of the device's memory held at once: what a memory limit is compared with.
    pub const fn held_bytes(&self) -> u64 {
        self.peak_bytes.saturating_add(self.weights_bytes)
    }

    /// Bytes held at once, wherever they are.
    pub const fn all_bytes(&self) -> u64 {
        self.held_bytes().saturating_add(self.host_bytes)
    }
}

/// The measurements of an encoder's run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TextOutcome {
    /// Time of all texts, without loading and failed attempts.
    #[serde(rename = "elapsed_ms", with = "milliseconds")]
    #[schemars(with = "f64")]
    pub elapsed: Duration,
    /// Time spent reading and converting the weights.
    #[serde(rename = "load_ms", with = "milliseconds")]
    #[schemars(with = "f64")]
    pub load: Duration,
    /// The highest use of the device's memory beside the weights, in bytes.
    pub peak_bytes: u64,
    /// Bytes of weights in the device's memory.
    pub weights_bytes: u64,
    /// The highest use of the host's memory beside a device of its own, in bytes, weights included.
    pub host_bytes: u64,
    /// Attempts, the one that succeeded included.
    pub attempts: u32,
    /// The memory pool's work.
    pub pool: PoolStatistics,
}

impl TextOutcome {
    /// Bytes of the device's memory that were held at once, weights included.
    pub const fn held_bytes(&self) -> u64 {
        self.peak_bytes.saturating_add(self.weights_bytes)
    }

    /// Bytes that were held at once, wherever they were.
    pub const fn all_bytes(&self) -> u64 {
        self.held_bytes().saturating_add(self.host_bytes)
    }
}

/// An encoder's decision and outcome.
pub type TextRecord = Record<Text>;

impl fmt::Display for TextPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weights = match self.weights {
            WeightForm::Packed => "weights as stored",
            WeightForm::Expanded => "weights expanded",
        };
        let place = if self.place == Place::Host { ", on the host" } else { "" };
        let kept = if self.kept { ", kept afterwards" } else { "" };
        write!(f, "{}, {weights}{place}{kept}{}", self.precision, self.options)
    }
}

impl fmt::Display for TextRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} in {}, limit {}",
            self.model.kind,
            with_noun(self.all_tokens(), "token"),
            with_noun(self.tokens.len() as u64, "text"),
            bytes::display(self.memory_limit)
        )
    }
}

/// A [`TextCost`], exact to the nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExactTextCost {
    /// Time of all texts without loading, in nanoseconds.
    pub elapsed_ns: u64,
    /// Time of loading, in nanoseconds.
    pub load_ns: u64,
    /// The highest use of the device's memory beside the weights, in bytes.
    pub peak_bytes: u64,
    /// Bytes of weights in the device's memory.
    pub weights_bytes: u64,
    /// The highest use of the host's memory beside a device of its own, in bytes.
    pub host_bytes: u64,
}

/// The part of a [`TextOutcome`] that policies get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TextMeasured {
    /// Time of all texts without loading, in nanoseconds.
    pub elapsed_ns: u64,
    /// Time of loading, in nanoseconds.
    pub load_ns: u64,
    /// The highest use of the device's memory beside the weights, in bytes.
    pub peak_bytes: u64,
    /// Bytes of weights in the device's memory.
    pub weights_bytes: u64,
    /// The highest use of the host's memory beside a device of its own, in bytes.
    pub host_bytes: u64,
    /// Attempts, the one that succeeded included.
    pub attempts: u32,
}

mirrored!(
    ExactTextCost from TextCost, TextCost from &ExactTextCost:
    peak_bytes, weights_bytes, host_bytes; elapsed_ns = elapsed, load_ns = load
);
mirrored!(
    TextMeasured from &TextOutcome, TextOutcome from TextMeasured:
    peak_bytes, weights_bytes, host_bytes, attempts; elapsed_ns = elapsed, load_ns = load; Self::default()
);

impl Work for Text {
    const STAGES: &'static [Stage] = &[Stage::Text];

    const RECORD_TITLE: &'static str = "Tilewright text record";

    type Request = TextRequest;
    type Capabilities = TextCapabilities;
    type Plan = TextPlan;
    type Cost = TextCost;
    type Outcome = TextOutcome;
    type ExactCost = ExactTextCost;
    type Measured = TextMeasured;

    named_alike!(elapsed);

    fn is_continued(_: &TextRequest) -> bool {
        false
    }

    fn family(request: &TextRequest) -> &str {
        &request.model.kind
    }

    fn extents(request: &TextRequest) -> [u32; 4] {
        [request.tokens.len() as u32, 1, 1, request.tokens.iter().copied().max().unwrap_or(0)]
    }

    fn held_bytes(cost: &TextCost) -> u64 {
        cost.held_bytes()
    }

    fn measured_bytes(outcome: &TextOutcome) -> u64 {
        outcome.held_bytes()
    }

    fn all_bytes(cost: &TextCost) -> u64 {
        cost.all_bytes()
    }

    fn all_measured(outcome: &TextOutcome) -> u64 {
        outcome.all_bytes()
    }

    fn fault_of_request(request: &TextRequest) -> Option<String> {
        let texts = request.tokens.len();
        let odd = request.tokens.iter().find(|tokens| !(1..=MOST_EXTENT).contains(tokens));
        let blocks = request.model.blocks;
        let lists = [("texts", texts), ("types of weights", request.model.stored_types.len())];
        let long = lists.into_iter().find(|(_, length)| *length > MOST_TEXTS);
        odd.map(|tokens| format!("{tokens} tokens"))
            .or_else(|| request.tokens.is_empty().then(|| "0 texts".to_owned()))
            .or_else(|| (!(1..=MOST_EXTENT).contains(&blocks)).then(|| format!("{blocks} blocks")))
            .or_else(|| long.map(|(what, length)| format!("{length} {what}")))
    }

    fn fault_of_capabilities(capabilities: &TextCapabilities) -> Option<String> {
        let TextCapabilities { dtypes, places, weights, .. } = capabilities;
        let lists = [("types", dtypes.len()), ("places", places.len()), ("forms of weights", weights.len())];
        let long = lists.into_iter().find(|(_, length)| *length > MOST_HINTS);
        long.map(|(what, length)| format!("{length} {what}"))
    }
}

impl<'a> Question<'a, Text> {
    /// A first question about a text encoder's run.
    pub const fn text(request: &'a TextRequest, device: &'a Device, capabilities: &'a TextCapabilities) -> Self {
        Self::first(Stage::Text, request, device, capabilities)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_and_requests_are_said_in_words() {
        let plan = TextPlan::plain(Place::Device);
        assert_eq!(plan.to_string(), "f32, weights as stored");
        let plan = TextPlan {
            precision: Precision::Mixed(Dtype::Bf16),
            weights: WeightForm::Expanded,
            kept: true,
            ..TextPlan::plain(Place::Host)
        };
        assert_eq!(plan.to_string(), "mixed bf16, weights expanded, on the host, kept afterwards");
        let model = EncoderModel {
            kind: "t5-xxl".into(),
            stored_types: Vec::new(),
            parameter_bytes: 1,
            blocks: 24,
            width: 4096,
            head_width: 64,
        };
        let request = TextRequest {
            model,
            tokens: vec![256, 40],
            memory_limit: 1 << 33,
            objective: Objective::Balanced,
            host: HostMemory::default(),
        };
        assert_eq!(request.to_string(), "t5-xxl, 296 tokens in 2 texts, limit 8.00 GiB");
    }
}
