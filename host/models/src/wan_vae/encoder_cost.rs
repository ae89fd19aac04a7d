//! The cost of a clip's encode: the network runs on a meter, push by push.

use tilewright_nn::{Meter, MeterTensor, Ops};
use tilewright_plan::Dtype;

use super::{EncoderConfig, encoder_layers::Past, encoder_network::EncoderNetwork};
use crate::{HalfConfig, Pass, Result, metered};

/// A clip that is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EncoderExtent {
    /// Frames of the clip that are encoded: 1, and any multiple of the temporal scale.
    pub frames: u32,
    /// Pixels.
    pub height: u32,
    /// Pixels.
    pub width: u32,
}

/// Pushes after which the causal state grows no more.
const SETTLED: u32 = 3;

/// The cost of an encode, push by push with the state before each kept to go back to. The peak
/// counts both states, and not the frames, which others hold.
///
/// # Errors
/// The architecture's widths don't go together.
pub(super) fn push_by_push(
    config: &EncoderConfig,
    network: &EncoderNetwork<Meter>,
    meter: &Meter,
    extent: &EncoderExtent,
) -> Result<Pass> {
    let scale = config.temporal_scale().max(1);
    let later = extent.frames.saturating_sub(1) / scale;
    let (mut past, mut cost) = (Past::default(), Pass::default());
    let mut last = 0.0;
    let pushes = if meter.counts_layers() { later } else { later.min(SETTLED) };
    for push in 0..=pushes {
        let count = if push == 0 { 1 } else { i64::from(scale) };
        let frames = config.frames_on(meter, count, [extent.height, extent.width])?;
        meter.reset_peak();
        let before = meter.seconds();
        let mut next = past.snapshot(MeterTensor::clone);
        network.push(meter, &mut next, &frames, count, &[], &mut |_| Ok(()))?;
        past = next;
        cost.peak_bytes = cost.peak_bytes.max(meter.peak_bytes());
        last = meter.seconds() - before;
        cost.seconds += last;
    }
    cost.seconds += last * f64::from(later - pushes);
    cost.state_bytes = past.frames.iter().flatten().map(MeterTensor::bytes).sum();
    Ok(cost)
}

impl EncoderConfig {
    /// Frames [1, C, T, H, W] whose bytes are not counted, frame after frame.
    fn frames_on(&self, meter: &Meter, count: i64, [height, width]: [u32; 2]) -> Result<MeterTensor> {
        let shape = [1, count, self.image_channels as i64, i64::from(height), i64::from(width)];
        Ok(meter.transpose(&meter.input(&shape, Dtype::F32)?, 1, 2)?)
    }
}

/// Latent pixels along a side of the frames that shares are taken from.
const SIDE: u32 = 8;

/// The share of the work that each layer is, in the order that they run; adds up to 1.
///
/// # Errors
/// The architecture's widths don't go together.
pub(super) fn shares(config: &EncoderConfig) -> Result<Vec<f64>> {
    let meter = metered::counting_products();
    let network = metered::build(&meter, |scope| config.build(scope))?.network;
    let (mut past, mut ends) = (Past::default(), Vec::new());
    // The first frame comes alone; those of the second push stand for all others.
    for count in [1, i64::from(config.temporal_scale())] {
        ends = vec![meter.seconds()];
        let mut step = |_| {
            ends.push(meter.seconds());
            Ok(())
        };
        let frames = config.frames_on(&meter, count, [SIDE * config.spatial_scale(); 2])?;
        network.push(&meter, &mut past, &frames, count, &[], &mut step)?;
    }
    Ok(metered::shares(&ends))
}
