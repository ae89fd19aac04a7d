//! 3×3 convolutions of f32 pictures on the CPU by Winograd's minimal filtering: 4 products per
//! pixel and pair of channels instead of 9, and 2¼ after an upsampling by repetition. Products are
//! of f32, or of bf16 with sums in f32, where the processor has instructions for it. Group norm
//! and SiLU before, a sum and the next norm's sums after are fused, so that only input and output
//! travel through memory. A causal 3×3×3 convolution is that of three frames, summed. The
//! arithmetic is in `shim/winograd.cpp`.

use std::ops::Range;

use tch::{Device, Kind, Tensor};
use tilewright_kernels::TAPS;

use crate::{Error, Result, ffi, packed};

fn is_narrow(kind: Kind) -> i32 {
    (kind == Kind::BFloat16).into()
}

/// Rows of a picture [N, C, rows, W], f32, channels-last, samples without gaps.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The rows that are there.
    pub tensor: &'a Tensor,
    /// The index of the first row in the whole picture.
    pub first: i64,
    /// Rows of the whole picture; beyond it are zeros.
    pub height: i64,
}

impl<'a> Rows<'a> {
    /// All rows of a picture.
    pub fn all(tensor: &'a Tensor) -> Self {
        Self { tensor, first: 0, height: tensor.size()[2] }
    }
}

/// Per sample and channel: value · scale + shift, then SiLU.
#[derive(Clone, Debug, PartialEq)]
pub struct Affine {
    /// [N · C]
    pub scale: Vec<f32>,
    /// [N · C]
    pub shift: Vec<f32>,
}

/// Sums over the pixels of a picture, per sample and channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Sums {
    /// For each sample the sums of all channels, then their sums of squares.
    pub values: Vec<f64>,
    /// Channels.
    pub channels: usize,
    /// Pixels in the sums, per sample.
    pub pixels: f64,
}

impl Sums {
    /// Empty sums.
    pub fn new(batch: i64, channels: i64) -> Self {
        Self { values: vec![0.0; (2 * batch * channels) as usize], channels: channels as usize, pixels: 0.0 }
    }
}

/// A convolution's weights, laid out once.
#[derive(Debug)]
pub struct Winograd {
    laid_out: Tensor,
    bias: Tensor,
    into: i64,
    out: i64,
    taps: usize,
    upsample: bool,
}

/// Checks a tensor before its address goes to C++: f32 in host memory, [N, C, H, W] with this shape
/// in channels-last order, without gaps within a sample. Returns the distance from sample to
/// sample, in values.
fn stride(what: &str, tensor: &Tensor, [batch, channels, height, width]: [i64; 4]) -> Result<i64> {
    let strides = tensor.stride();
    let along = |axis: usize, expected: i64| tensor.size()[axis] == 1 || strides[axis] == expected;
    let fits = tensor.size() == [batch, channels, height, width]
        && tensor.f_kind()? == Kind::Float
        && tensor.device() == Device::Cpu
        && along(1, 1)
        && along(2, width * channels)
        && along(3, channels)
        && (batch == 1 || strides[0] >= channels * height * width);
    match fits {
        true => Ok(strides[0]),
        false => Err(Error::Torch(format!(
            "the {what} is {:?} {:?} {strides:?} where f32 [{batch}, {channels}, {height}, {width}], channels-last, was expected",
            tensor.f_kind()?,
            tensor.size(),
        ))),
    }
}

impl Winograd {
    /// Lays out weights `[out, into, 3, 3]` and a bias of `out` values, f32 on the CPU. With
    /// `upsample` the input is doubled in height and width by repeating pixels before it is
    /// convolved. Products are of `kind`.
    ///
    /// # Errors
    /// The shapes are others, the processor has no products of the type ([`packed::has_products`]),
    /// or memory is out.
    pub fn new(weight: &Tensor, bias: &Tensor, upsample: bool, kind: Kind) -> Result<Self> {
        Self::lay_out(&weight.f_unsqueeze(2)?, bias, 1, upsample, kind)
    }

