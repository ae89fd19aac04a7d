//! The operations that transformers are made of, beside those of [`Ops`]. Tokens are
//! [N, tokens, width].

use std::fmt;

use tilewright_plan::Dtype;

use crate::{Error, Layer, Ops, Result, TokenScope};

/// A form of the Gaussian error linear unit (GELU); Φ is the normal distribution's function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// x · Φ(x)
    Exact,
    /// With Φ by a tanh, as in Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
    Tanh,
    /// x · σ(1.702 x), of the same paper: that of OpenAI's CLIP.
    Quick,
}

/// A norm over the width of tokens: (x − mean) / √(variance + epsilon), and then the affine map
/// and the modulation that it has.
#[derive(Debug)]
pub struct LayerNorm<'a, O: TokenOps + ?Sized> {
    /// Added to the variance.
    pub epsilon: f64,
    /// Factor and summand of each value.
    pub affine: Option<(&'a O::Weight, &'a O::Weight)>,
    /// [shift, scale], each [N, spans, width]: normed · (1 + scale) + shift.
    pub modulation: Option<[&'a O::Tensor; 2]>,
}

/// A norm of queries or keys: x / √(mean of squares + epsilon) · weight, over a head's width if the
/// weight has as many values, or over all heads.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorm<'a, W> {
    /// One value for each of a head's, or for each of a token's.
    pub weight: &'a W,
    /// Added to the mean.
    pub epsilon: f64,
}

/// Attention whose scores have a summand.
#[derive(Clone, Copy, Debug)]
pub struct Biased<'a, T> {
    /// Heads side by side in the width.
    pub heads: i64,
    /// The factor of products of queries and keys.
    pub scale: f64,
    /// The summand [1, heads or 1, queries, keys] in f32; −∞ hides a key from a query.
    pub bias: &'a T,
}

/// Operations on tokens. Spans are equal runs of consecutive tokens, such as a clip's frames;
/// [N, spans, width] has one vector for each. Operations named `…_onto` write their result into
/// `output`, which may be a view of a wider tensor and decides the result's type.
pub trait TokenOps: Ops {
    /// The weight of a linear layer, which may be kept as its file stores it.
    type Matrix: fmt::Debug + Send;

    /// Values in f32, which are worked out only if somebody looks at them: a meter does not, and a
    /// table for each token of a large picture takes its time and memory.
    fn constant<E: From<Error>>(
        &self,
        shape: &[i64],
        values: impl FnOnce() -> std::result::Result<Vec<f32>, E>,
    ) -> std::result::Result<Self::Tensor, E>;

    /// Cosines and then sines of each time at `width` / 2 frequencies whose periods go from 2π to
    /// 2π · 10,000, in f32 as in the references (diffusers 0.42.1, `get_timestep_embedding` with
    /// `flip_sin_to_cos`; BFL's flux, `timestep_embedding`): [times / spans, spans, width].
    fn embed_times(&self, times: &[f32], spans: i64, width: i64) -> Result<Self::Tensor>;

    /// A tensor whose values are to be written.
    fn unset(&self, shape: &[i64], dtype: Dtype) -> Result<Self::Tensor>;

    /// A linear layer over the last axis, in the format's type of products, with a result of
    /// `dtype`.
    fn multiply(
        &self,
        tokens: &Self::Tensor,
        matrix: &Self::Matrix,
        bias: Option<&Self::Weight>,
        dtype: Dtype,
    ) -> Result<Self::Tensor>;

    /// As [`Self::multiply`], onto [N, tokens, out].
    fn multiply_onto(
        &self,
        output: &Self::Tensor,
        tokens: &Self::Tensor,
        matrix: &Self::Matrix,
        bias: Option<&Self::Weight>,
    ) -> Result<()>;

