//! The types and the memory order that a network runs in.

use tch::{Device, Kind};
use tilewright_plan::{Layout, Precision};
use tilewright_torch::{Result, winograd};

/// The types and the memory order that a network is loaded for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ComputeFormat {
    /// The type of convolutions and matrix products.
    pub convolution: Kind,
    /// The type of norms and sums, and of the tensors between layers.
    pub rest: Kind,
    /// The memory order between layers.
    pub layout: Layout,
}

impl ComputeFormat {
    /// The format that a plan asks for.
    ///
    /// # Errors
    /// Nothing is computed in the type.
    pub fn new(precision: Precision, layout: Layout) -> Result<Self> {
        let convolution = tilewright_torch::kind(precision.dtype())?;
        let rest = match precision {
            Precision::Uniform(_) => convolution,
            Precision::Mixed(_) => Kind::Float,
        };
        Ok(Self { convolution, rest, layout })
    }

    /// True if 3×3 convolutions run by Winograd's filtering.
    pub fn winograd(&self, device: Device) -> bool {
        let wanted = Self { convolution: Kind::Float, rest: Kind::Float, layout: Layout::ChannelsLast };
        *self == wanted && device == Device::Cpu && winograd::available()
    }
}
