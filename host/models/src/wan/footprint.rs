//! What a clip's decode costs by the architecture alone: how long its layers take on a device that was measured, what the causal state
//! holds, and the most held besides. The moments follow `layers.rs` and `clip.rs`: change both.

use tilewright_plan::{Layout, Precision};
use tilewright_torch::{
    attention,
    probe::{Measured, Rate, Scratch, convolution_bytes},
    winograd,
};

use super::{
    Config,
    architecture::{Kind, Layer},
    clip::LEAST_ROWS,
};

/// What is decoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// Latent frames of the clip.
    pub latent_frames: u32,
    /// Latent frames that are pushed at once.
    pub pushed: u32,
    /// Output frames that run through the last layers at once.
    pub frames: u32,
    /// Output pixels.
    pub height: u32,
    /// Output pixels.
    pub width: u32,
    /// Output rows of a band, where libtorch's convolutions take their input in bands.
    pub band: Option<u32>,
}

/// What clips cost in one precision and memory order on one device.
#[derive(Clone, Debug)]
pub struct Footprint {
    layers: Vec<Layer>,
    scale: Scale,
    convolution: f64,
    rest: f64,
    layout: Layout,
    plain: Rate,
    winograd: Option<Rate>,
    attention_flops: f64,
    attention_bytes: f64,
    bytes_per_second: f64,
    scratch: Scratch,
    threads: f64,
    image: f64,
    /// libtorch convolves frames one by one.
    one_by_one: bool,
}

#[derive(Clone, Copy, Debug)]
struct Scale {
    space: f64,
    time: f64,
    /// Output pixels along a side of a patch.
    patch: f64,
}

/// What is held at one place of the network.
#[derive(Default)]
struct Held {
    /// Frames that wait, of which those at work may be a part.
    waiting: f64,
    /// The frames at work, where they are no part of others.
    own: f64,
    hidden: f64,
    /// Inputs of blocks that are added to their outputs.
    beside: f64,
    peak: f64,
}

impl Held {
    fn moment(&mut self, bytes: f64) {
        self.peak = self.peak.max(self.waiting + self.beside + self.own + self.hidden + bytes);
    }
}

impl Footprint {
    fn pixels(&self, extent: &Extent, side: u32) -> f64 {
        let side = f64::from(side) / self.scale.space;
        f64::from(extent.height) * f64::from(extent.width) * side * side
    }

    /// Pixels along a side of the last layer per latent pixel.
    fn last_side(&self) -> u32 {
        (self.scale.space / self.scale.patch) as u32
    }

    /// Bytes of the causal state between two pushes.
    pub fn state_bytes(&self, extent: &Extent) -> f64 {
        let later = f64::from(extent.latent_frames.saturating_sub(1));
        let of = |layer: &Layer| {
            let frames = match layer.kind {
                Kind::Convolve { .. } | Kind::Hide { .. } | Kind::Sum => 1.0 + later * f64::from(layer.frames),
                Kind::Double => later * f64::from(layer.frames),
                _ => 0.0,
            };
            let size = if layer.kind == Kind::Double { self.rest } else { self.convolution };
            frames.min(winograd::TAPS as f64 - 1.0) * layer.into as f64 * size * self.pixels(extent, layer.side)
        };
        self.layers.iter().map(of).sum()
    }

    /// The most bytes held at once besides the causal state, output frames of one push included.
    pub fn working_bytes(&self, extent: &Extent) -> f64 {
        let mut held = Held::default();
        let mut count = f64::from(extent.pushed.min(extent.latent_frames).max(1));
        let band = f64::from(extent.band.unwrap_or(extent.height).min(extent.height)) / f64::from(extent.height.max(1));
        let first = self.layers.first().map_or(0.0, |layer| layer.into as f64);
        held.own = count * first * self.rest * self.pixels(extent, 1);
        // Of frames that are doubled later, the first is not.
        let clip = |frames: f64| 1.0 + f64::from(extent.latent_frames.saturating_sub(1)) * frames;
        for layer in &self.layers {
            let most = (f64::from(extent.frames) * f64::from(layer.frames) / self.scale.time).floor().max(1.0);
            count = count.min(clip(f64::from(layer.frames)));
            if count > most {
                held.waiting += held.own;
                (held.own, count) = (0.0, most);
            }
            let pixels = self.pixels(extent, layer.side);
            let rows =
                (LEAST_ROWS as f64 * f64::from(extent.width) * f64::from(layer.side) / self.scale.space).min(pixels);
            let band = (band * pixels).max(rows) / pixels.max(1.0);
            self.layer(layer, count, pixels, band, &mut held);
            if layer.kind == Kind::Double && extent.latent_frames > 1 {
                count *= 2.0;
            }
        }
        // Frames in f32, clamped, and on their way to host memory.
        let frames = 4.0 * count * self.image * self.pixels(extent, self.last_side());
        held.moment(2.0 * frames);
        held.peak + frames
    }

