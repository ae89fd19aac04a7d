//! The operations that networks are made of.

use std::fmt;

use crate::{ComputeFormat, Result};

/// How a convolution's window moves: the same along rows and columns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Pixels from one window to the next.
    pub stride: i64,
    /// Rows and columns of zeros on each side.
    pub padding: i64,
}

/// The weights and constants of a group norm.
#[derive(Clone, Copy, Debug)]
pub struct GroupNorm<'a, W> {
    /// One value per channel.
    pub weight: &'a W,
    /// One value per channel.
    pub bias: &'a W,
    /// Channels are normed in so many groups.
    pub groups: i64,
    /// Added to the variance.
    pub epsilon: f64,
}

/// Operations on the tensors of a back end. Pictures are [N, C, H, W], tokens [N, tokens, width].
///
/// A tensor that is passed by value is freed by the operation, after the result exists; one that is
/// passed by reference is still held by the caller. A view shares its tensor's memory and keeps it.
///
/// # Errors
/// Every operation fails for shapes that it can't take, and if memory is out.
pub trait Ops {
    /// A tensor. Dropping it gives its memory back, unless a view still shares it.
    type Tensor;
    /// A weight, laid out for this back end.
    type Weight: fmt::Debug;

    /// The types and the memory order that the network runs in.
    fn format(&self) -> ComputeFormat;

    /// The extents of a tensor.
    fn shape(&self, tensor: &Self::Tensor) -> Vec<i64>;

    /// Part of an axis, as a view.
    fn narrow(&self, tensor: &Self::Tensor, axis: usize, start: i64, length: i64) -> Result<Self::Tensor>;

    /// Two axes exchanged, as a view.
    fn transpose(&self, tensor: &Self::Tensor, one: usize, other: usize) -> Result<Self::Tensor>;

    /// Other extents for the same values; a copy only if no view can have them.
    fn reshape(&self, tensor: &Self::Tensor, shape: &[i64]) -> Result<Self::Tensor>;

    /// The values one after another in memory; a copy only if they are not.
    fn contiguous(&self, tensor: &Self::Tensor) -> Result<Self::Tensor>;

    /// A picture in the format's memory order; a copy only if it has another.
    fn ordered(&self, tensor: &Self::Tensor) -> Result<Self::Tensor>;

    /// The tensor in another type; the same tensor if it has that type already.
    fn converted(&self, tensor: Self::Tensor, kind: tch::Kind) -> Result<Self::Tensor>;

    /// A picture at twice the height and width, each pixel repeated.
    fn repeated(&self, picture: &Self::Tensor) -> Result<Self::Tensor>;

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

    /// A linear layer over the last axis; the weight is [out, into].
    fn linear(&self, tokens: &Self::Tensor, weight: &Self::Weight, bias: &Self::Weight) -> Result<Self::Tensor>;

    /// Attention of one head; the result may take the query's memory.
    fn attention(&self, query: Self::Tensor, key: &Self::Tensor, value: &Self::Tensor) -> Result<Self::Tensor>;
}
