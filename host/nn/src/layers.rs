//! Layers of autoencoders. Each is built from a [`Scope`], which holds its weights' names, and runs
//! over any [`Ops`].

use std::ops::Range;

use crate::{End, GroupNorm, Layer, Ops, Result, Rows, Scope, Store, Window};

/// The epsilon of every norm in these networks (`resnet_eps` of diffusers' autoencoders).
const EPSILON: f64 = 1e-6;

/// A convolution of stride 1 that keeps height and width, or doubles them first by repeating
/// pixels.
#[derive(Debug)]
pub struct Conv<O: Ops> {
    layer: Layer,
    weights: Weights<O>,
    out: i64,
    padding: i64,
    upsamples: bool,
}

/// A convolution's weights, laid out for the way that it is computed.
#[derive(Debug)]
enum Weights<O: Ops> {
    /// By libtorch, in any type and memory order.
    Plain { weight: O::Weight, bias: O::Weight },
    /// By Winograd's filtering.
    Filtered(O::Kernel),
}

impl<O: Ops> Conv<O> {
    /// A convolution with a window of `side` by `side` pixels.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build(scope: &Scope<'_, O>, into: i64, out: i64, side: i64) -> Result<Self> {
        Self::with(scope, [into, out, side], false)
    }

    /// A 3×3 convolution after an upsampling.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build_upsampling(scope: &Scope<'_, O>, into: i64, out: i64) -> Result<Self> {
        Self::with(scope, [into, out, 3], true)
    }

    fn with(scope: &Scope<'_, O>, [into, out, side]: [i64; 3], upsamples: bool) -> Result<Self> {
        let weight = scope.product("weight", &[out, into, side, side])?;
        Self::of_weights(scope, weight, scope.product("bias", &[out])?, [out, side], upsamples)
    }

    /// The convolution of a place whose weights [out, into, side, side] are there already; if it
    /// `upsamples`, after an upsampling.
    ///
    /// # Errors
    /// The weights have other extents.
    pub fn of_weights(
        scope: &Scope<'_, O>,
        weight: O::Weight,
        bias: O::Weight,
        [out, side]: [i64; 2],
        upsamples: bool,
    ) -> Result<Self> {
        let ops = scope.ops();
        let weights = match side == 3 && ops.has_winograd() {
            true => Weights::Filtered(ops.winograd_kernel(&weight, &bias, upsamples)?),
            false => Weights::Plain { weight: ops.lay_out_weight(weight)?, bias },
        };
        Ok(Self { layer: scope.layer(), weights, out, padding: side / 2, upsamples })
    }

    /// The layer, by its name.
    pub fn layer(&self) -> &Layer {
        &self.layer
    }

    /// Output channels.
    pub fn out(&self) -> i64 {
        self.out
    }

    /// True if it is computed by Winograd's filtering, which holds next to nothing beside its input
    /// and output.
    pub fn is_filtered(&self) -> bool {
        matches!(self.weights, Weights::Filtered(_))
    }

    /// Runs the layer.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn forward(&self, ops: &O, input: O::Tensor) -> Result<O::Tensor> {
        self.layer.run(ops, input, |input| self.convolve(ops, input))
    }

    fn convolve(&self, ops: &O, input: O::Tensor) -> Result<O::Tensor> {
        match &self.weights {
            Weights::Plain { weight, bias } => {
                // Repeating pixels and converting them can be exchanged: converting first takes a
                // quarter of the work and of the memory.
                let mut input = ops.to_dtype(input, ops.format().product_dtype)?;
                if self.upsamples {
                    input = ops.upsample_nearest(&input)?;
                }
                let window = Window { stride: 1, padding: [self.padding; 2] };
                let output = ops.convolution(&input, weight, bias, window)?;
                drop(input);
                ops.to_dtype(output, ops.format().layer_dtype)
            }
            Weights::Filtered(kernel) => {
                let [batch, _, height, width] = ops.extents(&input)?;
                let scale = if self.upsamples { 2 } else { 1 };
                let output = ops.empty([batch, self.out, scale * height, scale * width])?;
                let rows = Rows::all(ops, &input)?;
                ops.winograd_convolution(rows, kernel, None, 0..scale * height, Store::Onto(&output), None)?;
                Ok(output)
            }
        }
    }

    /// Runs the layer, and then a norm.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn forward_normed(&self, ops: &O, input: O::Tensor, norm: &Norm<O>) -> Result<O::Tensor> {
        match &self.weights {
            Weights::Plain { weight, bias } if !self.upsamples => {
                ops.see(&self.layer, End::In, &input)?;
                let input = ops.to_dtype(input, ops.format().product_dtype)?;
                let window = Window { stride: 1, padding: [self.padding; 2] };
                let layers = [&self.layer, &norm.layer];
                let output = ops.normed_convolution(input, [weight, bias], window, norm.of(), layers)?;
                ops.see(&norm.layer, End::Out, &output)?;
                Ok(output)
            }
            _ => norm.forward(ops, &self.forward(ops, input)?),
        }
    }

    /// Computes some rows of the output and counts them in `sums`. The input has to hold the rows
    /// that they depend on: one more on either side if the picture goes on there. If `before` is
    /// given, that norm and then SiLU are applied to the input first.
    ///
    /// # Errors
    /// The input lacks rows; libtorch's failures, out of memory included.
    pub fn forward_rows(
        &self,
        ops: &O,
        input: Rows<'_, O::Tensor>,
        before: Option<&O::Affine>,
        rows: Range<i64>,
        store: Store<'_, O::Tensor>,
        sums: &mut O::Sums,
    ) -> Result<()> {
        let _running = ops.begin(&self.layer);
        let (weight, bias) = match &self.weights {
            Weights::Filtered(kernel) => {
                return ops.winograd_convolution(input, kernel, before, rows, store, Some(sums));
            }
            Weights::Plain { weight, bias } => (weight, bias),
        };
        let part = self.rows(ops, input, before, rows, [weight, bias])?;
        match store {
            Store::Nowhere => ops.add_up(sums, &part),
            Store::Onto(output) => {
                ops.copy_onto(output, &part)?;
                drop(part);
                ops.add_up(sums, output)
            }
            Store::Added(output) => {
                ops.add_onto(output, &part)?;
                ops.add_up(sums, output)
            }
        }
    }

    fn rows(
        &self,
        ops: &O,
        input: Rows<'_, O::Tensor>,
        before: Option<&O::Affine>,
        rows: Range<i64>,
        [weight, bias]: [&O::Weight; 2],
    ) -> Result<O::Tensor> {
        let scale = if self.upsamples { 2 } else { 1 };
        let last = input.height * scale;
        let needed = (rows.start - self.padding).max(0)..(rows.end + self.padding).min(last);
        let stored = needed.start / scale..(needed.end + scale - 1) / scale;
        let mut part = ops.narrow(input.tensor, 2, stored.start - input.first, stored.end - stored.start)?;
        if let Some(affine) = before {
            part = ops.affine_silu(&part, affine)?;
        }
        part = ops.to_dtype(part, ops.format().product_dtype)?;
        if self.upsamples {
            part = ops.upsample_nearest(&part)?;
            part = ops.narrow(&part, 2, needed.start - stored.start * scale, needed.end - needed.start)?;
        }
        let (top, bottom) = (needed.start - (rows.start - self.padding), rows.end + self.padding - needed.end);
        if top != bottom || (top != self.padding && self.padding > 0) {
            part = ops.pad(&part, &[0, 0, top, bottom])?;
        }
        // Rows that are padded already need no padding in the convolution.
        let down = if top == bottom && top == self.padding { self.padding } else { 0 };
        let part = ops.to_memory_order(&part)?;
        let output = ops.convolution(&part, weight, bias, Window { stride: 1, padding: [down, self.padding] })?;
        ops.to_dtype(output, ops.format().layer_dtype)
    }
}

