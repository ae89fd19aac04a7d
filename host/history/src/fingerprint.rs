//! Texts that say whether two measurements can be compared.

use tilewright_plan::Model;

/// What changes the cost of a decode about a model, as one text: its family, how it is stored, its size and its scales.
pub fn model_fingerprint(model: &Model) -> String {
    let quantized = if model.quantized { " quantized" } else { "" };
    format!(
        "{} {}{quantized} {} bytes ×{} ×{}",
        model.family, model.stored, model.parameter_bytes, model.spatial_scale, model.temporal_scale
    )
}
