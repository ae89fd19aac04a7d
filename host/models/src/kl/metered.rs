//! Passes on a meter: the bytes that they hold, and the time that they take.

use std::sync::OnceLock;

use tilewright_nn::{Costs, Meter, MeterTensor, Ops};
use tilewright_plan::Dtype;

use super::{Config, EncoderConfig, decoder_network::DecoderNetwork, encoder_network::EncoderNetwork};
use crate::{
    HalfConfig, Pass, Result, metered,
    progress::{Step, Track},
};

/// More pixels than any memory holds. A pass of more is not counted layer by layer.
const MOST_PIXELS: f64 = (1_u64 << 40) as f64;

/// The pictures or tiles that are decoded or encoded at once, in pixels of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Samples or tiles.
    pub batch: u32,
    /// Pixels.
    pub height: u32,
    /// Pixels.
    pub width: u32,
    /// Rows of a band, if the picture goes through the network in bands.
    pub band: Option<u32>,
}

/// A decode on a meter.
pub(super) fn decode(
    config: &Config,
    network: &DecoderNetwork<Meter>,
    meter: &Meter,
    extent: &Extent,
    course: &OnceLock<Course>,
) -> Result<Pass> {
    pass(meter, extent, config.latent_channels, config.spatial_scale(), |latents| {
        let kept = &course.get_or_init(|| config.course().unwrap_or_default()).kept;
        network.forward(meter, latents, extent.band, kept, &mut |_| Ok(()))
    })
}

/// An encode on a meter.
pub(super) fn encode(
    config: &EncoderConfig,
    network: &EncoderNetwork<Meter>,
    meter: &Meter,
    extent: &Extent,
) -> Result<Pass> {
    pass(meter, extent, config.image_channels, 1, |pictures| network.forward(meter, pictures, &mut |_| Ok(())))
}

/// A pass of an input that has these channels, and a pixel for `scale` pixels of the picture.
fn pass(
    meter: &Meter,
    extent: &Extent,
    channels: usize,
    scale: u32,
    forward: impl FnOnce(MeterTensor) -> Result<MeterTensor>,
) -> Result<Pass> {
    if f64::from(extent.batch) * f64::from(extent.height) * f64::from(extent.width) > MOST_PIXELS {
        return Ok(Pass::ENDLESS);
    }
    let along = |pixels: u32| i64::from(pixels.div_ceil(scale));
    let shape = [i64::from(extent.batch), channels as i64, along(extent.height), along(extent.width)];
    drop(forward(input(meter, shape)?)?);
    Ok(Pass { peak_bytes: meter.peak_bytes(), state_bytes: 0, seconds: meter.seconds() })
}

/// A contiguous input in f32 whose bytes are not counted.
fn input(meter: &Meter, [batch, channels, height, width]: [i64; 4]) -> Result<MeterTensor> {
    let rows = meter.input(&[batch, channels.saturating_mul(height), width], Dtype::F32)?;
    Ok(meter.reshape(&rows, &[batch, channels, height, width])?)
}

/// The side of a latent that shares are taken from.
const SMALL: i64 = 8;

