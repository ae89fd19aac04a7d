//! The back end that counts: tensors without values, in a ledger of the bytes that they hold.

mod causal;
mod convolutions;
mod costs;
mod ledger;
mod strides;
mod tokens;

use std::{ops::Range, rc::Rc};

use tilewright_kernels::{
    CPU_PIECE, GROUP_NORM_LAUNCHES, Rate, gpu_fused_bytes, group_norm_bytes, group_norm_passes, plain_bytes,
    winograd_products, winograd_weight_bytes,
};
use tilewright_plan::{Dtype, Layout};

use crate::{ComputeFormat, End, Error, GroupNorm, Laps, Layer, Ops, Result, Rows, Store, Window, laps::LapMeter};
pub use convolutions::{MeterKernel, MeterSums};
pub use costs::Costs;
pub(crate) use ledger::Ledger;
use ledger::Storage;
pub use ledger::{Glue, LayerCosts, LayerSeconds};
use strides::Axes;
pub use tokens::{MeterMatrix, PackedRows};

/// A back end that computes nothing. It counts the bytes that tensors and kernels would hold, and
/// the time that operations would take.
#[derive(Clone, Debug)]
pub struct Meter {
    format: ComputeFormat,
    costs: Costs,
    ledger: Rc<Ledger>,
}

/// A tensor of extents, strides and a type. Its memory is counted until it is dropped with all of
/// its views.
#[derive(Clone, Debug)]
pub struct MeterTensor {
    axes: Axes,
    dtype: Dtype,
    storage: Rc<Storage>,
}

impl MeterTensor {
    /// Bytes of its values.
    pub fn bytes(&self) -> u64 {
        bytes(&self.axes, self.dtype)
    }

    fn view(&self, axes: Axes) -> Self {
        Self { axes, dtype: self.dtype, storage: self.storage.clone() }
    }
}

fn bytes(axes: &Axes, dtype: Dtype) -> u64 {
    axes.count().saturating_mul(dtype.bytes())
}

impl Meter {
    /// A meter that has counted nothing.
    pub fn new(format: ComputeFormat, costs: Costs) -> Self {
        Self { format, costs, ledger: Rc::new(Ledger::default()) }
    }

    /// An input that the caller holds, so that its bytes are not counted. A picture is in the
    /// format's memory order.
    ///
    /// # Errors
    /// The extents are negative, or too many.
    pub fn input(&self, shape: &[i64], dtype: Dtype) -> Result<MeterTensor> {
        let mut axes = Axes::contiguous(shape).ok_or_else(|| shape_error("an input", &[shape]))?;
        if let Ok(picture) = shape.try_into() {
            axes = self.convolution_axes(picture);
        }
        Ok(MeterTensor { axes, dtype, storage: Rc::new(Storage::new(&self.ledger, 0)) })
    }

    /// A tensor of its own memory, held beside the network.
    ///
    /// # Errors
    /// As [`Self::input`].
    pub fn occupied(&self, shape: &[i64], dtype: Dtype) -> Result<MeterTensor> {
        Ok(self.output(self.input(shape, dtype)?.axes, dtype))
    }

    /// The bytes that are held now.
    pub fn held_bytes(&self) -> u64 {
        self.ledger.held_bytes()
    }

    /// The most bytes that were held at once.
    pub fn peak_bytes(&self) -> u64 {
        self.ledger.peak()
    }

    /// The bytes by which the weights that were laid out differ from those that were given.
    pub fn weights_grown(&self) -> i64 {
        self.ledger.weights_grown()
    }

    /// Counts the weights and the bias of a convolution that is laid out for Winograd's filtering,
    /// in place of those that were given.
    fn lay_out_filtered(&self, weight: &[i64], bias: &[i64], taps: usize, upsamples: bool) {
        let dtype = self.format.product_dtype;
        let count = |extents: &[i64]| extents.iter().fold(1, |count: u64, &extent| count.saturating_mul(extent as u64));
        let given = count(weight).saturating_add(count(bias)).saturating_mul(dtype.bytes());
        let [out, into] = [weight[0], weight[1]];
        self.ledger.lay_out(given, winograd_weight_bytes(into, out, taps, upsamples, dtype));
    }

    /// Makes the bytes held now the peak.
    pub fn reset_peak(&self) {
        self.ledger.reset_peak();
    }

    /// The time that operations took.
    pub fn seconds(&self) -> f64 {
        self.ledger.seconds()
    }

    fn spend(&self, seconds: f64) {
        self.ledger.spend(seconds);
    }

    /// Counts the time of each layer from here on.
    pub fn count_layers(&self) {
        self.ledger.count_layers();
    }