    fn layer(&self, layer: &Layer, count: f64, pixels: f64, band: f64, held: &mut Held) {
        let (into, out) = (layer.into as f64 * pixels, layer.out as f64 * pixels);
        match layer.kind {
            Kind::Pointwise => {
                held.moment(count * out * (self.rest + self.convolution) + self.pointwise(layer));
                held.own = count * out * self.rest;
            }
            Kind::Convolve { .. } => {
                held.moment(count * out * self.rest + self.causal(layer, count, into, out, band));
                held.own = count * out * self.rest;
            }
            Kind::Begin => {
                held.beside = held.own;
                held.own = count * into * self.rest;
            }
            Kind::Hide { shortcut } => {
                held.hidden = count * out * self.rest;
                held.moment(self.causal(layer, count, into, out, band));
                if shortcut {
                    held.moment(count * out * (self.rest + self.convolution) + self.pointwise(layer));
                    held.own = count * out * self.rest;
                }
            }
            Kind::Sum => {
                held.moment(self.causal(layer, count, into, out, band));
                held.hidden = 0.0;
            }
            Kind::Attention => {
                held.moment(count * out * self.rest + 6.0 * into * self.convolution + self.attention_bytes);
                held.own = count * out * self.rest;
            }
            Kind::Double => {
                held.moment(((count + 2.0) + 3.0 * count) * into * self.rest);
                held.moment((3.0 * count + 2.0 * count) * into * self.rest + self.pointwise(layer));
                held.moment((4.0 * count + 2.0) * into * self.rest);
                held.own = 2.0 * count * into * self.rest;
            }
            Kind::Upsample => {
                let output = 4.0 * count * out * self.rest;
                held.moment(match self.winograd {
                    Some(_) => output + winograd::scratch_bytes(layer.into as i64, true) as f64,
                    None => {
                        let upsampled = 4.0 * count * into * self.convolution;
                        let copies = self.scratch.inputs * (upsampled + 4.0 * count * out * self.convolution);
                        upsampled + 4.0 * count * out * self.convolution + copies.max(output)
                    }
                });
                held.own = output;
            }
            Kind::End { .. } => {
                held.moment(2.0 * out * self.rest);
                held.beside = 0.0;
            }
        }
    }

    /// What a causal convolution holds besides its input and output.
    fn causal(&self, layer: &Layer, count: f64, into: f64, out: f64, band: f64) -> f64 {
        if self.winograd.is_some() {
            return into * self.rest + winograd::causal_scratch_bytes(layer.into as i64) as f64;
        }
        let count = if self.one_by_one { 1.0 } else { count };
        let normed = count * into * self.convolution;
        let window = (count + 2.0) * into * self.convolution;
        let kept = count.min(2.0) * into * self.convolution;
        let weights = self.scratch.weights * 27.0 * padded(layer.into) * padded(layer.out) * self.convolution;
        let stacked = 3.0 * count * into * self.convolution * band;
        let part = count * out * self.convolution * band;
        // Padded, and laid out tap by tap or reordered.
        let copies = stacked.max(self.scratch.inputs * (stacked + part));
        let moments = [
            // A frame in f32, and its norm.
            normed * (self.rest / self.convolution) + 2.0 * 4.0 * into,
            normed + window,
            window + kept + stacked + part + copies + weights + convolution_bytes(),
        ];
        moments.into_iter().fold(0.0, f64::max)
    }

    fn pointwise(&self, layer: &Layer) -> f64 {
        let weights = self.scratch.weights * padded(layer.into) * padded(layer.out) * self.convolution;
        if self.layout == Layout::ChannelsFirst { 0.0 } else { weights + convolution_bytes() }
    }

