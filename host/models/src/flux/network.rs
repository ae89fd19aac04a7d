//! Flux.1's network: `FluxTransformer2DModel` of diffusers 0.42.1 and `Flux` of BFL's
//! github.com/black-forest-labs/flux (src/flux/model.py), which compute the same.

use std::ops::Range;

use tilewright_nn::{Dense, Error as NnError, Gelu, HeadNorm, Layer, TokenOps, TokenScope};
use tilewright_plan::Dtype;

use super::config::{Config, PATCH, TIME_WIDTH};
use crate::{
    Error, Inputs, NetworkConfig, Result,
    transformer::{self, BeforeBlock, BlockChoice, modulated, rotation},
};

/// The epsilon of every norm.
const EPSILON: f64 = 1e-6;

/// Times and guidances are multiplied by this before they are embedded.
const TIME_SCALE: f32 = 1000.0;

/// Tensors that follow from the conditioning and the size alone: the same in every step.
#[derive(Debug)]
pub struct Context<T> {
    /// [N, tokens, hidden]
    text: T,
    /// [N, 1, hidden]: the text's vector and the guidance, embedded.
    vector: T,
    /// [text and image tokens, width of a head]
    rotation: T,
    text_tokens: i64,
    /// Tokens down and across.
    size: [i64; 2],
}

/// A vector's embedding by two layers.
#[derive(Debug)]
struct Embedder<O: TokenOps> {
    first: Dense<O>,
    second: Dense<O>,
}

impl<O: TokenOps> Embedder<O> {
    fn build(scope: &TokenScope<'_, O>, into: i64, hidden: i64) -> Result<Self> {
        Ok(Self {
            first: Dense::build(&scope.at("in_layer"), into, hidden)?,
            second: Dense::build(&scope.at("out_layer"), hidden, hidden)?,
        })
    }

    fn forward(&self, ops: &O, vector: &O::Tensor) -> Result<O::Tensor> {
        let dtype = ops.format().layer_dtype;
        let inner = ops.silu(self.first.forward(ops, vector, dtype)?)?;
        Ok(self.second.forward(ops, &inner, dtype)?)
    }
}

/// Norms of queries and keys.
#[derive(Debug)]
struct HeadNorms<O: TokenOps> {
    query: O::Weight,
    key: O::Weight,
}

impl<O: TokenOps> HeadNorms<O> {
    fn build(scope: &TokenScope<'_, O>, head_width: i64) -> Result<Self> {
        let shape = [head_width];
        Ok(Self { query: scope.vector("query_norm.scale", &shape)?, key: scope.vector("key_norm.scale", &shape)? })
    }

    /// Norms and turns queries and keys, which stand side by side in tokens with others.
    fn apply(&self, ops: &O, tokens: &O::Tensor, [heads, hidden]: [i64; 2], rotation: &O::Tensor) -> Result<()> {
        for (index, weight) in [&self.query, &self.key].into_iter().enumerate() {
            let part = ops.narrow(tokens, 2, index as i64 * hidden, hidden)?;
            ops.norm_heads(&part, HeadNorm { weight, epsilon: EPSILON }, heads, Some(rotation))?;
        }
        Ok(())
    }
}

/// The effect of a vector on a layer and its tokens (adaptive layer norm with a gate, section 3.2
/// of arXiv:2212.09748): normed tokens go in times 1 + `scale`, plus `shift`, and the output is
/// added times `gate`. Each is as wide as tokens.
struct Modulation<T> {
    shift: T,
    scale: T,
    gate: T,
}

impl<T> Modulation<T> {
    /// The modulation of a layer, by its number, in [N, 1, 3 · layers · hidden].
    fn of_layer<O: TokenOps<Tensor = T>>(ops: &O, all: &T, layer: i64, hidden: i64) -> Result<Self> {
        let part = |index: i64| ops.narrow(all, 2, (3 * layer + index) * hidden, hidden);
        Ok(Self { shift: part(0)?, scale: part(1)?, gate: part(2)? })
    }
}

/// Image or text in a double block.
#[derive(Debug)]
struct Stream<O: TokenOps> {
    modulation: Dense<O>,
    qkv: Dense<O>,
    norms: HeadNorms<O>,
    output: Dense<O>,
    widen: Dense<O>,
    narrow: Dense<O>,
}

