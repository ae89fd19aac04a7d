//! The decoder's layers. Frames are [T, C, H, W], one clip's, in the memory order and the type that
//! the format has between layers. A causal layer keeps the frames before that it needs in a
//! [`Past`].

use std::ops::Range;

use tilewright_kernels::TAPS;
use tilewright_nn::{CausalOps, Ops, Scope, Store, layers::Conv};
use tilewright_plan::Dtype;

use crate::Result;

/// Frames before that a causal layer looks at.
const BEFORE: usize = TAPS - 1;

/// The memory that a causal layer keeps of the frames before: its own input, [1, C, H, W] each,
/// oldest first; or what these add to the next frame and to the one after it.
#[derive(Debug)]
pub(super) struct Past<T> {
    pub frames: Vec<T>,
    /// The clip's first frame has gone by.
    pub begun: bool,
}

impl<T> Default for Past<T> {
    fn default() -> Self {
        Self { frames: Vec::new(), begun: false }
    }
}

impl<T> Past<T> {
    fn push(&mut self, frame: T) {
        self.frames.push(frame);
        if self.frames.len() > BEFORE {
            drop(self.frames.remove(0));
        }
        self.begun = true;
    }

    /// Frames until a layer has as many before it as it looks at.
    fn lacking(&self) -> u32 {
        (BEFORE - self.frames.len()) as u32
    }

    /// The frames before and these as one tensor, with zeros for those that never were.
    pub fn window<O: CausalOps<Tensor = T>>(&self, ops: &O, frames: &T) -> Result<T> {
        let missing = BEFORE - self.frames.len();
        let [_, channels, height, width] = ops.extents(frames)?;
        let mut parts = Vec::new();
        if missing > 0 {
            let zeros = ops.zeros([missing as i64, channels, height, width], frames)?;
            parts.push(ops.to_memory_order(&zeros)?);
        }
        parts.extend(self.frames.iter().map(|frame| ops.share(frame)));
        parts.push(ops.share(frames));
        Ok(ops.concatenate(&parts, 0)?)
    }

    /// Keeps frames that are nobody else's.
    pub fn keep(&mut self, frames: Vec<T>) {
        frames.into_iter().for_each(|frame| self.push(frame));
    }
}

/// Copies of the last frames, as many as a past holds.
pub(super) fn copies_of_last<O: CausalOps>(ops: &O, frames: &O::Tensor) -> Result<Vec<O::Tensor>> {
    let [count, ..] = ops.extents(frames)?;
    let mut copies = Vec::new();
    for index in (count - BEFORE as i64).max(0)..count {
        copies.push(ops.copy(&ops.narrow(frames, 0, index, 1)?)?);
    }
    Ok(copies)
}

/// The taps of `count` frames from a window of these and the frames before, side by side as
/// channels.
pub(super) fn side_by_side<O: CausalOps>(ops: &O, window: &O::Tensor, count: i64) -> Result<O::Tensor> {
    let taps = (0..TAPS as i64).map(|tap| ops.narrow(window, 0, tap, count));
    Ok(ops.concatenate(&taps.collect::<tilewright_nn::Result<Vec<_>>>()?, 1)?)
}

/// The weights of a norm of pixels, [C, 1, 1, 1]: files give them as many axes as the values have
/// that are normed.
pub(super) fn gamma<O: CausalOps>(scope: &Scope<'_, O>, channels: i64, dtype: Dtype) -> Result<O::Weight> {
    Ok(scope.weight("gamma", &[&[channels, 1, 1, 1], &[channels, 1, 1], &[channels]], dtype)?)
}

/// Scales each pixel's channels to length √C, then by `gamma` (diffusers' `WanRMS_norm`).
#[derive(Debug)]
pub(super) struct UnitNorm<O: Ops> {
    gamma: O::Weight,
}

impl<O: CausalOps> UnitNorm<O> {
    pub fn build(scope: &Scope<'_, O>, channels: i64) -> Result<Self> {
        let gamma = gamma(scope, channels, scope.ops().format().layer_dtype)?;
        Ok(Self { gamma: scope.ops().rearrange(&gamma, &[0, 1, 2, 3], &[channels])? })
    }

    pub fn forward(&self, ops: &O, frames: &O::Tensor, silu: bool) -> Result<O::Tensor> {
        Ok(ops.rms_norm(frames, &self.gamma, silu)?)
    }
}

/// A 1×1 convolution of `taps` frames laid side by side as channels.
pub(super) fn pointwise<O: CausalOps>(scope: &Scope<'_, O>, into: i64, out: i64, taps: i64) -> Result<Conv<O>> {
    let weight = scope.product("weight", &[out, into, taps, 1, 1])?;
    let weight = scope.ops().rearrange(&weight, &[0, 2, 1, 3, 4], &[out, taps * into, 1, 1])?;
    Ok(Conv::of_weights(scope, weight, scope.product("bias", &[out])?, [out, 1], false)?)
}

