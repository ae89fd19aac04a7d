//! The video networks' layers. Frames are [T, C, H, W], one clip's, in the memory order of
//! [`ComputeFormat::layout`] and the type of [`ComputeFormat::rest`]. A causal layer keeps what it
//! needs of the frames before in a [`Past`]. What is held at once is counted in `footprint.rs`:
//! change both.

use tch::{Device, Kind, Tensor};
use tilewright_plan::Layout;
use tilewright_torch::{
    attention, to_layout, unit_norm,
    winograd::{Rows, TAPS, Winograd},
};

use crate::{
    ComputeFormat, Result,
    kl::layers::{Conv, Plain, converted, empty},
};

/// As in torch.nn.functional.normalize: a pixel of zeros stays one.
const LEAST_LENGTH: f64 = 1e-12;

/// What a causal layer keeps of the frames before: its own input, [1, C, H, W] each, oldest first; or what these add to the next frame and to
/// the one after it.
#[derive(Debug, Default)]
pub(super) struct Past {
    pub frames: Vec<Tensor>,
    /// The clip's first frame has gone by.
    pub begun: bool,
}

impl Past {
    fn push(&mut self, frame: Tensor) {
        self.frames.push(frame);
        if self.frames.len() >= TAPS {
            drop(self.frames.remove(0));
        }
        self.begun = true;
    }

    /// The frames before and these as one tensor, with zeros for those that never were.
    fn window(&self, frames: &Tensor, format: &ComputeFormat) -> Result<Tensor> {
        let missing = TAPS - 1 - self.frames.len();
        let (_, channels, height, width) = frames.size4()?;
        let mut parts: Vec<Tensor> = Vec::new();
        if missing > 0 {
            let zeros = [missing as i64, channels, height, width];
            parts.push(to_layout(&Tensor::f_zeros(zeros, (frames.f_kind()?, frames.device()))?, format.layout)?);
        }
        parts.extend(self.frames.iter().map(Tensor::shallow_clone));
        parts.push(frames.shallow_clone());
        Ok(Tensor::f_cat(&parts, 0)?)
    }

    /// Keeps frames that are nobody else's.
    fn keep(&mut self, frames: Vec<Tensor>) {
        frames.into_iter().for_each(|frame| self.push(frame));
    }

    pub fn bytes(&self) -> usize {
        self.frames.iter().map(|frame| frame.numel() * frame.kind().elt_size_in_bytes()).sum()
    }
}

/// Copies of the last frames, as many as a past holds.
fn copies_of_last(frames: &Tensor) -> Result<Vec<Tensor>> {
    let count = frames.size()[0];
    let mut copies = Vec::new();
    for index in (count - (TAPS as i64 - 1)).max(0)..count {
        let frame = frames.f_narrow(0, index, 1)?;
        let mut copy = frame.f_empty_like()?;
        copy.f_copy_(&frame)?;
        copies.push(copy);
    }
    Ok(copies)
}

/// Scales each pixel's channels to length √C, then by `gamma` (diffusers' `WanRMS_norm`).
#[derive(Debug)]
pub(super) struct UnitNorm {
    /// [C], f32 where [`ComputeFormat::winograd`] holds, else in [`ComputeFormat::rest`].
    pub gamma: Tensor,
}

impl UnitNorm {
    /// The norm of frames in f32 and back, a frame at a time: nothing more than one is ever held in f32.
    pub fn forward(&self, frames: &Tensor, silu: bool, format: &ComputeFormat) -> Result<Tensor> {
        let (count, channels, height, width) = frames.size4()?;
        let output = empty([count, channels, height, width], format, frames.device())?;
        if format.winograd(frames.device()) {
            unit_norm(frames, &self.gamma, silu, &output)?;
            return Ok(output);
        }
        let gamma = self.gamma.f_to_kind(Kind::Float)?.f_mul_scalar((channels as f64).sqrt())?.f_view([1, -1, 1, 1])?;
        for index in 0..count {
            let frame = frames.f_narrow(0, index, 1)?.f_to_kind(Kind::Float)?;
            let length = frame.f_linalg_norm(2.0, &[1_i64][..], true, None::<Kind>)?.f_clamp_min_(LEAST_LENGTH)?;
            let mut normed = frame.f_div(&length)?.f_mul_(&gamma)?;
            if silu {
                normed = normed.f_silu_()?;
            }
            output.f_narrow(0, index, 1)?.f_copy_(&normed)?;
        }
        Ok(output)
    }
}

