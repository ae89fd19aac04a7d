//! The causal state of a clip of libtorch's tensors: its bytes, and its moves.

use tch::Tensor;

use super::clip::Clip;
use crate::{ComputeFormat, Result};

impl Clip<Tensor> {
    /// Bytes of the causal state and of frames under way that are on a device.
    pub fn bytes(&self, device: tch::Device) -> usize {
        let of = |tensor: &Tensor| match tensor.device() == device {
            true => (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64,
            false => 0,
        };
        self.bytes_by(of) as usize
    }

    /// The tensors of the causal state, for a settled clip to wait in other memory.
    pub fn state_mut(&mut self) -> Vec<&mut Tensor> {
        self.pasts.iter_mut().flat_map(|past| &mut past.frames).collect()
    }

    /// Brings the state of a settled clip to another type, memory order or device.
    ///
    /// # Errors
    /// Memory is out.
    pub fn convert(&mut self, format: &ComputeFormat, device: tch::Device) -> Result<()> {
        for past in &mut self.pasts {
            for frame in &mut past.frames {
                // The pasts of convolutions are in their type; if norms have another, that is as
                // good for those of doublings.
                let moved = frame.f_to_device(device)?.f_to_kind(tilewright_torch::kind(format.product_dtype)?)?;
                *frame = tilewright_torch::to_layout(&moved, format.layout)?;
            }
        }
        Ok(())
    }
}
