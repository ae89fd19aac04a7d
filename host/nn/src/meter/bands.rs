//! The meter's side of convolutions by rows, with norm and activation on the way.

use std::ops::Range;

use tilewright_kernels::{BLOCK, CPU_PIECE};
use tilewright_plan::Dtype;

use super::{Meter, MeterTensor, bytes, four_extents, shape_error};
use crate::{Result, Rows, Store};

/// The shape of weights that are laid out for Winograd's filtering.
#[derive(Clone, Copy, Debug)]
pub struct MeterKernel {
    pub(super) into: i64,
    pub(super) out: i64,
    pub(super) upsamples: bool,
}

impl MeterKernel {
    pub(super) fn new(weight: &[i64], bias: &[i64], upsamples: bool) -> Result<Self> {
        match *weight {
            [out, into, 3, 3] if *bias == [out] => Ok(Self { into, out, upsamples }),
            _ => Err(shape_error("a convolution", &[weight, bias])),
        }
    }
}

/// The extents of sums per sample and channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeterSums {
    pub(super) batch: i64,
    pub(super) channels: i64,
}

impl MeterSums {
    fn check(&self, picture: [i64; 4]) -> Result<()> {
        match [self.batch, self.channels] == picture[..2] {
            true => Ok(()),
            false => Err(shape_error("sums", &[&[self.batch, self.channels], &picture])),
        }
    }
}

impl Meter {
    /// Output pixels whose time is counted: whole blocks, their number rounded up to a multiple of
    /// the threads, since the last round takes as long as a full one.
    pub(super) fn filtered_pixels(&self, [batch, height, width]: [i64; 3]) -> f64 {
        let block = f64::from(BLOCK);
        let blocks = (batch as f64 * (height as f64 / block).ceil() * (width as f64 / block).ceil()).max(1.0);
        let threads = self.costs.kernels.threads as f64;
        ((blocks / threads).ceil() * threads * block * block).max((batch * height * width) as f64)
    }

    pub(super) fn meter_winograd(
        &self,
        input: Rows<'_, MeterTensor>,
        kernel: &MeterKernel,
        before: Option<&MeterSums>,
        rows: Range<i64>,
        store: Store<'_, MeterTensor>,
        sums: Option<&mut MeterSums>,
    ) -> Result<()> {
        let [batch, channels, stored, width] = four_extents("a convolution", input.tensor)?;
        let MeterKernel { into, out, upsamples } = *kernel;
        let scale = if upsamples { 2 } else { 1 };
        let needed = ((rows.start - 1).max(0) / scale)..((rows.end + scale) / scale).min(input.height);
        let is_there = input.first <= needed.start && needed.end <= input.first + stored;
        if channels != into || !is_there || rows.start < 0 || rows.start >= rows.end {
            return Err(shape_error(
                "a convolution",
                &[input.tensor.axes.extents(), &[out, into], &[rows.start, rows.end]],
            ));
        }
        if let Some(before) = before {
            before.check([batch, into, 0, 0])?;
        }
        let output = [batch, out, rows.end - rows.start, width.saturating_mul(scale)];
        if let Some(sums) = sums {
            sums.check(output)?;
        }
        match store {
            Store::Onto(tensor) | Store::Added(tensor) if *tensor.axes.extents() != output => {
                return Err(shape_error("a convolution", &[tensor.axes.extents(), &output]));
            }
            _ => {}
        }
        self.touch(self.costs.kernels.winograd_scratch_bytes(into, upsamples, self.format.convolution));
        let rate = self.costs.winograd.unwrap_or(self.costs.plain);
        let products = if upsamples { 2.25 } else { 4.0 };
        self.spend(products * rate.of(into as f64, out as f64) * self.filtered_pixels([batch, output[2], output[3]]));
        Ok(())
    }

    pub(super) fn added_up(&self, sums: &MeterSums, picture: &MeterTensor) -> Result<()> {
        let shape = four_extents("sums", picture)?;
        sums.check(shape)?;
        let [batch, channels, height, width] = shape;
        let row = batch.saturating_mul(channels).saturating_mul(width);
        let rows = (CPU_PIECE / row.max(1)).clamp(1, height.max(1));
        // Values less their mean, and the squares of these; 16-bit values in f32 before that.
        let pieces = if picture.dtype == Dtype::F32 { 2 } else { 3 };
        self.touch((row.saturating_mul(rows) as u64).saturating_mul(4 * pieces));
        // A piece stays in a core's cache.
        self.moves(picture.bytes());
        Ok(())
    }

    pub(super) fn apply_norm(&self, picture: &MeterTensor, affine: &MeterSums) -> Result<MeterTensor> {
        affine.check(four_extents("a norm", picture)?)?;
        let wide = bytes(&picture.axes, Dtype::F32);
        let _copy = (picture.dtype != Dtype::F32).then(|| self.hold(wide));
        // The product reads and writes, and so does SiLU.
        self.moves(picture.bytes().saturating_add(wide.saturating_mul(3)));
        Ok(self.output(picture.axes.dense(), Dtype::F32))
    }
}