    /// True if the time of each layer is counted: nothing may stand for what is alike, then.
    pub fn counts_layers(&self) -> bool {
        self.ledger.counts_layers()
    }

    /// The time of each layer, by its name, in the order in which they first ran; none unless
    /// [`Self::count_layers`] was asked for. Time within an inner layer is in the inner one's and
    /// in those around it.
    pub fn layers(&self) -> Vec<LayerSeconds> {
        self.ledger.layers()
    }

    /// The launches of operations that are no products, convolutions or attention, and the bytes
    /// that they read and wrote.
    pub fn glue(&self) -> Glue {
        self.ledger.glue()
    }

    /// Reads and writes bytes, by one launch on a GPU.
    fn moves(&self, bytes: u64) {
        self.moves_by(1, bytes);
    }

    /// The same by several launches.
    fn moves_by(&self, launches: u64, bytes: u64) {
        self.ledger.launch(launches, bytes);
        self.spend(bytes as f64 / self.costs.bytes_per_second);
    }

    fn output(&self, axes: Axes, dtype: Dtype) -> MeterTensor {
        MeterTensor { axes, dtype, storage: Rc::new(self.hold(bytes(&axes, dtype))) }
    }

    fn contiguous_output(&self, operation: &'static str, shape: &[i64], dtype: Dtype) -> Result<MeterTensor> {
        Ok(self.output(Axes::contiguous(shape).ok_or_else(|| shape_error(operation, &[shape]))?, dtype))
    }

    /// Holds bytes until the result is dropped.
    fn hold(&self, bytes: u64) -> Storage {
        Storage::new(&self.ledger, bytes)
    }

    /// Holds bytes for a moment.
    fn touch(&self, bytes: u64) {
        drop(self.hold(bytes));
    }

    fn scratch(&self, values: f64) -> u64 {
        (values * self.format.product_dtype.bytes() as f64) as u64
    }

    /// The time of products from `into` to `out` channels, for `pixels` pixels and `taps` taps.
    fn multiplies(&self, into: i64, out: i64, pixels: i64, taps: i64) {
        self.spend(self.product_seconds(&self.costs.plain, into, out) * pixels as f64 * taps as f64);
    }

    /// The time of products of tokens with a matrix.
    fn multiplies_tokens(&self, into: i64, out: i64, tokens: i64) {
        self.spend(self.product_seconds(&self.costs.products, into, out) * tokens as f64);
    }

    /// Seconds of a pixel or token at a rate. Output channels are computed in blocks.
    fn product_seconds(&self, rate: &Rate, into: i64, out: i64) -> f64 {
        let (into, out) = (into as f64, out as f64);
        rate.per_product * into * self.costs.kernels.whole_blocks(out) + rate.per_value * (into + out)
    }

    /// The time of products in another form than the format's type, by the seconds of one,
    /// likewise.
    fn multiplies_in_form(&self, per_product: f64, into: i64, out: i64, tokens: i64) {
        let (into, out) = (into as f64, out as f64);
        let each = per_product * into * out + self.costs.products.per_value * (into + out);
        self.spend(each * tokens as f64);
    }

    /// The memory order of a result of several pictures: channels-last if all of them are.
    fn common(&self, parts: &[MeterTensor], shape: &[i64]) -> Option<Axes> {
        match (<[i64; 4]>::try_from(shape), parts.iter().all(|part| part.axes.suggests_channels_last())) {
            (Ok(picture), true) => Some(Axes::channels_last(picture)),
            _ => Axes::contiguous(shape),
        }
    }

    /// The order in which libtorch's convolutions give their result.
    fn convolution_axes(&self, shape: [i64; 4]) -> Axes {
        match self.format.layout {
            Layout::ChannelsFirst => Axes::four(shape),
            Layout::ChannelsLast => Axes::channels_last(shape),
        }
    }
}

/// The extents of a picture.
fn four_extents(operation: &'static str, picture: &MeterTensor) -> Result<[i64; 4]> {
    picture.axes.extents().try_into().map_err(|_| shape_error(operation, &[picture.axes.extents()]))
}

fn check_alike(operation: &'static str, one: &MeterTensor, other: &MeterTensor) -> Result<()> {
    let (one, other) = (one.axes.extents(), other.axes.extents());
    if one == other { Ok(()) } else { Err(shape_error(operation, &[one, other])) }
}

fn shape_error(operation: &'static str, shapes: &[&[i64]]) -> Error {
    let shapes: Vec<String> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
    Error::Shapes { operation, shapes: shapes.join(" and ") }
}

