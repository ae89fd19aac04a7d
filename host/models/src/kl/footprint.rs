//! What a decode costs by the architecture alone: how long its layers take on a device that was measured, and the most held at once.
//!
//! What is held is a list of moments, each a straight line in the pixels decoded at once; which of them is the peak depends on the size.
//! The moments follow `layers.rs` and `bands.rs`: change both.

use tilewright_plan::{Layout, Precision};
use tilewright_torch::{
    attention,
    probe::{Measured, Rate, Scratch, Speed, convolution_bytes},
    winograd,
};

use super::{Config, bands::LEAST_ROWS};

/// What is decoded at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// Samples or tiles.
    pub batch: u32,
    /// Output pixels.
    pub height: u32,
    /// Output pixels.
    pub width: u32,
    /// Output rows of a band, where the picture goes through the network in bands.
    pub band: Option<u32>,
}

/// What decodes cost in one precision and memory order on one device.
#[derive(Clone, Debug)]
pub struct Footprint {
    layers: Vec<Timed>,
    whole: Vec<Moment>,
    banded: Vec<Moment>,
    /// Seconds per pair of latent pixels of one sample.
    attention: f64,
    scale: f64,
    threads: f64,
    winograd: bool,
}

/// How long a layer takes.
#[derive(Clone, Copy, Debug)]
struct Timed {
    /// Pixels along one side per output pixel of the network.
    side: f64,
    /// Per pixel of this layer.
    seconds: f64,
    /// What the layer takes longer in bands, as a share, and what it takes longer in lower bands: once over the rows of a band.
    again: f64,
    per_row: f64,
    /// Its convolutions run in blocks of pixels.
    blocks: bool,
}

/// What is held at one moment of a decode, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Moment {
    /// Per output pixel.
    per_pixel: f64,
    /// Per output pixel of a band, and per output pixel of a row.
    per_band_pixel: f64,
    per_row_pixel: f64,
    /// However many pixels there are.
    constant: f64,
    /// The moment only comes where no more pixels are decoded.
    most_pixels: Option<f64>,
}

impl Moment {
    /// Never holds more than another that comes whenever it does.
    fn is_covered_by(&self, other: &Self) -> bool {
        other.per_pixel >= self.per_pixel
            && other.per_band_pixel >= self.per_band_pixel
            && other.per_row_pixel >= self.per_row_pixel
            && other.constant >= self.constant
            && (other.most_pixels == self.most_pixels || other.most_pixels.is_none())
    }
}

impl Footprint {
    /// The most bytes held at once, output included.
    pub fn peak_bytes(&self, extent: &Extent) -> f64 {
        let batch = f64::from(extent.batch);
        let row = batch * f64::from(extent.width);
        let pixels = row * f64::from(extent.height);
        let band = extent.band.unwrap_or(extent.height).min(extent.height);
        let band = row * f64::from(band);
        let moments = if extent.band.is_some() { &self.banded } else { &self.whole };
        let held = |moment: &Moment| {
            moment.constant + moment.per_pixel * pixels + moment.per_band_pixel * band + moment.per_row_pixel * row
        };
        moments
            .iter()
            .filter(|moment| moment.most_pixels.is_none_or(|most| pixels <= most))
            .map(held)
            .fold(0.0, f64::max)
    }

    /// How long a decode takes.
    pub fn seconds(&self, extent: &Extent) -> f64 {
        let (height, width, batch) = (f64::from(extent.height), f64::from(extent.width), f64::from(extent.batch));
        let mut seconds = 0.0;
        for layer in &self.layers {
            let (down, across) = (height * layer.side, width * layer.side);
            let mut pixels = down * across * batch;
            if layer.blocks && self.winograd {
                // Whole blocks, and as many threads as there are blocks for.
                let block = f64::from(winograd::BLOCK);
                let blocks = (down / block).ceil() * (across / block).ceil() * batch;
                let turns = (blocks / self.threads).ceil();
                pixels = pixels.max(turns * self.threads.min(blocks) * block * block);
                if blocks < self.threads {
                    pixels *= self.threads / blocks;
                }
            }
            let more = match extent.band {
                Some(band) if band < extent.height => {
                    layer.again + layer.per_row / (f64::from(band) * layer.side).max(LEAST_ROWS as f64)
                }
                _ => 0.0,
            };
            seconds += pixels * layer.seconds * (1.0 + more);
        }
        let tokens = height * width / (self.scale * self.scale);
        seconds + batch * tokens * tokens * self.attention
    }
}

