//! What a clip's decode costs by the architecture alone: how long its layers take on a device that was measured, what the causal state
//! holds, and the most held besides.

mod held;

use tilewright_plan::{Dtype, Layout, Precision};
use tilewright_torch::{
    attention,
    probe::{Measured, Rate, Scratch},
    winograd,
};

use super::{
    Config,
    architecture::{Kind, Layer},
};
use held::{Ledger, Pass};
use tilewright_torch::reordered::padded;

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
    /// Where it is one of several tiles, or one that fades out at its edges.
    pub tiled: Option<Tiled>,
}

/// How tiles become frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tiled {
    /// How many there are; those that are not at work hold their state.
    pub tiles: u32,
    /// Their states wait in host memory.
    pub parked: bool,
    /// Output pixels of all together.
    pub height: u32,
    /// Output pixels of all together.
    pub width: u32,
    /// Latent frames that each takes before the next one's turn comes.
    pub round: u32,
}

/// Pushes after which the causal state grows no more, however few latent frames each brings.
const SETTLED: u32 = 4;

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
    /// By this project, not by libtorch.
    own_attention: bool,
    bytes_per_second: f64,
    scratch: Scratch,
    threads: f64,
    image: f64,
    on_cpu: bool,
}

#[derive(Clone, Copy, Debug)]
struct Scale {
    space: f64,
    time: f64,
    /// Output pixels along a side of a patch.
    patch: f64,
}

impl Footprint {
    fn pixels(&self, extent: &Extent, side: u32) -> f64 {
        let side = f64::from(side) / self.scale.space;
        f64::from(extent.height) * f64::from(extent.width) * side * side
    }

    /// Bytes of the causal state between two pushes.
    pub fn state_bytes(&self, extent: &Extent) -> f64 {
        let later = f64::from(extent.latent_frames.saturating_sub(1));
        let of = |layer: &Layer| {
            if layer.scatters() {
                return 2.0 * layer.out as f64 * self.rest * self.pixels(extent, layer.side);
            }
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

    /// Bytes of an output frame in f32.
    fn frame_bytes(&self, extent: &Extent) -> f64 {
        4.0 * self.image * f64::from(extent.height) * f64::from(extent.width)
    }

    /// Convolutions have a type of their own.
    fn converts(&self) -> bool {
        self.convolution != self.rest
    }

    /// The most bytes held at once, the causal state and frames that are on their way out included.
    pub fn peak_bytes(&self, extent: &Extent) -> f64 {
        let ledger = Ledger::default();
        let mut pass = Pass::new(self, extent, &ledger);
        let (all, pushed) = (extent.latent_frames, extent.pushed.max(1));
        let (mut done, mut pushes, mut most) = (0, 0, 0.0_f64);
        while done < all {
            let round = extent.tiled.map_or(pushed, |tiled| tiled.round.max(1));
            let until = (done - done % round + round).min(all);
            if pushes == SETTLED && until - done > 2 * pushed {
                let alike = ((until - done) / pushed - 1) * pushed;
                pass.skip(alike);
                done += alike;
            }
            // From here on rounds are like the last one, or shorter.
            if pushes > SETTLED && extent.tiled.is_none_or(|tiled| tiled.round < all) {
                break;
            }
            let count = pushed.min(until - done);
            let peak = pass.push(count);
            done += count;
            pushes += 1;
            most = most.max(peak);
            let Some(tiled) = extent.tiled else { continue };
            let whole = 4.0 * self.image * f64::from(tiled.height) * f64::from(tiled.width);
            let gathered = pass.frames_of_round() * whole;
            // A tile that has seen the whole clip holds no state.
            let holds = !tiled.parked && tiled.round < all;
            let others = if holds { f64::from(tiled.tiles - 1) * pass.state() } else { 0.0 };
            let before = if tiled.tiles > 1 { gathered } else { 0.0 };
            most = most.max(peak + others + before);
            if done == until {
                // All of the tile's frames, and one piece of them after the other weighted.
                most = most.max(pass.gathers() + others + gathered);
            }
        }
        most
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
        let output = 4.0 * self.frame_bytes(extent) / self.bytes_per_second;
        self.layers.iter().map(of).sum::<f64>() + (1.0 + later) * attention + (1.0 + later * self.scale.time) * output
    }

    /// The clip's first frame and each later one.
    fn frame_seconds(&self, layer: &Layer, extent: &Extent) -> (f64, f64) {
        let (into, out) = (layer.into as f64, layer.out as f64);
        let side = f64::from(layer.side) / self.scale.space;
        let (down, across) = (f64::from(extent.height) * side, f64::from(extent.width) * side);
        let pixels = down * across;
        let moved = |values: f64| values * self.rest * pixels / self.bytes_per_second;
        // Output channels are computed in blocks.
        let computed = padded(out);
        let square =
            |rate: &Rate, taps: f64| rate.per_product * taps * into * computed + rate.per_value * (taps * into + out);
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
        // One frame to three times the channels.
        let scattered = match &self.winograd {
            Some(rate) => 4.0 * rate.of(into, padded(3.0 * out)) * blocks(pixels, 1.0) + moved(2.0 * into + 9.0 * out),
            None => 9.0 * self.plain.of(into, padded(3.0 * out)) * pixels + moved(8.0 * into + 9.0 * out),
        };
        let point = |into: f64, out: f64| self.plain.of(into, out) * pixels;
        match layer.kind {
            Kind::Pointwise => (point(into, out), point(into, out)),
            _ if layer.scatters() => (scattered, scattered),
            Kind::Convolve { .. } | Kind::Sum => (causal(1.0), causal(3.0)),
            Kind::Hide { shortcut } => {
                let beside = if shortcut { point(into, out) } else { 0.0 };
                (causal(1.0) + beside, causal(3.0) + beside)
            }
            Kind::Attention => {
                let each = 4.0 * point(into, into) + moved(16.0 * into);
                (each, each)
            }
            Kind::Double => (0.0, point(3.0 * into, 2.0 * into) + moved(20.0 * into)),
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
            own_attention: on_cpu && speed.dtype == Dtype::F32 && winograd::available(),
            bytes_per_second: measured.bytes_per_second,
            scratch: speed.scratch,
            threads: f64::from(tch::get_num_threads().max(1)),
            image: self.image_channels as f64,
            on_cpu,
        })
    }
}