impl Ops for Meter {
    type Tensor = MeterTensor;
    type Weight = Vec<i64>;
    type Kernel = MeterKernel;
    type Sums = MeterSums;
    type Affine = MeterSums;
    type Running = LayerCosts;

    fn begin(&self, layer: &Layer) -> LayerCosts {
        self.ledger.begin(layer)
    }

    fn begin_rows(&self, _: &Range<i64>) -> LayerCosts {
        LayerCosts::none()
    }

    fn see(&self, _: &Layer, _: End, _: &MeterTensor) -> Result<()> {
        Ok(())
    }

    fn format(&self) -> ComputeFormat {
        self.format
    }

    fn has_winograd(&self) -> bool {
        self.format.has_winograd(&self.costs.kernels)
    }

    fn extents(&self, picture: &MeterTensor) -> Result<[i64; 4]> {
        four_extents("a picture", picture)
    }

    fn share(&self, tensor: &MeterTensor) -> MeterTensor {
        tensor.clone()
    }

    fn laps(&self, range: Range<i64>, step: i64) -> Laps {
        let outside = self.ledger.times();
        Laps::new(range, step, Some(LapMeter { ledger: Rc::clone(&self.ledger), outside }))
    }

    fn empty(&self, shape: [i64; 4]) -> Result<MeterTensor> {
        Ok(self.output(self.convolution_axes(shape), self.format.layer_dtype))
    }

    fn copy_onto(&self, tensor: &MeterTensor, from: &MeterTensor) -> Result<()> {
        check_alike("a copy", tensor, from)?;
        self.moves(tensor.bytes() + from.bytes());
        Ok(())
    }

    fn pad(&self, tensor: &MeterTensor, zeros: &[i64]) -> Result<MeterTensor> {
        let mut shape = tensor.axes.extents().to_vec();
        if !zeros.len().is_multiple_of(2) || zeros.len() / 2 > shape.len() {
            return Err(shape_error("padding", &[&shape, zeros]));
        }
        for (pair, extent) in zeros.chunks(2).zip(shape.iter_mut().rev()) {
            *extent = extent.saturating_add(pair[0]).saturating_add(pair[1]);
        }
        let axes =
            self.common(std::slice::from_ref(tensor), &shape).ok_or_else(|| shape_error("padding", &[&shape]))?;
        let padded = self.output(axes, tensor.dtype);
        self.moves(tensor.bytes() + padded.bytes());
        Ok(padded)
    }

    fn shape(&self, tensor: &MeterTensor) -> Vec<i64> {
        tensor.axes.extents().to_vec()
    }

    fn narrow(&self, tensor: &MeterTensor, axis: usize, start: i64, length: i64) -> Result<MeterTensor> {
        let axes = tensor.axes.narrow(axis, start, length);
        Ok(tensor.view(axes.ok_or_else(|| shape_error("a slice", &[tensor.axes.extents()]))?))
    }

    fn transpose(&self, tensor: &MeterTensor, one: usize, other: usize) -> Result<MeterTensor> {
        let axes = tensor.axes.transpose(one, other);
        Ok(tensor.view(axes.ok_or_else(|| shape_error("a transpose", &[tensor.axes.extents()]))?))
    }

    fn permute(&self, tensor: &MeterTensor, order: &[usize]) -> Result<MeterTensor> {
        let axes = tensor.axes.permute(order);
        Ok(tensor.view(axes.ok_or_else(|| shape_error("a permutation", &[tensor.axes.extents()]))?))
    }

    fn reshape(&self, tensor: &MeterTensor, shape: &[i64]) -> Result<MeterTensor> {
        let plain = Axes::contiguous(shape).filter(|plain| plain.count() == tensor.axes.count());
        let plain = plain.ok_or_else(|| shape_error("a reshape", &[tensor.axes.extents(), shape]))?;
        Ok(match tensor.axes.view(shape) {
            Some(axes) => tensor.view(axes),
            None => {
                self.moves(2 * tensor.bytes());
                self.output(plain, tensor.dtype)
            }
        })
    }

    fn contiguous(&self, tensor: &MeterTensor) -> Result<MeterTensor> {
        match tensor.axes.is_contiguous() {
            true => Ok(tensor.clone()),
            false => {
                self.moves(2 * tensor.bytes());
                Ok(self.output(tensor.axes.made_contiguous(), tensor.dtype))
            }
        }
    }