    /// A norm over the width, computed in f32, with a result of `dtype`.
    fn layer_norm(&self, tokens: &Self::Tensor, norm: LayerNorm<'_, Self>, dtype: Dtype) -> Result<Self::Tensor>;

    /// Norms queries or keys [N, tokens, width] of `heads` heads in place, in f32, and rotates
    /// pairs of neighbours by the cosines and sines [tokens, width of a head], if these are given.
    fn norm_heads(
        &self,
        tokens: &Self::Tensor,
        norm: HeadNorm<'_, Self::Weight>,
        heads: i64,
        rotation: Option<&Self::Tensor>,
    ) -> Result<()>;

    /// A norm over the width: x / √(mean of squares + epsilon) · weight, computed in f32, with a
    /// result of `dtype` (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019).
    fn root_mean_square_norm(
        &self,
        tokens: &Self::Tensor,
        norm: HeadNorm<'_, Self::Weight>,
        dtype: Dtype,
    ) -> Result<Self::Tensor>;

    /// Attention with `heads` heads of queries, keys and values, onto a tensor like the queries;
    /// keys and values may be of another number of tokens. If `add`, it is added to what `output`
    /// holds.
    fn attend_onto(&self, output: &Self::Tensor, operands: [&Self::Tensor; 3], heads: i64, add: bool) -> Result<()>;

    /// Attention of queries [N, tokens, width] with keys and values of the same extents, onto a
    /// tensor like the queries, with a summand to its scores.
    fn attend_biased_onto(
        &self,
        output: &Self::Tensor,
        operands: [&Self::Tensor; 3],
        attention: Biased<'_, Self::Tensor>,
    ) -> Result<()>;

    /// A summand [1, heads, tokens, tokens] of scores in f32 that depends on how far the key is
    /// behind the query: rows of a table [rows, heads], given for each distance from
    /// −(tokens − 1) to tokens − 1.
    fn bias_by_distance(&self, table: &Self::Weight, rows: &[i64], tokens: i64) -> Result<Self::Tensor>;

    /// A row of a table [1, rows, width] added to each of the spans [N, spans, width], in f32.
    fn offset(&self, spans: &Self::Tensor, table: &Self::Weight, row: i64) -> Result<Self::Tensor>;

    /// The gelu of each value, onto a tensor of the same extents.
    fn gelu_onto(&self, output: &Self::Tensor, tokens: &Self::Tensor, gelu: Gelu) -> Result<()>;

    /// Multiplies values in place by those of a tensor of the same extents.
    fn multiply_by(&self, tokens: &Self::Tensor, factors: &Self::Tensor) -> Result<()>;

    /// Adds other tokens in place, multiplied by the gate [N, spans, width] if there is one.
    fn add_gated(&self, tokens: &Self::Tensor, gate: Option<&Self::Tensor>, other: Self::Tensor) -> Result<()>;
}

/// Gives a transformer's weights by their names.
pub trait TokenSource<O: TokenOps> {
    /// A bias, or the weight of a norm.
    ///
    /// # Errors
    /// There is no such weight, it has other extents, or it can't be loaded.
    fn vector(&self, name: &str, shape: &[i64], dtype: Dtype) -> Result<O::Weight>;

    /// The weight [out, into] of a linear layer. A convolution that never overlaps is one, too: the
    /// file may store it with more axes.
    ///
    /// # Errors
    /// As [`Self::vector`].
    fn matrix(&self, name: &str, shape: [i64; 2]) -> Result<O::Matrix>;
}

/// A linear layer of a transformer.
#[derive(Debug)]
pub struct Dense<O: TokenOps> {
    layer: Layer,
    matrix: O::Matrix,
    bias: Option<O::Weight>,
}

impl<O: TokenOps> Dense<O> {
    /// A linear layer from one width to another, with a bias.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build(scope: &TokenScope<'_, O>, into: i64, out: i64) -> Result<Self> {
        let (matrix, bias) = (scope.matrix("weight", [out, into])?, scope.vector("bias", &[out])?);
        Ok(Self { layer: scope.layer(), matrix, bias: Some(bias) })
    }

    /// A linear layer from one width to another, without a bias.
    ///
    /// # Errors
    /// As [`Self::build`].
    pub fn build_unbiased(scope: &TokenScope<'_, O>, into: i64, out: i64) -> Result<Self> {
        Ok(Self { layer: scope.layer(), matrix: scope.matrix("weight", [out, into])?, bias: None })
    }

    /// Runs the layer; the result has the type `dtype`.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn forward(&self, ops: &O, tokens: &O::Tensor, dtype: Dtype) -> Result<O::Tensor> {
        self.layer.run(ops, tokens, |tokens| ops.multiply(tokens, &self.matrix, self.bias.as_ref(), dtype))
    }

    /// Runs the layer onto a tensor.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn forward_onto(&self, ops: &O, output: &O::Tensor, tokens: &O::Tensor) -> Result<()> {
        self.layer
            .run_onto(ops, [tokens, output], || ops.multiply_onto(output, tokens, &self.matrix, self.bias.as_ref()))
    }
}

/// The norm of [`TokenOps::root_mean_square_norm`] by that of heads, in place of a copy.
pub(crate) fn norm_of_a_copy<O: TokenOps>(
    ops: &O,
    tokens: &O::Tensor,
    norm: HeadNorm<'_, O::Weight>,
    dtype: Dtype,
) -> Result<O::Tensor> {
    let normed = ops.unset(&ops.shape(tokens), Dtype::F32)?;
    ops.copy_onto(&normed, tokens)?;
    ops.norm_heads(&normed, norm, 1, None)?;
    ops.to_dtype(normed, dtype)
}
