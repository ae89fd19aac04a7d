//! The encoder's layers. A clip's frames are a batch, [T, C, H, W]: a convolution over three frames
//! is three over one, summed. A layer keeps the frames before that it needs in
//! [`Past`].

use tilewright_nn::{CausalOps, Layer, Ops, Scope};
use tilewright_plan::Dtype;

use super::layers::{SquareOrder, gamma};
use crate::Result;

/// The last frames that each layer has seen, in the order in which the layers run. Tensors are
/// replaced and never written to.
#[derive(Debug)]
pub(super) struct Past<T> {
    pub frames: Vec<Option<T>>,
    layer: usize,
}

impl<T> Default for Past<T> {
    fn default() -> Self {
        Self { frames: Vec::new(), layer: 0 }
    }
}

impl<T> Past<T> {
    /// The same, to go back to.
    pub fn snapshot(&self, share: impl Fn(&T) -> T) -> Self {
        Self { frames: self.frames.iter().map(|frames| frames.as_ref().map(&share)).collect(), layer: 0 }
    }

    /// The layers run once more.
    pub fn rewind(&mut self) {
        self.layer = 0;
    }

    /// The frames that the layer at hand remembers and these, one after the other, and how many it
    /// remembered; it will remember the last `most`.
    fn join_remembered<O: CausalOps<Tensor = T>>(&mut self, ops: &O, frames: T, most: i64) -> Result<(T, i64)> {
        if self.frames.len() <= self.layer {
            self.frames.push(None);
        }
        let place = &mut self.frames[self.layer];
        self.layer += 1;
        let (joined, before) = match place.take() {
            Some(past) => {
                // After a change of plans the past may be in another type or order, or elsewhere.
                let past = ops.to_format_of(&past, &frames)?;
                let before = ops.extents(&past)?[0];
                (ops.concatenate(&[past, ops.share(&frames)], 0)?, before)
            }
            None => (ops.share(&frames), 0),
        };
        let count = ops.extents(&joined)?[0];
        let kept = most.min(count);
        // A copy: a view would keep all frames.
        *place = Some(ops.copy(&ops.narrow(&joined, 0, count - kept, kept)?)?);
        Ok((joined, before))
    }
}

/// A convolution of one frame.
#[derive(Debug)]
pub(super) struct Conv<O: Ops> {
    layer: Layer,
    weight: O::Weight,
    bias: O::Weight,
    stride: i64,
    padding: i64,
}

impl<O: CausalOps> Conv<O> {
    /// A convolution with a window of `side` by `side` pixels. One that halves is given its rim
    /// before.
    pub fn build(scope: &Scope<'_, O>, into: i64, out: i64, side: i64, stride: i64) -> Result<Self> {
        let shape = [out, into, side, side];
        let weight = scope.ops().rearrange(&scope.product("weight", &shape)?, &[0, 1, 2, 3], &shape)?;
        let padding = if stride == 1 { side / 2 } else { 0 };
        Ok(Self { layer: scope.layer(), weight, bias: scope.product("bias", &[out])?, stride, padding })
    }

    /// A convolution of single pixels, whose weights have an axis for frames.
    fn pointwise(scope: &Scope<'_, O>, into: i64, out: i64) -> Result<Self> {
        let weight = scope.product("weight", &[out, into, 1, 1, 1])?;
        let weight = scope.ops().rearrange(&weight, &[0, 1, 2, 3, 4], &[out, into, 1, 1])?;
        Ok(Self { layer: scope.layer(), weight, bias: scope.product("bias", &[out])?, stride: 1, padding: 0 })
    }

    /// The first half of the outputs of a convolution of single pixels.
    pub fn first_half(scope: &Scope<'_, O>, channels: i64) -> Result<Self> {
        let whole = Self::pointwise(scope, 2 * channels, 2 * channels)?;
        let half = |weight| scope.ops().first_outputs(weight, channels);
        Ok(Self { weight: half(&whole.weight)?, bias: half(&whole.bias)?, ..whole })
    }