    /// Lays out weights `[out, into, 3, 3, 3]` over frames, rows and columns and a bias of `out`
    /// values, f32 on the CPU: each frame of the output depends on the same frame of the input and
    /// the two before.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn causal(weight: &Tensor, bias: &Tensor, kind: Kind) -> Result<Self> {
        Self::lay_out(weight, bias, TAPS, false, kind)
    }

    fn lay_out(weight: &Tensor, bias: &Tensor, taps: usize, upsample: bool, kind: Kind) -> Result<Self> {
        if !packed::has_products(kind) {
            return Err(Error::Torch(format!("Winograd's filtering with products of {kind:?} on this processor")));
        }
        let (out, into, ..) = weight.size5()?;
        let square = weight.size()[2..] == [taps as i64, 3, 3];
        if !square || bias.size() != [out] || weight.device() != Device::Cpu || out == 0 || into == 0 {
            let (weight, bias) = (weight.size(), bias.size());
            return Err(Error::Torch(format!(
                "weights {weight:?} and bias {bias:?} are no 3×3 convolution of {taps} frames on the CPU"
            )));
        }
        let plain = |tensor: &Tensor| -> Result<Tensor> { Ok(tensor.f_to_kind(Kind::Float)?.f_contiguous()?) };
        let (weight, bias) = (plain(weight)?, plain(bias)?);
        let frames = taps as i32;
        let narrow = is_narrow(kind);
        let values = ffi::tw_winograd_values(into, out, frames, upsample.into(), narrow);
        let laid_out = Tensor::f_empty([values], (kind, Device::Cpu))?;
        // SAFETY: `weight` holds out · into · taps · 9 contiguous f32 and `laid_out` as many values
        // of the type as the shim asked for.
        unsafe {
            let (from, to) = (weight.data_ptr().cast(), laid_out.data_ptr());
            ffi::tw_winograd_weights(from, into, out, frames, upsample.into(), narrow, to);
        }
        Ok(Self { laid_out, bias, into, out, taps, upsample })
    }

    /// Output channels.
    pub fn out(&self) -> i64 {
        self.out
    }

    /// True if the input is doubled in height and width first.
    pub fn upsamples(&self) -> bool {
        self.upsample
    }

    /// Computes rows `rows` of the output. `input` has to hold the rows that they depend on: one
    /// more on either side, of the input's own rows if it is upsampled. `add` and `output` are [N,
    /// out, rows, width]; `add` may be `output` itself, which then grows by the result. `sums`
    /// counts the output's pixels.
    ///
    /// # Errors
    /// A tensor has another shape, type or order, or memory is out.
    pub fn convolve(
        &self,
        input: Rows<'_>,
        before: Option<&Affine>,
        rows: Range<i64>,
        add: Option<&Tensor>,
        output: Option<&Tensor>,
        sums: Option<&mut Sums>,
    ) -> Result<()> {
        self.convolve_frames(&[input], before, rows, add, output, sums)
    }

    /// Convolves frames of one shape, oldest first, as many as the weights are for; missing ones,
    /// at the beginning of a clip, count as zeros and take no time.
    ///
    /// # Errors
    /// As [`Self::convolve`]; the frames differ in shape or are more than the weights are for.
    pub fn convolve_frames(
        &self,
        frames: &[Rows<'_>],
        before: Option<&Affine>,
        rows: Range<i64>,
        add: Option<&Tensor>,
        output: Option<&Tensor>,
        mut sums: Option<&mut Sums>,
    ) -> Result<()> {
        let refused = |what: String| Err(Error::Torch(what));
        let Some(input) = frames.last().filter(|_| frames.len() <= self.taps) else {
            return refused(format!("{} frames where 1 to {} were expected", frames.len(), self.taps));
        };
        let (batch, _, stored, width) = input.tensor.size4()?;
        let scale = if self.upsample { 2 } else { 1 };
        for frame in frames {
            if (frame.first, frame.height) != (input.first, input.height) {
                return refused("the frames hold different rows".into());
            }
            stride("input", frame.tensor, [batch, self.into, stored, width])?;
            if batch > 1 && frame.tensor.stride()[0] != self.into * stored * width {
                return refused("the input's samples have gaps between them".into());
            }
        }
        let needed = ((rows.start - 1).max(0) / scale)..((rows.end + scale) / scale).min(input.height);
        if rows.start < 0 || rows.start >= rows.end || rows.end > input.height * scale || batch == 0 || width == 0 {
            return refused(format!("rows {rows:?} of a picture of {} rows", input.height * scale));
        }
        if input.first < 0 || input.first > needed.start || input.first + stored < needed.end {
            return refused(format!("rows {needed:?} are needed, {stored} from {} are there", input.first));
        }
        let channels = (batch * self.into) as usize;
        if before.is_some_and(|affine| affine.scale.len() != channels || affine.shift.len() != channels) {
            return refused(format!("scale and shift are not {channels} values"));
        }
        if sums.as_ref().is_some_and(|sums| sums.values.len() as i64 != 2 * batch * self.out) {
            return refused(format!("the sums are not of {batch} × {} channels", self.out));
        }
        let shape = [batch, self.out, rows.end - rows.start, width * scale];
        let strided = |what, tensor: Option<&Tensor>| tensor.map_or(Ok(0), |tensor| stride(what, tensor, shape));
        let data = |tensor: Option<&Tensor>| tensor.map_or(std::ptr::null_mut(), |tensor| tensor.data_ptr().cast());
        let mut inputs = [std::ptr::null(); TAPS];
        for (place, frame) in inputs.iter_mut().zip(frames) {
            *place = frame.tensor.data_ptr().cast_const().cast();
        }
        let raw = ffi::RawConvolution {
            batch,
            into: self.into,
            out: self.out,
            width,
            height: input.height,
            first: input.first,
            rows: stored,
            out_first: rows.start,
            out_rows: rows.end - rows.start,
            upsample: self.upsample.into(),
            silu: before.is_some().into(),
            taps: self.taps as i32,
            missing: (self.taps - frames.len()) as i32,
            inputs,
            scale: before.map_or(std::ptr::null(), |affine| affine.scale.as_ptr()),
            shift: before.map_or(std::ptr::null(), |affine| affine.shift.as_ptr()),
            bf16: is_narrow(self.laid_out.f_kind()?),
            weights: self.laid_out.data_ptr().cast_const(),
            bias: self.bias.data_ptr().cast(),
            add: data(add),
            output: data(output),
            add_stride: strided("addend", add)?,
            output_stride: strided("output", output)?,
            sums: sums.as_mut().map_or(std::ptr::null_mut(), |sums| sums.values.as_mut_ptr()),
        };
        // SAFETY: every address is of as many values as the shapes checked above say, and lives
        // through the call; what is written to, output and sums, is borrowed by nobody else but
        // through `add`, which each value is read from before it is written.
        unsafe { ffi::tw_winograd_convolve(&raw) }?;
        if let Some(sums) = sums {
            sums.pixels += ((rows.end - rows.start) * width * scale) as f64;
        }
        Ok(())
    }
}