impl<O: TokenOps> Stream<O> {
    fn build(scope: &TokenScope<'_, O>, name: &str, config: &Config) -> Result<Self> {
        let at = |part: &str| scope.at(format!("{name}_{part}"));
        let (hidden, feed_forward) = (config.hidden, config.feed_forward);
        Ok(Self {
            modulation: Dense::build(&at("mod").at("lin"), hidden, 6 * hidden)?,
            qkv: Dense::build(&at("attn").at("qkv"), hidden, 3 * hidden)?,
            norms: HeadNorms::build(&at("attn").at("norm"), config.head_width())?,
            output: Dense::build(&at("attn").at("proj"), hidden, hidden)?,
            widen: Dense::build(&at("mlp").at("0"), hidden, feed_forward)?,
            narrow: Dense::build(&at("mlp").at("2"), feed_forward, hidden)?,
        })
    }

    /// The modulations of attention and of the feed-forward.
    fn modulations(&self, ops: &O, vector: &O::Tensor, hidden: i64) -> Result<[Modulation<O::Tensor>; 2]> {
        let all = self.modulation.forward(ops, vector, Dtype::F32)?;
        Ok([Modulation::of_layer(ops, &all, 0, hidden)?, Modulation::of_layer(ops, &all, 1, hidden)?])
    }

    /// Puts queries, keys and values of the tokens onto their part of all tokens'.
    fn attention_inputs(
        &self,
        ops: &O,
        tokens: &O::Tensor,
        modulation: &Modulation<O::Tensor>,
        qkv: &O::Tensor,
        [heads, hidden]: [i64; 2],
        rotation: &O::Tensor,
    ) -> Result<()> {
        let normed = modulated(ops, tokens, EPSILON, [&modulation.shift, &modulation.scale])?;
        self.qkv.forward_onto(ops, qkv, &normed)?;
        drop(normed);
        self.norms.apply(ops, qkv, [heads, hidden], rotation)
    }

    /// Adds the attended values and the feed-forward to the tokens.
    fn finish_block(
        &self,
        ops: &O,
        tokens: &O::Tensor,
        [attention, feed_forward]: &[Modulation<O::Tensor>; 2],
        attended: &O::Tensor,
    ) -> Result<()> {
        let format = ops.format();
        ops.add_gated(tokens, Some(&attention.gate), self.output.forward(ops, attended, format.layer_dtype)?)?;
        let normed = modulated(ops, tokens, EPSILON, [&feed_forward.shift, &feed_forward.scale])?;
        let output = transformer::feed_forward(ops, normed, [&self.widen, &self.narrow])?;
        Ok(ops.add_gated(tokens, Some(&feed_forward.gate), output)?)
    }
}

/// A block in which image and text have weights of their own.
#[derive(Debug)]
struct DoubleBlock<O: TokenOps> {
    block: Layer,
    image: Stream<O>,
    text: Stream<O>,
}

impl<O: TokenOps> DoubleBlock<O> {
    fn forward(
        &self,
        ops: &O,
        config: &Config,
        joint: &O::Tensor,
        vector: &O::Tensor,
        context: &Context<O::Tensor>,
    ) -> Result<()> {
        let Config { heads, hidden, .. } = *config;
        let shape = ops.shape(joint);
        let ranges = context.text_and_image(shape[1]);
        let qkv = ops.unset(&[shape[0], shape[1], 3 * hidden], ops.format().product_dtype)?;
        let streams = [&self.text, &self.image];
        let mut modulations = Vec::new();
        for (stream, range) in streams.into_iter().zip(&ranges) {
            let own = stream.modulations(ops, vector, hidden)?;
            let tokens = tokens_in(ops, joint, range)?;
            let rotation = ops.narrow(&context.rotation, 0, range.start, range.end - range.start)?;
            stream.attention_inputs(
                ops,
                &tokens,
                &own[0],
                &tokens_in(ops, &qkv, range)?,
                [heads, hidden],
                &rotation,
            )?;
            modulations.push(own);
        }
        let attended = ops.unset(&shape, ops.format().product_dtype)?;
        attend(ops, &attended, &qkv, heads, hidden)?;
        drop(qkv);
        for ((stream, range), own) in streams.into_iter().zip(&ranges).zip(&modulations) {
            stream.finish_block(ops, &tokens_in(ops, joint, range)?, own, &tokens_in(ops, &attended, range)?)?;
        }
        Ok(())
    }
}

