//! Tensors of libtorch from a file's bytes.

use tch::{Device, Kind, Tensor};
use tilewright_kernels::Stored;
use tilewright_mapped::meeting;
use tilewright_torch::{from_bytes, packed, stored_kind};

use crate::{Checkpoint, Result};

impl Checkpoint {
    /// Loads a tensor as `kind` on `device`, copied once; FP8 and GGUF's types are expanded.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing), [`Error::Shape`](crate::Error::Shape) or
    /// [`Error::Stored`](crate::Error::Stored) if the file does not hold it as expected;
    /// [`Error::Changed`](crate::Error::Changed) if it has changed since it was opened; libtorch's
    /// failures.
    pub fn load(&self, name: &str, expected: &[usize], kind: Kind, device: Device) -> Result<Tensor> {
        let (bytes, stored) = self.expected(name, expected)?;
        let extents: Vec<i64> = expected.iter().map(|&extent| extent as i64).collect();
        meeting::at(format_args!("load {}", self.path_of(name).display()));
        let loaded = self.load_values(name, bytes, stored, &extents, kind, device);
        self.check_file_of(name)?;
        loaded
    }

    /// A tensor's values of the extents that it was found to have; FP8 and GGUF's types expanded.
    fn load_values(
        &self,
        name: &str,
        bytes: &[u8],
        stored: Stored,
        extents: &[i64],
        kind: Kind,
        device: Device,
    ) -> Result<Tensor> {
        if let Some(stored) = stored_kind(stored) {
            return Ok(from_bytes(bytes, extents, stored, kind, device)?);
        }
        if !self.can_load(name) {
            return Err(self.cannot_load(name, stored));
        }
        let packed = if extents.len() > 1 { self.matrix(name)? } else { self.packed_vector(name)? };
        let values = packed::expand(&packed, 0..packed.shape()[0], Kind::Float)?;
        let shaped = values.f_reshape(extents).and_then(|values| values.f_to_kind(kind)?.f_to_device(device));
        Ok(shaped.map_err(tilewright_torch::Error::from)?)
    }
}
