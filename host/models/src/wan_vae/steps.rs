//! The steps that a decoder is made of. Each kind stands in one place: it is built from the names
//! of its weights, derives its output's frames from its input's, and takes a piece through itself.

use std::fmt;

use tilewright_kernels::TAPS;
use tilewright_nn::{CausalOps, Ops, Scope, layers::Conv};

use super::{
    clip::{Piece, Spread},
    layers::{Causal, Origin, Past, UnitNorm, Work, copies_of_last, each, pointwise, side_by_side},
};
use crate::Result;

/// A step of the network.
pub(super) trait Step<O: CausalOps>: fmt::Debug + Send {
    /// Takes a piece through. If it ends early, piece and past are such that it may be called
    /// again.
    fn run(&self, ops: &O, piece: &mut Piece<O::Tensor>, past: &mut Past<O::Tensor>, spread: &Spread) -> Result<()>;

    /// Frames that each frame becomes; the clip's first stays alone in any case.
    fn copies(&self) -> u32 {
        1
    }

    /// True if its output depends on the two frames before.
    fn is_causal(&self) -> bool {
        false
    }
}

/// Uninitialised frames with `channels` channels, as many and as large as those of a piece.
fn room<O: CausalOps>(ops: &O, piece: &Piece<O::Tensor>, channels: i64) -> Result<O::Tensor> {
    let [count, _, height, width] = ops.extents(&piece.frames)?;
    Ok(ops.empty([count, channels, height, width])?)
}

/// A convolution of each frame by itself.
#[derive(Debug)]
pub(super) struct Still<O: CausalOps>(pub Conv<O>);

impl<O: CausalOps> Step<O> for Still<O> {
    fn run(&self, ops: &O, piece: &mut Piece<O::Tensor>, _: &mut Past<O::Tensor>, _: &Spread) -> Result<()> {
        piece.frames = each(ops, &self.0, &piece.frames)?;
        Ok(())
    }
}

/// The place of a causal convolution's output.
#[derive(Debug)]
enum Output<O: CausalOps> {
    /// It takes the input's.
    Instead,
    /// The first half of a residual layer: it is hidden beside the input, which goes through its
    /// shortcut, if it has one.
    Hidden(Option<Conv<O>>),
    /// The second half: the hidden frames go in, and the output is added to the input.
    Added,
}

/// A causal convolution, after a norm and SiLU or not.
#[derive(Debug)]
pub(super) struct Convolve<O: CausalOps> {
    norm: Option<UnitNorm<O>>,
    conv: Causal<O>,
    output: Output<O>,
}

impl<O: CausalOps> Convolve<O> {
    /// One that stands alone.
    pub fn alone(scope: &Scope<'_, O>, norm: Option<UnitNorm<O>>, into: i64, out: i64) -> Result<Self> {
        Ok(Self { norm, conv: Causal::build_leaner(scope, into, out)?, output: Output::Instead })
    }

    /// A residual layer's two halves.
    pub fn residual(scope: &Scope<'_, O>, into: i64, out: i64) -> Result<[Self; 2]> {
        let norm = UnitNorm::build(&scope.at("norm1"), into)?;
        let conv = Causal::build_leaner(&scope.at("conv1"), into, out)?;
        let last = Self {
            norm: Some(UnitNorm::build(&scope.at("norm2"), out)?),
            conv: Causal::build(&scope.at("conv2"), out, out)?,
            output: Output::Added,
        };
        let shortcut = (into != out).then(|| pointwise(&scope.at("conv_shortcut"), into, out, 1)).transpose()?;
        Ok([Self { norm: Some(norm), conv, output: Output::Hidden(shortcut) }, last])
    }
}

impl<O: CausalOps> Step<O> for Convolve<O> {
    fn run(&self, ops: &O, piece: &mut Piece<O::Tensor>, past: &mut Past<O::Tensor>, spread: &Spread) -> Result<()> {
        let (band, norm) = (spread.band_of(ops.extents(&piece.frames)?[2]), self.norm.as_ref());
        if let Output::Added = self.output {
            if let Some(hidden) = &piece.hidden {
                let mut work = Work { frames: hidden, output: &piece.frames, add: true, band, done: &mut piece.done };
                self.conv.forward(ops, norm, past, &mut work)?;
            }
            piece.hidden = None;
            return Ok(());
        }
        let output = piece.hidden.take().map_or_else(|| room(ops, piece, self.conv.out()), Ok)?;
        let output = piece.hidden.insert(output);
        if !piece.convolved {
            let mut work = Work { frames: &piece.frames, output, add: false, band, done: &mut piece.done };
            self.conv.forward(ops, norm, past, &mut work)?;
            piece.convolved = true;
        }
        match &self.output {
            Output::Hidden(Some(shortcut)) => piece.frames = each(ops, shortcut, &piece.frames)?,
            Output::Instead => piece.frames = piece.hidden.take().unwrap_or_else(|| ops.share(&piece.frames)),
            Output::Hidden(None) | Output::Added => {}
        }
        Ok(())
    }

