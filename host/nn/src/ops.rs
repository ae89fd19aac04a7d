//! The operations that networks are made of.

use std::{fmt, ops::Range};

use tilewright_plan::Dtype;

use crate::{ComputeFormat, End, Laps, Layer, Result};

/// The movement of a convolution's window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Pixels from one window to the next, along rows and columns.
    pub stride: i64,
    /// Rows of zeros above and below, and columns of zeros at either side.
    pub padding: [i64; 2],
}

/// The weights and constants of a group norm.
#[derive(Clone, Copy, Debug)]
pub struct GroupNorm<'a, W> {
    /// One value per channel.
    pub weight: &'a W,
    /// One value per channel.
    pub bias: &'a W,
    /// The number of groups in which the channels are normed.
    pub groups: i64,
    /// Added to the variance.
    pub epsilon: f64,
}

/// Rows of a picture [N, C, rows, W].
#[derive(Debug)]
pub struct Rows<'a, T> {
    /// The rows that are there.
    pub tensor: &'a T,
    /// The row of the whole picture that comes first.
    pub first: i64,
    /// Rows of the whole picture; beyond it are zeros.
    pub height: i64,
}

impl<T> Clone for Rows<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Rows<'_, T> {}

impl<'a, T> Rows<'a, T> {
    /// All rows of a picture.
    ///
    /// # Errors
    /// The tensor is no picture.
    pub fn all<O: Ops<Tensor = T>>(ops: &O, tensor: &'a T) -> Result<Self> {
        Ok(Self { tensor, first: 0, height: ops.extents(tensor)?[2] })
    }
}

