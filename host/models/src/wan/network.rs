//! WAN's network: `WanTransformer3DModel` of diffusers 0.42.1 and `WanModel` of
//! github.com/Wan-Video/Wan2.1 (wan/modules/model.py), which compute the same.

use tilewright_nn::{Dense, Error as NnError, Gelu, HeadNorm, Layer, TokenOps, TokenScope};
use tilewright_plan::Dtype;

use super::config::{Config, PATCH};
use crate::{
    Error, Inputs, Result,
    transformer::{AffineNorm, BeforeBlock, BlockChoice, feed_forward, modulated, rotation},
};

/// The epsilon of norms, and that of the norms around a picture's embedding (`nn.LayerNorm`'s own).
const EPSILON: f64 = 1e-6;
const IMAGE_EPSILON: f64 = 1e-5;

/// The parts of a block's modulation: shift, scale and gate of attention, and of the feed-forward.
const PARTS: i64 = 6;

/// Times are sigmas multiplied by this.
const TIME_SCALE: f32 = 1000.0;

/// Tensors that follow from the conditioning and the size alone: the same in every step.
#[derive(Debug)]
pub struct Context<T> {
    /// [N, tokens, hidden]
    text: T,
    /// [N, tokens, hidden]
    image: Option<T>,
    /// [tokens, width of a head]
    rotation: T,
    /// Frames, and tokens down and across.
    size: [i64; 3],
}

/// The embedding of a picture to begin from.
#[derive(Debug)]
struct ImageEmbedder<O: TokenOps> {
    before: AffineNorm<O>,
    first: Dense<O>,
    second: Dense<O>,
    after: AffineNorm<O>,
}

impl<O: TokenOps> ImageEmbedder<O> {
    fn build(scope: &TokenScope<'_, O>, width: i64, hidden: i64) -> Result<Self> {
        Ok(Self {
            before: AffineNorm::build(&scope.at("0"), width, IMAGE_EPSILON)?,
            first: Dense::build(&scope.at("1"), width, width)?,
            second: Dense::build(&scope.at("3"), width, hidden)?,
            after: AffineNorm::build(&scope.at("4"), hidden, IMAGE_EPSILON)?,
        })
    }

    fn forward(&self, ops: &O, tokens: &O::Tensor) -> Result<O::Tensor> {
        let format = ops.format();
        let normed = self.before.forward(ops, tokens, format.product_dtype)?;
        let inner = self.first.forward(ops, &normed, format.product_dtype)?;
        ops.gelu_onto(&inner, &inner, Gelu::Exact)?;
        self.after.forward(ops, &self.second.forward(ops, &inner, format.layer_dtype)?, format.layer_dtype)
    }
}

/// Keys and values of cross-attention.
#[derive(Debug)]
struct KeyValue<O: TokenOps> {
    both: Dense<O>,
    norm: O::Weight,
}

impl<O: TokenOps> KeyValue<O> {
    fn build(scope: &TokenScope<'_, O>, both: &str, norm: &str, hidden: i64) -> Result<Self> {
        Ok(Self {
            both: Dense::build(&scope.at(both), hidden, 2 * hidden)?,
            norm: scope.at(norm).vector("weight", &[hidden])?,
        })
    }

    /// Attention of queries to some tokens, onto or added to a tensor.
    fn attend(
        &self,
        ops: &O,
        output: &O::Tensor,
        query: &O::Tensor,
        tokens: &O::Tensor,
        heads: i64,
        add: bool,
    ) -> Result<()> {
        let both = self.both.forward(ops, tokens, ops.format().product_dtype)?;
        let width = ops.shape(query)[2];
        let (key, value) = (ops.narrow(&both, 2, 0, width)?, ops.narrow(&both, 2, width, width)?);
        ops.norm_heads(&key, HeadNorm { weight: &self.norm, epsilon: EPSILON }, heads, None)?;
        Ok(ops.attend_onto(output, [query, &key, &value], heads, add)?)
    }
}