/// A convolution of each frame by itself: frame by frame if libtorch convolves on a CPU. It picks
/// its algorithm by the size of the whole, and a clip has to come out the same in chunks of any
/// length.
pub(super) fn each<O: CausalOps>(ops: &O, conv: &Conv<O>, frames: &O::Tensor) -> Result<O::Tensor> {
    let [count, ..] = ops.extents(frames)?;
    if count == 1 || !ops.is_cpu() || conv.is_filtered() {
        return Ok(conv.forward(ops, ops.share(frames))?);
    }
    let mut output: Option<O::Tensor> = None;
    for frame in ops.laps(0..count, 1).alike_after(2) {
        let part = conv.forward(ops, ops.narrow(frames, 0, frame.start, 1)?)?;
        let output = match &output {
            Some(output) => output,
            None => {
                let [_, channels, height, width] = ops.extents(&part)?;
                output.insert(ops.empty([count, channels, height, width])?)
            }
        };
        ops.copy_onto(&ops.narrow(output, 0, frame.start, 1)?, &part)?;
    }
    let none = || tilewright_nn::Error::Shapes { operation: "a convolution of frames", shapes: "no frames".into() };
    output.ok_or_else(|| none().into())
}

/// A 3×3 convolution over the frame and the two before.
#[derive(Debug)]
pub(super) enum Causal<O: CausalOps> {
    /// libtorch's two-dimensional convolution of three frames laid side by side as channels:
    /// weights [out, 3 · into, 3, 3]. The three-dimensional one runs at two thirds of its speed on
    /// a CPU, and at far less if MIOpen has to search.
    Plain { weight: O::Weight, bias: O::Weight, out: i64 },
    /// By Winograd's filtering.
    Filtered { kernel: O::CausalKernel, out: i64 },
    /// To fewer channels: the sums that each frame adds to itself and to the next two are worked
    /// out together, and they are kept instead of frames. One convolution of one frame to 3 · out
    /// channels, those for the frame after the next first.
    Scattered { conv: Conv<O>, out: i64 },
}

impl<O: CausalOps> Causal<O> {
    /// A convolution that keeps frames, for a layer that is not asked for anything else.
    pub fn build(scope: &Scope<'_, O>, into: i64, out: i64) -> Result<Self> {
        let ops = scope.ops();
        let (weight, bias) = (scope.product("weight", &[out, into, 3, 3, 3])?, scope.product("bias", &[out])?);
        if ops.has_winograd() {
            return Ok(Causal::Filtered { kernel: ops.causal_kernel(&weight, &bias)?, out });
        }
        // [out, into, T, 3, 3] → [out, T · into, 3, 3]
        let weight = ops.rearrange(&weight, &[0, 2, 1, 3, 4], &[out, 3 * into, 3, 3])?;
        Ok(Causal::Plain { weight, bias, out })
    }

    /// A convolution that keeps sums if there are at most half as many channels of them.
    pub fn build_leaner(scope: &Scope<'_, O>, into: i64, out: i64) -> Result<Self> {
        if 2 * out > into {
            return Self::build(scope, into, out);
        }
        let ops = scope.ops();
        let (weight, bias) = (scope.product("weight", &[out, into, 3, 3, 3])?, scope.product("bias", &[out])?);
        // [out, into, T, 3, 3] → [T · out, into, 3, 3]
        let weight = ops.rearrange(&weight, &[2, 0, 1, 3, 4], &[3 * out, into, 3, 3])?;
        let bias = ops.pad_bias(&bias, 2 * out)?;
        Ok(Causal::Scattered { conv: Conv::of_weights(scope, weight, bias, [3 * out, 3], false)?, out })
    }

    /// Output channels.
    pub fn out(&self) -> i64 {
        match self {
            Causal::Plain { out, .. } | Causal::Filtered { out, .. } | Causal::Scattered { out, .. } => *out,
        }
    }

