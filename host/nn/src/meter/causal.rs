//! The meter's side of the operations on frames.

use std::ops::Range;

use tilewright_kernels::{TAPS, winograd_products};
use tilewright_plan::Dtype;

use super::{Meter, MeterKernel, MeterTensor, bytes, check_alike, four_extents, shape_error, strides::Axes};
use crate::{CausalOps, Ops, Result, Store};

impl CausalOps for Meter {
    type CausalKernel = MeterKernel;

    fn is_cpu(&self) -> bool {
        self.costs.kernels.on_cpu
    }

    fn zeros(&self, shape: [i64; 4], like: &MeterTensor) -> Result<MeterTensor> {
        let zeros = self.output(Axes::four(shape), like.dtype);
        self.moves(zeros.bytes());
        Ok(zeros)
    }

    fn copy(&self, tensor: &MeterTensor) -> Result<MeterTensor> {
        self.moves(2 * tensor.bytes());
        Ok(self.output(tensor.axes.dense(), tensor.dtype))
    }

    fn concatenate(&self, parts: &[MeterTensor], axis: usize) -> Result<MeterTensor> {
        let shapes = || parts.iter().map(|part| part.axes.extents()).collect::<Vec<_>>();
        let Some((first, rest)) = parts.split_first().filter(|(first, _)| axis < first.axes.extents().len()) else {
            return Err(shape_error("a concatenation", &shapes()));
        };
        let mut shape = first.axes.extents().to_vec();
        for part in rest {
            let extents = part.axes.extents();
            if extents.len() != shape.len() || (0..shape.len()).any(|at| at != axis && extents[at] != shape[at]) {
                return Err(shape_error("a concatenation", &shapes()));
            }
            shape[axis] = shape[axis].saturating_add(extents[axis]);
        }
        let axes = self.common(parts, &shape).ok_or_else(|| shape_error("a concatenation", &shapes()))?;
        // The parts were written just before: half of them is read from caches.
        let joined = self.output(axes, first.dtype);
        self.moves(joined.bytes().saturating_mul(3) / 2);
        Ok(joined)
    }

    fn add(&self, tensor: &MeterTensor, other: &MeterTensor) -> Result<MeterTensor> {
        check_alike("a sum", tensor, other)?;
        self.moves(3 * tensor.bytes());
        Ok(self.output(tensor.axes.dense(), tensor.dtype))
    }

    fn every_other(&self, frames: &MeterTensor, range: Range<i64>) -> Result<MeterTensor> {
        let axes = frames.axes.every_other(range);
        Ok(frames.view(axes.ok_or_else(|| shape_error("every other frame", &[frames.axes.extents()]))?))
    }

    fn mean(&self, tensor: &MeterTensor, axis: usize) -> Result<MeterTensor> {
        let mut shape = tensor.axes.extents().to_vec();
        if axis >= shape.len() {
            return Err(shape_error("a mean", &[&shape]));
        }
        shape.remove(axis);
        let axes = Axes::contiguous(&shape).ok_or_else(|| shape_error("a mean", &[&shape]))?;
        // libtorch adds 16-bit values up as f32 values, of which it makes a tensor first (pytorch
        // v2.11.0, aten/src/ATen/native/ReduceOps.cpp, `mean_out`).
        let wide = (tensor.dtype != Dtype::F32 && self.costs.kernels.on_cpu)
            .then(|| (self.hold(bytes(&tensor.axes, Dtype::F32)), self.hold(bytes(&axes, Dtype::F32))));
        let mean = self.output(axes, tensor.dtype);
        drop(wide);
        self.moves(tensor.bytes() + mean.bytes());
        Ok(mean)
    }

    fn clamp(&self, tensor: &MeterTensor) -> Result<MeterTensor> {
        self.moves(2 * tensor.bytes());
        Ok(self.output(tensor.axes.dense(), tensor.dtype))
    }

