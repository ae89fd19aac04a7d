//! Layers of autoencoders. Each is built from a [`Scope`], where its weights' names stand, and runs
//! over any [`Ops`].

use crate::{GroupNorm, Ops, Result, Scope, Window};

/// The epsilon of every norm in these networks (`resnet_eps` of diffusers' autoencoders).
const EPSILON: f64 = 1e-6;

/// A convolution of stride 1 that keeps height and width, or doubles them first by repeating
/// pixels.
#[derive(Debug)]
pub struct Conv<W> {
    weight: W,
    bias: W,
    padding: i64,
    upsamples: bool,
}

impl<W> Conv<W> {
    /// A convolution with a window of `side` by `side` pixels.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build<O: Ops<Weight = W>>(scope: &Scope<'_, O>, into: i64, out: i64, side: i64) -> Result<Self> {
        let weight = scope.product("weight", &[out, into, side, side])?;
        Ok(Self { weight, bias: scope.product("bias", &[out])?, padding: side / 2, upsamples: false })
    }

    /// The same after an upsampling.
    #[must_use]
    pub fn upsampling(self) -> Self {
        Self { upsamples: true, ..self }
    }

    /// Runs the layer.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn forward<O: Ops<Weight = W>>(&self, ops: &O, input: O::Tensor) -> Result<O::Tensor> {
        // A copy of pixels is the same in either type: converting first is a quarter of the work,
        // and of the memory.
        let mut input = ops.converted(input, ops.format().convolution)?;
        if self.upsamples {
            input = ops.repeated(&input)?;
        }
        let window = Window { stride: 1, padding: self.padding };
        let output = ops.convolution(&input, &self.weight, &self.bias, window)?;
        drop(input);
        ops.converted(output, ops.format().rest)
    }
}

/// A 3×3 convolution of stride 2, with a row and a column of zeros below and to the right and none
/// above and to the left.
#[derive(Debug)]
pub struct Downsample<W> {
    weight: W,
    bias: W,
}

impl<W> Downsample<W> {
    /// A halving of height and width.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build<O: Ops<Weight = W>>(scope: &Scope<'_, O>, channels: i64) -> Result<Self> {
        let weight = scope.product("weight", &[channels, channels, 3, 3])?;
        Ok(Self { weight, bias: scope.product("bias", &[channels])? })
    }

    /// Runs the layer. Libraries pad both sides alike: two rows above are one step of the stride,
    /// so the output begins at the second row of theirs, and no padded copy of the large picture is
    /// made.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn forward<O: Ops<Weight = W>>(&self, ops: &O, input: O::Tensor) -> Result<O::Tensor> {
        let shape = ops.shape(&input);
        let input = ops.converted(input, ops.format().convolution)?;
        let wider = ops.convolution(&input, &self.weight, &self.bias, Window { stride: 2, padding: 2 })?;
        drop(input);
        let output = ops.narrow(&ops.narrow(&wider, 2, 1, shape[2] / 2)?, 3, 1, shape[3] / 2)?;
        drop(wider);
        let output = ops.ordered(&output)?;
        ops.converted(output, ops.format().rest)
    }
}

/// A group norm.
#[derive(Debug)]
pub struct Norm<W> {
    weight: W,
    bias: W,
    groups: i64,
}

impl<W> Norm<W> {
    /// A norm of so many channels in so many groups.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build<O: Ops<Weight = W>>(scope: &Scope<'_, O>, channels: i64, groups: i64) -> Result<Self> {
        Ok(Self { weight: scope.norm("weight", &[channels])?, bias: scope.norm("bias", &[channels])?, groups })
    }

    /// Runs the norm.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn forward<O: Ops<Weight = W>>(&self, ops: &O, input: &O::Tensor) -> Result<O::Tensor> {
        let Self { weight, bias, groups } = self;
        ops.group_norm(input, GroupNorm { weight, bias, groups: *groups, epsilon: EPSILON })
    }

    /// Runs the norm and SiLU.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn forward_silu<O: Ops<Weight = W>>(&self, ops: &O, input: &O::Tensor) -> Result<O::Tensor> {
        ops.silu(self.forward(ops, input)?)
    }
}

/// Norm, SiLU and convolution, twice, added to the input.
#[derive(Debug)]
pub struct Resnet<W> {
    norm1: Norm<W>,
    conv1: Conv<W>,
    norm2: Norm<W>,
    conv2: Conv<W>,
    shortcut: Option<Conv<W>>,
}

impl<W> Resnet<W> {
    /// A residual block; its input goes through a 1×1 convolution if the channels change.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build<O: Ops<Weight = W>>(scope: &Scope<'_, O>, into: i64, out: i64, groups: i64) -> Result<Self> {
        let shortcut = (into != out).then(|| Conv::build(&scope.at("conv_shortcut"), into, out, 1));
        Ok(Self {
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
    pub fn forward<O: Ops<Weight = W>>(&self, ops: &O, input: O::Tensor) -> Result<O::Tensor> {
        // Assigned rather than shadowed: a shadowed tensor would live on to the end.
        let mut hidden = self.norm1.forward_silu(ops, &input)?;
        hidden = self.conv1.forward(ops, hidden)?;
        hidden = self.norm2.forward_silu(ops, &hidden)?;
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
pub struct Linear<W> {
    weight: W,
    bias: W,
}

impl<W> Linear<W> {
    /// A linear layer from one width to another.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build<O: Ops<Weight = W>>(scope: &Scope<'_, O>, into: i64, out: i64) -> Result<Self> {
        Ok(Self { weight: scope.product("weight", &[out, into])?, bias: scope.product("bias", &[out])? })
    }

    /// Runs the layer over the last axis.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn forward<O: Ops<Weight = W>>(&self, ops: &O, tokens: &O::Tensor) -> Result<O::Tensor> {
        ops.linear(tokens, &self.weight, &self.bias)
    }
}

/// Attention of one head over all pixels, added to the input.
#[derive(Debug)]
pub struct Attention<W> {
    norm: Norm<W>,
    query: Linear<W>,
    key: Linear<W>,
    value: Linear<W>,
    output: Linear<W>,
}

impl<W> Attention<W> {
    /// Attention as wide as there are channels.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build<O: Ops<Weight = W>>(scope: &Scope<'_, O>, channels: i64, groups: i64) -> Result<Self> {
        let linear = |part: &str| Linear::build(&scope.at(part), channels, channels);
        Ok(Self {
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
    pub fn forward<O: Ops<Weight = W>>(&self, ops: &O, input: O::Tensor) -> Result<O::Tensor> {
        let shape = ops.shape(&input);
        let mut tokens = ops.converted(self.norm.forward(ops, &input)?, ops.format().convolution)?;
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
        output = ops.converted(output, ops.format().rest)?;
        output = ops.reshape(&ops.transpose(&output, 1, 2)?, &shape)?;
        ops.add_onto(&input, &output)?;
        Ok(input)
    }
}