/// A 3×3 convolution of stride 2, with a row and a column of zeros below and to the right and none
/// above and to the left.
#[derive(Debug)]
pub struct Downsample<O: Ops> {
    layer: Layer,
    weight: O::Weight,
    bias: O::Weight,
}

impl<O: Ops> Downsample<O> {
    /// A halving of height and width.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build(scope: &Scope<'_, O>, channels: i64) -> Result<Self> {
        let weight = scope.product("weight", &[channels, channels, 3, 3])?;
        let (weight, bias) = (scope.ops().lay_out_weight(weight)?, scope.product("bias", &[channels])?);
        Ok(Self { layer: scope.layer(), weight, bias })
    }

    /// Runs the layer. libtorch pads both sides alike. With a padding of 2 its first output row and
    /// column belong to the padding alone, so that the wanted output begins at its second ones.
    /// This avoids a padded copy of a large picture.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn forward(&self, ops: &O, input: O::Tensor) -> Result<O::Tensor> {
        self.layer.run(ops, input, |input| self.convolve(ops, input))
    }

    fn convolve(&self, ops: &O, input: O::Tensor) -> Result<O::Tensor> {
        let shape = ops.shape(&input);
        let input = ops.to_dtype(input, ops.format().product_dtype)?;
        let wider = ops.convolution(&input, &self.weight, &self.bias, Window { stride: 2, padding: [2; 2] })?;
        drop(input);
        let output = ops.narrow(&ops.narrow(&wider, 2, 1, shape[2] / 2)?, 3, 1, shape[3] / 2)?;
        drop(wider);
        let output = ops.to_memory_order(&output)?;
        ops.to_dtype(output, ops.format().layer_dtype)
    }
}

