//! Conditioning made from a seed, for measurements without a text encoder.

use std::path::Path;

use tilewright_torch::noise;

use super::{SampleModel, Size, conditioning_shape::ConditioningShape};
use crate::{
    Error, Result,
    latent_output::{raw, serialize},
};

/// The seed of the values.
const SEED: u64 = 0;

impl SampleModel {
    /// Writes conditioning of this transformer's widths for a size, normally distributed.
    ///
    /// # Errors
    /// The size can't be sampled; the file can't be written.
    pub fn generate_conditioning(&self, path: &Path, tokens: u32, size: Size) -> Result<()> {
        let shapes = ConditioningShape::foreseen(self, tokens, size)?;
        let failed = |source| Error::Write { path: path.to_owned(), source };
        let mut tensors = Vec::new();
        for (place, (name, shape)) in shapes.named().enumerate() {
            tensors.push((name, raw(&noise(SEED + place as u64, shape)?)?));
        }
        let bytes = serialize(&tensors, None).map_err(|error| failed(error.into()))?;
        std::fs::write(path, bytes).map_err(|error| failed(error.into()))
    }
}