    pub fn forward(&self, ops: &O, input: &O::Tensor) -> Result<O::Tensor> {
        self.layer.run(ops, input, |input| self.convolve(ops, input, &self.weight, Some(&self.bias)))
    }

    fn convolve(&self, ops: &O, input: &O::Tensor, weight: &O::Weight, bias: Option<&O::Weight>) -> Result<O::Tensor> {
        let input = ops.to_memory_order(&ops.to_dtype(ops.share(input), ops.format().product_dtype)?)?;
        let output = ops.convolve(&input, weight, bias, self.stride, [self.padding; 2])?;
        Ok(ops.to_dtype(output, ops.format().layer_dtype)?)
    }
}

/// A convolution of each frame and the two before it; before the first stand zeros.
#[derive(Debug)]
pub(super) struct Causal<O: Ops> {
    layer: Layer,
    /// For the frame two before, and the one before.
    earlier: [O::Weight; 2],
    /// The convolution of the frame itself.
    conv: Conv<O>,
}

impl<O: CausalOps> Causal<O> {
    /// A convolution with a window of three frames and `side` by `side` pixels.
    pub fn build(scope: &Scope<'_, O>, into: i64, out: i64, side: i64) -> Result<Self> {
        let weight = scope.product("weight", &[out, into, 3, side, side])?;
        let tap = |time| scope.ops().tap(&weight, time);
        let bias = scope.product("bias", &[out])?;
        let conv = Conv { layer: scope.layer(), weight: tap(2)?, bias, stride: 1, padding: side / 2 };
        Ok(Self { layer: scope.layer(), earlier: [tap(0)?, tap(1)?], conv })
    }

    pub fn forward(&self, ops: &O, input: O::Tensor, past: &mut Past<O::Tensor>) -> Result<O::Tensor> {
        self.layer.run(ops, input, |input| self.frames(ops, input, past))
    }

    fn frames(&self, ops: &O, input: O::Tensor, past: &mut Past<O::Tensor>) -> Result<O::Tensor> {
        let frames = ops.extents(&input)?[0];
        let (all, before) =
            past.join_remembered(ops, ops.to_dtype(ops.share(&input), ops.format().product_dtype)?, 2)?;
        drop(input);
        let now = ops.narrow(&all, 0, before, frames)?;
        let output = self.conv.convolve(ops, &now, &self.conv.weight, Some(&self.conv.bias))?;
        for (tap, back) in [(&self.earlier[1], 1), (&self.earlier[0], 2)] {
            let first = (back - before).max(0);
            if first < frames {
                let earlier = ops.narrow(&all, 0, before + first - back, frames - first)?;
                let added = self.conv.convolve(ops, &earlier, tap, None)?;
                ops.add_onto(&ops.narrow(&output, 0, first, frames - first)?, &added)?;
            }
        }
        Ok(output)
    }
}

/// Divides each pixel by the length of its channels.
#[derive(Debug)]
pub(super) struct Norm<O: Ops> {
    layer: Layer,
    /// [1, C, 1, 1] in f32, times the square root of C.
    gamma: O::Weight,
}

impl<O: CausalOps> Norm<O> {
    pub fn build(scope: &Scope<'_, O>, channels: i64) -> Result<Self> {
        let ops = scope.ops();
        let gamma = ops.scale(&gamma(scope, channels, Dtype::F32)?, (channels as f64).sqrt())?;
        Ok(Self { layer: scope.layer(), gamma: ops.rearrange(&gamma, &[0, 1, 2, 3], &[1, channels, 1, 1])? })
    }

    fn forward(&self, ops: &O, input: &O::Tensor) -> Result<O::Tensor> {
        Ok(self.layer.run(ops, input, |input| ops.rms_norm_at_once(input, &self.gamma))?)
    }

    pub fn forward_silu(&self, ops: &O, input: &O::Tensor) -> Result<O::Tensor> {
        Ok(ops.silu(self.forward(ops, input)?)?)
    }
}

