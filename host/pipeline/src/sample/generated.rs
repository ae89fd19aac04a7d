//! Conditioning made from a seed, for measurements without a text encoder.

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use tch::Tensor;
use tilewright_torch::noise;

use super::{SampleModel, Size, inputs};
use crate::{Error, Result};

/// The seed of the values.
const SEED: u64 = 0;

impl SampleModel {
    /// Writes conditioning of this transformer's widths for a size, normally distributed.
    ///
    /// # Errors
    /// The size can't be sampled; the file can't be written.
    pub fn generate_conditioning(&self, path: &Path, tokens: u32, size: Size) -> Result<()> {
        let inputs::Widths { text, pooled, image } = inputs::widths(self.config());
        let mut shapes = vec![(inputs::TEXT, vec![1, i64::from(tokens), text])];
        shapes.extend(pooled.map(|width| (inputs::POOLED, vec![1, width])));
        shapes.extend(image.map(|width| (inputs::IMAGE, vec![1, inputs::IMAGE_TOKENS, width])));
        if self.config().condition_channels() > 0 {
            let mut shape = self.shape_of(size)?;
            shape[1] = self.config().condition_channels();
            shapes.push((inputs::CONDITION, shape));
        }
        let failed = |source| Error::Write { path: path.to_owned(), source };
        let mut tensors = Vec::new();
        for (place, (name, shape)) in shapes.into_iter().enumerate() {
            let values = bytes(&noise(SEED + place as u64, &shape)?)?;
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
