//! The kinds of work whose decisions are compared.

use std::sync::Arc;

use tilewright_gate::{
    golden::{self, GoldenRequest},
    work::Judged,
};
use tilewright_plan::{
    Attention, Capabilities, CostModel, Denoise, DenoiseCapabilities, DenoisePlan, DenoiseRequest, Device, Plan,
    Record, Release, Request, Stage, Text, TextCapabilities, TextPlan, TextRequest, Vae, Work, records,
};
use tilewright_policy::Governed;

use super::{AnyCost, Field};
use crate::{replay::Replayed, simulate::text_in_words};

/// A kind of work whose decisions are compared.
pub trait Compared: Judged + Replayed + Governed {
    /// The stages that a policy answers if it answers this kind.
    const STAGES: &'static [Stage];

    /// The fixed part of the golden set.
    fn golden() -> Vec<GoldenRequest<Self>>;

    /// The parts of two plans that differ; the reason is none.
    fn fields(a: &Self::Plan, b: &Self::Plan) -> Vec<Field>;

    /// A price among those of all kinds.
    fn any_cost(cost: Self::Cost) -> AnyCost;

    /// Prices by formula.
    fn formula(
        stage: Stage,
        request: &Self::Request,
        device: &Device,
        capabilities: &Self::Capabilities,
    ) -> Arc<dyn CostModel<Self>>;

    /// The plans that could be carried out, by a record.
    fn capabilities(record: &Record<Self>) -> Self::Capabilities;

    /// The fault of capabilities that make no sense.
    fn sense(capabilities: &Self::Capabilities) -> Option<String>;

    /// A request in a few words.
    fn name(request: &Self::Request) -> String;
}

/// The fields of two plans that differ.
fn differing<const N: usize>(rows: [(&'static str, String, String); N]) -> Vec<Field> {
    rows.into_iter().filter(|(_, a, b)| a != b).map(|(name, a, b)| Field { name, a, b }).collect()
}

/// The options of two plans, if they differ.
pub fn options<W: Work>(a: &W::Plan, b: &W::Plan) -> Option<Field> {
    let (a, b) = (W::options(a), W::options(b));
    (a != b).then(|| Field { name: "options", a: a.in_words(), b: b.in_words() })
}

fn release(release: Release) -> String {
    match release {
        Release::Keep => "keep",
        Release::AtEnd => "at-end",
        Release::EachStep => "each-step",
    }
    .to_owned()
}

fn extents([width, height, frames, batch]: [u32; 4]) -> String {
    let mut words = format!("{width}×{height}");
    if frames > 1 {
        words += &format!(" {frames}f");
    }
    if batch > 1 {
        words += &format!(" ×{batch}");
    }
    words
}

impl Compared for Vae {
    const STAGES: &'static [Stage] = &[Stage::Decode, Stage::Encode];

    fn golden() -> Vec<GoldenRequest> {
        golden::set()
    }

    fn fields(a: &Plan, b: &Plan) -> Vec<Field> {
        differing([
            ("space", a.space.to_string(), b.space.to_string()),
            ("time", a.time.to_string(), b.time.to_string()),
            ("batch", a.batch.to_string(), b.batch.to_string()),
            ("precision", a.precision.to_string(), b.precision.to_string()),
            ("layout", a.layout.to_string(), b.layout.to_string()),
            ("release", release(a.release), release(b.release)),
            ("offload", a.offload.to_string(), b.offload.to_string()),
            ("prefetch", a.prefetch.to_string(), b.prefetch.to_string()),
        ])
    }

    fn any_cost(cost: Self::Cost) -> AnyCost {
        AnyCost::Vae(cost)
    }

    fn formula(stage: Stage, request: &Request, device: &Device, of: &Capabilities) -> Arc<dyn CostModel> {
        golden::prices(stage, request, device, of)
    }

    fn capabilities(record: &Record) -> Capabilities {
        golden::capabilities_of(record)
    }

    fn sense(capabilities: &Capabilities) -> Option<String> {
        records::sense_of_capabilities(capabilities)
    }

    fn name(Request { model, batch, frames, height, width, .. }: &Request) -> String {
        format!("{} {}", model.family, extents([*width, *height, *frames, *batch]))
    }
}

impl Compared for Denoise {
    const STAGES: &'static [Stage] = &[Stage::Denoise];

    fn golden() -> Vec<GoldenRequest<Self>> {
        golden::samples()
    }

    fn fields(a: &DenoisePlan, b: &DenoisePlan) -> Vec<Field> {
        let all = |number: Option<u32>| number.map_or_else(|| "all".to_owned(), |number| number.to_string());
        let attention = |attention: Attention| match attention {
            Attention::Fused => "fused".to_owned(),
            Attention::Pieces { queries } => queries.to_string(),
        };
        differing([
            ("precision", a.precision.to_string(), b.precision.to_string()),
            ("products", a.products.to_string(), b.products.to_string()),
            ("weights", format!("{:?}", a.weights).to_lowercase(), format!("{:?}", b.weights).to_lowercase()),
            ("ahead", all(a.ahead), all(b.ahead)),
            ("attention", attention(a.attention), attention(b.attention)),
            ("guidance", a.guidance.to_string(), b.guidance.to_string()),
            ("samples", all(a.samples), all(b.samples)),
            ("feed-forward", a.feed_forward.to_string(), b.feed_forward.to_string()),
            ("reuse", format!("{:?}", a.reuse), format!("{:?}", b.reuse)),
            ("release", release(a.release), release(b.release)),
        ])
    }

    fn any_cost(cost: Self::Cost) -> AnyCost {
        AnyCost::Denoise(cost)
    }

    fn formula(
        _: Stage,
        request: &DenoiseRequest,
        device: &Device,
        capabilities: &DenoiseCapabilities,
    ) -> Arc<dyn CostModel<Self>> {
        golden::sample_prices(request, device, capabilities)
    }

    fn capabilities(record: &Record<Self>) -> DenoiseCapabilities {
        record.capabilities.clone().unwrap_or_default()
    }

    fn sense(capabilities: &DenoiseCapabilities) -> Option<String> {
        records::sense_of_sample_capabilities(capabilities)
    }

    fn name(DenoiseRequest { model, batch, frames, height, width, .. }: &DenoiseRequest) -> String {
        format!("{} latent {}", model.family, extents([*width, *height, *frames, *batch]))
    }
}

impl Compared for Text {
    const STAGES: &'static [Stage] = &[Stage::Text];

    fn golden() -> Vec<GoldenRequest<Self>> {
        golden::texts()
    }

    fn fields(a: &TextPlan, b: &TextPlan) -> Vec<Field> {
        differing([
            ("precision", a.precision.to_string(), b.precision.to_string()),
            ("place", a.place.to_string(), b.place.to_string()),
            ("weights", a.weights.to_string(), b.weights.to_string()),
            ("kept", a.kept.to_string(), b.kept.to_string()),
        ])
    }

    fn any_cost(cost: Self::Cost) -> AnyCost {
        AnyCost::Text(cost)
    }

    fn formula(
        _: Stage,
        request: &TextRequest,
        device: &Device,
        capabilities: &TextCapabilities,
    ) -> Arc<dyn CostModel<Self>> {
        golden::text_prices(request, device, capabilities)
    }

    fn capabilities(record: &Record<Self>) -> TextCapabilities {
        record.capabilities.clone().unwrap_or_default()
    }

    fn sense(capabilities: &TextCapabilities) -> Option<String> {
        records::sense_of_text_capabilities(capabilities)
    }

    fn name(request: &TextRequest) -> String {
        text_in_words(request)
    }
}
