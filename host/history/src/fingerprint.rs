//! Texts that say whether two measurements can be compared.

use tilewright_plan::Model;

/// The properties of a model that change the cost of a decode, as one text: family, storage, size
/// and scales.
pub fn model_fingerprint(model: &Model) -> String {
    let quantized = if model.quantized { " quantized" } else { "" };
    format!(
        "{} {}{quantized} {} bytes ×{} ×{}",
        model.family, model.stored, model.parameter_bytes, model.spatial_scale, model.temporal_scale
    )
}