    fn to_memory_order(&self, tensor: &MeterTensor) -> Result<MeterTensor> {
        let shape = four_extents("memory order", tensor)?;
        let is_there = match self.format.layout {
            Layout::ChannelsFirst => tensor.axes.is_contiguous(),
            Layout::ChannelsLast => tensor.axes.is_dense_channels_last(),
        };
        if is_there {
            return Ok(tensor.clone());
        }
        self.moves(2 * tensor.bytes());
        Ok(self.output(self.convolution_axes(shape), tensor.dtype))
    }

    fn to_dtype(&self, tensor: MeterTensor, dtype: Dtype) -> Result<MeterTensor> {
        if tensor.dtype == dtype {
            return Ok(tensor);
        }
        let converted = self.output(tensor.axes.dense(), dtype);
        self.moves(tensor.bytes() + converted.bytes());
        Ok(converted)
    }

    fn upsample_nearest(&self, picture: &MeterTensor) -> Result<MeterTensor> {
        let [batch, channels, height, width] = four_extents("an upsampling", picture)?;
        let shape = [batch, channels, height.saturating_mul(2), width.saturating_mul(2)];
        let is_last = picture.axes.suggests_channels_last();
        let is_dense = if is_last { picture.axes.is_dense_channels_last() } else { picture.axes.is_contiguous() };
        let _copy = (!is_dense).then(|| self.hold(picture.bytes()));
        self.moves(5 * picture.bytes());
        Ok(self.output(if is_last { Axes::channels_last(shape) } else { Axes::four(shape) }, picture.dtype))
    }

    fn add_onto(&self, tensor: &MeterTensor, other: &MeterTensor) -> Result<()> {
        check_alike("a sum", tensor, other)?;
        self.moves(3 * tensor.bytes());
        Ok(())
    }

    fn silu(&self, tensor: MeterTensor) -> Result<MeterTensor> {
        self.moves(2 * tensor.bytes());
        Ok(tensor)
    }

    fn group_norm(&self, picture: &MeterTensor, norm: GroupNorm<'_, Vec<i64>>) -> Result<MeterTensor> {
        let GroupNorm { weight, bias, groups, .. } = norm;
        let shape = four_extents("a group norm", picture)?;
        if *weight != [shape[1]] || weight != bias || groups < 1 || shape[1] % groups != 0 {
            return Err(shape_error("a group norm", &[&shape, weight, bias, &[groups]]));
        }
        let passes = group_norm_passes(picture.dtype, self.costs.kernels.on_cpu);
        let rate = self.costs.norm_bytes_per_second[usize::from(picture.dtype != Dtype::F32)];
        self.spend((passes * picture.bytes()) as f64 / rate);
        self.ledger.launch(GROUP_NORM_LAUNCHES, passes * picture.bytes());
        if !self.costs.kernels.on_cpu && picture.dtype != Dtype::F32 {
            let is_last = picture.axes.suggests_channels_last();
            return Ok(self.output(if is_last { Axes::channels_last(shape) } else { Axes::four(shape) }, picture.dtype));
        }
        if picture.dtype == Dtype::F32 && !picture.axes.is_contiguous() {
            self.touch(group_norm_bytes(shape));
            return Ok(self.output(picture.axes.dense(), picture.dtype));
        }
        let is_last = picture.axes.suggests_channels_last();
        let is_dense = if is_last { picture.axes.is_dense_channels_last() } else { picture.axes.is_contiguous() };
        let _copy = (!is_dense).then(|| self.hold(picture.bytes()));
        Ok(self.output(if is_last { Axes::channels_last(shape) } else { Axes::four(shape) }, picture.dtype))
    }

    fn convolution(
        &self,
        picture: &MeterTensor,
        weight: &Vec<i64>,
        bias: &Vec<i64>,
        window: Window,
    ) -> Result<MeterTensor> {
        let side = weight.last().copied().unwrap_or_default();
        let is_pointwise = side == 1 && window == Window { stride: 1, padding: [0; 2] };
        if is_pointwise && self.format.layout == Layout::ChannelsFirst {
            let [batch, into, height, width] = four_extents("a convolution", picture)?;
            if weight[1..] != [into, 1, 1] || *bias != weight[..1] {
                return Err(shape_error("a convolution", &[picture.axes.extents(), weight, bias]));
            }
            let _copy = self.reshape(picture, &[batch, into, height * width])?;
            self.multiplies(into, weight[0], batch * height * width, 1);
            return Ok(self.output(self.convolution_axes([batch, weight[0], height, width]), picture.dtype));
        }
        self.convolved_by_libtorch(picture, weight, Some(bias), window.stride, window.padding)
    }