/// A block of attention among the tokens, to the text, and a feed-forward.
#[derive(Debug)]
struct Block<O: TokenOps> {
    block: Layer,
    modulation: O::Weight,
    qkv: Dense<O>,
    query_norm: O::Weight,
    key_norm: O::Weight,
    output: Dense<O>,
    cross_norm: AffineNorm<O>,
    cross_query: Dense<O>,
    cross_query_norm: O::Weight,
    cross_text: KeyValue<O>,
    cross_image: Option<KeyValue<O>>,
    cross_output: Dense<O>,
    widen: Dense<O>,
    narrow: Dense<O>,
}

impl<O: TokenOps> Block<O> {
    fn build(scope: &TokenScope<'_, O>, config: &Config) -> Result<Self> {
        let Config { hidden, feed_forward, .. } = *config;
        let (own, cross) = (scope.at("self_attn"), scope.at("cross_attn"));
        let norm = |scope: &TokenScope<'_, O>, part: &str| scope.at(part).vector("weight", &[hidden]);
        let image = config.image.map(|_| KeyValue::build(&cross, "kv_img", "norm_k_img", hidden));
        Ok(Self {
            block: scope.block(),
            modulation: scope.vector("modulation", &[1, PARTS, hidden])?,
            qkv: Dense::build(&own.at("qkv"), hidden, 3 * hidden)?,
            query_norm: norm(&own, "norm_q")?,
            key_norm: norm(&own, "norm_k")?,
            output: Dense::build(&own.at("o"), hidden, hidden)?,
            cross_norm: AffineNorm::build(&scope.at("norm3"), hidden, EPSILON)?,
            cross_query: Dense::build(&cross.at("q"), hidden, hidden)?,
            cross_query_norm: norm(&cross, "norm_q")?,
            cross_text: KeyValue::build(&cross, "kv", "norm_k", hidden)?,
            cross_image: image.transpose()?,
            cross_output: Dense::build(&cross.at("o"), hidden, hidden)?,
            widen: Dense::build(&scope.at("ffn.0"), hidden, feed_forward)?,
            narrow: Dense::build(&scope.at("ffn.2"), feed_forward, hidden)?,
        })
    }

    fn forward(
        &self,
        ops: &O,
        config: &Config,
        tokens: &O::Tensor,
        times: &O::Tensor,
        context: &Context<O::Tensor>,
    ) -> Result<()> {
        let Config { heads, hidden, .. } = *config;
        let modulation = |row: i64| -> Result<O::Tensor> {
            Ok(ops.offset(&ops.narrow(times, 2, row * hidden, hidden)?, &self.modulation, row)?)
        };
        self.attend(ops, [heads, hidden], tokens, &modulation, context)?;
        self.attend_across(ops, [heads, hidden], tokens, context)?;
        let normed = modulated(ops, tokens, EPSILON, [&modulation(3)?, &modulation(4)?])?;
        let other = feed_forward(ops, normed, [&self.widen, &self.narrow])?;
        Ok(ops.add_gated(tokens, Some(&modulation(5)?), other)?)
    }

    /// Attention among the tokens.
    fn attend(
        &self,
        ops: &O,
        [heads, hidden]: [i64; 2],
        tokens: &O::Tensor,
        modulation: &dyn Fn(i64) -> Result<O::Tensor>,
        context: &Context<O::Tensor>,
    ) -> Result<()> {
        let format = ops.format();
        let normed = modulated(ops, tokens, EPSILON, [&modulation(0)?, &modulation(1)?])?;
        let qkv = self.qkv.forward(ops, &normed, format.product_dtype)?;
        drop(normed);
        let of = |index: i64| ops.narrow(&qkv, 2, index * hidden, hidden);
        let (query, key, value) = (of(0)?, of(1)?, of(2)?);
        for (part, weight) in [(&query, &self.query_norm), (&key, &self.key_norm)] {
            ops.norm_heads(part, HeadNorm { weight, epsilon: EPSILON }, heads, Some(&context.rotation))?;
        }
        let mixed = ops.unset(&ops.shape(&query), format.product_dtype)?;
        ops.attend_onto(&mixed, [&query, &key, &value], heads, false)?;
        drop((query, key, value, qkv));
        let output = self.output.forward(ops, &mixed, format.layer_dtype)?;
        drop(mixed);
        Ok(ops.add_gated(tokens, Some(&modulation(2)?), output)?)
    }

