//! The encoder of T5 (version 1.1) and UMT5: `T5EncoderModel` and `UMT5EncoderModel` of
//! transformers.

use tilewright_nn::{Biased, Dense, Gelu, HeadNorm, Layer, TokenOps, TokenScope};
use tilewright_plan::Dtype;

use super::Config;
use crate::{EncoderStates, Result};

#[derive(Debug)]
struct Block<O: TokenOps> {
    block: Layer,
    first: O::Weight,
    qkv: Dense<O>,
    distances: Option<O::Weight>,
    out: Dense<O>,
    second: O::Weight,
    /// The gate's rows, then those of the values.
    widen: Dense<O>,
    narrow: Dense<O>,
}

impl<O: TokenOps> Block<O> {
    fn build(scope: &TokenScope<'_, O>, config: &Config, has_distances: bool) -> Result<Self> {
        let Config { hidden, attention: inner, feed_forward, distances, heads, .. } = *config;
        let (attention, wide) = (scope.at("attention"), scope.at("feed_forward"));
        let table = has_distances.then(|| attention.vector("distances.weight", &[distances, heads]));
        Ok(Self {
            block: scope.block(),
            first: attention.vector("norm.weight", &[hidden])?,
            qkv: Dense::build_unbiased(&attention.at("qkv"), hidden, 3 * inner)?,
            distances: table.transpose()?,
            out: Dense::build_unbiased(&attention.at("out"), inner, hidden)?,
            second: wide.vector("norm.weight", &[hidden])?,
            widen: Dense::build_unbiased(&wide.at("widen"), hidden, 2 * feed_forward)?,
            narrow: Dense::build_unbiased(&wide.at("narrow"), feed_forward, hidden)?,
        })
    }

    /// Runs the block on tokens in place.
    fn forward(&self, ops: &O, config: &Config, tokens: &O::Tensor, bias: &O::Tensor) -> Result<()> {
        let Config { heads, attention: inner, feed_forward, epsilon, .. } = *config;
        let (format, shape) = (ops.format(), ops.shape(tokens));
        let norm = |weight| HeadNorm { weight, epsilon };
        let normed = ops.root_mean_square_norm(tokens, norm(&self.first), format.product_dtype)?;
        let qkv = self.qkv.forward(ops, &normed, format.product_dtype)?;
        drop(normed);
        let mixed = ops.unset(&[shape[0], shape[1], inner], format.product_dtype)?;
        let of = |index: i64| ops.narrow(&qkv, 2, index * inner, inner);
        // T5's initial weights are smaller, so that its scores need no factor.
        ops.attend_biased_onto(&mixed, [&of(0)?, &of(1)?, &of(2)?], Biased { heads, scale: 1.0, bias })?;
        drop(qkv);
        ops.add_gated(tokens, None, self.out.forward(ops, &mixed, format.layer_dtype)?)?;
        drop(mixed);
        let normed = ops.root_mean_square_norm(tokens, norm(&self.second), format.product_dtype)?;
        let wide = self.widen.forward(ops, &normed, format.product_dtype)?;
        drop(normed);
        let (gate, values) =
            (ops.narrow(&wide, 2, 0, feed_forward)?, ops.narrow(&wide, 2, feed_forward, feed_forward)?);
        ops.gelu_onto(&gate, &gate, Gelu::Tanh)?;
        ops.multiply_by(&gate, &values)?;
        Ok(ops.add_gated(tokens, None, self.narrow.forward(ops, &gate, format.layer_dtype)?)?)
    }
}

/// The network with its weights. Its input is made of a table that stays in its file.
#[derive(Debug)]
pub struct Network<O: TokenOps> {
    config: Config,
    blocks: Vec<Block<O>>,
    norm: O::Weight,
}

impl<O: TokenOps> Network<O> {
    /// A network of an architecture.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build(config: &Config, scope: &TokenScope<'_, O>) -> Result<Self> {
        let block =
            |index: usize| Block::build(&scope.at("blocks").at(index), config, index == 0 || config.own_distances);
        Ok(Self {
            blocks: (0..config.blocks).map(block).collect::<Result<_>>()?,
            norm: scope.vector("norm.weight", &[config.hidden])?,
            config: config.clone(),
        })
    }

    /// The states of embedded tokens [N, tokens, width], in f32. All tokens are attended: padding,
    /// too, if there is any. There are no inner states.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn forward(&self, ops: &O, embedded: O::Tensor, _left_out: usize) -> Result<EncoderStates<O::Tensor>> {
        let count = ops.shape(&embedded)[1];
        let tokens = ops.to_dtype(embedded, ops.format().layer_dtype)?;
        let rows: Vec<i64> = (1 - count..count).map(|distance| self.config.row(distance)).collect();
        let mut bias = None;
        for block in &self.blocks {
            if let Some(table) = &block.distances {
                drop(bias.take());
                bias = Some(ops.bias_by_distance(table, &rows, count)?);
            }
            if let Some(bias) = &bias {
                block.block.run_onto(ops, [&tokens; 2], || block.forward(ops, &self.config, &tokens, bias))?;
            }
        }
        let norm = HeadNorm { weight: &self.norm, epsilon: self.config.epsilon };
        Ok(EncoderStates { inner: None, last: ops.root_mean_square_norm(&tokens, norm, Dtype::F32)? })
    }
}