/// A convolution of each frame. On a CPU libtorch is given one at a time: it picks its algorithm by the size of the whole, and a clip has to
/// come out the same in chunks of any length.
pub(super) fn each(conv: &Plain, frames: &Tensor, format: &ComputeFormat) -> Result<Tensor> {
    let count = frames.size()[0];
    if count == 1 || frames.device() != Device::Cpu {
        return conv.forward(frames.shallow_clone(), format);
    }
    let mut output: Option<Tensor> = None;
    for index in 0..count {
        let part = conv.forward(frames.f_narrow(0, index, 1)?, format)?;
        let output = match &output {
            Some(output) => output,
            None => {
                let (_, channels, height, width) = part.size4()?;
                output.insert(empty([count, channels, height, width], format, frames.device())?)
            }
        };
        output.f_narrow(0, index, 1)?.f_copy_(&part)?;
    }
    output.ok_or_else(|| tilewright_torch::Error::Torch("a convolution of no frames".into()).into())
}

/// A 3×3 convolution over the frame and the two before.
#[derive(Debug)]
pub(super) enum Causal {
    /// libtorch's two-dimensional convolution of three frames laid side by side as channels: weights [out, 3 · into, 3, 3]. The
    /// three-dimensional one runs at two thirds of its speed on a CPU and far less where MIOpen has to search.
    Plain { weight: Tensor, bias: Tensor },
    /// f32, channels-last, on the CPU.
    Winograd(Winograd),
    /// To fewer channels: what each frame adds to itself and the next two is worked out at once, and these sums are kept instead of frames. One
    /// convolution of one frame to 3 · out channels, those for the frame after the next first.
    Scattered { conv: Conv, out: i64 },
}

impl Causal {
    pub fn out(&self) -> i64 {
        match self {
            Causal::Plain { bias, .. } => bias.size()[0],
            Causal::Winograd(conv) => conv.out(),
            Causal::Scattered { out, .. } => *out,
        }
    }

    /// Convolves frames after `norm` and SiLU where there is one, and adds the result to `output`, or stores it there. Where it ends early, out of memory
    /// or interrupted, it may be called again with the same frames and goes on where it was.
    pub fn forward(
        &self,
        norm: Option<&UnitNorm>,
        past: &mut Past,
        work: &mut Work<'_>,
        format: &ComputeFormat,
    ) -> Result<()> {
        let (count, _, height, _) = work.frames.size4()?;
        match self {
            Causal::Winograd(conv) => {
                while *work.done < count {
                    let frame = work.frames.f_narrow(0, *work.done, 1)?;
                    let input = match norm {
                        Some(norm) => norm.forward(&frame, true, format)?,
                        None => copies_of_last(&frame)?.remove(0),
                    };
                    let mut rows: Vec<Rows<'_>> = past.frames.iter().map(Rows::all).collect();
                    rows.push(Rows::all(&input));
                    let onto = work.output.f_narrow(0, *work.done, 1)?;
                    conv.convolve_frames(&rows, None, 0..height, Some(&onto).filter(|_| work.add), Some(&onto), None)?;
                    past.push(input);
                    *work.done += 1;
                }
            }
            Causal::Scattered { conv, out } => {
                while *work.done < count {
                    let frame = work.frames.f_narrow(0, *work.done, 1)?;
                    let input = match norm {
                        Some(norm) => norm.forward(&frame, true, format)?,
                        None => frame,
                    };
                    let parts = conv.forward(input, format)?;
                    let part = |tap: i64| -> Result<Tensor> { Ok(parts.f_narrow(1, tap * out, *out)?) };
                    let sum = |part: Tensor, from: Option<&Tensor>| -> Result<Tensor> {
                        Ok(match from {
                            Some(from) => part.f_add(from)?,
                            None => copies_of_last(&part)?.remove(0),
                        })
                    };
                    let kept = vec![sum(part(1)?, past.frames.get(1))?, sum(part(0)?, None)?];
                    let total = sum(part(2)?, past.frames.first())?;
                    let mut onto = work.output.f_narrow(0, *work.done, 1)?;
                    if work.add {
                        let _ = onto.f_add_(&total)?;
                    } else {
                        onto.f_copy_(&total)?;
                    }
                    (past.frames, past.begun) = (kept, true);
                    *work.done += 1;
                }
            }
            Causal::Plain { weight, bias } => {
                let rows = work.band.unwrap_or(height).clamp(1, height.max(1));
                while *work.done < count * height {
                    let first = *work.done / height;
                    // The clip's first frame has no past to convolve. On a CPU frames gain nothing from each other's company, and one at a
                    // time they come out the same however many there are.
                    let alone = past.frames.is_empty() || work.frames.device() == Device::Cpu;
                    let together = if alone { 1 } else { count - first };
                    let frames = work.frames.f_narrow(0, first, together)?;
                    let normed = match norm {
                        Some(norm) => norm.forward(&frames, true, format)?,
                        None => frames,
                    };
                    let normed = converted(normed, format.convolution)?;
                    let window = match past.frames.is_empty() {
                        true => normed.shallow_clone(),
                        false => past.window(&normed, format)?,
                    };
                    // Before anything is written, so that nothing can fail between the output and the past.
                    let kept = copies_of_last(&normed)?;
                    drop(normed);
                    let output = work.output.f_narrow(0, first, together)?;
                    while *work.done < (first + 1) * height {
                        let start = *work.done - first * height;
                        let end = (start + rows).min(height);
                        let part = Self::rows(&window, weight, bias, together, start..end, height, format)?;
                        let part = converted(part, format.rest)?;
                        let mut onto = output.f_narrow(2, start, end - start)?;
                        if work.add {
                            let _ = onto.f_add_(&part)?;
                        } else {
                            onto.f_copy_(&part)?;
                        }
                        *work.done += end - start;
                    }
                    past.keep(kept);
                    *work.done = (first + together) * height;
                }
            }
        }
        Ok(())
    }