    /// Attention to the text, and to the picture if there is one.
    fn attend_across(
        &self,
        ops: &O,
        [heads, _]: [i64; 2],
        tokens: &O::Tensor,
        context: &Context<O::Tensor>,
    ) -> Result<()> {
        let format = ops.format();
        let normed = self.cross_norm.forward(ops, tokens, format.product_dtype)?;
        let query = self.cross_query.forward(ops, &normed, format.product_dtype)?;
        drop(normed);
        ops.norm_heads(&query, HeadNorm { weight: &self.cross_query_norm, epsilon: EPSILON }, heads, None)?;
        let mixed = ops.unset(&ops.shape(&query), format.product_dtype)?;
        self.cross_text.attend(ops, &mixed, &query, &context.text, heads, false)?;
        if let (Some(cross), Some(image)) = (&self.cross_image, &context.image) {
            cross.attend(ops, &mixed, &query, image, heads, true)?;
        }
        drop(query);
        let output = self.cross_output.forward(ops, &mixed, format.layer_dtype)?;
        Ok(ops.add_gated(tokens, None, output)?)
    }
}

/// The network with its weights.
#[derive(Debug)]
pub struct Network<O: TokenOps> {
    config: Config,
    patches: Dense<O>,
    time: [Dense<O>; 2],
    time_projection: Dense<O>,
    text: [Dense<O>; 2],
    image: Option<ImageEmbedder<O>>,
    blocks: Vec<Block<O>>,
    last_modulation: O::Weight,
    last: Dense<O>,
}