/// The tokens of a range, as a view.
fn tokens_in<O: TokenOps>(ops: &O, tokens: &O::Tensor, range: &Range<i64>) -> Result<O::Tensor> {
    Ok(ops.narrow(tokens, 1, range.start, range.end - range.start)?)
}

/// Attention of all tokens with each other, by queries, keys and values side by side.
fn attend<O: TokenOps>(ops: &O, output: &O::Tensor, qkv: &O::Tensor, heads: i64, hidden: i64) -> Result<()> {
    let of = |index: i64| ops.narrow(qkv, 2, index * hidden, hidden);
    let (query, key, value) = (of(0)?, of(1)?, of(2)?);
    Ok(ops.attend_onto(output, [&query, &key, &value], heads, false)?)
}

/// A block of all tokens, with attention and feed-forward side by side.
#[derive(Debug)]
struct SingleBlock<O: TokenOps> {
    block: Layer,
    modulation: Dense<O>,
    /// To queries, keys and values, and into the feed-forward.
    first: Dense<O>,
    norms: HeadNorms<O>,
    /// From the attended values, and out of the feed-forward.
    second: Dense<O>,
}

impl<O: TokenOps> SingleBlock<O> {
    fn build(scope: &TokenScope<'_, O>, config: &Config) -> Result<Self> {
        let (hidden, feed_forward) = (config.hidden, config.feed_forward);
        Ok(Self {
            block: scope.block(),
            modulation: Dense::build(&scope.at("modulation.lin"), hidden, 3 * hidden)?,
            first: Dense::build(&scope.at("linear1"), hidden, 3 * hidden + feed_forward)?,
            norms: HeadNorms::build(&scope.at("norm"), config.head_width())?,
            second: Dense::build(&scope.at("linear2"), hidden + feed_forward, hidden)?,
        })
    }

    /// Queries, keys and values, and the second layer's input with the feed-forward's values in it:
    /// its first `hidden` values of each token are for attention's.
    fn run_first(&self, ops: &O, config: &Config, normed: O::Tensor) -> Result<[O::Tensor; 2]> {
        let Config { hidden, feed_forward, .. } = *config;
        let (shape, format) = (ops.shape(&normed), ops.format());
        let unset = |width: i64| ops.unset(&[shape[0], shape[1], width], format.product_dtype);
        let activate = |input: &O::Tensor, wide: &O::Tensor| {
            let onto = ops.narrow(input, 2, hidden, feed_forward)?;
            ops.gelu_onto(&onto, &ops.narrow(wide, 2, 3 * hidden, feed_forward)?, Gelu::Tanh)
        };
        if format.feed_forward_parts <= 1 {
            let wide = self.first.forward(ops, &normed, format.product_dtype)?;
            drop(normed);
            let input = unset(hidden + feed_forward)?;
            activate(&input, &wide)?;
            return Ok([wide, input]);
        }
        // The first layer's output is held for a part of the tokens at a time: queries, keys,
        // values and the second layer's input are copied out of it.
        let (qkv, input) = (unset(3 * hidden)?, unset(hidden + feed_forward)?);
        for (start, length) in transformer::token_ranges(shape[1], format.feed_forward_parts) {
            let some = |tokens: &O::Tensor| ops.narrow(tokens, 1, start, length);
            let wide = self.first.forward(ops, &some(&normed)?, format.product_dtype)?;
            ops.copy_onto(&some(&qkv)?, &ops.narrow(&wide, 2, 0, 3 * hidden)?)?;
            activate(&some(&input)?, &wide)?;
        }
        Ok([qkv, input])
    }

