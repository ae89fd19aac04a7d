//! [`ComputeFormat`], and the part of a plan that it is made of.

use std::fmt;

use tilewright_kernels::Kernels;
use tilewright_plan::{CONVOLUTION, DIRECT, Dtype, Layout, Plan, Precision, Products};

use crate::{Error, Result};

/// The types and the memory order that a network is loaded for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ComputeFormat {
    /// The type that convolutions and matrix products compute in.
    pub product_dtype: Dtype,
    /// True if convolutions of f32 round their operands to TF32.
    pub tf32: bool,
    /// The form of the operands of products with weights that are stored in a type for it; all
    /// others have `product_dtype`.
    pub product_form: Products,
    /// True if sums of FP8 products are the quick ones, in fewer bits than f32.
    pub quick_fp8_sums: bool,
    /// The queries that attention of several heads has in memory at once, with their scores; none
    /// if it is fused where the device can.
    pub queries: Option<i64>,
    /// True if each head of fused attention is first copied to lie by itself.
    pub heads_apart: bool,
    /// The number of parts of the tokens that go through a feed-forward layer one after the other.
    pub feed_forward_parts: i64,
    /// The type of norms and sums, and of the tensors between layers.
    pub layer_dtype: Dtype,
    /// The memory order between layers.
    pub layout: Layout,
    /// True if 3×3 convolutions are computed directly where they could be by Winograd's filtering.
    pub is_direct: bool,
}

/// The part of a decode's or an encode's plan that networks are loaded and priced by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanFormat {
    /// The element types.
    pub precision: Precision,
    /// The memory order.
    pub layout: Layout,
    /// True if 3×3 convolutions are computed directly where they could be by Winograd's filtering.
    pub is_direct: bool,
}

impl PlanFormat {
    /// The formats of a type and a memory order, with the kernels of a device.
    pub fn all(dtype: Dtype, layout: Layout, kernels: &Kernels) -> impl Iterator<Item = Self> + use<> {
        let kernels = *kernels;
        [Precision::Uniform(dtype), Precision::Mixed(dtype)].into_iter().flat_map(move |precision| {
            let filtered = Self { precision, layout, is_direct: false };
            let direct = filtered.is_filtered(&kernels).then_some(Self { is_direct: true, ..filtered });
            std::iter::once(filtered).chain(direct)
        })
    }

    /// The format of a plan, with the kernels of a device.
    pub fn of(plan: &Plan, kernels: &Kernels) -> Self {
        let filtered = Self { precision: plan.precision, layout: plan.layout, is_direct: false };
        let is_direct = plan.options.is(CONVOLUTION, DIRECT) && filtered.is_filtered(kernels);
        Self { is_direct, ..filtered }
    }

    /// The types and the memory order that a network is loaded for.
    ///
    /// # Errors
    /// As [`ComputeFormat::new`].
    pub fn compute(self) -> Result<ComputeFormat> {
        Ok(ComputeFormat { is_direct: self.is_direct, ..ComputeFormat::new(self.precision, self.layout)? })
    }

    /// True if 3×3 convolutions run by Winograd's filtering.
    fn is_filtered(self, kernels: &Kernels) -> bool {
        self.compute().is_ok_and(|format| format.has_winograd(kernels))
    }
}

impl fmt::Display for PlanFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direct = if self.is_direct { " with direct convolutions" } else { "" };
        write!(f, "{} {}{direct}", self.precision, self.layout)
    }
}

impl ComputeFormat {
    /// f32 throughout, channels first.
    pub const fn single() -> Self {
        Self {
            product_dtype: Dtype::F32,
            tf32: false,
            product_form: Products::Precision,
            quick_fp8_sums: false,
            queries: None,
            heads_apart: false,
            feed_forward_parts: 1,
            layer_dtype: Dtype::F32,
            layout: Layout::ChannelsFirst,
            is_direct: false,
        }
    }

    /// The format that a plan asks for.
    ///
    /// # Errors
    /// The type of `precision` can't be computed in, or not in this way.
    pub fn new(precision: Precision, layout: Layout) -> Result<Self> {
        let dtype = precision.dtype();
        let product_dtype = match dtype {
            Dtype::Tf32 => Dtype::F32,
            Dtype::F32 | Dtype::Bf16 | Dtype::F16 => dtype,
            _ => return Err(Error::Dtype(dtype)),
        };
        let layer_dtype = match precision {
            Precision::Uniform(Dtype::Tf32) => return Err(Error::Dtype(dtype)),
            Precision::Uniform(_) => product_dtype,
            Precision::Mixed(_) => Dtype::F32,
        };
        Ok(Self { product_dtype, tf32: dtype == Dtype::Tf32, layer_dtype, layout, ..Self::single() })
    }

    /// True if 3×3 convolutions run by Winograd's filtering.
    pub fn has_winograd(&self, kernels: &Kernels) -> bool {
        let single = Self { product_dtype: Dtype::F32, ..*self };
        let wanted = Self { layout: Layout::ChannelsLast, ..Self::single() };
        single == wanted && kernels.has_products(self.product_dtype)
    }
}
