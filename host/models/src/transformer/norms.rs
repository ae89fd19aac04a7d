//! Norms of tokens.

use tilewright_nn::{Layer, LayerNorm, TokenOps, TokenScope};
use tilewright_plan::Dtype;

use crate::Result;

/// A norm with factor and summand.
#[derive(Debug)]
pub(crate) struct AffineNorm<O: TokenOps> {
    layer: Layer,
    weight: O::Weight,
    bias: O::Weight,
    epsilon: f64,
}

impl<O: TokenOps> AffineNorm<O> {
    pub fn build(scope: &TokenScope<'_, O>, width: i64, epsilon: f64) -> Result<Self> {
        let (weight, bias) = (scope.vector("weight", &[width])?, scope.vector("bias", &[width])?);
        Ok(Self { layer: scope.layer(), weight, bias, epsilon })
    }

    pub fn forward(&self, ops: &O, tokens: &O::Tensor, dtype: Dtype) -> Result<O::Tensor> {
        let norm = LayerNorm { epsilon: self.epsilon, affine: Some((&self.weight, &self.bias)), modulation: None };
        Ok(self.layer.run(ops, tokens, |tokens| ops.layer_norm(tokens, norm, dtype))?)
    }
}

/// Normed tokens, modulated by shift and scale, in the type of products.
pub(crate) fn modulated<O: TokenOps>(
    ops: &O,
    tokens: &O::Tensor,
    epsilon: f64,
    modulation: [&O::Tensor; 2],
) -> Result<O::Tensor> {
    let norm = LayerNorm { epsilon, affine: None, modulation: Some(modulation) };
    Ok(ops.layer_norm(tokens, norm, ops.format().product_dtype)?)
}
