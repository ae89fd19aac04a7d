//! Operations that causal video networks take beside those of pictures. Frames are a batch of
//! pictures, [T, C, H, W].

use std::{fmt, ops::Range};

use tch::Kind;

use crate::{Ops, Result};

/// Operations on frames, and on the weights that convolve them.
///
/// # Errors
/// As [`Ops`].
pub trait CausalOps: Ops {
    /// The weights of a 3×3 convolution over one frame or three, laid out for Winograd's filtering.
    type Kernel: fmt::Debug;

    /// True if tensors are in host memory.
    fn is_cpu(&self) -> bool;

    /// True if 3×3 convolutions run by Winograd's filtering.
    fn has_winograd(&self) -> bool;

    /// The extents of frames.
    fn extents(&self, frames: &Self::Tensor) -> Result<[i64; 4]>;

    /// The same tensor once more; its memory is shared.
    fn share(&self, tensor: &Self::Tensor) -> Self::Tensor;

    /// Laps of a loop whose middle laps are alike. Every lap runs where values are computed; few of
    /// them run, and count for the others, where only costs are.
    fn laps(&self, range: Range<i64>, step: i64) -> Laps;

    /// Uninitialised frames in the type and the memory order between layers.
    fn empty(&self, shape: [i64; 4]) -> Result<Self::Tensor>;

    /// Zeros in the type of another tensor, rows and columns innermost.
    fn zeros(&self, shape: [i64; 4], like: &Self::Tensor) -> Result<Self::Tensor>;

    /// A copy in memory of its own, in the same order.
    fn copied(&self, tensor: &Self::Tensor) -> Result<Self::Tensor>;

    /// Writes values over those of a tensor of the same extents.
    fn copy_onto(&self, tensor: &Self::Tensor, from: &Self::Tensor) -> Result<()>;

    /// Tensors one after another along an axis.
    fn joined(&self, parts: &[Self::Tensor], axis: usize) -> Result<Self::Tensor>;

    /// The sum of two tensors of the same extents.
    fn added(&self, tensor: &Self::Tensor, other: &Self::Tensor) -> Result<Self::Tensor>;

    /// Zeros before and after the values of each axis, the last axis first, as in libtorch's
    /// `constant_pad_nd`.
    fn padded(&self, tensor: &Self::Tensor, zeros: &[i64]) -> Result<Self::Tensor>;

    /// Every other frame from one frame to another, as a view.
    fn every_other(&self, frames: &Self::Tensor, range: Range<i64>) -> Result<Self::Tensor>;

    /// The axes in another order, as a view.
    fn permuted(&self, tensor: &Self::Tensor, order: &[usize]) -> Result<Self::Tensor>;

    /// The mean along an axis, which is gone then.
    fn mean(&self, tensor: &Self::Tensor, axis: usize) -> Result<Self::Tensor>;

    /// Values between −1 and 1.
    fn clamped(&self, tensor: &Self::Tensor) -> Result<Self::Tensor>;

    /// Each pixel's channels at length √C, then scaled by `gamma`, a frame at a time, and SiLU
    /// after that if asked for.
    fn unit_norm(&self, frames: &Self::Tensor, gamma: &Self::Weight, silu: bool) -> Result<Self::Tensor>;

    /// Each pixel's channels at length 1, then scaled by `gamma` [1, C, 1, 1] in f32, all frames at
    /// once.
    fn unit_norm_at_once(&self, frames: &Self::Tensor, gamma: &Self::Weight) -> Result<Self::Tensor>;

    /// A convolution by libtorch in any case, with `padding` rows above and below and columns at
    /// either side.
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

    /// Convolves frames, oldest first, and writes the result onto frames or adds it to them.
    fn filter(&self, frames: &[&Self::Tensor], kernel: &Self::Kernel, add: bool, onto: &Self::Tensor) -> Result<()>;

    /// Channels of a frame selected and laid out in squares of 2×2 pixels.
    fn unfolded(&self, frame: &Self::Tensor, channels: &Self::Weight) -> Result<Self::Tensor>;

    /// The input channels that [`Self::unfolded`] selects.
    fn channels(&self, from: &[i64]) -> Result<Self::Weight>;

    /// Weights [out, into, 3, 3] for [`Self::filter`], after an upsampling or not.
    fn kernel(&self, weight: &Self::Weight, bias: &Self::Weight, upsamples: bool) -> Result<Self::Kernel>;

    /// Weights [out, into, 3, 3, 3] over three frames for [`Self::filter`].
    fn causal_kernel(&self, weight: &Self::Weight, bias: &Self::Weight) -> Result<Self::Kernel>;

    /// Weights with their axes in another order and then of another shape, laid out in the format's
    /// memory order if they have four axes.
    fn arranged(&self, weight: &Self::Weight, order: &[usize], shape: &[i64]) -> Result<Self::Weight>;

    /// One tap in time of weights [out, into, T, h, w], laid out.
    fn tap(&self, weight: &Self::Weight, time: i64) -> Result<Self::Weight>;

    /// The weights of the first `count` output channels; laid out if they have four axes.
    fn first_outputs(&self, weight: &Self::Weight, count: i64) -> Result<Self::Weight>;

    /// A bias with so many zeros before it.
    fn delayed(&self, bias: &Self::Weight, zeros: i64) -> Result<Self::Weight>;

    /// Weights times a factor.
    fn scaled(&self, weight: &Self::Weight, factor: f64) -> Result<Self::Weight>;

    /// The tensor in f32.
    ///
    /// # Errors
    /// Memory is out.
    fn in_f32(&self, tensor: &Self::Tensor) -> Result<Self::Tensor> {
        self.converted(self.share(tensor), Kind::Float)
    }
}

/// Laps of a loop, as ranges of at most `step` numbers.
#[derive(Debug)]
pub struct Laps {
    next: i64,
    end: i64,
    step: i64,
    turn: u32,
    /// The meter that counts one lap for those that are like it.
    times: Option<Times>,
}

/// Sets how often a meter counts what it is told.
#[derive(Debug)]
pub(crate) struct Times {
    pub ledger: std::rc::Rc<crate::meter::Ledger>,
    pub outside: f64,
}

/// Laps after which those that follow are like the one before: a causal layer looks back at two
/// frames.
const SETTLED: u32 = 3;

impl Laps {
    pub(crate) fn new(range: Range<i64>, step: i64, times: Option<Times>) -> Self {
        Self { next: range.start, end: range.end, step: step.max(1), turn: 0, times }
    }
}

impl Iterator for Laps {
    type Item = Range<i64>;

    fn next(&mut self) -> Option<Range<i64>> {
        let left = self.end - self.next;
        let whole = left / self.step;
        if let Some(Times { ledger, outside }) = &self.times {
            ledger.repeat(*outside);
            if self.turn >= SETTLED && whole > 1 {
                ledger.repeat(outside * whole as f64);
                self.next += (whole - 1) * self.step;
            }
        }
        let start = self.next;
        self.next = (start + self.step).min(self.end);
        self.turn += 1;
        (left > 0).then_some(start..self.next)
    }
}

impl Drop for Laps {
    fn drop(&mut self) {
        if let Some(Times { ledger, outside }) = &self.times {
            ledger.repeat(*outside);
        }
    }
}