impl<O: TokenOps> Network<O> {
    /// A network of an architecture.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build(config: &Config, scope: &TokenScope<'_, O>) -> Result<Self> {
        let Config { hidden, time, text, .. } = *config;
        let area = PATCH * PATCH;
        let image = config.image.map(|width| ImageEmbedder::build(&scope.at("img_emb.proj"), width, hidden));
        Ok(Self {
            patches: Dense::build(&scope.at("patch_embedding"), config.input_channels * area, hidden)?,
            time: [
                Dense::build(&scope.at("time_embedding.0"), time, hidden)?,
                Dense::build(&scope.at("time_embedding.2"), hidden, hidden)?,
            ],
            time_projection: Dense::build(&scope.at("time_projection.1"), hidden, PARTS * hidden)?,
            text: [
                Dense::build(&scope.at("text_embedding.0"), text, hidden)?,
                Dense::build(&scope.at("text_embedding.2"), hidden, hidden)?,
            ],
            image: image.transpose()?,
            blocks: (0..config.blocks)
                .map(|index| Block::build(&scope.at("blocks").at(index), config))
                .collect::<Result<_>>()?,
            last_modulation: scope.vector("head.modulation", &[1, 2, hidden])?,
            last: Dense::build(&scope.at("head.head"), hidden, config.latent_channels * area)?,
            config: config.clone(),
        })
    }

    /// Embeds the conditioning, for latents of `frames` by `height` by `width` pixels of their own.
    ///
    /// # Errors
    /// Tensors have other extents than the network's; libtorch's failures.
    pub fn prepare(
        &self,
        ops: &O,
        given: &Inputs<'_, O::Tensor>,
        [frames, height, width]: [i64; 3],
    ) -> Result<Context<O::Tensor>> {
        let format = ops.format();
        let inner = self.text[0].forward(ops, given.text, format.product_dtype)?;
        ops.gelu_onto(&inner, &inner, Gelu::Tanh)?;
        let image = match (&self.image, given.image) {
            (Some(embedder), Some(image)) => Some(embedder.forward(ops, image)?),
            _ => None,
        };
        let size @ [frames, rows, columns] = [frames, height / PATCH, width / PATCH];
        let places = (0..frames)
            .flat_map(|frame| (0..rows).flat_map(move |row| (0..columns).map(move |column| [frame, row, column])));
        let each = self.config.hidden / self.config.heads;
        Ok(Context {
            text: self.text[1].forward(ops, &inner, format.layer_dtype)?,
            image,
            rotation: ops
                .constant(&[frames * rows * columns, each], || Ok::<_, Error>(rotation(places, self.config.axes())))?,
            size,
        })
    }

    /// The velocity [N, C, T, h, w] of latents in the model's own space, in f32. `latents` are the
    /// network's input, with the condition's channels behind the latent's if it has such. `sigmas`
    /// are one for all, or one for each frame. `before_block` is called before each block with the
    /// tokens, and after the last one; if it skips the rest, the tokens are what the rest would
    /// have made of them.
    ///
    /// # Errors
    /// The latents are of another size than the context; libtorch's failures; an error of
    /// `before_block`.
    pub fn forward(
        &self,
        ops: &O,
        latents: &O::Tensor,
        sigmas: &[f32],
        context: &Context<O::Tensor>,
        before_block: BeforeBlock<'_, O::Tensor>,
    ) -> Result<O::Tensor> {
        let (config, [frames, rows, columns]) = (&self.config, context.size);
        let shape = ops.shape(latents);
        let expected = [config.input_channels, frames, rows * PATCH, columns * PATCH];
        let spans = sigmas.len() as i64;
        if shape.len() != 5 || shape[1..] != expected || spans != 1 && spans != frames {
            let shapes = format!("{shape:?} and {spans} times for {frames}×{rows}×{columns} tokens");
            return Err(NnError::Shapes { operation: "WAN's transformer", shapes }.into());
        }
        let (batch, format) = (shape[0], ops.format());
        let tokens = frames * rows * columns;
        let split = ops.reshape(latents, &[batch, shape[1], frames, rows, PATCH, columns, PATCH])?;
        let split = ops.contiguous(&ops.permute(&split, &[0, 2, 3, 5, 1, 4, 6])?)?;
        let split = ops.reshape(&split, &[batch, tokens, shape[1] * PATCH * PATCH])?;
        let hidden = self.patches.forward(ops, &split, format.layer_dtype)?;
        drop(split);
        let times: Vec<f32> = (0..batch).flat_map(|_| sigmas).map(|sigma| sigma * TIME_SCALE).collect();
        let embedded = ops.embed_times(&times, spans, config.time)?;
        // In f32 whatever the format: small, and its errors would be in every value.
        let inner = ops.silu(self.time[0].forward(ops, &embedded, Dtype::F32)?)?;
        let time = self.time[1].forward(ops, &inner, Dtype::F32)?;
        let active = ops.unset(&ops.shape(&time), Dtype::F32)?;
        ops.copy_onto(&active, &time)?;
        let projected = self.time_projection.forward(ops, &ops.silu(active)?, Dtype::F32)?;
        for index in 0..=self.blocks.len() {
            if before_block(index, &hidden)? == BlockChoice::SkipRest {
                break;
            }
            if let Some(block) = self.blocks.get(index) {
                let run = || block.forward(ops, config, &hidden, &projected, context);
                block.block.run_onto(ops, [&hidden; 2], run)?;
            }
        }
        let [shift, scale] =
            [ops.offset(&time, &self.last_modulation, 0)?, ops.offset(&time, &self.last_modulation, 1)?];
        let normed = modulated(ops, &hidden, EPSILON, [&shift, &scale])?;
        drop(hidden);
        let velocity = self.last.forward(ops, &normed, Dtype::F32)?;
        drop(normed);
        let channels = config.latent_channels;
        let velocity = ops.reshape(&velocity, &[batch, frames, rows, columns, PATCH, PATCH, channels])?;
        let velocity = ops.permute(&velocity, &[0, 6, 1, 2, 4, 3, 5])?;
        Ok(ops.reshape(&velocity, &[batch, channels, frames, rows * PATCH, columns * PATCH])?)
    }
}
