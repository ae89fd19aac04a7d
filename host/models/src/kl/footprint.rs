//! What a decode costs by the architecture alone: operations, bytes moved, and the most held at once.
//!
//! Every figure but the attention's is proportional to the pixels decoded, so a footprint is worked out once per network and
//! priced for any tile by a multiplication.

use tilewright_plan::{Layout, Precision};

use super::Config;

/// Cost of a decode per output pixel of the tiles decoded, for one precision and memory order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Footprint {
    /// Floating-point operations of convolutions, a multiply-add counted as two.
    pub convolution_flops: f64,
    /// Bytes read and written by norms, activations, sums, upsampling and conversions.
    pub moved_bytes: f64,
    /// The most bytes held at once, output included.
    pub peak_bytes: f64,
    /// Operations of the middle attention per pair of latent pixels of one tile.
    pub attention_flops: f64,
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
        let layer = |into: usize, out: usize, pixels: f64, kind| Layer { into: into as f64, out: out as f64, pixels, kind };
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

    /// What a decode costs in a precision and memory order.
    pub fn footprint(&self, precision: Precision, layout: Layout) -> Footprint {
        let convolution = f64::from(precision.dtype().bits()) / 8.0;
        let rest = match precision {
            Precision::Uniform(_) => convolution,
            Precision::Mixed(_) => 4.0,
        };
        let bytes = Bytes { convolution, rest, converts: matches!(precision, Precision::Mixed(_)), layout };
        let layers = self.layers();
        let middle = self.middle_channels as f64;
        // The output leaves as f32.
        let output = 4.0 * self.image_channels as f64;
        Footprint {
            convolution_flops: layers.iter().map(Layer::convolution_flops).sum(),
            moved_bytes: layers.iter().map(|layer| layer.moved_bytes(&bytes)).sum::<f64>() + output,
            peak_bytes: layers.iter().map(|layer| layer.peak_bytes(&bytes)).fold(0.0, f64::max),
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
}

impl Bytes {
    /// What a convolution holds besides its input and output as the layers see them: converted copies, and the blocked copies
    /// that oneDNN makes of tensors in channels-first order.
    fn scratch(&self, into: f64, out: f64) -> f64 {
        let converted = if self.converts { (into + out) * self.convolution } else { 0.0 };
        let blocked = if self.layout == Layout::ChannelsFirst { (into + out) * self.convolution } else { 0.0 };
        converted + blocked
    }
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
            LayerKind::Resnet => normed(self.into) + normed(self.out) + 3.0 * self.out * bytes.rest + (self.into + 3.0 * self.out) * conversions / 2.0,
            LayerKind::Attention => normed(self.into) + 8.0 * self.into * bytes.rest,
            LayerKind::Upsample => 1.25 * self.into * bytes.rest + self.into * conversions,
            LayerKind::Out => normed(self.into) + self.into * conversions / 2.0,
        };
        per_pixel * self.pixels
    }

    fn peak_bytes(&self, bytes: &Bytes) -> f64 {
        let (into, out) = (self.into * bytes.rest, self.out * bytes.rest);
        let per_pixel = match self.kind {
            LayerKind::ConvIn => into + out + bytes.scratch(self.into, self.out),
            LayerKind::Resnet => {
                let first = into + into + out + bytes.scratch(self.into, self.out);
                let second = into + 2.0 * out + bytes.scratch(self.out, self.out);
                let shortcut = if self.into == self.out { 0.0 } else { into + 2.0 * out + bytes.scratch(self.into, self.out) };
                first.max(second).max(shortcut)
            }
            // Input, query, key, value, and the mix or the tokens that they came from.
            LayerKind::Attention => into + 5.0 * self.into * bytes.convolution,
            LayerKind::Upsample => (into / 4.0 + into).max(into + out + bytes.scratch(self.into, self.out)),
            LayerKind::Out => (2.0 * into).max(into + out + bytes.scratch(self.into, self.out)),
        };
        per_pixel * self.pixels
    }
}
