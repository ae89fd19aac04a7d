//! The kinds of work that jobs are: what differs between them when policies are in service.

use tilewright_plan::{Denoise, DenoiseRequest, Device, FieldOf, Recorder, Request, Text, TextRequest, Vae, each};
use tilewright_policy::Governed;

use crate::tally::Kind;

/// A kind of work that jobs are.
pub trait Served: Governed + FieldOf<Warm, Field = Vec<Recorder<Self>>> {
    /// The kind of a request: work that can be compared is the same, on the same device, with the
    /// same objective.
    fn kind(request: &Self::Request, device: &Device) -> Kind;
}

/// Warm instances of a revision that no worker holds. An instance learns of one kind of work.
pub type Warm = each!(Vec<Recorder>);

fn suffix(counts_weights: bool) -> &'static str {
    if counts_weights { " with weights" } else { "" }
}

impl Served for Vae {
    fn kind(request: &Request, device: &Device) -> Kind {
        let Request { model, batch, frames, height, width, memory_limit, objective, .. } = request;
        let weights = suffix(request.limit_counts_weights);
        let blended = if request.allows_blended { " blended" } else { "" };
        format!(
            "{model:?} {batch} {frames} {height} {width} {memory_limit}{weights} {objective:?}{blended} {} {}",
            device.name, device.arch
        )
    }
}

impl Served for Denoise {
    fn kind(request: &DenoiseRequest, device: &Device) -> Kind {
        let DenoiseRequest { model, batch, frames, height, width, text_tokens, steps, passes, sampler, .. } = request;
        let DenoiseRequest { reuse, memory_limit, objective, .. } = request;
        format!(
            "{model:?} {batch} {frames} {height} {width} {text_tokens} {steps} {passes} {sampler} {reuse:?} {memory_limit} {objective:?} {} {}",
            device.name, device.arch
        )
    }
}

impl Served for Text {
    fn kind(request: &TextRequest, device: &Device) -> Kind {
        let TextRequest { model, tokens, memory_limit, objective, .. } = request;
        format!("{model:?} {tokens:?} {memory_limit} {objective:?} {} {}", device.name, device.arch)
    }
}
