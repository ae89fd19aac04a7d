//! The values of a LoRA's tensors.

use tch::{Device, Kind, Tensor};
use tilewright_checkpoint::{Error as FileError, Stored};
use tilewright_torch::packed;

use super::Lora;
use crate::Result;

impl Lora {
    /// A tensor as a matrix: axes after the first are taken together. In f32, in host memory.
    ///
    /// # Errors
    /// It is stored in a type that can't be expanded.
    pub(crate) fn matrix(&self, name: &str) -> Result<Tensor> {
        if let (Some(Stored::F64), Some(bytes)) = (self.file.find_stored(name), self.file.bytes(name)) {
            let shape = self.shape(name).map(|extent| extent as i64);
            return Ok(tilewright_torch::from_bytes(bytes, &shape, Kind::Double, Kind::Float, Device::Cpu)?);
        }
        let packed = self.file.matrix(name)?;
        Ok(packed::expand(&packed, 0..packed.shape()[0], Kind::Float).map_err(FileError::from)?)
    }
}
