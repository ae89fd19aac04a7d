//! The kinds of work whose decisions are compared.

use tilewright_gate::work::Judged;
use tilewright_plan::{
    Attention, Denoise, DenoisePlan, DenoiseRequest, Plan, Request, Text, TextPlan, TextRequest, Vae, VariantOf, Work,
    records::Sensible,
};
use tilewright_policy::Governed;

use super::{AnyCost, Field};
use crate::{replay::Replayed, simulate::text_in_words};

/// A kind of work whose decisions are compared.
pub trait Compared:
    Judged + Replayed + Governed + Sensible + VariantOf<AnyCost, Variant = <Self as Work>::Cost>
{
    /// The parts of two plans that differ; the reason is none.
    fn fields(a: &Self::Plan, b: &Self::Plan) -> Vec<Field>;

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
    fn fields(a: &Plan, b: &Plan) -> Vec<Field> {
        differing([
            ("space", a.space.to_string(), b.space.to_string()),
            ("time", a.time.to_string(), b.time.to_string()),
            ("batch", a.batch.to_string(), b.batch.to_string()),
            ("precision", a.precision.to_string(), b.precision.to_string()),
            ("layout", a.layout.to_string(), b.layout.to_string()),
            ("release", a.release.to_string(), b.release.to_string()),
            ("offload", a.offload.to_string(), b.offload.to_string()),
            ("prefetch", a.prefetch.to_string(), b.prefetch.to_string()),
        ])
    }

    fn name(Request { model, batch, frames, height, width, .. }: &Request) -> String {
        format!("{} {}", model.family, extents([*width, *height, *frames, *batch]))
    }
}

impl Compared for Denoise {
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
            ("release", a.release.to_string(), b.release.to_string()),
        ])
    }

    fn name(DenoiseRequest { model, batch, frames, height, width, .. }: &DenoiseRequest) -> String {
        format!("{} latent {}", model.family, extents([*width, *height, *frames, *batch]))
    }
}

impl Compared for Text {
    fn fields(a: &TextPlan, b: &TextPlan) -> Vec<Field> {
        differing([
            ("precision", a.precision.to_string(), b.precision.to_string()),
            ("place", a.place.to_string(), b.place.to_string()),
            ("weights", a.weights.to_string(), b.weights.to_string()),
            ("kept", a.kept.to_string(), b.kept.to_string()),
        ])
    }

    fn name(request: &TextRequest) -> String {
        text_in_words(request)
    }
}