/// A layer in the order that they run: channels in and out, and its side relative to the output's.
#[derive(Clone, Copy)]
struct Layer {
    into: f64,
    out: f64,
    /// Pixels of this layer's output per output pixel of the network.
    pixels: f64,
    kind: LayerKind,
    /// In bands its input is computed where it is needed, from so many channels at half the side.
    from_low: Option<f64>,
    /// In bands its output is not held.
    passing: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum LayerKind {
    ConvIn,
    Resnet,
    Attention,
    Upsample,
    Out,
}

impl Config {
    fn layers(&self) -> Vec<Layer> {
        let scale = f64::from(self.spatial_scale());
        let mut pixels = 1.0 / (scale * scale);
        let kept = self.upsampled_kept();
        let mut kept = kept.into_iter();
        let mut layers: Vec<Layer> = Vec::new();
        let mut layer = |into: usize, out: usize, pixels: f64, kind, passing: bool| {
            let from_low = layers.last().filter(|before| before.passing).map(|before| before.into);
            layers.push(Layer { into: into as f64, out: out as f64, pixels, kind, from_low, passing });
        };
        let middle = self.middle_channels;
        layer(self.latent_channels, middle, pixels, LayerKind::ConvIn, false);
        for index in 0..self.middle_layers {
            layer(middle, middle, pixels, LayerKind::Resnet, false);
            if index == 0 && self.middle_attention {
                layer(middle, middle, pixels, LayerKind::Attention, false);
            }
        }
        let mut into = middle;
        for block in &self.up_blocks {
            for _ in 0..block.layers {
                layer(into, block.channels, pixels, LayerKind::Resnet, false);
                into = block.channels;
            }
            if block.upsamples {
                pixels *= 4.0;
                layer(into, into, pixels, LayerKind::Upsample, kept.next() == Some(false));
            }
        }
        layer(into, self.image_channels, pixels, LayerKind::Out, false);
        layers
    }

    /// For each upsampling, whether a decode in bands holds the picture that comes out. It does unless that would be its peak:
    /// what is not held is computed twice.
    pub(super) fn upsampled_kept(&self) -> Vec<bool> {
        let last = self.up_blocks.len().saturating_sub(1);
        let mut pixels = 1.0;
        // What is held after each upsampling, by the layer that follows: with the upsampled picture and without it.
        let mut held = Vec::new();
        let mut least: f64 = 0.0;
        for (index, block) in self.up_blocks.iter().enumerate() {
            least = least.max(2.0 * block.channels as f64 * pixels);
            if !block.upsamples {
                continue;
            }
            pixels *= 4.0;
            let next = self.up_blocks.get(index + 1);
            let follows = next.filter(|next| next.layers > 0).map_or(0.0, |next| {
                let tensors = if next.channels == block.channels { 1.0 } else { 2.0 };
                tensors * next.channels as f64
            });
            let with = (block.channels as f64 + follows) * pixels;
            // Without a residual layer of its own width to hold the sum, that takes a picture more.
            let own =
                if next.is_some_and(|next| next.channels == block.channels) { block.channels as f64 } else { 0.0 };
            let without = block.channels as f64 * pixels / 4.0 + (follows + own) * pixels;
            held.push((with, without, index < last && next.is_some_and(|next| next.layers > 0)));
        }
        for (with, without, recomputable) in &held {
            least = least.max(if *recomputable { with.min(*without) } else { *with });
        }
        held.into_iter().map(|(with, _, recomputable)| !recomputable || with <= least).collect()
    }

    /// The share of a decode's work that each layer is, in the order that they run; adds up to 1.
    pub fn layer_shares(&self) -> Vec<f64> {
        let rate = Rate { per_product: 1.0, per_value: 0.0 };
        let flops: Vec<f64> =
            self.layers().iter().map(|layer| layer.pixels * layer.convolutions(&rate, &rate, false)).collect();
        let all: f64 = flops.iter().sum();
        flops.into_iter().map(|flops| flops / all.max(1e-9)).collect()
    }

    /// Floating-point operations of the convolutions per output pixel, by their definition; a multiply-add counts as two.
    pub fn convolution_flops(&self) -> f64 {
        let rate = Rate { per_product: 2.0, per_value: 0.0 };
        self.layers().iter().map(|layer| layer.pixels * layer.convolutions(&rate, &rate, false)).sum()
    }

