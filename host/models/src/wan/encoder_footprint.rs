//! What a clip's encode costs by the architecture alone: what the causal state holds, the most held while frames run through the layers, and how
//! long that takes on a device that was measured. The moments follow `encoder_layers.rs`: change both.

use tilewright_plan::{Layout, Precision};
use tilewright_torch::{
    attention,
    probe::{Measured, Rate, Scratch, convolution_bytes},
};

use super::EncoderConfig;
use tilewright_torch::reordered::padded;

/// What is encoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderExtent {
    /// Frames of the clip that are encoded: 1, and any multiple of the temporal scale.
    pub frames: u32,
    /// Pixels.
    pub height: u32,
    /// Pixels.
    pub width: u32,
}

/// What encodes cost in one precision and memory order on one device.
#[derive(Clone, Debug)]
pub struct EncoderFootprint {
    config: EncoderConfig,
    /// Bytes of a value in convolutions and what they remember, and elsewhere.
    convolution: f64,
    rest: f64,
    layout: Layout,
    plain: Rate,
    attention_flops: f64,
    attention_bytes: f64,
    bytes_per_second: f64,
    scratch: Scratch,
}

/// Frames on their way through the layers.
struct Walk<'a> {
    of: &'a EncoderFootprint,
    /// Frames at work, and those that went by before them, both at the layer at hand.
    count: f64,
    before: f64,
    /// Pixels of a frame at the layer at hand.
    pixels: f64,
    /// What the layers remember: before this walk, and new.
    remembered: f64,
    renewed: f64,
    /// The block's averaged input.
    beside: f64,
    /// The most held besides what was remembered before.
    peak: f64,
    /// Seconds of the frames at work.
    seconds: f64,
}

/// Frames that a causal convolution remembers, and that one over every other frame does.
const KEPT: f64 = 2.0;
const KEPT_BY_HALVING: f64 = 1.0;