    /// Rows of the output from a window of `count` + 2 frames, or of the clip's first alone.
    fn rows(
        window: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        count: i64,
        rows: std::ops::Range<i64>,
        height: i64,
        format: &ComputeFormat,
    ) -> Result<Tensor> {
        let needed = (rows.start - 1).max(0)..(rows.end + 1).min(height);
        let all = needed == (0..height);
        let part =
            if all { window.shallow_clone() } else { window.f_narrow(2, needed.start, needed.end - needed.start)? };
        let into = part.size()[1];
        let alone = part.size()[0] == count;
        let mut stacked = match alone {
            true => part,
            false => {
                let taps = (0..TAPS as i64)
                    .map(|tap| part.f_narrow(0, tap, count))
                    .collect::<std::result::Result<Vec<_>, _>>()?;
                Tensor::f_cat(&taps, 1)?
            }
        };
        let narrowed;
        let weight = match alone {
            true => {
                narrowed = to_layout(&weight.f_narrow(1, (TAPS as i64 - 1) * into, into)?, format.layout)?;
                &narrowed
            }
            false => weight,
        };
        let (top, bottom) = (needed.start - (rows.start - 1), rows.end + 1 - needed.end);
        let down = i64::from(top == 1 && bottom == 1);
        if top != bottom {
            stacked = stacked.f_constant_pad_nd([0, 0, top, bottom])?;
        }
        let stacked = to_layout(&stacked, format.layout)?;
        Ok(stacked.f_conv2d(weight, Some(bias), [1, 1], [down, 1], [1, 1], 1)?)
    }
}

/// What a causal convolution is asked for.
pub(super) struct Work<'a> {
    pub frames: &'a Tensor,
    /// Of the same frames, with the convolution's channels.
    pub output: &'a Tensor,
    /// The result is added to what `output` holds.
    pub add: bool,
    /// Rows that are convolved at once, where libtorch does it.
    pub band: Option<i64>,
    /// How far it came: frames, or rows of frames where libtorch convolves.
    pub done: &'a mut i64,
}

/// Makes two frames of each but the clip's first, which stays alone: the frame and the two before become twice the channels, and these two
/// frames. The past of the second frame is zeros, not the first.
#[derive(Debug)]
pub(super) struct Doubling {
    /// [2C, 3C, 1, 1]
    pub conv: Plain,
}

impl Doubling {
    pub fn forward(&self, past: &mut Past, frames: &Tensor, format: &ComputeFormat) -> Result<Tensor> {
        let mut count = frames.size()[0];
        let mut rest = frames.shallow_clone();
        let (mut output, mut kept): (Vec<Tensor>, Vec<Tensor>) = (Vec::new(), Vec::new());
        if !past.begun && count > 0 {
            output.push(frames.f_narrow(0, 0, 1)?);
            rest = frames.f_narrow(0, 1, count - 1)?;
            count -= 1;
        }
        if count > 0 {
            let (_, channels, height, width) = rest.size4()?;
            let window = past.window(&rest, format)?;
            let taps = (0..TAPS as i64)
                .map(|tap| window.f_narrow(0, tap, count))
                .collect::<std::result::Result<Vec<_>, _>>()?;
            let stacked = to_layout(&Tensor::f_cat(&taps, 1)?, format.layout)?;
            drop((taps, window));
            let doubled = each(&self.conv, &stacked, format)?;
            drop(stacked);
            // [T, 2, C, H, W] → [2T, C, H, W], whatever the order in memory.
            let both = empty([2 * count, channels, height, width], format, rest.device())?;
            for half in 0..2 {
                let from = doubled.f_narrow(1, half * channels, channels)?;
                both.f_slice(0, half, None, 2)?.f_copy_(&from)?;
            }
            kept = copies_of_last(&rest)?;
            output.push(both);
        }
        let output = match output.len() {
            1 => output.remove(0),
            _ => to_layout(&Tensor::f_cat(&output, 0)?, format.layout)?,
        };
        past.keep(kept);
        past.begun = true;
        Ok(output)
    }
}

