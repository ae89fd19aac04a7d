//! CLIP's encoders: `CLIPTextModel` and `CLIPVisionModel` of transformers, after Radford et al.,
//! "Learning Transferable Visual Models From Natural Language Supervision" (2021).

use tilewright_nn::{Biased, Dense, Layer, TokenOps, TokenScope};
use tilewright_plan::Dtype;

use super::Config;
use crate::{EncoderStates, Error, Result, transformer::AffineNorm};

/// The epsilon of every norm.
const EPSILON: f64 = 1e-5;

#[derive(Debug)]
struct Block<O: TokenOps> {
    block: Layer,
    first: AffineNorm<O>,
    qkv: Dense<O>,
    out: Dense<O>,
    second: AffineNorm<O>,
    widen: Dense<O>,
    narrow: Dense<O>,
}

impl<O: TokenOps> Block<O> {
    fn build(scope: &TokenScope<'_, O>, config: &Config) -> Result<Self> {
        let Config { hidden, feed_forward, .. } = *config;
        Ok(Self {
            block: scope.block(),
            first: AffineNorm::build(&scope.at("norm1"), hidden, EPSILON)?,
            qkv: Dense::build(&scope.at("attention.qkv"), hidden, 3 * hidden)?,
            out: Dense::build(&scope.at("attention.out"), hidden, hidden)?,
            second: AffineNorm::build(&scope.at("norm2"), hidden, EPSILON)?,
            widen: Dense::build(&scope.at("widen"), hidden, feed_forward)?,
            narrow: Dense::build(&scope.at("narrow"), feed_forward, hidden)?,
        })
    }

    /// Runs the block on tokens in place.
    fn forward(&self, ops: &O, config: &Config, tokens: &O::Tensor, causal: Option<&O::Tensor>) -> Result<()> {
        let (&Config { hidden, heads, .. }, format) = (config, ops.format());
        let normed = self.first.forward(ops, tokens, format.product_dtype)?;
        let qkv = self.qkv.forward(ops, &normed, format.product_dtype)?;
        // It takes the place of the normed tokens.
        let mixed = normed;
        let of = |index: i64| ops.narrow(&qkv, 2, index * hidden, hidden);
        let scale = 1.0 / ((hidden / heads) as f64).sqrt();
        let operands = [&of(0)?, &of(1)?, &of(2)?];
        match causal {
            Some(bias) => ops.attend_biased_onto(&mixed, operands, Biased { heads, scale, bias })?,
            None => ops.attend_onto(&mixed, operands, heads, false)?,
        }
        drop(qkv);
        ops.add_gated(tokens, None, self.out.forward(ops, &mixed, format.layer_dtype)?)?;
        drop(mixed);
        let normed = self.second.forward(ops, tokens, format.product_dtype)?;
        let wide = self.widen.forward(ops, &normed, format.product_dtype)?;
        drop(normed);
        ops.gelu_onto(&wide, &wide, config.gelu())?;
        Ok(ops.add_gated(tokens, None, self.narrow.forward(ops, &wide, format.layer_dtype)?)?)
    }
}

/// The network with its weights. Its input is made of tables that stay in their file.
#[derive(Debug)]
pub struct Network<O: TokenOps> {
    config: Config,
    /// The norm before the first block, of pictures alone.
    first_norm: Option<AffineNorm<O>>,
    blocks: Vec<Block<O>>,
    norm: AffineNorm<O>,
}

impl<O: TokenOps> Network<O> {
    /// A network of an architecture.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build(config: &Config, scope: &TokenScope<'_, O>) -> Result<Self> {
        let block = |index| Block::build(&scope.at("blocks").at(index), config);
        let (first, last) = match config.picture {
            Some(_) => (Some("first_norm"), "picture_norm"),
            None => (None, "norm"),
        };
        Ok(Self {
            first_norm: first.map(|name| AffineNorm::build(&scope.at(name), config.hidden, EPSILON)).transpose()?,
            blocks: (0..config.blocks).map(block).collect::<Result<_>>()?,
            norm: AffineNorm::build(&scope.at(last), config.hidden, EPSILON)?,
            config: config.clone(),
        })
    }

    /// The states of embedded tokens [N, tokens, width], with their positions added, which are
    /// overwritten. `left_out` blocks come after the inner states.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn forward(&self, ops: &O, embedded: O::Tensor, left_out: usize) -> Result<EncoderStates<O::Tensor>> {
        let shape = ops.shape(&embedded);
        let tokens = ops.to_dtype(embedded, ops.format().layer_dtype)?;
        let count = shape[1];
        let tokens = match &self.first_norm {
            Some(norm) => norm.forward(ops, &tokens, ops.format().layer_dtype)?,
            None => tokens,
        };
        let causal = match self.config.picture {
            Some(_) => None,
            None => {
                let hidden = |query: i64| (0..count).map(move |key| if key > query { f32::NEG_INFINITY } else { 0.0 });
                let causal = || Ok::<_, Error>((0..count).flat_map(hidden).collect());
                Some(ops.constant(&[1, 1, count, count], causal)?)
            }
        };
        let inner_at = self.blocks.len().saturating_sub(left_out);
        let keep = |tokens: &O::Tensor| -> Result<O::Tensor> {
            let kept = ops.unset(&shape, Dtype::F32)?;
            ops.copy_onto(&kept, tokens)?;
            Ok(kept)
        };
        let mut inner = None;
        for (index, block) in self.blocks.iter().enumerate() {
            if index == inner_at {
                inner = Some(keep(&tokens)?);
            }
            let run = || block.forward(ops, &self.config, &tokens, causal.as_ref());
            block.block.run_onto(ops, [&tokens; 2], run)?;
        }
        let last = self.norm.forward(ops, &tokens, Dtype::F32)?;
        let inner = match inner {
            Some(inner) => inner,
            None => keep(&tokens)?,
        };
        Ok(EncoderStates { inner: Some(inner), last })
    }
}