/// Norm, SiLU and convolution, twice, added to the input.
#[derive(Debug)]
pub(super) struct Resnet<O: Ops> {
    block: Layer,
    norm1: Norm<O>,
    conv1: Causal<O>,
    norm2: Norm<O>,
    conv2: Causal<O>,
    shortcut: Option<Conv<O>>,
}

impl<O: CausalOps> Resnet<O> {
    pub fn build(scope: &Scope<'_, O>, into: i64, out: i64) -> Result<Self> {
        Ok(Self {
            block: scope.block(),
            norm1: Norm::build(&scope.at("norm1"), into)?,
            conv1: Causal::build(&scope.at("conv1"), into, out, 3)?,
            norm2: Norm::build(&scope.at("norm2"), out)?,
            conv2: Causal::build(&scope.at("conv2"), out, out, 3)?,
            shortcut: (into != out).then(|| Conv::pointwise(&scope.at("conv_shortcut"), into, out)).transpose()?,
        })
    }

    pub fn forward(&self, ops: &O, input: O::Tensor, past: &mut Past<O::Tensor>) -> Result<O::Tensor> {
        self.block.run(ops, input, |input| self.run(ops, &input, past))
    }

    fn run(&self, ops: &O, input: &O::Tensor, past: &mut Past<O::Tensor>) -> Result<O::Tensor> {
        let mut hidden = self.norm1.forward_silu(ops, input)?;
        hidden = self.conv1.forward(ops, hidden, past)?;
        hidden = self.norm2.forward_silu(ops, &hidden)?;
        hidden = self.conv2.forward(ops, hidden, past)?;
        match &self.shortcut {
            Some(conv) => ops.add_onto(&hidden, &conv.forward(ops, input)?)?,
            None => ops.add_onto(&hidden, input)?,
        }
        Ok(hidden)
    }
}

/// The attention of one head within each frame.
#[derive(Debug)]
pub(super) struct Attention<O: Ops> {
    block: Layer,
    norm: Norm<O>,
    mixed: Conv<O>,
    output: Conv<O>,
}

impl<O: CausalOps> Attention<O> {
    pub fn build(scope: &Scope<'_, O>, channels: i64) -> Result<Self> {
        Ok(Self {
            block: scope.block(),
            norm: Norm::build(&scope.at("norm"), channels)?,
            mixed: Conv::build(&scope.at("to_qkv"), channels, 3 * channels, 1, 1)?,
            output: Conv::build(&scope.at("proj"), channels, channels, 1, 1)?,
        })
    }

    pub fn forward(&self, ops: &O, input: O::Tensor) -> Result<O::Tensor> {
        self.block.run(ops, input, |input| self.run(ops, &input))
    }

    fn run(&self, ops: &O, input: &O::Tensor) -> Result<O::Tensor> {
        let shape = ops.extents(input)?;
        let [frames, channels, height, width] = shape;
        let mixed = self.mixed.forward(ops, &self.norm.forward(ops, input)?)?;
        let tokens = ops.to_dtype(ops.share(&mixed), ops.format().product_dtype)?;
        let tokens = ops.transpose(&ops.reshape(&tokens, &[frames, 3 * channels, height * width])?, 1, 2)?;
        let part = |index: i64| ops.contiguous(&ops.narrow(&tokens, 2, index * channels, channels)?);
        let (query, key, value) = (part(0)?, part(1)?, part(2)?);
        let attended = ops.attention(query, &key, &value)?;
        let attended = ops.reshape(&ops.transpose(&attended, 1, 2)?, &shape)?;
        let output = self.output.forward(ops, &attended)?;
        ops.add_onto(&output, input)?;
        Ok(output)
    }
}

/// Halves height and width, and perhaps the frames.
#[derive(Debug)]
pub(super) struct Downsample<O: Ops> {
    block: Layer,
    space: Conv<O>,
    /// A convolution of stride 2 over three frames, the last one of those before among them.
    time: Option<Causal<O>>,
}