    /// What decodes cost in a precision and memory order on a device that was measured; none where these can't be run there.
    pub fn footprint(&self, precision: Precision, layout: Layout, measured: &Measured) -> Option<Footprint> {
        let speed = measured.speeds.iter().find(|speed| speed.dtype == precision.dtype() && speed.layout == layout)?;
        let convolution = f64::from(precision.dtype().bits()) / 8.0;
        let rest = match precision {
            Precision::Uniform(_) => convolution,
            Precision::Mixed(_) => 4.0,
        };
        // Mixed f32 is uniform f32 by another name: see `Numeric::winograd`.
        let rate = speed.winograd;
        let bytes = Bytes {
            convolution,
            rest,
            converts: convolution != rest,
            layout,
            scratch: speed.scratch,
            winograd: rate.is_some(),
            attention: attention::fused_bytes(self.middle_channels as f64, speed.dtype),
        };
        let layers = self.layers();
        let moments = |banded: bool| {
            let mut moments: Vec<Moment> = Vec::new();
            for moment in layers.iter().flat_map(|layer| layer.moments(&bytes, banded)) {
                if !moments.iter().any(|other| moment.is_covered_by(other)) {
                    moments.retain(|other| !other.is_covered_by(&moment));
                    moments.push(moment);
                }
            }
            moments
        };
        let timed = |layer: &Layer| layer.timed(&bytes, speed, measured.bytes_per_second);
        Some(Footprint {
            layers: layers.iter().map(timed).collect(),
            whole: moments(false),
            banded: moments(true),
            attention: if self.middle_attention {
                4.0 * self.middle_channels as f64 / speed.attention_flops_per_second
            } else {
                0.0
            },
            scale: f64::from(self.spatial_scale()),
            threads: f64::from(tch::get_num_threads().max(1)),
            winograd: rate.is_some(),
        })
    }
}

struct Bytes {
    /// Of one value in a convolution.
    convolution: f64,
    /// Of one value between layers.
    rest: f64,
    /// Values are converted before and after each convolution.
    converts: bool,
    layout: Layout,
    scratch: Scratch,
    /// 3×3 convolutions run by Winograd's filtering.
    winograd: bool,
    attention: f64,
}

impl Bytes {
    /// The moments of `Plain::forward` in layers.rs: `held` bytes per pixel besides what the convolution itself handles.
    fn convolution(&self, held: f64, into: f64, out: f64, taps: f64) -> Vec<Moment> {
        let mut moments = Vec::new();
        let mut moment = |per_pixel, constant, most_pixels| {
            moments.push(Moment { per_pixel, constant, most_pixels, ..Moment::default() });
        };
        if self.converts {
            moment(held + into * (self.rest + self.convolution), 0.0, None);
            moment(held + out * (self.rest + self.convolution), 0.0, None);
        }
        let (input, output) = (into * self.convolution, out * self.convolution);
        let both = held + input + output;
        if taps == 1.0 && self.layout == Layout::ChannelsFirst {
            // A matrix product.
            moment(both, 0.0, None);
            return moments;
        }
        let weights = self.scratch.weights * taps * padded(into) * padded(out) * self.convolution;
        let constant = weights + convolution_bytes();
        let inputs = self.scratch.inputs;
        if inputs > 1.0 {
            // Laid out tap by tap.
            let inputs = if taps > 1.0 { inputs } else { 0.0 };
            moment(both + inputs * input, constant, None);
        } else {
            // Input and output are reordered, the output when the input's copy is gone.
            let (input, output) = (inputs * padded(into) * self.convolution, inputs * padded(out) * self.convolution);
            moment(both + input + output - inputs * out * self.convolution, constant, None);
            moment(both + output, convolution_bytes(), None);
        }
        if self.scratch.small > 0 && taps > 1.0 {
            moment(both + taps * input, 0.0, Some(self.scratch.small as f64 / into));
        }
        moments
    }