    fn is_causal(&self) -> bool {
        true
    }
}

/// A block begins whose input is added to its output.
#[derive(Debug)]
pub(super) struct Begin;

impl<O: CausalOps> Step<O> for Begin {
    fn run(&self, ops: &O, piece: &mut Piece<O::Tensor>, _: &mut Past<O::Tensor>, _: &Spread) -> Result<()> {
        let [count, ..] = ops.extents(&piece.frames)?;
        let origins = (0..count)
            .map(|index| -> Result<_> { Ok(Origin { frame: ops.narrow(&piece.frames, 0, index, 1)?, phase: 1 }) });
        let origins = origins.collect::<Result<Vec<_>>>()?;
        // The block's sums are written onto its input.
        let own = ops.copy(&piece.frames)?;
        (piece.frames, piece.origins) = (own, origins);
        Ok(())
    }
}

/// Attention of one head over all pixels of each frame, added to the input.
#[derive(Debug)]
pub(super) struct Attention<O: CausalOps> {
    norm: UnitNorm<O>,
    /// [3C, C]
    query_key_value: O::Weight,
    query_key_value_bias: O::Weight,
    /// [C, C]
    output: O::Weight,
    output_bias: O::Weight,
    channels: i64,
}

impl<O: CausalOps> Attention<O> {
    pub fn build(scope: &Scope<'_, O>, channels: i64) -> Result<Self> {
        let linear = |part: &str, out: i64| -> Result<(O::Weight, O::Weight)> {
            let scope = scope.at(part);
            let weight = scope.product("weight", &[out, channels, 1, 1])?;
            Ok((scope.ops().rearrange(&weight, &[0, 1, 2, 3], &[out, channels])?, scope.product("bias", &[out])?))
        };
        let norm = UnitNorm::build(&scope.at("norm"), channels)?;
        let (query_key_value, query_key_value_bias) = linear("to_qkv", 3 * channels)?;
        let (output, output_bias) = linear("proj", channels)?;
        Ok(Self { norm, query_key_value, query_key_value_bias, output, output_bias, channels })
    }

    fn frame(&self, ops: &O, frame: &O::Tensor, onto: &O::Tensor) -> Result<()> {
        let shape = ops.extents(frame)?;
        let [_, channels, height, width] = shape;
        let format = ops.format();
        let mut tokens = ops.to_dtype(self.norm.forward(ops, frame, false)?, format.product_dtype)?;
        tokens = ops.reshape(&tokens, &[1, channels, height * width])?;
        tokens = ops.contiguous(&ops.transpose(&tokens, 1, 2)?)?;
        let all = ops.linear(&tokens, &self.query_key_value, &self.query_key_value_bias)?;
        drop(tokens);
        let part = |third: i64| ops.contiguous(&ops.narrow(&all, 2, third * channels, channels)?);
        let (query, key, value) = (part(0)?, part(1)?, part(2)?);
        drop(all);
        let mixed = ops.attention(query, &key, &value)?;
        drop((key, value));
        let added = ops.to_dtype(ops.linear(&mixed, &self.output, &self.output_bias)?, format.layer_dtype)?;
        let added = ops.reshape(&ops.transpose(&added, 1, 2)?, &shape)?;
        Ok(ops.copy_onto(onto, &ops.add(frame, &added)?)?)
    }
}

impl<O: CausalOps> Step<O> for Attention<O> {
    /// A frame at a time; the input is replaced.
    fn run(&self, ops: &O, piece: &mut Piece<O::Tensor>, _: &mut Past<O::Tensor>, _: &Spread) -> Result<()> {
        let output = room(ops, piece, self.channels)?;
        for lap in ops.laps(0..ops.extents(&piece.frames)?[0], 1).alike_after(0) {
            let frame = ops.narrow(&piece.frames, 0, lap.start, 1)?;
            self.frame(ops, &frame, &ops.narrow(&output, 0, lap.start, 1)?)?;
        }
        piece.frames = output;
        Ok(())
    }
}