/// A place for rows of a convolution's output.
#[derive(Debug)]
pub enum Store<'a, T> {
    /// The rows are counted in the sums alone.
    Nowhere,
    /// The rows replace those of a tensor.
    Onto(&'a T),
    /// The rows are added to those of a tensor.
    Added(&'a T),
}

impl<T> Clone for Store<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Store<'_, T> {}

/// Operations on the tensors of a back end. Pictures are [N, C, H, W], tokens [N, tokens, width].
///
/// A tensor that is passed by value is freed by the operation, after the result exists; one that is
/// passed by reference is still held by the caller. A view shares its tensor's memory and keeps it.
///
/// # Errors
/// Every operation fails for shapes that it can't take, and if memory is out.
pub trait Ops: fmt::Debug + 'static {
    /// A tensor. Dropping it gives its memory back, unless a view still shares it.
    type Tensor;
    /// A weight, laid out for this back end.
    type Weight: fmt::Debug + Send;
    /// The weights of a 3×3 convolution laid out for Winograd's filtering.
    type Kernel: fmt::Debug + Send;
    /// Sums over the pixels of a picture, per sample and channel, from which a norm follows.
    type Sums;
    /// A norm as one factor and one summand per sample and channel.
    type Affine;
    /// A layer under way, until it is dropped.
    type Running;

    /// Begins a layer: what is run until the result is dropped belongs to it.
    fn begin(&self, layer: &Layer) -> Self::Running;

    /// Begins some rows of a picture that is run in bands: they are a part of a profile.
    fn begin_rows(&self, rows: &Range<i64>) -> Self::Running;

    /// Shows a tensor at one end of a layer to whoever captures it; it stays as it is.
    fn see(&self, layer: &Layer, end: End, tensor: &Self::Tensor) -> Result<()>;

    /// The types and the memory order that the network runs in.
    fn format(&self) -> ComputeFormat;

    /// True if 3×3 convolutions run by Winograd's filtering.
    fn has_winograd(&self) -> bool;

    /// The extents of a picture.
    fn extents(&self, picture: &Self::Tensor) -> Result<[i64; 4]>;

    /// The same tensor once more; its memory is shared.
    fn share(&self, tensor: &Self::Tensor) -> Self::Tensor;

    /// Laps of a loop whose middle laps are alike. Every lap runs if values are computed; few of
    /// them run, and count for the others, if only costs are.
    fn laps(&self, range: Range<i64>, step: i64) -> Laps;

    /// An uninitialised picture in the type and the memory order between layers.
    fn empty(&self, shape: [i64; 4]) -> Result<Self::Tensor>;

    /// Writes values over those of a tensor of the same extents.
    fn copy_onto(&self, tensor: &Self::Tensor, from: &Self::Tensor) -> Result<()>;

    /// Zeros before and after the values of each axis, the last axis first, as in libtorch's
    /// `constant_pad_nd`.
    fn pad(&self, tensor: &Self::Tensor, zeros: &[i64]) -> Result<Self::Tensor>;

    /// The extents of a tensor.
    fn shape(&self, tensor: &Self::Tensor) -> Vec<i64>;

    /// Part of an axis, as a view.
    fn narrow(&self, tensor: &Self::Tensor, axis: usize, start: i64, length: i64) -> Result<Self::Tensor>;

    /// Two axes exchanged, as a view.
    fn transpose(&self, tensor: &Self::Tensor, one: usize, other: usize) -> Result<Self::Tensor>;

    /// The axes in another order, as a view.
    fn permute(&self, tensor: &Self::Tensor, order: &[usize]) -> Result<Self::Tensor>;

    /// Other extents for the same values; a copy only if no view can have them.
    fn reshape(&self, tensor: &Self::Tensor, shape: &[i64]) -> Result<Self::Tensor>;

    /// The values one after another in memory; a copy only if they are not.
    fn contiguous(&self, tensor: &Self::Tensor) -> Result<Self::Tensor>;

    /// A picture in the format's memory order; a copy only if it has another.
    fn to_memory_order(&self, tensor: &Self::Tensor) -> Result<Self::Tensor>;

    /// The tensor in another type; the same tensor if it has that type already.
    fn to_dtype(&self, tensor: Self::Tensor, dtype: Dtype) -> Result<Self::Tensor>;

    /// A picture at twice the height and width, each pixel repeated.
    fn upsample_nearest(&self, picture: &Self::Tensor) -> Result<Self::Tensor>;

    /// Adds a tensor of the same extents to another in its place.
    fn add_onto(&self, tensor: &Self::Tensor, other: &Self::Tensor) -> Result<()>;

    /// x · sigmoid(x), in place.
    fn silu(&self, tensor: Self::Tensor) -> Result<Self::Tensor>;

    /// A group norm.
    fn group_norm(&self, picture: &Self::Tensor, norm: GroupNorm<'_, Self::Weight>) -> Result<Self::Tensor>;

    /// A convolution; the weight is [out, into, side, side].
    fn convolution(
        &self,
        picture: &Self::Tensor,
        weight: &Self::Weight,
        bias: &Self::Weight,
        window: Window,
    ) -> Result<Self::Tensor>;

    /// A convolution, and the group norm of its result, which nobody else needs; `layers` are the
    /// two.
    fn normed_convolution(
        &self,
        picture: Self::Tensor,
        weights: [&Self::Weight; 2],
        window: Window,
        norm: GroupNorm<'_, Self::Weight>,
        layers: [&Layer; 2],
    ) -> Result<Self::Tensor> {
        convolve_then_norm(self, picture, weights, window, norm, layers)
    }

    /// A linear layer over the last axis; the weight is [out, into].
    fn linear(&self, tokens: &Self::Tensor, weight: &Self::Weight, bias: &Self::Weight) -> Result<Self::Tensor>;

    /// Attention of one head; the result may take the query's memory.
    fn attention(&self, query: Self::Tensor, key: &Self::Tensor, value: &Self::Tensor) -> Result<Self::Tensor>;

    /// A convolution's weight in the format's memory order.
    fn lay_out_weight(&self, weight: Self::Weight) -> Result<Self::Weight>;

    /// Weights [out, into, 3, 3] for [`Self::winograd_convolution`], after an upsampling or not.
    fn winograd_kernel(&self, weight: &Self::Weight, bias: &Self::Weight, upsamples: bool) -> Result<Self::Kernel>;

    /// Computes rows of a convolution by Winograd's filtering. The input has to hold the rows that
    /// they depend on, one more on either side. If `before` is given, that norm and then SiLU are
    /// applied to the input first. The output's values and their squares are added to `sums`.
    fn winograd_convolution(
        &self,
        input: Rows<'_, Self::Tensor>,
        kernel: &Self::Kernel,
        before: Option<&Self::Affine>,
        rows: Range<i64>,
        store: Store<'_, Self::Tensor>,
        sums: Option<&mut Self::Sums>,
    ) -> Result<()>;

    /// Sums of `batch` samples and `channels` channels, with no pixel counted.
    fn sums(&self, batch: i64, channels: i64) -> Result<Self::Sums>;

    /// Adds a picture's values and squares to sums. Each piece is centred on its mean first, so
    /// that f32 keeps the precision.
    fn add_up(&self, sums: &mut Self::Sums, picture: &Self::Tensor) -> Result<()>;

    /// The norm of a picture whose sums are known.
    fn affine(&self, norm: GroupNorm<'_, Self::Weight>, sums: &Self::Sums) -> Result<Self::Affine>;

    /// value · scale + shift and SiLU in f32, for values of any type.
    fn affine_silu(&self, picture: &Self::Tensor, affine: &Self::Affine) -> Result<Self::Tensor>;
}

/// [`Ops::normed_convolution`] by one and the other.
pub(crate) fn convolve_then_norm<O: Ops + ?Sized>(
    ops: &O,
    picture: O::Tensor,
    [weight, bias]: [&O::Weight; 2],
    window: Window,
    norm: GroupNorm<'_, O::Weight>,
    [first, second]: [&Layer; 2],
) -> Result<O::Tensor> {
    let running = ops.begin(first);
    let output = ops.convolution(&picture, weight, bias, window)?;
    ops.see(first, End::Out, &output)?;
    drop((picture, running));
    let _running = ops.begin(second);
    ops.group_norm(&ops.to_dtype(output, ops.format().layer_dtype)?, norm)
}