    /// How long a decode takes.
    pub fn seconds(&self, extent: &Extent) -> f64 {
        let later = f64::from(extent.latent_frames.saturating_sub(1));
        let tokens = self.pixels(extent, 1);
        let attention = self.attention_flops * tokens * tokens;
        let of = |layer: &Layer| {
            let (first, rest) = self.frame_seconds(layer, extent);
            first + later * f64::from(layer.frames) * rest
        };
        let output = 16.0 * self.image * self.pixels(extent, self.last_side()) / self.bytes_per_second;
        self.layers.iter().map(of).sum::<f64>() + (1.0 + later) * attention + (1.0 + later * self.scale.time) * output
    }

    /// The clip's first frame and each later one.
    fn frame_seconds(&self, layer: &Layer, extent: &Extent) -> (f64, f64) {
        let (into, out) = (layer.into as f64, layer.out as f64);
        let side = f64::from(layer.side) / self.scale.space;
        let (down, across) = (f64::from(extent.height) * side, f64::from(extent.width) * side);
        let pixels = down * across;
        let moved = |values: f64| values * self.rest * pixels / self.bytes_per_second;
        let square =
            |rate: &Rate, taps: f64| rate.per_product * taps * into * out + rate.per_value * (taps * into + out);
        let blocks = |pixels: f64, scale: f64| match self.winograd {
            // Whole blocks, and as many threads as there are blocks for.
            Some(_) => {
                let block = f64::from(winograd::BLOCK);
                let blocks = ((scale * down / block).ceil() * (scale * across / block).ceil()).max(1.0);
                let turns = (blocks / self.threads).ceil() * self.threads;
                pixels.max(turns * block * block)
            }
            None => pixels,
        };
        let causal = |taps: f64| match &self.winograd {
            Some(rate) => 4.0 * square(rate, taps) * blocks(pixels, 1.0) + moved(2.0 * into),
            None => 9.0 * square(&self.plain, taps) * pixels + moved(8.0 * into + 3.0 * taps * into + 3.0 * out),
        };
        let point = |into: f64, out: f64| self.plain.of(into, out) * pixels;
        match layer.kind {
            Kind::Pointwise => (point(into, out), point(into, out)),
            Kind::Convolve { .. } | Kind::Sum => (causal(1.0), causal(3.0)),
            Kind::Hide { shortcut } => {
                let beside = if shortcut { point(into, out) } else { 0.0 };
                (causal(1.0) + beside, causal(3.0) + beside)
            }
            Kind::Attention => {
                let each = 4.0 * point(into, into) + moved(16.0 * into);
                (each, each)
            }
            Kind::Double => (0.0, point(3.0 * into, 2.0 * into) + moved(12.0 * into)),
            Kind::Upsample => {
                let each = match &self.winograd {
                    Some(rate) => 2.25 * rate.of(into, out) * blocks(4.0 * pixels, 2.0),
                    None => 9.0 * self.plain.of(into, out) * 4.0 * pixels + moved(5.0 * into),
                };
                (each, each)
            }
            Kind::Begin | Kind::End { .. } => (moved(4.0 * out), moved(8.0 * out)),
        }
    }
}

/// Channels as oneDNN's reordered copies hold them.
fn padded(channels: usize) -> f64 {
    channels.next_multiple_of(16) as f64
}

impl Config {
    /// What decodes cost in a precision and memory order on a device that was measured; none where these can't be run there.
    pub fn footprint(
        &self,
        precision: Precision,
        layout: Layout,
        measured: &Measured,
        on_cpu: bool,
    ) -> Option<Footprint> {
        let speed = measured.speeds.iter().find(|speed| speed.dtype == precision.dtype() && speed.layout == layout)?;
        let convolution = f64::from(precision.dtype().bits()) / 8.0;
        Some(Footprint {
            layers: self.layers(),
            scale: Scale {
                space: f64::from(self.spatial_scale()),
                time: f64::from(self.temporal_scale()),
                patch: self.patch as f64,
            },
            convolution,
            rest: if let Precision::Mixed(_) = precision { 4.0 } else { convolution },
            layout,
            plain: speed.plain,
            winograd: speed.winograd,
            attention_flops: 4.0 * self.middle_channels as f64 / speed.attention_flops_per_second,
            attention_bytes: attention::fused_bytes(self.middle_channels as f64, speed.dtype),
            bytes_per_second: measured.bytes_per_second,
            scratch: speed.scratch,
            threads: f64::from(tch::get_num_threads().max(1)),
            image: self.out_channels as f64,
            one_by_one: on_cpu,
        })
    }
}