/// Attention of one head over all pixels of each frame, added to the input.
#[derive(Debug)]
pub(super) struct Attention {
    pub norm: UnitNorm,
    /// [3C, C]
    pub query_key_value: Tensor,
    pub query_key_value_bias: Tensor,
    /// [C, C]
    pub output: Tensor,
    pub output_bias: Tensor,
    /// libtorch's fused attention is right on this device for this width and type.
    pub fused: bool,
}

impl Attention {
    /// A frame at a time; the input is replaced.
    pub fn forward(&self, frames: &Tensor, format: &ComputeFormat) -> Result<Tensor> {
        let (count, channels, height, width) = frames.size4()?;
        let output = empty([count, channels, height, width], format, frames.device())?;
        for index in 0..count {
            let frame = frames.f_narrow(0, index, 1)?;
            let mut tokens = converted(self.norm.forward(&frame, false, format)?, format.convolution)?;
            tokens = tokens.f_flatten(2, 3)?.f_transpose(1, 2)?.f_contiguous()?;
            let all = tokens.f_linear(&self.query_key_value, Some(&self.query_key_value_bias))?;
            drop(tokens);
            let part =
                |third: i64| -> Result<Tensor> { Ok(all.f_narrow(2, third * channels, channels)?.f_contiguous()?) };
            let (query, key, value) = (part(0)?, part(1)?, part(2)?);
            drop(all);
            let mixed = match self.fused {
                true => attention::fused(query, &key, &value)?,
                false => attention::plain(&query, &key, &value)?,
            };
            drop((key, value));
            let added = converted(mixed.f_linear(&self.output, Some(&self.output_bias))?, format.rest)?;
            let added = added.f_transpose(1, 2)?.f_reshape([1, channels, height, width])?;
            output.f_narrow(0, index, 1)?.f_copy_(&frame.f_add(&added)?)?;
        }
        Ok(output)
    }
}

/// One frame of a block's input, and which of the frames made of it is meant.
#[derive(Debug)]
pub(super) struct Origin {
    /// [1, C, h, w]
    pub frame: Tensor,
    /// Place among the frames of one latent frame.
    pub phase: i64,
}

/// WAN 2.2's shortcut past a whole block: channels are repeated and laid out in time and space (diffusers' `DupUp3D`).
#[derive(Debug)]
pub(super) struct Duplication {
    /// For each phase the input channel of each of the 4 · out channels before they are laid out in squares of 2×2.
    pub channels: Vec<Tensor>,
}

impl Duplication {
    pub fn new(into: i64, out: i64, temporal: bool, device: Device) -> Result<Self> {
        let phases = if temporal { 2 } else { 1 };
        let repeats = (out * phases * 4 / into.max(1)).max(1);
        let channels = (0..phases).map(|phase| -> Result<Tensor> {
            let from: Vec<i64> = (0..out)
                .flat_map(|to| (0..4).map(move |place| ((to * phases + phase) * 4 + place) / repeats))
                .collect();
            Ok(Tensor::f_from_slice(&from)?.f_to_device(device)?)
        });
        Ok(Self { channels: channels.collect::<Result<_>>()? })
    }

    /// Adds a block's input to its output.
    pub fn add(&self, origins: &[Origin], output: &Tensor) -> Result<()> {
        for (index, origin) in origins.iter().enumerate() {
            let channels = &self.channels[(origin.phase as usize).min(self.channels.len() - 1)];
            let repeated = origin.frame.f_index_select(1, channels)?.f_pixel_shuffle(2)?;
            let _ = output.f_narrow(0, index as i64, 1)?.f_add_(&repeated)?;
        }
        Ok(())
    }
}

/// Squares of channels become squares of pixels (diffusers' `unpatchify`): [T, C · p · p, H, W] → [T, C, H · p, W · p].
pub(super) fn unpatch(frames: Tensor, patch: i64) -> Result<Tensor> {
    if patch == 1 {
        return Ok(frames);
    }
    let (count, channels, height, width) = frames.size4()?;
    let image = channels / (patch * patch);
    let squares = frames.f_reshape([count, image, patch, patch, height, width])?.f_permute([0, 1, 4, 3, 5, 2])?;
    Ok(squares.f_reshape([count, image, height * patch, width * patch])?)
}

/// Frames in the type and memory order for the first layer.
pub(super) fn prepare(frames: &Tensor, format: &ComputeFormat) -> Result<Tensor> {
    let frames = frames.f_to_kind(format.rest)?;
    Ok(match format.layout {
        Layout::ChannelsFirst => frames.f_contiguous()?,
        Layout::ChannelsLast => tilewright_torch::channels_last(&frames)?,
    })
}