/// A group norm.
#[derive(Debug)]
pub struct Norm<O: Ops> {
    layer: Layer,
    weight: O::Weight,
    bias: O::Weight,
    groups: i64,
}

impl<O: Ops> Norm<O> {
    /// A norm of `channels` channels in `groups` groups.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build(scope: &Scope<'_, O>, channels: i64, groups: i64) -> Result<Self> {
        let (weight, bias) = (scope.norm("weight", &[channels])?, scope.norm("bias", &[channels])?);
        Ok(Self { layer: scope.layer(), weight, bias, groups })
    }

    fn of(&self) -> GroupNorm<'_, O::Weight> {
        let Self { weight, bias, groups, .. } = self;
        GroupNorm { weight, bias, groups: *groups, epsilon: EPSILON }
    }

    /// Runs the norm.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn forward(&self, ops: &O, input: &O::Tensor) -> Result<O::Tensor> {
        self.layer.run(ops, input, |input| ops.group_norm(input, self.of()))
    }

    /// The norm of a picture whose sums are known.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn affine(&self, ops: &O, sums: &O::Sums) -> Result<O::Affine> {
        let _running = ops.begin(&self.layer);
        ops.affine(self.of(), sums)
    }

    /// Runs the norm and SiLU.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn forward_silu(&self, ops: &O, input: &O::Tensor) -> Result<O::Tensor> {
        ops.silu(self.forward(ops, input)?)
    }
}

/// Norm, SiLU and convolution, twice, added to the input.
#[derive(Debug)]
pub struct Resnet<O: Ops> {
    /// The block of its name.
    pub block: Layer,
    /// Before the first convolution, with SiLU.
    pub norm1: Norm<O>,
    /// To the output's channels.
    pub conv1: Conv<O>,
    /// Before the second convolution, with SiLU.
    pub norm2: Norm<O>,
    /// Added to the input.
    pub conv2: Conv<O>,
    /// The input's 1×1 convolution if the channels change.
    pub shortcut: Option<Conv<O>>,
}

