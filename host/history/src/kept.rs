//! The facts of a record by which it is found again, for each kind of work.

use std::time::Duration;

use tilewright_plan::{
    Denoise, DenoiseOutcome, DenoisePlan, DenoiseRequest, Outcome, Plan, Record, Request, Stage, Text, TextOutcome,
    TextPlan, TextRequest, Tile, Vae, Work,
};

use crate::model_fingerprint;

/// Work whose records are kept.
pub trait Kept: Work {
    /// The stage of a record.
    fn stage(record: &Record<Self>) -> Stage;

    /// The properties of a model that change the cost of its work, as one text.
    fn model(request: &Self::Request) -> String;

    /// The model's family.
    fn family(request: &Self::Request) -> &str;

    /// Samples, frames, height and width; of texts their number, 1, 1 and the tokens of the
    /// longest.
    fn extents(request: &Self::Request) -> [u32; 4];

    /// A plan's division, precision and memory order, as columns of the history.
    fn columns(plan: &Self::Plan) -> Columns;

    /// The time of the work, and the bytes that it held.
    fn measured(outcome: &Self::Outcome) -> (Duration, u64);
}

/// The columns of a plan.
#[derive(Clone, Debug)]
pub struct Columns {
    /// The first word of the division of the area.
    pub space: String,
    /// The tile, if there is one.
    pub tile: Option<Tile>,
    /// Element types.
    pub precision: String,
    /// Memory order; empty if the plan has none.
    pub layout: String,
}

impl Kept for Vae {
    fn stage(record: &Record) -> Stage {
        record.stage()
    }

    fn model(request: &Request) -> String {
        model_fingerprint(&request.model)
    }

    fn family(request: &Request) -> &str {
        &request.model.family
    }

    fn extents(request: &Request) -> [u32; 4] {
        [request.batch, request.frames, request.height, request.width]
    }

    fn columns(plan: &Plan) -> Columns {
        let space = plan.space.to_string();
        Columns {
            space: space.split(' ').next().unwrap_or_default().to_owned(),
            tile: plan.space.tile(),
            precision: plan.precision.to_string(),
            layout: plan.layout.to_string(),
        }
    }

    fn measured(outcome: &Outcome) -> (Duration, u64) {
        (outcome.elapsed, outcome.peak_bytes)
    }
}

impl Kept for Denoise {
    fn stage(record: &Record<Self>) -> Stage {
        record.stage.unwrap_or(Stage::Denoise)
    }

    /// Passes and tokens of text change the cost as the model does.
    fn model(request: &DenoiseRequest) -> String {
        let model = &request.model;
        let stored: Vec<String> =
            model.stored_types.iter().map(|stored| format!("{} {}", stored.name, stored.bytes)).collect();
        format!(
            "{} {} weights in {} blocks, {}; {} passes, {} tokens of text",
            model.family,
            model.parameters,
            model.blocks,
            stored.join(", "),
            request.passes,
            request.text_tokens
        )
    }

    fn family(request: &DenoiseRequest) -> &str {
        &request.model.family
    }

    fn extents(request: &DenoiseRequest) -> [u32; 4] {
        [request.batch, request.frames, request.height, request.width]
    }

    fn columns(plan: &DenoisePlan) -> Columns {
        Columns { space: "whole".into(), tile: None, precision: plan.precision.to_string(), layout: String::new() }
    }

    fn measured(outcome: &DenoiseOutcome) -> (Duration, u64) {
        (outcome.elapsed, outcome.held_bytes())
    }
}

impl Kept for Text {
    fn stage(record: &Record<Self>) -> Stage {
        record.stage.unwrap_or(Stage::Text)
    }

    fn model(request: &TextRequest) -> String {
        let model = &request.model;
        let stored: Vec<String> =
            model.stored_types.iter().map(|stored| format!("{} {}", stored.name, stored.bytes)).collect();
        format!("{} in {} blocks of {}, {}", model.kind, model.blocks, model.width, stored.join(", "))
    }

    fn family(request: &TextRequest) -> &str {
        &request.model.kind
    }

    fn extents(request: &TextRequest) -> [u32; 4] {
        [request.tokens.len() as u32, 1, 1, request.tokens.iter().copied().max().unwrap_or(0)]
    }

    fn columns(plan: &TextPlan) -> Columns {
        Columns { space: "whole".into(), tile: None, precision: plan.precision.to_string(), layout: String::new() }
    }

    fn measured(outcome: &TextOutcome) -> (Duration, u64) {
        (outcome.elapsed, outcome.all_bytes())
    }
}
