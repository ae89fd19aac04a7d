//! The facts of a record by which it is found again, for each kind of work.

use tilewright_plan::{Denoise, DenoiseRequest, Plan, Request, StoredType, Text, TextRequest, Tile, Vae, Work};

use crate::model_fingerprint;

/// Work whose records are kept.
pub trait Kept: Work {
    /// The properties of a model that change the cost of its work, as one text.
    fn model(request: &Self::Request) -> String;

    /// A plan's division, precision and memory order, as columns of the history.
    fn columns(plan: &Self::Plan) -> Columns {
        let precision = Self::precision(plan).to_string();
        Columns { space: "whole".into(), tile: None, precision, layout: String::new() }
    }
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

/// The types that weights are stored in, with their bytes.
fn stored(types: &[StoredType]) -> String {
    types.iter().map(|stored| format!("{} {}", stored.name, stored.bytes)).collect::<Vec<_>>().join(", ")
}

impl Kept for Vae {
    fn model(request: &Request) -> String {
        model_fingerprint(&request.model)
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
}

impl Kept for Denoise {
    /// Passes and tokens of text change the cost as the model does.
    fn model(request: &DenoiseRequest) -> String {
        let model = &request.model;
        format!(
            "{} {} weights in {} blocks, {}; {} passes, {} tokens of text",
            model.family,
            model.parameters,
            model.blocks,
            stored(&model.stored_types),
            request.passes,
            request.text_tokens
        )
    }
}

impl Kept for Text {
    fn model(request: &TextRequest) -> String {
        let model = &request.model;
        format!("{} in {} blocks of {}, {}", model.kind, model.blocks, model.width, stored(&model.stored_types))
    }
}