impl Walk<'_> {
    fn moment(&mut self, bytes: f64) {
        self.peak = self.peak.max(self.renewed + self.beside + bytes);
    }

    /// Bytes of all frames in so many channels.
    fn rest(&self, channels: f64) -> f64 {
        self.count * channels * self.pixels * self.of.rest
    }

    fn convolved(&self, channels: f64) -> f64 {
        self.count * channels * self.pixels * self.of.convolution
    }

    fn mixed(&self) -> bool {
        self.of.rest > self.of.convolution
    }

    fn moved(&self, values: f64) -> f64 {
        self.count * values * self.of.rest * self.pixels / self.of.bytes_per_second
    }

    /// What one convolution makes besides its input: its output and what libtorch lays out for it.
    fn convolution(&self, into: f64, out: f64, taps: f64) -> f64 {
        let scratch = &self.of.scratch;
        let inputs = scratch.inputs;
        let weights = scratch.weights * taps * padded(into) * padded(out) * self.of.convolution;
        let output = self.convolved(out);
        let copies = match inputs > 1.0 {
            // Laid out tap by tap.
            true => {
                if taps > 1.0 {
                    inputs * self.convolved(into)
                } else {
                    0.0
                }
            }
            // Input and output are reordered, the output when the input's copy is gone.
            false => {
                let (from, to) = (inputs * self.convolved(padded(into)), inputs * self.convolved(padded(out)));
                (from + to - inputs * output).max(to)
            }
        };
        let changed = if self.mixed() { self.rest(out) } else { 0.0 };
        output + (copies + weights + convolution_bytes()).max(changed)
    }

    /// The norm and SiLU of what is held already.
    fn norm(&mut self, channels: f64, held: f64) {
        let in_f32 = self.count * 4.0 * self.pixels * channels;
        let lengths = self.count * 4.0 * self.pixels;
        let changed = if self.of.rest < 4.0 { self.rest(channels) } else { 0.0 };
        // Whatever is no f32 is that first.
        self.moment(held + lengths + in_f32 + changed.max(if self.of.rest < 4.0 { in_f32 } else { 0.0 }));
        self.seconds += self.moved(6.0 * channels);
    }

    /// A layer remembers the last `most` frames of so many channels; gives the bytes of those that it remembered.
    fn remember(&mut self, channels: f64, size: f64, most: f64) -> f64 {
        let frame = channels * self.pixels * size;
        let past = self.before.min(most) * frame;
        self.remembered += past;
        self.renewed += (self.before + self.count).min(most) * frame;
        past
    }

    /// A causal convolution of an input that goes as soon as it is joined to the past; `held` is held besides.
    fn causal(&mut self, into: f64, out: f64, side: f64, held: f64) {
        let input = self.rest(into) + if self.mixed() { self.convolved(into) } else { 0.0 };
        let past = self.remember(into, self.of.convolution, KEPT);
        let all = if past > 0.0 { past + self.convolved(into) } else { 0.0 };
        self.moment(held + input + all);
        let all = past + self.convolved(into);
        let output = self.rest(out);
        let taps = side * side;
        let one = self.convolution(into, out, taps);
        let several = self.before + self.count > 1.0;
        self.moment(held + all + one + if several { output } else { 0.0 });
        let times = (self.before + self.count).min(3.0);
        self.seconds += times * taps * self.of.plain.of(into, out) * self.count * self.pixels;
        self.seconds += self.moved(2.0 * into + 3.0 * times * out);
    }

    fn residual(&mut self, into: f64, out: f64) {
        let own = self.rest(into);
        self.norm(into, own);
        self.causal(into, out, 3.0, own);
        let hidden = self.rest(out);
        self.norm(out, own + hidden);
        self.causal(out, out, 3.0, own);
        if into != out {
            let input = if self.mixed() { self.convolved(into) } else { 0.0 };
            let laid_out = if self.of.layout == Layout::ChannelsLast { 0.0 } else { input };
            let one = self.convolution(into, out, 1.0);
            self.moment(own + hidden + laid_out.max(input) + one);
            self.seconds += self.of.plain.of(into, out) * self.count * self.pixels;
        }
        self.seconds += self.moved(3.0 * out);
    }

    fn downsample(&mut self, channels: f64, temporal: bool) {
        let (own, padded) = (self.rest(channels), self.rest(channels));
        let input = if self.mixed() { self.convolved(channels) } else { 0.0 };
        self.pixels /= 4.0;
        let one = self.convolution(channels, channels, 9.0);
        // The input has four times the pixels. Only oneDNN copies it: what is laid out tap by tap has the output's.
        let inputs = if self.of.scratch.inputs > 1.0 { 0.0 } else { self.of.scratch.inputs };
        let copies = 3.0 * inputs * self.convolved(channels.max(f64::min(16.0, 16.0 * inputs)));
        self.moment(own + padded + input + one + copies);
        self.seconds += 9.0 * self.of.plain.of(channels, channels) * self.count * self.pixels;
        self.seconds += self.moved(12.0 * channels);
        if !temporal {
            return;
        }
        let past = self.remember(channels, self.of.rest, KEPT_BY_HALVING);
        let all = past + self.rest(channels);
        // The input is held until the layer ends.
        self.moment(own + all + self.rest(channels));
        if self.before > 0.0 {
            self.count = (self.count / 2.0).max(1.0);
            let every_other = self.convolved(channels);
            let one = self.convolution(channels, channels, 1.0);
            self.moment(own + all + every_other + one + 2.0 * self.rest(channels));
            self.seconds += 3.0 * self.of.plain.of(channels, channels) * self.count * self.pixels;
            self.before = (self.before + 1.0) / 2.0;
        }
    }

    /// In the middle, over the pixels of each frame.
    fn attention(&mut self, channels: f64) {
        let own = self.rest(channels);
        self.norm(channels, own);
        let normed = self.rest(channels);
        let mixed = self.convolution(channels, 3.0 * channels, 1.0);
        let input = if self.mixed() { self.convolved(channels) } else { 0.0 };
        self.moment(own + normed + input + mixed);
        let each = self.convolved(channels);
        let changed = if self.mixed() { 3.0 * each } else { 0.0 };
        self.moment(own + 3.0 * self.rest(channels) + changed + 5.0 * each + self.of.attention_bytes);
        self.seconds += 4.0 * self.of.plain.of(channels, channels) * self.count * self.pixels;
        self.seconds += self.of.attention_flops * self.pixels * self.pixels * self.count;
        self.seconds += self.moved(16.0 * channels);
    }
}

impl EncoderFootprint {
    /// Bytes of the causal state between two pushes.
    pub fn state_bytes(&self, extent: &EncoderExtent) -> f64 {
        self.last(extent).renewed
    }

    /// Bytes of the causal state that the last push finds, less where few were before it.
    pub fn remembered_bytes(&self, extent: &EncoderExtent) -> f64 {
        self.last(extent).remembered
    }

    /// The most bytes held while frames run through the layers, latents of one push included, and what the layers remember anew as well; the state
    /// that they went by comes on top.
    pub fn working_bytes(&self, extent: &EncoderExtent) -> f64 {
        self.last(extent).peak
    }

