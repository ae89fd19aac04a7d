//! Passes on a meter: the bytes that they hold, and the time that they take on a measured device.

use std::sync::OnceLock;

use tilewright_kernels::{Kernels, Measured};
use tilewright_nn::{ComputeFormat, Costs, Meter, MeterTensor, Ops, PlanFormat};
use tilewright_plan::Dtype;

use super::{Config, EncoderConfig, decoder_network::DecoderNetwork, encoder_network::EncoderNetwork};
use crate::{
    Result,
    metered::{self, Built, Remembered},
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

/// The cost of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    /// The most bytes held at once, output included, input and weights aside.
    pub peak_bytes: u64,
    /// The time that it takes.
    pub seconds: f64,
}

impl Pass {
    /// More than there is of anything.
    const ENDLESS: Self = Self { peak_bytes: u64::MAX / 4, seconds: f64::INFINITY };
}

/// A network that can be metered, and the formats that a device was measured in.
#[derive(Debug)]
pub struct Metered {
    architecture: Architecture,
    /// The upsamplings that hold their pictures in bands.
    kept: OnceLock<Vec<bool>>,
    formats: Vec<Format>,
    /// By the format's place in the list.
    passes: Remembered<(usize, Extent), Pass>,
}

#[derive(Debug)]
enum Architecture {
    Decoder(Config),
    Encoder(EncoderConfig),
}

/// A format on a meter.
#[derive(Debug)]
struct Format {
    format: PlanFormat,
    compute: ComputeFormat,
    costs: Costs,
    /// Built when it is first asked for.
    network: OnceLock<Option<Built<Network>>>,
}

#[derive(Debug)]
enum Network {
    Decoder(DecoderNetwork<Meter>),
    Encoder(EncoderNetwork<Meter>),
}

impl Config {
    /// Decodes on a device that was measured.
    pub fn meter(&self, measured: &Measured, kernels: &Kernels) -> Metered {
        Metered::new(Architecture::Decoder(self.clone()), measured, kernels)
    }
}

impl EncoderConfig {
    /// Encodes on a device that was measured.
    pub fn meter(&self, measured: &Measured, kernels: &Kernels) -> Metered {
        Metered::new(Architecture::Encoder(self.clone()), measured, kernels)
    }
}

impl Metered {
    fn new(architecture: Architecture, measured: &Measured, kernels: &Kernels) -> Self {
        let mut formats = Vec::new();
        for speed in &measured.speeds {
            for format in PlanFormat::all(speed.dtype, speed.layout, kernels) {
                let Ok(compute) = format.compute() else { continue };
                let costs = Costs::new(speed, measured, kernels);
                formats.push(Format { format, compute, costs, network: OnceLock::new() });
            }
        }
        Self { architecture, kept: OnceLock::new(), formats, passes: Remembered::default() }
    }

    /// The formats that passes can run in.
    pub fn formats(&self) -> impl Iterator<Item = PlanFormat> {
        self.formats.iter().map(|format| format.format)
    }

    /// The cost of a pass; none if the device was not measured in the format. The cost of an equal
    /// pass is remembered.
    pub fn pass(&self, format: PlanFormat, extent: &Extent) -> Option<Pass> {
        let place = self.formats.iter().position(|known| known.format == format)?;
        self.passes.get(&(place, *extent), || self.meter(&self.formats[place], extent).ok_or(())).ok()
    }

    /// Bytes of the weights as they are laid out; none if the device was not measured in the
    /// format.
    pub fn weight_bytes(&self, format: PlanFormat) -> Option<u64> {
        let format = self.formats.iter().find(|known| known.format == format)?;
        Some(format.built(&self.architecture, &Meter::new(format.compute, format.costs))?.weight_bytes)
    }

    fn meter(&self, format: &Format, extent: &Extent) -> Option<Pass> {
        let meter = Meter::new(format.compute, format.costs);
        let network = &format.built(&self.architecture, &meter)?.network;
        if f64::from(extent.batch) * f64::from(extent.height) * f64::from(extent.width) > MOST_PIXELS {
            return Some(Pass::ENDLESS);
        }
        let input = input(&meter, self.architecture.input(extent)).ok()?;
        let mut track = |_| Ok(());
        let output = match network {
            Network::Decoder(network) => {
                let kept = self.kept.get_or_init(|| self.architecture.held_pictures().unwrap_or_default());
                network.forward(&meter, input, extent.band, kept, &mut track)
            }
            Network::Encoder(network) => network.forward(&meter, input, &mut track),
        };
        drop(output.ok()?);
        Some(Pass { peak_bytes: meter.peak_bytes(), seconds: meter.seconds() })
    }
}

impl Format {
    /// The network, built on a meter that has built none before.
    fn built(&self, architecture: &Architecture, meter: &Meter) -> Option<&Built<Network>> {
        self.network.get_or_init(|| architecture.build(meter).ok()).as_ref()
    }
}

impl Architecture {
    fn build(&self, meter: &Meter) -> Result<Built<Network>> {
        metered::build(meter, |scope| {
            Ok(match self {
                Architecture::Decoder(config) => Network::Decoder(DecoderNetwork::build(scope, config)?),
                Architecture::Encoder(config) => Network::Encoder(EncoderNetwork::build(scope, config)?),
            })
        })
    }

    fn held_pictures(&self) -> Result<Vec<bool>> {
        match self {
            Architecture::Decoder(config) => held_pictures(config),
            Architecture::Encoder(_) => Ok(Vec::new()),
        }
    }

    /// The extents of the input.
    fn input(&self, extent: &Extent) -> [i64; 4] {
        let (channels, scale) = match self {
            Architecture::Decoder(config) => (config.latent_channels, config.spatial_scale()),
            Architecture::Encoder(config) => (config.image_channels, 1),
        };
        let along = |pixels: u32| i64::from(pixels.div_ceil(scale));
        [i64::from(extent.batch), channels as i64, along(extent.height), along(extent.width)]
    }
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
    use tilewright_kernels::{Rate, Scratch, Speed};
    use tilewright_plan::{Backend, Layout, Precision};

    use super::*;
    use crate::{Family, kl::config::UpBlock};

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
            norm_bytes_per_second: None,
            scratch: Scratch::default(),
        };
        Measured {
            speeds: vec![speed],
            bytes_per_second: 1e10,
            transfer_bytes_per_second: None,
            backend: Backend::Cpu,
            hurried: false,
            disturbed: false,
            int8_per_product: None,
        }
    }

    #[test]
    fn bands_hold_less_and_take_longer() {
        let config = config(4, &[64, 64, 32], 2);
        let metered = config.meter(&measured(), &Kernels::default());
        let format = |layout| PlanFormat { precision: Precision::Uniform(Dtype::F32), layout, is_direct: false };
        let first = format(Layout::ChannelsFirst);
        let pass = |band| {
            let extent = Extent { batch: 1, height: 512, width: 512, band };
            metered.pass(first, &extent).unwrap()
        };
        let (whole, banded) = (pass(None), pass(Some(64)));
        assert!(banded.peak_bytes < whole.peak_bytes && banded.seconds > whole.seconds, "{banded:?} {whole:?}");
        assert_eq!(pass(Some(64)), banded);
        assert_eq!(metered.passes.count(), 2, "equal passes are metered once");
        let extent = Extent { batch: 1, height: 512, width: 512, band: None };
        assert_eq!(metered.pass(format(Layout::ChannelsLast), &extent), None);
        let endless = Extent { batch: u32::MAX, height: u32::MAX, width: u32::MAX, band: Some(8) };
        assert_eq!(metered.pass(first, &endless), Some(Pass::ENDLESS));
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