impl<O: Ops> Resnet<O> {
    /// A residual block; its input goes through a 1×1 convolution if the channels change.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build(scope: &Scope<'_, O>, into: i64, out: i64, groups: i64) -> Result<Self> {
        let shortcut = (into != out).then(|| Conv::build(&scope.at("conv_shortcut"), into, out, 1));
        Ok(Self {
            block: scope.block(),
            norm1: Norm::build(&scope.at("norm1"), into, groups)?,
            conv1: Conv::build(&scope.at("conv1"), into, out, 3)?,
            norm2: Norm::build(&scope.at("norm2"), out, groups)?,
            conv2: Conv::build(&scope.at("conv2"), out, out, 3)?,
            shortcut: shortcut.transpose()?,
        })
    }

    /// Runs the block.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn forward(&self, ops: &O, input: O::Tensor) -> Result<O::Tensor> {
        self.block.run(ops, input, |input| self.run(ops, input))
    }

    fn run(&self, ops: &O, input: O::Tensor) -> Result<O::Tensor> {
        // Assigned rather than shadowed: a shadowed tensor would live on to the end.
        let mut hidden = self.norm1.forward_silu(ops, &input)?;
        hidden = ops.silu(self.conv1.forward_normed(ops, hidden, &self.norm2)?)?;
        let output = self.conv2.forward(ops, hidden)?;
        let input = match &self.shortcut {
            Some(shortcut) => shortcut.forward(ops, input)?,
            None => input,
        };
        ops.add_onto(&output, &input)?;
        Ok(output)
    }
}

/// A linear layer.
#[derive(Debug)]
pub struct Linear<O: Ops> {
    layer: Layer,
    weight: O::Weight,
    bias: O::Weight,
}

impl<O: Ops> Linear<O> {
    /// A linear layer from one width to another.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build(scope: &Scope<'_, O>, into: i64, out: i64) -> Result<Self> {
        // Some files store this layer as a 1×1 convolution, which it was in older networks.
        let dtype = scope.ops().format().product_dtype;
        let weight = scope.weight("weight", &[&[out, into], &[out, into, 1, 1]], dtype)?;
        Ok(Self { layer: scope.layer(), weight, bias: scope.product("bias", &[out])? })
    }

    /// Runs the layer over the last axis.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn forward(&self, ops: &O, tokens: &O::Tensor) -> Result<O::Tensor> {
        self.layer.run(ops, tokens, |tokens| ops.linear(tokens, &self.weight, &self.bias))
    }
}

/// Attention of one head over all pixels, added to the input.
#[derive(Debug)]
pub struct Attention<O: Ops> {
    block: Layer,
    norm: Norm<O>,
    query: Linear<O>,
    key: Linear<O>,
    value: Linear<O>,
    output: Linear<O>,
}

impl<O: Ops> Attention<O> {
    /// Attention as wide as there are channels.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build(scope: &Scope<'_, O>, channels: i64, groups: i64) -> Result<Self> {
        let linear = |part: &str| Linear::build(&scope.at(part), channels, channels);
        Ok(Self {
            block: scope.block(),
            norm: Norm::build(&scope.at("group_norm"), channels, groups)?,
            query: linear("to_q")?,
            key: linear("to_k")?,
            value: linear("to_v")?,
            output: linear("to_out.0")?,
        })
    }

    /// Runs the block.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn forward(&self, ops: &O, input: O::Tensor) -> Result<O::Tensor> {
        self.block.run(ops, input, |input| self.run(ops, input))
    }

    fn run(&self, ops: &O, input: O::Tensor) -> Result<O::Tensor> {
        let shape = ops.shape(&input);
        let mut tokens = ops.to_dtype(self.norm.forward(ops, &input)?, ops.format().product_dtype)?;
        tokens = ops.reshape(&tokens, &[shape[0], shape[1], shape[2] * shape[3]])?;
        tokens = ops.contiguous(&ops.transpose(&tokens, 1, 2)?)?;
        let query = self.query.forward(ops, &tokens)?;
        let key = self.key.forward(ops, &tokens)?;
        let value = self.value.forward(ops, &tokens)?;
        drop(tokens);
        let mixed = ops.attention(query, &key, &value)?;
        drop((key, value));
        let mut output = self.output.forward(ops, &mixed)?;
        drop(mixed);
        output = ops.to_dtype(output, ops.format().layer_dtype)?;
        output = ops.reshape(&ops.transpose(&output, 1, 2)?, &shape)?;
        ops.add_onto(&input, &output)?;
        Ok(input)
    }
}