    /// What `Plain::rows` in layers.rs holds at most per pixel of a band, its output included.
    fn rows(&self, into: f64, out: f64) -> f64 {
        let wide = if self.rest < 4.0 { 8.0 } else { 4.0 };
        // Input and output with their copies in another order, or tap by tap.
        let convolved = (into + out) * self.convolution * (1.0 + self.scratch.inputs);
        let moments = [
            // Normed in f32, then in the convolution's type, then with the rows beyond the edge.
            into * wide,
            into * if self.convolution < 4.0 { 4.0 + self.convolution } else { 0.0 },
            into * 2.0 * self.convolution,
            convolved,
            out * (self.convolution + if self.converts { self.rest } else { 0.0 }),
        ];
        // oneDNN's own copies are of more channels than there are.
        1.15 * moments.into_iter().fold(0.0, f64::max)
    }
}

/// Channels as oneDNN's reordered copies hold them: in blocks of 16 (with AVX-512; of 8 elsewhere).
fn padded(channels: f64) -> f64 {
    (channels / 16.0).ceil() * 16.0
}

impl Layer {
    /// What the convolutions of a layer take per pixel of its output. With Winograd's filtering 4 products and values stand for 9, 2¼ after an
    /// upsampling.
    fn convolutions(&self, square: &Rate, point: &Rate, winograd: bool) -> f64 {
        let (direct, upsampled) = if winograd { (4.0, 2.25) } else { (9.0, 9.0) };
        let conv = |into, out| direct * square.of(into, out);
        match self.kind {
            LayerKind::ConvIn | LayerKind::Out => conv(self.into, self.out),
            LayerKind::Upsample => upsampled * square.of(self.into, self.out),
            LayerKind::Resnet => {
                let shortcut = if self.into == self.out { 0.0 } else { point.of(self.into, self.out) };
                conv(self.into, self.out) + conv(self.out, self.out) + shortcut
            }
            LayerKind::Attention => 4.0 * point.of(self.into, self.out),
        }
    }

    fn timed(&self, bytes: &Bytes, speed: &Speed, bytes_per_second: f64) -> Timed {
        let square = speed.winograd.unwrap_or(speed.plain);
        let moved = if bytes.winograd { self.moved_beside_winograd() } else { self.moved(bytes) };
        let seconds = self.convolutions(&square, &speed.plain, bytes.winograd) + moved / bytes_per_second;
        // The upsampling that this layer computes again, with a row of its neighbours on either side.
        let again = self.from_low.map_or(0.0, |low| {
            let upsampled = if bytes.winograd { 2.25 } else { 9.0 };
            upsampled * square.of(low, self.into) / seconds
        });
        Timed {
            side: self.pixels.sqrt(),
            seconds,
            again,
            per_row: 2.0 * again,
            blocks: self.kind != LayerKind::Attention,
        }
    }

    /// Bytes read and written per pixel by what is no convolution.
    fn moved(&self, bytes: &Bytes) -> f64 {
        // Norm: two reads and a write; SiLU: a read and a write; sum: two reads and a write.
        let normed = |channels: f64| 5.0 * channels * bytes.rest;
        let conversions = if bytes.converts { 2.0 * (bytes.rest + bytes.convolution) } else { 0.0 };
        match self.kind {
            LayerKind::ConvIn => 0.0,
            LayerKind::Resnet => {
                normed(self.into)
                    + normed(self.out)
                    + 3.0 * self.out * bytes.rest
                    + (self.into + 3.0 * self.out) * conversions / 2.0
            }
            LayerKind::Attention => normed(self.into) + 8.0 * self.into * bytes.rest,
            LayerKind::Upsample => 1.25 * self.into * bytes.rest + self.into * conversions,
            LayerKind::Out => normed(self.into) + self.into * conversions / 2.0,
        }
    }

    /// Norms, activations and sums are in the convolutions' own times.
    fn moved_beside_winograd(&self) -> f64 {
        match self.kind {
            LayerKind::Attention => 4.0 * 16.0 * self.into,
            _ => 0.0,
        }
    }

    /// What is held at each moment that may be the peak.
    fn moments(&self, bytes: &Bytes, banded: bool) -> Vec<Moment> {
        let moments = match self.kind {
            LayerKind::Attention => self.attention_moments(bytes),
            _ if bytes.winograd || banded => self.banded_moments(bytes, banded),
            _ => self.whole_moments(bytes),
        };
        let pixels = self.pixels;
        let scaled = |moment: Moment| Moment {
            per_pixel: moment.per_pixel * pixels,
            per_band_pixel: moment.per_band_pixel * pixels,
            per_row_pixel: moment.per_row_pixel * pixels.sqrt(),
            most_pixels: moment.most_pixels.map(|most| most / pixels),
            ..moment
        };
        moments.into_iter().map(scaled).collect()
    }

    fn attention_moments(&self, bytes: &Bytes) -> Vec<Moment> {
        let into = self.into * bytes.rest;
        let converted = self.into * bytes.convolution;
        let moment = |per_pixel, constant| Moment { per_pixel, constant, ..Moment::default() };
        vec![
            moment(2.0 * into + if bytes.converts { converted } else { 0.0 }, 0.0),
            // Query, key, value and their mix.
            moment(into + 4.0 * converted, bytes.attention),
            moment(2.0 * into + converted, 0.0),
        ]
    }