/// Makes two frames of each but the clip's first, which stays alone: the frame and the two before
/// become twice the channels, and these two frames. The past of the second frame is zeros, not the
/// first.
#[derive(Debug)]
pub(super) struct Double<O: CausalOps> {
    conv: Conv<O>,
}

impl<O: CausalOps> Double<O> {
    pub fn build(scope: &Scope<'_, O>, channels: i64) -> Result<Self> {
        Ok(Self { conv: pointwise(scope, channels, 2 * channels, TAPS as i64)? })
    }

    fn forward(&self, ops: &O, past: &mut Past<O::Tensor>, frames: &O::Tensor) -> Result<O::Tensor> {
        let [mut count, ..] = ops.extents(frames)?;
        let mut rest = ops.share(frames);
        let (mut output, mut kept) = (Vec::new(), Vec::new());
        if !past.begun && count > 0 {
            output.push(ops.narrow(frames, 0, 0, 1)?);
            rest = ops.narrow(frames, 0, 1, count - 1)?;
            count -= 1;
        }
        if count > 0 {
            let [_, channels, height, width] = ops.extents(&rest)?;
            let window = past.window(ops, &rest)?;
            let stacked = ops.to_memory_order(&side_by_side(ops, &window, count)?)?;
            drop(window);
            let doubled = each(ops, &self.conv, &stacked)?;
            drop(stacked);
            // [T, 2, C, H, W] → [2T, C, H, W], in any memory order.
            let both = ops.empty([2 * count, channels, height, width])?;
            for half in 0..2 {
                let from = ops.narrow(&doubled, 1, half * channels, channels)?;
                ops.copy_onto(&ops.every_other(&both, half..2 * count)?, &from)?;
            }
            kept = copies_of_last(ops, &rest)?;
            output.push(both);
        }
        let output = match output.len() {
            1 => output.remove(0),
            _ => ops.to_memory_order(&ops.concatenate(&output, 0)?)?,
        };
        past.keep(kept);
        past.begun = true;
        Ok(output)
    }
}

impl<O: CausalOps> Step<O> for Double<O> {
    fn run(&self, ops: &O, piece: &mut Piece<O::Tensor>, past: &mut Past<O::Tensor>, _: &Spread) -> Result<()> {
        piece.frames = self.forward(ops, past, &piece.frames)?;
        piece.double(|frame| ops.share(frame));
        Ok(())
    }

    fn copies(&self) -> u32 {
        2
    }

    fn is_causal(&self) -> bool {
        true
    }
}

/// The block's input is added to its output: WAN 2.2's shortcut past a whole block, whose channels
/// are repeated and laid out in time and space (diffusers' `DupUp3D`).
#[derive(Debug)]
pub(super) struct End<O: Ops> {
    /// For each phase the input channel of each of the 4 · out channels before they are laid out in
    /// squares of 2×2.
    channels: Vec<O::Weight>,
}

impl<O: CausalOps> End<O> {
    pub fn build(ops: &O, into: i64, out: i64, is_temporal: bool) -> Result<Self> {
        let phases = if is_temporal { 2 } else { 1 };
        let repeats = (out * phases * 4 / into.max(1)).max(1);
        let channels = (0..phases).map(|phase| {
            let from: Vec<i64> = (0..out)
                .flat_map(|to| (0..4).map(move |place| ((to * phases + phase) * 4 + place) / repeats))
                .collect();
            ops.channels(&from)
        });
        Ok(Self { channels: channels.collect::<tilewright_nn::Result<_>>()? })
    }
}

impl<O: CausalOps> Step<O> for End<O> {
    fn run(&self, ops: &O, piece: &mut Piece<O::Tensor>, _: &mut Past<O::Tensor>, _: &Spread) -> Result<()> {
        for (index, origin) in piece.origins.iter().enumerate() {
            let channels = &self.channels[(origin.phase as usize).min(self.channels.len() - 1)];
            let repeated = ops.pixel_shuffle(&origin.frame, channels)?;
            ops.add_onto(&ops.narrow(&piece.frames, 0, index as i64, 1)?, &repeated)?;
        }
        piece.origins.clear();
        Ok(())
    }
}
