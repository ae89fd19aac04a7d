//! Operations that causal video networks take beside those of pictures. Frames are a batch of
//! pictures, [T, C, H, W].

use std::{fmt, ops::Range};

use tilewright_plan::Dtype;

use crate::{Ops, Result, Store};

/// Operations on frames, and on the weights that convolve them.
///
/// # Errors
/// As [`Ops`].
pub trait CausalOps: Ops {
    /// The weights of a 3×3 convolution over three frames, laid out for Winograd's filtering.
    type CausalKernel: fmt::Debug + Send;

    /// True if tensors are in host memory.
    fn is_cpu(&self) -> bool;

    /// Zeros in the type of another tensor, channels first.
    fn zeros(&self, shape: [i64; 4], like: &Self::Tensor) -> Result<Self::Tensor>;

    /// A copy in memory of its own, in the same order.
    fn copy(&self, tensor: &Self::Tensor) -> Result<Self::Tensor>;

    /// Tensors one after another along an axis.
    fn concatenate(&self, parts: &[Self::Tensor], axis: usize) -> Result<Self::Tensor>;

    /// The sum of two tensors of the same extents.
    fn add(&self, tensor: &Self::Tensor, other: &Self::Tensor) -> Result<Self::Tensor>;

    /// Every second frame of a range, as a view.
    fn every_other(&self, frames: &Self::Tensor, range: Range<i64>) -> Result<Self::Tensor>;

    /// The mean along an axis, which is gone then.
    fn mean(&self, tensor: &Self::Tensor, axis: usize) -> Result<Self::Tensor>;

    /// Values between −1 and 1.
    fn clamp(&self, tensor: &Self::Tensor) -> Result<Self::Tensor>;

    /// The RMS norm of each pixel's channels with the factors `gamma`, a frame at a time; then SiLU
    /// if `silu`.
    fn rms_norm(&self, frames: &Self::Tensor, gamma: &Self::Weight, silu: bool) -> Result<Self::Tensor>;

    /// Divides each pixel's channels by their length and multiplies them by `gamma` [1, C, 1, 1],
    /// in f32, all frames at once.
    fn rms_norm_at_once(&self, frames: &Self::Tensor, gamma: &Self::Weight) -> Result<Self::Tensor>;

    /// A convolution by libtorch, never by Winograd's method, with `padding` rows above and below
    /// and columns at either side.
    fn convolve(
        &self,
        frames: &Self::Tensor,
        weight: &Self::Weight,
        bias: Option<&Self::Weight>,
        stride: i64,
        padding: [i64; 2],
    ) -> Result<Self::Tensor>;

    /// The same with the last `into` input channels of weights that have more.
    fn convolve_last(
        &self,
        frames: &Self::Tensor,
        weight: &Self::Weight,
        bias: &Self::Weight,
        padding: [i64; 2],
    ) -> Result<Self::Tensor>;

    /// Convolves a frame and those before it, oldest first, by Winograd's filtering.
    fn winograd_frames(
        &self,
        frames: &[&Self::Tensor],
        kernel: &Self::CausalKernel,
        store: Store<'_, Self::Tensor>,
    ) -> Result<()>;

    /// Channels of a frame selected and laid out in squares of 2×2 pixels.
    fn pixel_shuffle(&self, frame: &Self::Tensor, channels: &Self::Weight) -> Result<Self::Tensor>;

    /// The input channels that [`Self::pixel_shuffle`] selects.
    fn channels(&self, from: &[i64]) -> Result<Self::Weight>;

    /// Weights [out, into, 3, 3, 3] for [`Self::winograd_frames`].
    fn causal_kernel(&self, weight: &Self::Weight, bias: &Self::Weight) -> Result<Self::CausalKernel>;

    /// Weights with their axes in another order and then of another shape, laid out in the format's
    /// memory order if they have four axes.
    fn rearrange(&self, weight: &Self::Weight, order: &[usize], shape: &[i64]) -> Result<Self::Weight>;

    /// One tap in time of weights [out, into, T, h, w], laid out.
    fn tap(&self, weight: &Self::Weight, time: i64) -> Result<Self::Weight>;

    /// The weights of the first `count` output channels; laid out if they have four axes.
    fn first_outputs(&self, weight: &Self::Weight, count: i64) -> Result<Self::Weight>;

    /// A bias with `zeros` zeros before it.
    fn pad_bias(&self, bias: &Self::Weight, zeros: i64) -> Result<Self::Weight>;

    /// Weights times a factor.
    fn scale(&self, weight: &Self::Weight, factor: f64) -> Result<Self::Weight>;

    /// A tensor in the type, the memory order and the place of another.
    fn to_format_of(&self, tensor: &Self::Tensor, like: &Self::Tensor) -> Result<Self::Tensor>;

    /// A tensor on the network's device.
    fn to_device(&self, tensor: &Self::Tensor) -> Result<Self::Tensor>;

    /// The tensor in f32.
    ///
    /// # Errors
    /// Memory is out.
    fn in_f32(&self, tensor: &Self::Tensor) -> Result<Self::Tensor> {
        self.to_dtype(self.share(tensor), Dtype::F32)
    }
}
