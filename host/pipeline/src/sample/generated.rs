//! Conditioning made from a seed, for measurements without a text encoder.

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use tch::Tensor;
use tilewright_torch::noise;

use super::{SampleModel, Size, conditioning_shape::ConditioningShape};
use crate::{Error, Result};

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
            let values = bytes(&noise(SEED + place as u64, shape)?)?;
            tensors.push((name, shape.iter().map(|extent| *extent as usize).collect::<Vec<_>>(), values));
        }
        let views = tensors
            .iter()
            .map(|(name, shape, values)| TensorView::new(Dtype::F32, shape.clone(), values).map(|view| (*name, view)));
        let views = views.collect::<std::result::Result<Vec<_>, _>>().map_err(|error| failed(error.into()))?;
        let bytes = safetensors::serialize(views, None).map_err(|error| failed(error.into()))?;
        std::fs::write(path, bytes).map_err(|error| failed(error.into()))
    }
}

fn bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    let mut values = vec![0_u8; tensor.numel() * size_of::<f32>()];
    tensor.f_contiguous()?.f_copy_data_u8(&mut values, tensor.numel())?;
    Ok(values)
}
