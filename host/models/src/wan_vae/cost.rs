//! The cost of a clip's decode: the network runs on a meter, push by push, and its state, the most
//! bytes held and the time are read off.

use std::cell::RefCell;

use tilewright_nn::{CausalOps, Meter, MeterTensor, Ops};
use tilewright_plan::Dtype;

use super::{Config, Spread, clip::Clip, network::Network};
use crate::{HalfConfig, Pass, Result, metered};

/// A clip that is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// Output rows of a band, if libtorch's convolutions take their input in bands.
    pub band: Option<u32>,
    /// Given for one of several tiles, and for one that fades out at its edges.
    pub tiled: Option<Tiled>,
}

/// The way in which tiles become frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiled {
    /// Their number; those that are not at work hold their state.
    pub tiles: u32,
    /// Their states wait in host memory.
    pub parked: bool,
    /// Output pixels of all together.
    pub height: u32,
    /// Output pixels of all together.
    pub width: u32,
    /// Latent frames that each takes before the next one's turn comes.
    pub chunk: u32,
}

/// Pushes after which the causal state grows no more, however few latent frames each brings.
const SETTLED: u32 = 3;

/// A decode on a meter.
pub(super) struct Decode<'a> {
    config: &'a Config,
    network: &'a Network<Meter>,
    meter: &'a Meter,
    extent: &'a Extent,
    /// [1, C, T, h, w]
    latents: MeterTensor,
    clip: Clip<MeterTensor>,
    /// Frames of the tile's chunk.
    kept: RefCell<Vec<MeterTensor>>,
}

impl<'a> Decode<'a> {
    pub fn new(config: &'a Config, network: &'a Network<Meter>, meter: &'a Meter, extent: &'a Extent) -> Result<Self> {
        let side = |pixels: u32| i64::from((pixels / config.spatial_scale()).max(1));
        let frames = i64::from(extent.latent_frames.max(1));
        let shape = [1, config.latent_channels as i64, frames, side(extent.height), side(extent.width)];
        let latents = meter.input(&shape, Dtype::F32)?;
        Ok(Self { config, network, meter, extent, latents, clip: Clip::default(), kept: RefCell::default() })
    }

    /// Pushes latent frames until the pushes are alike; those that are left cost as much as the
    /// last one.
    pub fn cost(mut self) -> Result<Pass> {
        let Extent { latent_frames: all, tiled, .. } = *self.extent;
        let pushed = self.extent.pushed.max(1);
        let (mut done, mut pushes, mut cost) = (0, 0, Pass::default());
        let mut per_frame = 0.0;
        while done < all {
            let chunk = tiled.map_or(pushed, |tiled| tiled.chunk.max(1));
            let until = (done - done % chunk + chunk).min(all);
            let may_skip = !self.meter.counts_layers();
            if may_skip && pushes == SETTLED && until - done > 2 * pushed {
                let alike = ((until - done) / pushed - 1) * pushed;
                self.skip(alike)?;
                cost.seconds += per_frame * f64::from(alike);
                done += alike;
            }
            // From here on chunks are like the last one, or shorter.
            if may_skip && pushes >= SETTLED && tiled.is_none_or(|tiled| tiled.chunk < all) {
                cost.seconds += per_frame * f64::from(all - done);
                break;
            }
            let count = pushed.min(until - done);
            let before = self.meter.seconds();
            let peak = self.push(done, count)?;
            per_frame = (self.meter.seconds() - before) / f64::from(count);
            cost.seconds += per_frame * f64::from(count);
            done += count;
            pushes += 1;
            cost.peak_bytes = cost.peak_bytes.max(peak);
            if let Some(tiled) = &tiled {
                cost.peak_bytes = cost.peak_bytes.max(self.peak_with_gathering(tiled, peak, done == until));
            }
        }
        cost.state_bytes = self.state_bytes();
        Ok(cost)
    }