    /// In the order of layers.rs.
    fn whole_moments(&self, bytes: &Bytes) -> Vec<Moment> {
        let (into, out) = (self.into * bytes.rest, self.out * bytes.rest);
        let simple = |per_pixel| vec![Moment { per_pixel, ..Moment::default() }];
        let groups = match self.kind {
            LayerKind::ConvIn => vec![bytes.convolution(0.0, self.into, self.out, 9.0)],
            LayerKind::Resnet => vec![
                simple(2.0 * into),
                bytes.convolution(into, self.into, self.out, 9.0),
                simple(into + 2.0 * out),
                bytes.convolution(into, self.out, self.out, 9.0),
                if self.into == self.out { Vec::new() } else { bytes.convolution(out, self.into, self.out, 1.0) },
            ],
            LayerKind::Upsample => {
                let before = if bytes.converts { (into + self.into * bytes.convolution) / 4.0 } else { 0.0 };
                // The input is already in the convolution's type.
                let same = Bytes { rest: bytes.convolution, converts: false, ..*bytes };
                vec![
                    simple(before.max(1.25 * self.into * bytes.convolution)),
                    same.convolution(0.0, self.into, self.out, 9.0),
                    simple(self.out * bytes.convolution + if bytes.converts { out } else { 0.0 }),
                ]
            }
            LayerKind::Out => {
                vec![simple(2.0 * into), bytes.convolution(0.0, self.into, self.out, 9.0), simple(out + 4.0 * self.out)]
            }
            LayerKind::Attention => Vec::new(),
        };
        groups.concat()
    }

    /// In the order of bands.rs.
    fn banded_moments(&self, bytes: &Bytes, banded: bool) -> Vec<Moment> {
        let (into, out) = (self.into * bytes.rest, self.out * bytes.rest);
        let scratch = |into: f64, upsample| match bytes.winograd {
            true => winograd::scratch_bytes(into as i64, upsample) as f64,
            false => {
                // A band is more often small than a picture is.
                let small = 9.0 * bytes.scratch.small as f64 * bytes.convolution;
                convolution_bytes()
                    + small
                    + bytes.scratch.weights * 9.0 * padded(into) * padded(self.out) * bytes.convolution
            }
        };
        let band = |into: f64, out: f64| if bytes.winograd { 0.0 } else { bytes.rows(into, out) };
        let moment =
            |per_pixel, per_band_pixel, constant| Moment { per_pixel, per_band_pixel, constant, ..Moment::default() };
        // The input: held, or a quarter of it and the rows that are computed for the moment.
        let low = self.from_low.filter(|_| banded);
        let input = low.map_or(into, |low| low * bytes.rest / 4.0);
        let computed = if low.is_some() { into } else { 0.0 };
        let neighbours = 2.0 * computed;
        let with_rows = |moment: Moment| Moment { per_row_pixel: neighbours, ..moment };
        match self.kind {
            LayerKind::ConvIn | LayerKind::Out => vec![with_rows(moment(
                input + out.max(4.0 * self.out * f64::from(u8::from(self.kind == LayerKind::Out))),
                computed + band(self.into, self.out),
                scratch(self.into, false),
            ))],
            LayerKind::Upsample => {
                let kept = if banded && self.passing { 0.0 } else { out };
                vec![moment(into / 4.0 + kept, band(self.into, self.out), scratch(self.into, true))]
            }
            LayerKind::Resnet => {
                let apart = self.into != self.out;
                let beside = if apart || low.is_some() { out } else { 0.0 };
                // Where the input's rows are computed for the moment, so are the shortcut's.
                let shortcut = if apart && low.is_some() { out } else { 0.0 };
                let mut moments = vec![
                    with_rows(moment(
                        input + out + beside * f64::from(u8::from(low.is_some())),
                        computed + band(self.into, self.out).max(shortcut),
                        scratch(self.into, false),
                    )),
                    moment(
                        out + beside.max(into * f64::from(u8::from(!apart))),
                        band(self.out, self.out),
                        scratch(self.out, false),
                    ),
                ];
                if apart {
                    let constant = convolution_bytes()
                        + bytes.scratch.weights * padded(self.into) * padded(self.out) * bytes.convolution;
                    moments.push(with_rows(moment(input + out + beside, computed + shortcut, constant)));
                }
                moments
            }
            LayerKind::Attention => Vec::new(),
        }
    }
}