/// Each layer's share of a pass by its products.
fn shares(meter: &Meter, forward: impl FnOnce(&mut Track<'_>) -> Result<MeterTensor>) -> Result<Vec<f64>> {
    let mut ends = vec![0.0];
    let mut track = |step| {
        if step == Step::Layer {
            ends.push(meter.seconds());
        }
        Ok(())
    };
    drop(forward(&mut track)?);
    Ok(metered::shares(&ends))
}

/// The facts that a decode needs of its architecture.
#[derive(Clone, Debug, Default)]
pub struct Course {
    /// Each layer's share of the work, in the order that they run; they add up to 1.
    pub shares: Vec<f64>,
    /// The upsamplings that hold their pictures in bands.
    pub kept: Vec<bool>,
}

/// The share of a decode's work that each layer is, in the order that they run; adds up to 1.
pub(super) fn decoder_shares(config: &Config) -> Result<Vec<f64>> {
    let meter = metered::counting_products();
    let network = metered::build(&meter, |scope| DecoderNetwork::build(scope, config))?.network;
    let latents = input(&meter, [1, config.latent_channels as i64, SMALL, SMALL])?;
    shares(&meter, |track| network.forward(&meter, latents, None, &[], track))
}

/// The share of an encode's work that each layer is, in the order that they run; adds up to 1.
pub(super) fn encoder_shares(config: &EncoderConfig) -> Result<Vec<f64>> {
    let meter = metered::counting_products();
    let network = metered::build(&meter, |scope| EncoderNetwork::build(scope, config))?.network;
    let side = SMALL * i64::from(config.spatial_scale());
    let pictures = input(&meter, [1, config.image_channels as i64, side, side])?;
    shares(&meter, |track| network.forward(&meter, pictures, track))
}

/// For each upsampling, true if a decode in bands holds the picture that comes out. It does unless
/// the decode would hold less without: a picture that is not held is computed twice.
pub(super) fn held_pictures(config: &Config) -> Result<Vec<bool>> {
    /// The side of a latent next to which a band of few rows is nothing.
    const LARGE: i64 = 256;
    /// More than any network has; their pictures fit no memory.
    const MOST_DOUBLINGS: usize = 8;

    let (network, _) = metered::list_weights(|scope| DecoderNetwork::build(scope, config))?;
    let peak = |kept: &[bool]| -> Result<u64> {
        let meter = metered::plain(Costs::default());
        let latents = input(&meter, [1, config.latent_channels as i64, LARGE, LARGE])?;
        drop(network.forward(&meter, latents, Some(1), kept, &mut |_| Ok(()))?);
        Ok(meter.peak_bytes())
    };
    // A picture is computed again by the residual layer that follows.
    let follows = |index: usize| config.up_blocks.get(index + 1).is_some_and(|block| block.layers > 0);
    let doubling = config.up_blocks.iter().enumerate().filter(|(_, block)| block.upsamples);
    let followed: Vec<bool> = doubling.map(|(index, _)| follows(index)).collect();
    let mut kept = vec![true; followed.len()];
    if followed.len() > MOST_DOUBLINGS {
        return Ok(kept);
    }
    let mut least = peak(&kept)?;
    for place in (0..followed.len()).rev().filter(|place| followed[*place]) {
        kept[place] = false;
        let without = peak(&kept)?;
        kept[place] = without >= least;
        least = least.min(without);
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use tilewright_kernels::{Kernels, Measured, Rate, Scratch, Speed};
    use tilewright_nn::PlanFormat;
    use tilewright_plan::{Backend, Layout, Precision};

    use super::*;
    use crate::{Family, Metered, kl::config::UpBlock};

    fn config(latent_channels: usize, widths: &[usize], layers: usize) -> Config {
        let last = widths.len() - 1;
        let block = |(index, &channels): (usize, &usize)| UpBlock { channels, layers, upsamples: index < last };
        Config {
            family: Family::Kl,
            latent_channels,
            image_channels: 3,
            middle_channels: widths[0],
            up_blocks: widths.iter().enumerate().map(block).collect(),
            norm_groups: 8,
            post_quant: latent_channels == 4,
            middle_attention: true,
            middle_layers: 2,
            scaling: None,
            shift: 0.0,
            sample_size: None,
        }
    }

    #[test]
    fn only_the_largest_upsampled_picture_is_computed_twice() {
        // Stable Diffusion 1 to XL; 3 and Flux; those of the fixtures.
        for (latent, widths, layers, expected) in [
            (4, &[512, 512, 256, 128][..], 3, &[true, true, false][..]),
            (16, &[512, 512, 256, 128], 3, &[true, true, false]),
            (16, &[32, 32, 16, 8], 3, &[true, true, false]),
            (16, &[64, 64, 32, 16], 3, &[true, true, false]),
            (4, &[64, 64, 32], 2, &[true, false]),
            (4, &[40, 40, 24], 2, &[true, false]),
        ] {
            assert_eq!(held_pictures(&config(latent, widths, layers)).unwrap(), expected, "{widths:?}");
        }
    }

    fn measured() -> Measured {
        let speed = Speed {
            dtype: Dtype::F32,
            layout: Layout::ChannelsFirst,
            flops_per_second: 1e11,
            plain: Rate { per_product: 2e-11, per_value: 0.0 },
            winograd: None,
            attention_flops_per_second: 1e11,
            fused_attention: true,
            heads: None,
            norm_bytes_per_second: None,
            scratch: Scratch::default(),
        };
        Measured {
            speeds: vec![speed],
            bytes_per_second: 1e10,
            transfer_bytes_per_second: None,
            backend: Backend::Cpu,
            miopen: None,
            hurried: false,
            disturbed: false,
            int8_per_product: None,
            fp8_per_product: None,
            large_convolutions: false,
            expansion: None,
        }
    }

    #[test]
    fn bands_hold_less_and_take_longer() {
        let config = config(4, &[64, 64, 32], 2);
        let metered = Metered::new(&config, &measured(), &Kernels::default());
        let format = |layout| PlanFormat { precision: Precision::Uniform(Dtype::F32), layout, is_direct: false };
        let first = format(Layout::ChannelsFirst);
        let pass = |band| {
            let extent = Extent { batch: 1, height: 512, width: 512, band };
            metered.pass(first, &extent).unwrap()
        };
        let (whole, banded) = (pass(None), pass(Some(64)));
        assert!(banded.peak_bytes < whole.peak_bytes && banded.seconds > whole.seconds, "{banded:?} {whole:?}");
        assert_eq!(pass(Some(64)), banded);
        assert_eq!(metered.count(), 2, "equal passes are metered once");
        let extent = Extent { batch: 1, height: 512, width: 512, band: None };
        assert!(metered.pass(format(Layout::ChannelsLast), &extent).is_err());
        let endless = Extent { batch: u32::MAX, height: u32::MAX, width: u32::MAX, band: Some(8) };
        assert_eq!(metered.pass(first, &endless), Ok(Pass::ENDLESS));
    }

    #[test]
    fn layers_shares_add_up_to_all() {
        let config = config(4, &[64, 64, 32], 2);
        let shares = decoder_shares(&config).unwrap();
        // conv_in, three in the middle, 6 residual layers, 2 upsamplings and conv_out.
        assert_eq!(shares.len(), 13);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9 && shares.iter().all(|share| *share > 0.0));
    }
}