    fn forward(
        &self,
        ops: &O,
        config: &Config,
        joint: &O::Tensor,
        vector: &O::Tensor,
        context: &Context<O::Tensor>,
    ) -> Result<()> {
        let Config { heads, hidden, .. } = *config;
        let modulation = self.modulation.forward(ops, vector, Dtype::F32)?;
        let modulation = Modulation::of_layer(ops, &modulation, 0, hidden)?;
        let normed = modulated(ops, joint, EPSILON, [&modulation.shift, &modulation.scale])?;
        let [qkv, input] = self.run_first(ops, config, normed)?;
        self.norms.apply(ops, &qkv, [heads, hidden], &context.rotation)?;
        attend(ops, &ops.narrow(&input, 2, 0, hidden)?, &qkv, heads, hidden)?;
        drop(qkv);
        let output = self.second.forward(ops, &input, ops.format().layer_dtype)?;
        drop(input);
        Ok(ops.add_gated(joint, Some(&modulation.gate), output)?)
    }
}

/// The network with its weights.
#[derive(Debug)]
pub struct Network<O: TokenOps> {
    config: Config,
    image: Dense<O>,
    text: Dense<O>,
    time: Embedder<O>,
    pooled: Embedder<O>,
    guidance: Option<Embedder<O>>,
    double_blocks: Vec<DoubleBlock<O>>,
    single_blocks: Vec<SingleBlock<O>>,
    last_modulation: Dense<O>,
    last: Dense<O>,
}

impl<T> Context<T> {
    /// The text's tokens and the image's, among `all` tokens.
    fn text_and_image(&self, all: i64) -> [Range<i64>; 2] {
        [0..self.text_tokens, self.text_tokens..all]
    }
}

