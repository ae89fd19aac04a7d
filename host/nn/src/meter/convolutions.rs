//! The cost of convolutions, by libtorch and by Winograd's filtering.

use tilewright_kernels::BLOCK;

use super::{Meter, MeterTensor, four_extents, shape_error};
use crate::{Ops, Result};

/// The times that a convolution for which MIOpen has no quick kernel takes longer. A decode of
/// 1664×928 on gfx1151 took 54.8 s whole and 4.8 s in tiles, with an older ROCm; a single
/// convolution has been seen to take several hundred times as long (ROCm/rocm-libraries issue
/// 3509).
const SLOWER: i64 = 12;

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
    pub(super) fn check(&self, picture: [i64; 4]) -> Result<()> {
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

    pub(super) fn convolved_by_libtorch(
        &self,
        picture: &MeterTensor,
        weight: &[i64],
        bias: Option<&Vec<i64>>,
        stride: i64,
        padding: [i64; 2],
    ) -> Result<MeterTensor> {
        let [batch, into, height, width] = four_extents("a convolution", picture)?;
        let &[out, channels, side, _] = weight else {
            return Err(shape_error("a convolution", &[picture.axes.extents(), weight]));
        };
        let extent = |pixels: i64, padding: i64| (pixels + 2 * padding - side) / stride + 1;
        let (rows, columns) = (extent(height, padding[0]), extent(width, padding[1]));
        if channels != into || bias.is_some_and(|bias| *bias != [out]) || rows < 1 || columns < 1 {
            return Err(shape_error("a convolution", &[picture.axes.extents(), weight]));
        }
        let columns_bytes = picture.bytes().saturating_mul((side * side) as u64);
        let is_slow = side > 1 && self.costs.slow_from.is_some_and(|least| columns_bytes >= least);
        let times = if is_slow { SLOWER } else { 1 };
        self.multiplies(into, out, batch * rows * columns, side * side * times);
        let output = self.convolution_axes([batch, out, rows, columns]);
        // The input is brought into the weights' order first.
        let _ordered = self.to_memory_order(picture)?;
        let (taps, scratch) = ((side * side) as f64, &self.costs.scratch);
        let (input_pixels, output_pixels) = ((batch * height * width) as f64, (batch * rows * columns) as f64);
        let is_small = batch == 1 && into * height * width <= scratch.small as i64;
        let (into, out) = (into as f64, out as f64);
        if scratch.small > 0 && (is_small || side == 1 && self.costs.kernels.threads == 1) {
            // libtorch's own convolution lays the input out once per tap (im2col), oneDNN's does
            // not.
            let output = self.output(output, picture.dtype);
            if side > 1 {
                self.touch(self.scratch(taps * into * output_pixels));
            }
            return Ok(output);
        }
        let _per_thread = self.hold(self.costs.kernels.convolution_bytes());
        let weights = self.scratch(
            scratch.weights * taps * self.costs.kernels.whole_blocks(into) * self.costs.kernels.whole_blocks(out),
        );
        // The probe tells the algorithm by the copies of the input that it found: several are
        // im2col, none is a convolution in the given order, one is a convolution in oneDNN's own
        // order.
        if scratch.inputs > 1.0 {
            let output = self.output(output, picture.dtype);
            let columns = if side > 1 { scratch.inputs * into * output_pixels } else { 0.0 };
            self.touch(self.scratch(columns) + weights);
            return Ok(output);
        }
        // Input and output are put into another order, the output when the input's copy is gone.
        // Less than a block of channels stays as it is.
        let copied = if into < self.costs.kernels.block as f64 { 0.0 } else { self.costs.kernels.whole_blocks(into) };
        let other = self.hold(self.scratch(scratch.inputs * self.costs.kernels.whole_blocks(out) * output_pixels));
        if scratch.inputs == 0.0 {
            let output = self.output(output, picture.dtype);
            self.touch(weights);
            return Ok(output);
        }
        self.touch(self.scratch(scratch.inputs * copied * input_pixels) + weights);
        let output = self.output(output, picture.dtype);
        drop(other);
        Ok(output)
    }
}