    fn rms_norm(&self, frames: &MeterTensor, gamma: &Vec<i64>, silu: bool) -> Result<MeterTensor> {
        let [count, channels, height, width] = four_extents("a norm", frames)?;
        if gamma[..] != [channels] {
            return Err(shape_error("a norm", &[frames.axes.extents(), gamma]));
        }
        let output = self.empty([count, channels, height, width])?;
        if self.has_winograd() {
            self.moves(2 * output.bytes());
            return Ok(output);
        }
        // The normed frame in f32, its pixels' lengths and, of 16-bit frames on CPUs, their f32
        // copy.
        let frame = bytes(&Axes::four([1, channels, height, width]), Dtype::F32);
        let copies = frames.dtype != Dtype::F32 && self.is_cpu();
        let copy = if copies { frame } else { 0 };
        self.touch(copy + frame + bytes(&Axes::four([1, 1, height, width]), Dtype::F32));
        // The lengths and the quotient read a frame, the quotient writes one in f32, the product
        // and SiLU read and write that, and it is stored.
        let wide = bytes(&output.axes, Dtype::F32);
        let (copied, read) = if copies { (output.bytes() + wide, wide) } else { (0, output.bytes()) };
        let in_place = if silu { 4 } else { 2 };
        self.moves(copied + 2 * read + wide + in_place * wide + wide + output.bytes());
        Ok(output)
    }

    fn rms_norm_at_once(&self, frames: &MeterTensor, gamma: &Vec<i64>) -> Result<MeterTensor> {
        let [count, channels, height, width] = four_extents("a norm", frames)?;
        if gamma[..] != [1, channels, 1, 1] {
            return Err(shape_error("a norm", &[frames.axes.extents(), gamma]));
        }
        let lengths = self.hold(bytes(&Axes::four([count, 1, height, width]), Dtype::F32));
        // On CPUs 16-bit values are copied as f32 values first, for the lengths and for the
        // quotient.
        let wide = bytes(&frames.axes, Dtype::F32);
        let copies = frames.dtype != Dtype::F32 && self.is_cpu();
        let copy = copies.then(|| self.hold(wide));
        let normed = self.output(frames.axes.dense(), Dtype::F32);
        drop(copy);
        // The lengths and the quotient read the frames, the quotient writes them in f32, and the
        // product reads and writes those; another type is a copy.
        let read = if copies { frames.bytes() + 2 * wide } else { frames.bytes() };
        let stored = if self.format.layer_dtype == Dtype::F32 { 0 } else { wide + frames.bytes() };
        self.moves(2 * read + wide + 2 * wide + stored);
        let output = match self.format.layer_dtype {
            Dtype::F32 => normed,
            dtype => self.output(frames.axes.dense(), dtype),
        };
        drop(lengths);
        Ok(output)
    }

    fn convolve(
        &self,
        frames: &MeterTensor,
        weight: &Vec<i64>,
        bias: Option<&Vec<i64>>,
        stride: i64,
        padding: [i64; 2],
    ) -> Result<MeterTensor> {
        self.convolved_by_libtorch(frames, weight, bias, stride, padding)
    }

    fn convolve_last(
        &self,
        frames: &MeterTensor,
        weight: &Vec<i64>,
        bias: &Vec<i64>,
        padding: [i64; 2],
    ) -> Result<MeterTensor> {
        let [_, into, ..] = four_extents("a convolution", frames)?;
        let &[out, all, height, width] = &weight[..] else {
            return Err(shape_error("a convolution", &[frames.axes.extents(), weight]));
        };
        if into > all {
            return Err(shape_error("a convolution", &[frames.axes.extents(), weight]));
        }
        let part = vec![out, into, height, width];
        let _copy = self.output(Axes::four([out, into, height, width]), frames.dtype);
        self.convolved_by_libtorch(frames, &part, Some(bias), 1, padding)
    }