    /// How long an encode takes.
    pub fn seconds(&self, extent: &EncoderExtent) -> f64 {
        let scale = self.config.temporal_scale();
        let chunk = f64::from(scale);
        let later = f64::from(extent.frames.saturating_sub(1) / scale.max(1));
        let first = self.walk(1.0, 0.0, extent).seconds;
        first + if later > 0.0 { later * self.walk(chunk, 1.0 + chunk, extent).seconds } else { 0.0 }
    }

    /// The last frames that are pushed, which find the most remembered.
    fn last(&self, extent: &EncoderExtent) -> Walk<'_> {
        let chunk = f64::from(self.config.temporal_scale());
        match extent.frames {
            0 | 1 => self.walk(1.0, 0.0, extent),
            frames => self.walk(chunk, (f64::from(frames) - chunk).max(1.0), extent),
        }
    }

    /// Some frames through all layers, after so many others.
    fn walk(&self, count: f64, before: f64, extent: &EncoderExtent) -> Walk<'_> {
        let config = &self.config;
        let patch = (config.patch * config.patch) as f64;
        let pixels = f64::from(extent.height) * f64::from(extent.width) / patch;
        let nothing = Walk {
            of: self,
            count,
            before,
            pixels,
            remembered: 0.0,
            renewed: 0.0,
            beside: 0.0,
            peak: 0.0,
            seconds: 0.0,
        };
        let mut walk = nothing;
        let (into, first) = (config.in_channels as f64, config.first_channels as f64);
        walk.causal(into, first, 3.0, 0.0);
        if self.layout == Layout::ChannelsLast {
            // Frames come in rows and columns: the convolution takes a copy.
            let past = walk.before.min(KEPT) * into * walk.pixels * self.convolution;
            let output = if walk.before + walk.count > 1.0 { walk.rest(first) } else { 0.0 };
            walk.moment(past + 2.0 * walk.convolved(into) + output + walk.convolution(into, first, 9.0));
        }
        for block in &config.down_blocks {
            let channels = block.channels as f64;
            if block.averaged {
                let own = walk.rest(block.into as f64);
                // Padded to whole groups of frames, and laid out group by group; what is not in rows and columns is put there first.
                let time = if block.downsample.is_some_and(|downsample| downsample.temporal) { 2.0 } else { 1.0 };
                let padded = own / walk.count * (walk.count / time).ceil() * time;
                let copies = if self.layout == Layout::ChannelsLast { 3.0 } else { 2.0 };
                walk.moment(own + copies * padded);
                walk.seconds += walk.moved(6.0 * block.into as f64);
                walk.beside = own * channels / (block.into * block.factor()) as f64;
            }
            for layer in 0..block.layers {
                walk.residual(if layer == 0 { block.into as f64 } else { channels }, channels);
            }
            if let Some(downsample) = block.downsample {
                walk.downsample(channels, downsample.temporal);
            }
            if block.averaged {
                let both = 2.0 * walk.rest(channels);
                walk.moment(both);
                walk.beside = 0.0;
            }
        }
        let (middle, latent) = (config.middle_channels() as f64, config.latent_channels as f64);
        walk.residual(middle, middle);
        walk.attention(middle);
        walk.residual(middle, middle);
        let own = walk.rest(middle);
        walk.norm(middle, own);
        walk.causal(middle, 2.0 * latent, 3.0, 0.0);
        let moments = walk.rest(2.0 * latent);
        let one = walk.convolution(2.0 * latent, latent, 1.0);
        walk.moment(moments + one + 2.0 * 4.0 * walk.count * latent * walk.pixels);
        walk
    }
}

impl EncoderConfig {
    /// What encodes cost in a precision and memory order on a device that was measured; none where these can't be run there.
    pub fn footprint(&self, precision: Precision, layout: Layout, measured: &Measured) -> Option<EncoderFootprint> {
        let speed = measured.speeds.iter().find(|speed| speed.dtype == precision.dtype() && speed.layout == layout)?;
        let convolution = f64::from(precision.dtype().bits()) / 8.0;
        let middle = self.middle_channels() as f64;
        Some(EncoderFootprint {
            config: self.clone(),
            convolution,
            rest: if let Precision::Mixed(_) = precision { 4.0 } else { convolution },
            layout,
            plain: speed.plain,
            attention_flops: 4.0 * middle / speed.attention_flops_per_second,
            attention_bytes: attention::fused_bytes(middle, speed.dtype),
            bytes_per_second: measured.bytes_per_second,
            scratch: speed.scratch,
        })
    }
}