    /// Convolves frames after `norm` and SiLU, if there is one, and adds the result to the output,
    /// or stores it there. If it ends early, out of memory or interrupted, it may be called again
    /// with the same frames and goes on from there.
    pub fn forward(
        &self,
        ops: &O,
        norm: Option<&UnitNorm<O>>,
        past: &mut Past<O::Tensor>,
        work: &mut Work<'_, O::Tensor>,
    ) -> Result<()> {
        let [count, _, height, _] = ops.extents(work.frames)?;
        match self {
            Causal::Filtered { kernel, .. } => {
                for lap in ops.laps(*work.done..count, 1).alike_after(past.lacking()) {
                    let frame = ops.narrow(work.frames, 0, lap.start, 1)?;
                    let input = match norm {
                        Some(norm) => norm.forward(ops, &frame, true)?,
                        None => ops.copy(&frame)?,
                    };
                    let frames: Vec<&O::Tensor> = past.frames.iter().chain([&input]).collect();
                    let onto = ops.narrow(work.output, 0, lap.start, 1)?;
                    let store = if work.add { Store::Added(&onto) } else { Store::Onto(&onto) };
                    ops.winograd_frames(&frames, kernel, store)?;
                    past.push(input);
                    *work.done = lap.end;
                }
            }
            Causal::Scattered { conv, out } => {
                for lap in ops.laps(*work.done..count, 1).alike_after(past.lacking()) {
                    let frame = ops.narrow(work.frames, 0, lap.start, 1)?;
                    let input = match norm {
                        Some(norm) => norm.forward(ops, &frame, true)?,
                        None => frame,
                    };
                    let parts = conv.forward(ops, input)?;
                    let part = |tap: i64| ops.narrow(&parts, 1, tap * out, *out);
                    let sum = |part: O::Tensor, from: Option<&O::Tensor>| match from {
                        Some(from) => ops.add(&part, from),
                        None => ops.copy(&part),
                    };
                    let kept = vec![sum(part(1)?, past.frames.get(1))?, sum(part(0)?, None)?];
                    let total = sum(part(2)?, past.frames.first())?;
                    work.write(ops, &ops.narrow(work.output, 0, lap.start, 1)?, &total)?;
                    (past.frames, past.begun) = (kept, true);
                    *work.done = lap.end;
                }
            }
            Causal::Plain { weight, bias, .. } => {
                while *work.done < count * height {
                    let first = *work.done / height;
                    // The clip's first frame has no past to convolve. On a CPU frames gain nothing
                    // from each other's company, and one at a time they come out the same however
                    // many there are.
                    let (end, step) = match (ops.is_cpu(), past.frames.is_empty()) {
                        (true, _) => (count, 1),
                        (false, true) => (first + 1, 1),
                        (false, false) => (count, count - first),
                    };
                    for lap in ops.laps(first..end, step).alike_after(past.lacking()) {
                        Self::together(ops, [weight, bias], norm, past, work, lap)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Some frames at once, by libtorch in bands.
    fn together(
        ops: &O,
        [weight, bias]: [&O::Weight; 2],
        norm: Option<&UnitNorm<O>>,
        past: &mut Past<O::Tensor>,
        work: &mut Work<'_, O::Tensor>,
        lap: Range<i64>,
    ) -> Result<()> {
        let [_, _, height, _] = ops.extents(work.frames)?;
        let count = lap.end - lap.start;
        let format = ops.format();
        let frames = ops.narrow(work.frames, 0, lap.start, count)?;
        let normed = match norm {
            Some(norm) => norm.forward(ops, &frames, true)?,
            None => frames,
        };
        let normed = ops.to_dtype(normed, format.product_dtype)?;
        let window = match past.frames.is_empty() {
            true => ops.share(&normed),
            false => past.window(ops, &normed)?,
        };
        // Before anything is written, so that nothing can fail between the output and the past.
        let kept = copies_of_last(ops, &normed)?;
        drop(normed);
        let output = ops.narrow(work.output, 0, lap.start, count)?;
        let begun = (*work.done - lap.start * height).max(0);
        let band = work.band.unwrap_or(height).clamp(1, height.max(1));
        for rows in ops.laps(begun..height, band).over_rows() {
            let part = Self::rows(ops, &window, weight, bias, count, rows.clone(), height)?;
            let part = ops.to_dtype(part, format.layer_dtype)?;
            work.write(ops, &ops.narrow(&output, 2, rows.start, rows.end - rows.start)?, &part)?;
            *work.done = lap.start * height + rows.end;
        }
        past.keep(kept);
        *work.done = lap.end * height;
        Ok(())
    }

    /// Rows of the output from a window of `count` + 2 frames, or of the clip's first alone.
    fn rows(
        ops: &O,
        window: &O::Tensor,
        weight: &O::Weight,
        bias: &O::Weight,
        count: i64,
        rows: Range<i64>,
        height: i64,
    ) -> Result<O::Tensor> {
        let needed = (rows.start - 1).max(0)..(rows.end + 1).min(height);
        let part = match needed == (0..height) {
            true => ops.share(window),
            false => ops.narrow(window, 2, needed.start, needed.end - needed.start)?,
        };
        let alone = ops.extents(&part)?[0] == count;
        let mut stacked = if alone { part } else { side_by_side(ops, &part, count)? };
        let (top, bottom) = (needed.start - (rows.start - 1), rows.end + 1 - needed.end);
        let padding = [i64::from(top == 1 && bottom == 1), 1];
        if top != bottom {
            stacked = ops.pad(&stacked, &[0, 0, top, bottom])?;
        }
        let stacked = ops.to_memory_order(&stacked)?;
        Ok(match alone {
            true => ops.convolve_last(&stacked, weight, bias, padding)?,
            false => ops.convolve(&stacked, weight, Some(bias), 1, padding)?,
        })
    }
}

/// The task of a causal convolution.
pub(super) struct Work<'a, T> {
    pub frames: &'a T,
    /// The tensor for the result: the same frames, with the convolution's channels.
    pub output: &'a T,
    /// The result is added to what `output` holds.
    pub add: bool,
    /// Rows that are convolved at once by libtorch.
    pub band: Option<i64>,
    /// The point that it came to: frames, or rows of frames if libtorch convolves.
    pub done: &'a mut i64,
}

impl<T> Work<'_, T> {
    /// A result in its place.
    fn write<O: CausalOps<Tensor = T>>(&self, ops: &O, onto: &T, result: &T) -> Result<()> {
        if self.add {
            ops.add_onto(onto, result)?
        } else {
            ops.copy_onto(onto, result)?
        }
        Ok(())
    }
}

/// One frame of a block's input, and which of the frames made of it is meant.
#[derive(Debug)]
pub(super) struct Origin<T> {
    /// [1, C, h, w]
    pub frame: T,
    /// Place among the frames of one latent frame.
    pub phase: i64,
}

/// The order of a square's pixels among channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SquareOrder {
    /// Row after row, as PyTorch's `pixel_shuffle` has it: WAN 2.1's decoders of twice the size.
    Rows,
    /// Column after column, as diffusers' `unpatchify` has it: WAN 2.2.
    Columns,
}

impl SquareOrder {
    /// The order in which a family of autoencoders has it.
    pub fn of(is_wan22: bool) -> Self {
        if is_wan22 { Self::Columns } else { Self::Rows }
    }
}

/// Squares of channels become squares of pixels: [T, C · p · p, H, W] → [T, C, H · p, W · p].
pub(super) fn unpatch<O: CausalOps>(ops: &O, frames: O::Tensor, patch: i64, order: SquareOrder) -> Result<O::Tensor> {
    if patch == 1 {
        return Ok(frames);
    }
    let [count, channels, height, width] = ops.extents(&frames)?;
    let image = channels / (patch * patch);
    let squares = ops.reshape(&frames, &[count, image, patch, patch, height, width])?;
    let axes = match order {
        SquareOrder::Rows => [0, 1, 4, 2, 5, 3],
        SquareOrder::Columns => [0, 1, 4, 3, 5, 2],
    };
    let squares = ops.permute(&squares, &axes)?;
    Ok(ops.reshape(&squares, &[count, image, height * patch, width * patch])?)
}

/// Frames in the type and memory order for the first layer.
pub(super) fn prepare<O: CausalOps>(ops: &O, frames: &O::Tensor) -> Result<O::Tensor> {
    Ok(ops.to_memory_order(&ops.to_dtype(ops.share(frames), ops.format().layer_dtype)?)?)
}

#[cfg(all(test, feature = "torch"))]
mod tests {
    use tch::{Device, Kind, Tensor};
    use tilewright_nn::{ComputeFormat, Torch};

    use super::{
        super::encoder_layers::patches,
        SquareOrder::{Columns, Rows},
        unpatch,
    };

    #[test]
    fn squares_are_laid_out_as_pytorch_and_as_diffusers_have_them() {
        let _no_grad = tch::no_grad_guard();
        let ops = Torch::new(ComputeFormat::single(), Device::Cpu, None);
        let channels = Tensor::arange(2 * 12 * 3 * 5, (Kind::Float, Device::Cpu)).reshape([2, 12, 3, 5]);
        let shuffled = unpatch(&ops, channels.shallow_clone(), 2, Rows).unwrap();
        assert_eq!(shuffled, channels.pixel_shuffle(2));
        assert_eq!(patches(&ops, &shuffled, 2, Rows).unwrap(), shuffled.pixel_unshuffle(2));
        let columns = unpatch(&ops, channels.shallow_clone(), 2, Columns).unwrap();
        assert_ne!(columns, shuffled);
        // Each square is the other one's, turned over its diagonal.
        let squares = |of: &Tensor| of.reshape([2, 3, 3, 2, 5, 2]);
        assert_eq!(squares(&columns), squares(&shuffled).transpose(3, 5));
        assert_eq!(patches(&ops, &columns, 2, Columns).unwrap(), channels);
    }
}