impl<O: CausalOps> Downsample<O> {
    pub fn build(scope: &Scope<'_, O>, channels: i64, is_temporal: bool) -> Result<Self> {
        let space = Conv::build(&scope.at("resample.1"), channels, channels, 3, 2)?;
        let time = is_temporal.then(|| Causal::build(&scope.at("time_conv"), channels, channels, 1));
        Ok(Self { block: scope.block(), space, time: time.transpose()? })
    }

    pub fn forward(&self, ops: &O, input: O::Tensor, past: &mut Past<O::Tensor>) -> Result<O::Tensor> {
        self.block.run(ops, input, |input| self.run(ops, &input, past))
    }

    fn run(&self, ops: &O, input: &O::Tensor, past: &mut Past<O::Tensor>) -> Result<O::Tensor> {
        // A column and a row of zeros, at the far sides only.
        let padded = ops.pad(input, &[0, 1, 0, 1])?;
        let output = self.space.forward(ops, &padded)?;
        drop(padded);
        let Some(time) = &self.time else { return Ok(output) };
        let frames = ops.extents(&output)?[0];
        let (all, before) = past.join_remembered(ops, output, 1)?;
        // The first frame of a clip stays as it is.
        if before == 0 {
            return Ok(all);
        }
        let every_other = |first: i64| ops.every_other(&all, first..first + frames - 1);
        let sum = time.conv.convolve(ops, &every_other(0)?, &time.earlier[0], Some(&time.conv.bias))?;
        let sum = ops.add(&sum, &time.conv.convolve(ops, &every_other(1)?, &time.earlier[1], None)?)?;
        Ok(ops.add(&sum, &time.conv.convolve(ops, &every_other(2)?, &time.conv.weight, None)?)?)
    }
}

/// WAN 2.2's addition to a down block's output: its input, averaged over neighbouring pixels,
/// frames and channels (diffusers' `AvgDown3D`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Average {
    pub channels: i64,
    /// Frames, and pixels in either direction, that become one.
    pub time: i64,
    pub space: i64,
}

impl Average {
    pub fn forward<O: CausalOps>(&self, ops: &O, input: &O::Tensor) -> Result<O::Tensor> {
        let Self { channels, time, space } = *self;
        // Zeros stand before the first frame, which is alone.
        let lacking = (time - ops.extents(input)?[0] % time) % time;
        let input = ops.pad(input, &[0, 0, 0, 0, 0, 0, lacking, 0])?;
        let [frames, into, height, width] = ops.extents(&input)?;
        let (frames, height, width) = (frames / time, height / space, width / space);
        let apart = ops.reshape(&input, &[frames, time, into, height, space, width, space])?;
        let group = into * time * space * space / channels;
        let grouped = ops.permute(&apart, &[0, 2, 1, 4, 6, 3, 5])?;
        let grouped = ops.reshape(&grouped, &[frames, channels, group, height, width])?;
        Ok(ops.mean(&grouped, 2)?)
    }
}

/// Squares of `side` pixels become channels: [T, C, H, W] to [T, C·side², H/side, W/side], as
/// PyTorch's `pixel_unshuffle` or diffusers' `patchify` has them.
pub(super) fn patches<O: CausalOps>(ops: &O, frames: &O::Tensor, side: i64, order: SquareOrder) -> Result<O::Tensor> {
    if side == 1 {
        return Ok(ops.share(frames));
    }
    let [count, channels, height, width] = ops.extents(frames)?;
    let apart = ops.reshape(frames, &[count, channels, height / side, side, width / side, side])?;
    let axes = match order {
        SquareOrder::Rows => [0, 1, 3, 5, 2, 4],
        SquareOrder::Columns => [0, 1, 5, 3, 2, 4],
    };
    let apart = ops.permute(&apart, &axes)?;
    Ok(ops.reshape(&apart, &[count, channels * side * side, height / side, width / side])?)
}