    fn linear(&self, tokens: &MeterTensor, weight: &Vec<i64>, bias: &Vec<i64>) -> Result<MeterTensor> {
        let mut shape = tokens.axes.extents().to_vec();
        match (&weight[..], shape.last_mut()) {
            (&[out, into], Some(width)) if into == *width && *bias == [out] => *width = out,
            _ => return Err(shape_error("a linear layer", &[tokens.axes.extents(), weight, bias])),
        }
        let _copy = self.contiguous(tokens)?;
        self.multiplies(weight[1], weight[0], (tokens.axes.count() as i64) / weight[1].max(1), 1);
        self.contiguous_output("a linear layer", &shape, tokens.dtype)
    }

    fn attention(&self, query: MeterTensor, key: &MeterTensor, value: &MeterTensor) -> Result<MeterTensor> {
        let shapes = [query.axes.extents(), key.axes.extents(), value.axes.extents()];
        if shapes[0].len() != 3 || shapes[1] != shapes[0] || shapes[2] != shapes[0] {
            return Err(shape_error("attention", &shapes));
        }
        let (samples, tokens, width) = (shapes[0][0] as f64, shapes[0][1] as f64, shapes[0][2] as f64);
        self.spend(4.0 * samples * width * tokens * tokens / self.costs.attention_flops_per_second);
        let scratch = self.costs.kernels.fused_bytes(width, query.dtype);
        if self.costs.kernels.has_products(query.dtype) {
            let (tokens, width, samples) = (shapes[0][1], shapes[0][2], shapes[0][0]);
            let scratch = match query.dtype {
                Dtype::Bf16 => self.costs.kernels.heads_scratch_bytes(tokens, width, samples, query.dtype),
                _ => scratch as u64,
            };
            let query = self.contiguous(&query)?;
            let _copies = (self.contiguous(key)?, self.contiguous(value)?);
            self.touch(scratch);
            return Ok(query);
        }
        let output = self.output(query.axes.made_contiguous(), query.dtype);
        if !self.costs.fused_attention {
            self.touch(plain_bytes(shapes[0][0], shapes[0][1], shapes[0][2]));
            return Ok(output);
        }
        if !self.costs.kernels.on_cpu {
            self.touch(gpu_fused_bytes(shapes[0][0], shapes[0][1], shapes[0][2], query.dtype));
            return Ok(output);
        }
        // libtorch's fused attention takes 256 queries per thread at once, and a smaller block if
        // there are few tokens.
        let share = match tokens {
            tokens if tokens < 192.0 => 0.125,
            tokens if tokens < 768.0 => 0.25,
            _ => 1.0,
        };
        self.touch((scratch * share) as u64);
        Ok(output)
    }

    fn lay_out_weight(&self, weight: Vec<i64>) -> Result<Vec<i64>> {
        Ok(weight)
    }

    fn winograd_kernel(&self, weight: &Vec<i64>, bias: &Vec<i64>, upsamples: bool) -> Result<MeterKernel> {
        let kernel = MeterKernel::new(weight, bias, upsamples)?;
        self.lay_out_filtered(weight, bias, 1, upsamples);
        Ok(kernel)
    }

    fn winograd_convolution(
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
        self.touch(self.costs.kernels.winograd_scratch_bytes(into, upsamples, self.format.product_dtype));
        let rate = self.costs.winograd.unwrap_or(self.costs.plain);
        let each = winograd_products(upsamples) * rate.of(into as f64, out as f64);
        self.spend(each * self.filtered_pixels([batch, output[2], output[3]]));
        Ok(())
    }

    fn sums(&self, batch: i64, channels: i64) -> Result<MeterSums> {
        Ok(MeterSums { batch, channels })
    }

    fn add_up(&self, sums: &mut MeterSums, picture: &MeterTensor) -> Result<()> {
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

    fn affine(&self, norm: GroupNorm<'_, Vec<i64>>, sums: &MeterSums) -> Result<MeterSums> {
        let GroupNorm { weight, bias, groups, .. } = norm;
        if *weight != [sums.channels] || weight != bias || groups < 1 || sums.channels % groups != 0 {
            return Err(shape_error("a group norm", &[&[sums.batch, sums.channels], weight, bias, &[groups]]));
        }
        Ok(*sums)
    }

    fn affine_silu(&self, picture: &MeterTensor, affine: &MeterSums) -> Result<MeterTensor> {
        affine.check(four_extents("a norm", picture)?)?;
        let wide = bytes(&picture.axes, Dtype::F32);
        let _copy = (picture.dtype != Dtype::F32).then(|| self.hold(wide));
        // The product reads and writes, and so does SiLU.
        self.moves(picture.bytes().saturating_add(wide.saturating_mul(3)));
        Ok(self.output(picture.axes.dense(), Dtype::F32))
    }
}