    fn winograd_frames(
        &self,
        frames: &[&MeterTensor],
        kernel: &MeterKernel,
        store: Store<'_, MeterTensor>,
    ) -> Result<()> {
        let MeterKernel { into, out, .. } = *kernel;
        let Some(last) = frames.last().filter(|_| frames.len() <= TAPS) else {
            return Err(shape_error("a convolution of frames", &[&[frames.len() as i64]]));
        };
        let [batch, channels, height, width] = four_extents("a convolution", last)?;
        let is_alike = frames.iter().all(|frame| frame.axes.extents() == last.axes.extents());
        let fits = match store {
            Store::Onto(tensor) | Store::Added(tensor) => *tensor.axes.extents() == [batch, out, height, width],
            Store::Nowhere => true,
        };
        if channels != into || !is_alike || !fits {
            return Err(shape_error("a convolution", &[last.axes.extents(), &[out, into]]));
        }
        self.touch(self.costs.kernels.causal_scratch_bytes(into, self.format.product_dtype));
        let rate = self.costs.winograd.unwrap_or(self.costs.plain);
        let (into, computed) = (frames.len() as f64 * into as f64, self.costs.kernels.whole_blocks(out as f64));
        let each = rate.per_product * into * computed + rate.per_value * (into + out as f64);
        self.spend(winograd_products(false) * each * self.filtered_pixels([batch, height, width]));
        Ok(())
    }

    fn pixel_shuffle(&self, frame: &MeterTensor, channels: &Vec<i64>) -> Result<MeterTensor> {
        let [count, _, height, width] = four_extents("a selection of channels", frame)?;
        let &[selected] = &channels[..] else {
            return Err(shape_error("a selection of channels", &[frame.axes.extents(), channels]));
        };
        let chosen = self.output(Axes::four([count, selected, height, width]), frame.dtype);
        let unfolded = self.output(Axes::four([count, selected / 4, 2 * height, 2 * width]), frame.dtype);
        self.moves(4 * chosen.bytes());
        Ok(unfolded)
    }

    fn channels(&self, from: &[i64]) -> Result<Vec<i64>> {
        Ok(vec![from.len() as i64])
    }

    fn causal_kernel(&self, weight: &Vec<i64>, bias: &Vec<i64>) -> Result<MeterKernel> {
        match weight[..] {
            [out, into, 3, 3, 3] if *bias == [out] => {
                self.lay_out_filtered(weight, bias, TAPS, false);
                Ok(MeterKernel { into, out, upsamples: false })
            }
            _ => Err(shape_error("a convolution", &[weight, bias])),
        }
    }

    fn rearrange(&self, weight: &Vec<i64>, _: &[usize], shape: &[i64]) -> Result<Vec<i64>> {
        match weight.iter().product::<i64>() == shape.iter().product::<i64>() {
            true => Ok(shape.to_vec()),
            false => Err(shape_error("weights", &[weight, shape])),
        }
    }

    fn tap(&self, weight: &Vec<i64>, time: i64) -> Result<Vec<i64>> {
        match weight[..] {
            [out, into, taps, height, width] if time < taps => Ok(vec![out, into, height, width]),
            _ => Err(shape_error("weights", &[weight])),
        }
    }

    fn first_outputs(&self, weight: &Vec<i64>, count: i64) -> Result<Vec<i64>> {
        let mut shape = weight.clone();
        match shape.first_mut() {
            Some(outputs) if count <= *outputs => *outputs = count,
            _ => return Err(shape_error("weights", &[weight])),
        }
        Ok(shape)
    }

    fn pad_bias(&self, bias: &Vec<i64>, zeros: i64) -> Result<Vec<i64>> {
        match bias[..] {
            [count] => Ok(vec![zeros + count]),
            _ => Err(shape_error("a bias", &[bias])),
        }
    }

    fn scale(&self, weight: &Vec<i64>, _: f64) -> Result<Vec<i64>> {
        Ok(weight.clone())
    }

    fn to_format_of(&self, tensor: &MeterTensor, like: &MeterTensor) -> Result<MeterTensor> {
        let tensor = self.to_dtype(tensor.clone(), like.dtype)?;
        let shape = four_extents("memory order", &tensor)?;
        let (is_there, axes) = match like.axes.has_channels_innermost() {
            true => (tensor.axes.is_dense_channels_last(), Axes::channels_last(shape)),
            false => (tensor.axes.is_contiguous(), Axes::four(shape)),
        };
        Ok(if is_there { tensor } else { self.output(axes, tensor.dtype) })
    }

    fn to_device(&self, tensor: &MeterTensor) -> Result<MeterTensor> {
        Ok(tensor.clone())
    }
}