    /// The most held while the next latent frames go all the way through.
    fn push(&mut self, done: u32, count: u32) -> Result<u64> {
        let Extent { frames, height, band, tiled, .. } = *self.extent;
        let Self { network, meter, latents, kept, .. } = self;
        let latents = meter.narrow(latents, 2, i64::from(done), i64::from(count))?;
        meter.reset_peak();
        let mut emit = |frames: MeterTensor| {
            if tiled.is_some() {
                kept.borrow_mut().push(frames);
            } else if meter.is_cpu() {
                // In the order of a file's frames.
                meter.contiguous(&frames)?;
            }
            Ok(())
        };
        let spread = Spread { frames, band, height };
        network.push((*meter, &[]), &mut self.clip, Some(&latents), &spread, &mut |_| Ok(()), &mut emit)?;
        Ok(self.meter.peak_bytes())
    }

    /// Latent frames that cost as much as those before them: only the frames that they leave behind
    /// are counted.
    fn skip(&mut self, count: u32) -> Result<()> {
        if self.extent.tiled.is_some() {
            let Extent { height, width, .. } = *self.extent;
            let frames = i64::from(count) * i64::from(self.config.temporal_scale());
            let shape = [frames, self.config.image_channels as i64, i64::from(height), i64::from(width)];
            self.kept.borrow_mut().push(self.meter.occupied(&shape, Dtype::F32)?);
        }
        Ok(())
    }

    fn state_bytes(&self) -> u64 {
        self.clip.bytes_by(MeterTensor::bytes)
    }

    /// The most held beside the other tiles' states and the frames that are gathered.
    fn peak_with_gathering(&self, tiled: &Tiled, peak: u64, is_chunk_over: bool) -> u64 {
        let kept: Vec<u64> = self.kept.borrow().iter().map(MeterTensor::bytes).collect();
        let frame =
            |height: u32, width: u32| 4 * self.config.image_channels as u64 * u64::from(height) * u64::from(width);
        let one = frame(self.extent.height, self.extent.width).max(1);
        let gathered = kept.iter().sum::<u64>() / one * frame(tiled.height, tiled.width);
        // A tile that has seen the whole clip holds no state.
        let holds = !tiled.parked && tiled.chunk < self.extent.latent_frames;
        let others = if holds { u64::from(tiled.tiles.saturating_sub(1)) * self.state_bytes() } else { 0 };
        let before = if tiled.tiles > 1 { gathered } else { 0 };
        let mut most = peak + others + before;
        if is_chunk_over {
            // All of the tile's frames, and one piece of them after the other weighted.
            most = most.max(self.meter.held_bytes() + kept.last().copied().unwrap_or(0) + others + gathered);
            self.kept.borrow_mut().clear();
        }
        most
    }
}

/// Latent pixels along a side of the frames that products are counted of.
const SIDE: i64 = 8;

/// The products of each step per latent pixel and frame of its input, attention's scores aside: the
/// network runs on a meter.
///
/// # Errors
/// The architecture's widths don't go together.
pub(super) fn step_products(config: &Config) -> Result<Vec<f64>> {
    let meter = metered::counting_products();
    let network = metered::build(&meter, |scope| config.build(scope))?.network;
    let latent = meter.input(&[1, config.latent_channels as i64, 1, SIDE, SIDE], Dtype::F32)?;
    let spread = Spread { frames: u32::MAX, band: None, height: 1 };
    let (mut clip, mut ends) = (Clip::default(), Vec::new());
    // The first latent frame has none before it to convolve; the second stands for all others.
    for _ in 0..2 {
        ends = vec![meter.seconds()];
        let mut step = |_| {
            ends.push(meter.seconds());
            Ok(())
        };
        network.push((&meter, &[]), &mut clip, Some(&latent), &spread, &mut step, &mut |_| Ok(()))?;
    }
    let products = ends.windows(2).map(|pair| (pair[1] - pair[0]) / (SIDE * SIDE) as f64);
    Ok(network.steps.iter().zip(products).map(|(placed, products)| products / f64::from(placed.frames)).collect())
}
