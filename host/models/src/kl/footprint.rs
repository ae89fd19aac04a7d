//! What a decode costs by the architecture alone: operations, bytes moved, and the most held at once.
//!
//! Time grows with the pixels decoded (the attention's with their square), and the peak is the largest of a few straight lines, so
//! a footprint is worked out once per network and priced for any tile by a few multiplications.

use tilewright_plan::{Layout, Precision};
use tilewright_torch::probe::{Scratch, convolution_bytes, fused_attention_bytes};

use super::Config;

/// Cost of a decode per output pixel of the tiles decoded, for one precision and memory order.
#[derive(Clone, Debug, PartialEq)]
pub struct Footprint {
    /// Floating-point operations of convolutions, a multiply-add counted as two.
    pub convolution_flops: f64,
    /// Bytes read and written by norms, activations, sums, upsampling and conversions.
    pub moved_bytes: f64,
    /// The moments at which most is held.
    moments: Vec<Moment>,
    /// Operations of the middle attention per pair of latent pixels of one tile.
    pub attention_flops: f64,
}

impl Footprint {
    /// The most bytes held at once while so many output pixels are decoded together, output included.
    pub fn peak_bytes(&self, pixels: f64) -> f64 {
        self.moments
            .iter()
            .filter(|moment| pixels <= moment.most_pixels)
            .map(|moment| moment.held(pixels))
            .fold(0.0, f64::max)
    }
}

/// What is held at one moment of a decode.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Moment {
    /// Per output pixel.
    per_pixel: f64,
    /// However many pixels there are.
    constant: f64,
    /// The moment only comes where no more pixels are decoded.
    most_pixels: f64,
}

impl Moment {
    fn held(&self, pixels: f64) -> f64 {
        self.constant + self.per_pixel * pixels
    }

    /// Never holds more than another that comes whenever it does.
    fn is_covered_by(&self, other: &Self) -> bool {
        other.per_pixel >= self.per_pixel && other.constant >= self.constant && other.most_pixels >= self.most_pixels
    }
}

/// A layer in the order that they run: channels in and out, and its side relative to the output's.
struct Layer {
    into: f64,
    out: f64,
    /// Pixels of this layer's output per output pixel of the network.
    pixels: f64,
    kind: LayerKind,
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
        let middle = self.middle_channels as f64;
        let layer =
            |into: usize, out: usize, pixels: f64, kind| Layer { into: into as f64, out: out as f64, pixels, kind };
        let mut layers = vec![layer(self.latent_channels, self.middle_channels, pixels, LayerKind::ConvIn)];
        for index in 0..self.middle_layers {
            layers.push(Layer { into: middle, out: middle, pixels, kind: LayerKind::Resnet });
            if index == 0 && self.middle_attention {
                layers.push(Layer { into: middle, out: middle, pixels, kind: LayerKind::Attention });
            }
        }
        let mut into = self.middle_channels;
        for block in &self.up_blocks {
            for _ in 0..block.layers {
                layers.push(layer(into, block.channels, pixels, LayerKind::Resnet));
                into = block.channels;
            }
            if block.upsamples {
                pixels *= 4.0;
                layers.push(layer(into, into, pixels, LayerKind::Upsample));
            }
        }
        layers.push(layer(into, self.image_channels, pixels, LayerKind::Out));
        layers
    }

    /// The share of a decode's work that each layer is, in the order that they run; adds up to 1.
    pub fn layer_shares(&self) -> Vec<f64> {
        let flops: Vec<f64> = self.layers().iter().map(Layer::convolution_flops).collect();
        let all: f64 = flops.iter().sum();
        flops.into_iter().map(|flops| flops / all.max(1e-9)).collect()
    }

    /// What a decode costs in a precision and memory order, on a device whose convolutions in these hold `scratch`.
    pub fn footprint(&self, precision: Precision, layout: Layout, scratch: Scratch) -> Footprint {
        let convolution = f64::from(precision.dtype().bits()) / 8.0;
        let rest = match precision {
            Precision::Uniform(_) => convolution,
            Precision::Mixed(_) => 4.0,
        };
        let bytes = Bytes { convolution, rest, converts: convolution != rest, layout, scratch };
        let layers = self.layers();
        let middle = self.middle_channels as f64;
        // The output leaves as f32.
        let output = 4.0 * self.image_channels as f64;
        let mut moments: Vec<Moment> = Vec::new();
        for moment in layers.iter().flat_map(|layer| layer.moments(&bytes)) {
            if !moments.iter().any(|other| moment.is_covered_by(other)) {
                moments.retain(|other| !other.is_covered_by(&moment));
                moments.push(moment);
            }
        }
        Footprint {
            convolution_flops: layers.iter().map(Layer::convolution_flops).sum(),
            moved_bytes: layers.iter().map(|layer| layer.moved_bytes(&bytes)).sum::<f64>() + output,
            moments,
            attention_flops: if self.middle_attention { 4.0 * middle } else { 0.0 },
        }
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
}