impl<O: TokenOps> Network<O> {
    /// A network of an architecture.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build(config: &Config, scope: &TokenScope<'_, O>) -> Result<Self> {
        let Config { hidden, text, pooled, latent_channels, .. } = *config;
        let token = latent_channels * PATCH * PATCH;
        let double = |index| -> Result<DoubleBlock<O>> {
            let scope = scope.at("double_blocks").at(index);
            Ok(DoubleBlock {
                block: scope.block(),
                image: Stream::build(&scope, "img", config)?,
                text: Stream::build(&scope, "txt", config)?,
            })
        };
        let guidance = config.guidance.then(|| Embedder::build(&scope.at("guidance_in"), TIME_WIDTH, hidden));
        Ok(Self {
            image: Dense::build(&scope.at("img_in"), token, hidden)?,
            text: Dense::build(&scope.at("txt_in"), text, hidden)?,
            time: Embedder::build(&scope.at("time_in"), TIME_WIDTH, hidden)?,
            pooled: Embedder::build(&scope.at("vector_in"), pooled, hidden)?,
            guidance: guidance.transpose()?,
            double_blocks: (0..config.double_blocks).map(double).collect::<Result<_>>()?,
            single_blocks: (0..config.single_blocks)
                .map(|index| SingleBlock::build(&scope.at("single_blocks").at(index), config))
                .collect::<Result<_>>()?,
            last_modulation: Dense::build(&scope.at("final_layer.adaLN_modulation.1"), hidden, 2 * hidden)?,
            last: Dense::build(&scope.at("final_layer.linear"), hidden, token)?,
            config: config.clone(),
        })
    }

    /// Embeds the conditioning for latents of [frames, height, width] in latent pixels; a picture
    /// has one frame.
    ///
    /// # Errors
    /// Tensors have other extents than the network's; libtorch's failures.
    pub fn prepare(
        &self,
        ops: &O,
        given: &Inputs<'_, O::Tensor>,
        [_, height, width]: [i64; 3],
    ) -> Result<Context<O::Tensor>> {
        let (dtype, shape) = (ops.format().layer_dtype, ops.shape(given.text));
        let size = [height / PATCH, width / PATCH];
        let Some(pooled) = given.pooled else {
            let shapes = "no pooled state of the text".into();
            return Err(NnError::Shapes { operation: "Flux.1's transformer", shapes }.into());
        };
        let pooled = ops.reshape(pooled, &[shape[0], 1, self.config.pooled])?;
        let vector = self.pooled.forward(ops, &pooled)?;
        if let (Some(embedder), Some(guidance)) = (&self.guidance, given.guidance) {
            let embedded = embedder.forward(ops, &embed_scaled(ops, &vec![guidance; shape[0] as usize])?)?;
            ops.add_onto(&vector, &embedded)?;
        }
        let places = (0..shape[1]).map(|_| [0; 3]);
        let places = places.chain((0..size[0]).flat_map(|row| (0..size[1]).map(move |column| [0, row, column])));
        Ok(Context {
            text: self.text.forward(ops, given.text, dtype)?,
            vector,
            rotation: ops.constant(&[shape[1] + size[0] * size[1], self.config.head_width()], || {
                Ok::<_, Error>(rotation(places, self.config.axes))
            })?,
            text_tokens: shape[1],
            size,
        })
    }

    /// The velocity, in f32, of latents [N, C, h, w] that are scaled as the model takes them. Their
    /// noise is that of the first sigma; the others are not used.
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
        let (config, [rows, columns]) = (&self.config, context.size);
        let sigma = sigmas.first().copied().unwrap_or_default();
        let [batch, channels, height, width] = ops.extents(latents)?;
        if [channels, height, width] != [config.latent_channels, rows * PATCH, columns * PATCH] {
            let shapes = format!("{:?} for {rows}×{columns} tokens", [batch, channels, height, width]);
            return Err(NnError::Shapes { operation: "Flux.1's transformer", shapes }.into());
        }
        let (token, tokens) = (channels * PATCH * PATCH, rows * columns);
        let all = context.text_tokens + tokens;
        let joint = ops.unset(&[batch, all, config.hidden], ops.format().layer_dtype)?;
        let [text, image] = context.text_and_image(all);
        ops.copy_onto(&tokens_in(ops, &joint, &text)?, &context.text)?;
        let split = ops.reshape(latents, &[batch, channels, rows, PATCH, columns, PATCH])?;
        let split = ops.contiguous(&ops.permute(&split, &[0, 2, 4, 1, 3, 5])?)?;
        let split = ops.reshape(&split, &[batch, tokens, token])?;
        self.image.forward_onto(ops, &tokens_in(ops, &joint, &image)?, &split)?;
        drop(split);
        let vector = self.time.forward(ops, &embed_scaled(ops, &vec![sigma; batch as usize])?)?;
        ops.add_onto(&vector, &context.vector)?;
        let vector = ops.silu(vector)?;
        let tokens = tokens_in(ops, &joint, &image)?;
        for block in 0..=self.config.blocks() {
            if before_block(block, &tokens)? == BlockChoice::SkipRest {
                break;
            }
            if let Some(double) = self.double_blocks.get(block) {
                let run = || double.forward(ops, config, &joint, &vector, context);
                double.block.run_onto(ops, [&joint; 2], run)?;
            } else if let Some(single) = self.single_blocks.get(block - self.double_blocks.len()) {
                let run = || single.forward(ops, config, &joint, &vector, context);
                single.block.run_onto(ops, [&joint; 2], run)?;
            }
        }
        drop(joint);
        // The last layer has no gate.
        let modulation = self.last_modulation.forward(ops, &vector, Dtype::F32)?;
        let [shift, scale] = [0, 1].map(|index| ops.narrow(&modulation, 2, index * config.hidden, config.hidden));
        let normed = modulated(ops, &tokens, EPSILON, [&shift?, &scale?])?;
        drop(tokens);
        let velocity = self.last.forward(ops, &normed, Dtype::F32)?;
        drop(normed);
        let velocity = ops.reshape(&velocity, &[batch, rows, columns, channels, PATCH, PATCH])?;
        let velocity = ops.permute(&velocity, &[0, 3, 1, 4, 2, 5])?;
        Ok(ops.reshape(&velocity, &[batch, channels, height, width])?)
    }
}

/// The sinusoidal embedding of times or guidances, times 1000: [N, 1, 256].
fn embed_scaled<O: TokenOps>(ops: &O, values: &[f32]) -> Result<O::Tensor> {
    let scaled: Vec<f32> = values.iter().map(|value| value * TIME_SCALE).collect();
    Ok(ops.embed_times(&scaled, 1, TIME_WIDTH)?)
}