impl Bytes {
    /// The moments of `Conv::forward` in layers.rs: `held` bytes per pixel besides what the convolution itself handles.
    fn convolution(&self, moments: &mut Vec<(f64, f64, f64)>, held: f64, into: f64, out: f64, taps: f64) {
        if self.converts {
            moments.push((held + into * (self.rest + self.convolution), 0.0, f64::INFINITY));
            moments.push((held + out * (self.rest + self.convolution), 0.0, f64::INFINITY));
        }
        let (input, output) = (into * self.convolution, out * self.convolution);
        let both = held + input + output;
        if taps == 1.0 && self.layout == Layout::ChannelsFirst {
            // A matrix product.
            moments.push((both, 0.0, f64::INFINITY));
            return;
        }
        let weights = self.scratch.weights * taps * padded(into) * padded(out) * self.convolution;
        let constant = weights + convolution_bytes();
        let inputs = self.scratch.inputs;
        if inputs > 1.0 {
            // Laid out tap by tap.
            let inputs = if taps > 1.0 { inputs } else { 0.0 };
            moments.push((both + inputs * input, constant, f64::INFINITY));
        } else {
            // Input and output are reordered, the output when the input's copy is gone.
            let (input, output) = (inputs * padded(into) * self.convolution, inputs * padded(out) * self.convolution);
            moments.push((both + input + output - inputs * out * self.convolution, constant, f64::INFINITY));
            moments.push((both + output, convolution_bytes(), f64::INFINITY));
        }
        if self.scratch.small > 0 && taps > 1.0 {
            moments.push((both + taps * input, 0.0, self.scratch.small as f64 / into));
        }
    }
}

/// Channels as oneDNN's reordered copies hold them: in blocks of 16 (with AVX-512; of 8 elsewhere).
fn padded(channels: f64) -> f64 {
    (channels / 16.0).ceil() * 16.0
}

impl Layer {
    fn convolution_flops(&self) -> f64 {
        let conv = |into: f64, out: f64, taps: f64| 2.0 * taps * into * out;
        let per_pixel = match self.kind {
            LayerKind::ConvIn | LayerKind::Upsample | LayerKind::Out => conv(self.into, self.out, 9.0),
            LayerKind::Resnet => {
                let shortcut = if self.into == self.out { 0.0 } else { conv(self.into, self.out, 1.0) };
                conv(self.into, self.out, 9.0) + conv(self.out, self.out, 9.0) + shortcut
            }
            LayerKind::Attention => 4.0 * conv(self.into, self.out, 1.0),
        };
        per_pixel * self.pixels
    }

    fn moved_bytes(&self, bytes: &Bytes) -> f64 {
        // Norm: two reads and a write; SiLU: a read and a write; sum: two reads and a write.
        let normed = |channels: f64| 5.0 * channels * bytes.rest;
        let conversions = if bytes.converts { 2.0 * (bytes.rest + bytes.convolution) } else { 0.0 };
        let per_pixel = match self.kind {
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
        };
        per_pixel * self.pixels
    }

    /// What is held at each moment that may be the peak, in the order of layers.rs.
    fn moments(&self, bytes: &Bytes) -> Vec<Moment> {
        let (into, out) = (self.into * bytes.rest, self.out * bytes.rest);
        // Per pixel of this layer, constant, and the most pixels of this layer.
        let mut moments: Vec<(f64, f64, f64)> = Vec::new();
        let simple = |per_pixel: f64| (per_pixel, 0.0, f64::INFINITY);
        match self.kind {
            LayerKind::ConvIn => bytes.convolution(&mut moments, 0.0, self.into, self.out, 9.0),
            LayerKind::Resnet => {
                moments.push(simple(2.0 * into));
                bytes.convolution(&mut moments, into, self.into, self.out, 9.0);
                moments.push(simple(into + 2.0 * out));
                bytes.convolution(&mut moments, into, self.out, self.out, 9.0);
                if self.into != self.out {
                    bytes.convolution(&mut moments, out, self.into, self.out, 1.0);
                }
            }
            LayerKind::Attention => {
                let converted = self.into * bytes.convolution;
                moments.push(simple(2.0 * into + if bytes.converts { converted } else { 0.0 }));
                // Query, key, value and their mix.
                moments.push((into + 4.0 * converted, fused_attention_bytes(self.into), f64::INFINITY));
                moments.push(simple(2.0 * into + converted));
            }
            LayerKind::Upsample => {
                let before = if bytes.converts { (into + self.into * bytes.convolution) / 4.0 } else { 0.0 };
                moments.push(simple(before.max(1.25 * self.into * bytes.convolution)));
                // The input is already in the convolution's type.
                let same = Bytes { rest: bytes.convolution, converts: false, ..*bytes };
                same.convolution(&mut moments, 0.0, self.into, self.out, 9.0);
                moments.push(simple(self.out * bytes.convolution + if bytes.converts { out } else { 0.0 }));
            }
            LayerKind::Out => {
                moments.push(simple(2.0 * into));
                bytes.convolution(&mut moments, 0.0, self.into, self.out, 9.0);
                moments.push(simple(out + 4.0 * self.out));
            }
        }
        let moment = |(per_pixel, constant, most): (f64, f64, f64)| Moment {
            per_pixel: per_pixel * self.pixels,
            constant,
            most_pixels: most / self.pixels,
        };
        moments.into_iter().map(moment).collect()
    }
}
