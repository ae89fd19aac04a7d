//! A video decoder's architecture, read off the tensors' names and shapes.

use std::sync::OnceLock;

use serde::Serialize;
use tilewright_nn::{CausalOps, Meter, Scope};

use super::{
    EncoderConfig, Extent,
    cost::{Decode, step_products},
    network::Network,
    statistics,
};
use crate::{
    Checkpoint, DecoderConfig, Error, Family, HalfConfig, Identity, Kind, Pass, Result, Scaling,
    known::{Half, Known, check_channels},
};

/// Most output pixels, or frames, per latent pixel or frame.
const MOST_SCALE: u32 = 1 << 8;

/// The end of an up block that is not the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Upsample {
    /// Channels of its output.
    pub channels: usize,
    /// Doubles the frames too: all but the first frame of a clip become two.
    pub temporal: bool,
}

/// One up block: `layers` residual layers, then twice the height and width, and perhaps twice the
/// frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UpBlock {
    /// Channels of its input.
    pub into: usize,
    /// Channels of its residual layers.
    pub channels: usize,
    /// Residual layers.
    pub layers: usize,
    /// The block's end, unless it is the last block.
    pub upsample: Option<Upsample>,
    /// The block's input, its channels repeated and laid out in space and time, is added to its
    /// output (WAN 2.2).
    pub duplicated: bool,
}

/// A decoder's architecture and its latents' scaling.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// WAN 2.1 or 2.2.
    pub family: Family,
    /// Channels of the latent.
    pub latent_channels: usize,
    /// Channels of the middle block: two residual layers with an attention between them.
    pub middle_channels: usize,
    /// From the latent to the picture.
    pub up_blocks: Vec<UpBlock>,
    /// Channels of the last convolution: those of the picture, times the patch's pixels.
    pub out_channels: usize,
    /// Side of the squares of output pixels that leave the network as channels; 1 in WAN 2.1.
    pub patch: usize,
    /// Channels of the picture.
    pub image_channels: usize,
    /// Per latent channel, undone by `z · std + mean`; none if the file is of another width than
    /// the published.
    pub latents_mean: Option<Vec<f64>>,
    /// See [`Self::latents_mean`].
    pub latents_std: Option<Vec<f64>>,
}

/// A picture's channels as they leave the network: their number, the patch's side, the picture's
/// own.
const PATCHES: [(usize, usize, usize); 3] = [(3, 1, 3), (4, 1, 4), (12, 2, 3)];

/// The patch's side and the picture's channels for `channels` channels of the network.
pub(super) fn patch(channels: usize) -> Option<(usize, usize)> {
    PATCHES.iter().find(|row| row.0 == channels).map(|row| (row.1, row.2))
}

/// A tensor's name and the axis that an extent is read from.
pub(super) fn at(name: &str, axis: usize) -> (String, usize) {
    (name.to_owned(), axis)
}

impl Config {
    fn read_block(known: &Known<'_>, family: Family, index: usize, into: usize) -> Result<UpBlock> {
        let name = format!("decoder.up_blocks.{index}");
        let channels = known.resnet_channels(&format!("{name}.resnets.0"), into, &[3, 3, 3])?;
        let end = format!("{name}.upsamplers.0");
        let next = format!("decoder.up_blocks.{}.resnets.0", index + 1);
        let upsample = known.has(&end).then(|| {
            let widths = [
                at(&format!("{end}.resample.1.weight"), 0),
                at(&format!("{end}.resample.1.bias"), 0),
                at(&format!("{next}.norm1.gamma"), 0),
                at(&format!("{next}.conv1.weight"), 1),
            ];
            Upsample {
                channels: known.extent(widths).unwrap_or(channels),
                temporal: known.has(&format!("{end}.time_conv")),
            }
        });
        Ok(UpBlock {
            into,
            channels,
            layers: known.count(&format!("{name}.resnets")),
            upsample,
            duplicated: family == Family::Wan22 && upsample.is_some(),
        })
    }

    /// The fault of the architecture, if it has one.
    fn check(&self) -> std::result::Result<(), String> {
        let blocks = self.up_blocks.iter();
        let widths = blocks.flat_map(|block| [Some(block.channels), block.upsample.map(|upsample| upsample.channels)]);
        check_channels(widths.flatten().chain([self.middle_channels, self.latent_channels]))?;
        if self.spatial_scale() > MOST_SCALE || self.temporal_scale() > MOST_SCALE {
            return Err(format!("{} up blocks are nonsense", self.up_blocks.len()));
        }
        for (block, upsample) in self.up_blocks.iter().filter_map(|block| Some((block, block.upsample?))) {
            let copies = upsample.channels * if upsample.temporal { 8 } else { 4 };
            if block.duplicated && (upsample.channels != block.channels || !copies.is_multiple_of(block.into)) {
                return Err(format!(
                    "an up block from {} to {} channels can't add its input to its output",
                    block.into, upsample.channels
                ));
            }
        }
        Ok(())
    }

    /// Output pixels per latent pixel.
    pub fn spatial_scale(&self) -> u32 {
        self.patch as u32 * (1 << self.up_blocks.iter().filter(|block| block.upsample.is_some()).count().min(16))
    }

    /// Output frames per latent frame, the first aside, which gives one.
    pub fn temporal_scale(&self) -> u32 {
        let temporal = |block: &&UpBlock| block.upsample.is_some_and(|upsample| upsample.temporal);
        1 << self.up_blocks.iter().filter(temporal).count().min(16)
    }

    /// Output frames of `latent_frames` latent frames.
    pub fn frames(&self, latent_frames: u32) -> u32 {
        1 + latent_frames.saturating_sub(1) * self.temporal_scale()
    }
}

impl HalfConfig for Config {
    const HALF: Half = Half::Decoder;
    const KIND: Kind = Kind::VideoAutoencoder;

    type Network<O: CausalOps> = Network<O>;
    /// The products of each step per frame of its input.
    type Course = Vec<f64>;
    type Extent = Extent;

    fn read(file: &Checkpoint, identity: &Identity) -> Result<Self> {
        let known = Known::of(file, identity, Kind::VideoAutoencoder)?;
        let missing = |name: &str, shape: &[usize]| known.missing(name, shape);
        let middle = "decoder.mid_block";
        let middle_channels = [
            at("decoder.conv_in.weight", 0),
            at("decoder.conv_in.bias", 0),
            at(&format!("{middle}.resnets.0.norm1.gamma"), 0),
            at(&format!("{middle}.resnets.0.conv1.weight"), 0),
            at(&format!("{middle}.attentions.0.norm.gamma"), 0),
            at(&format!("{middle}.resnets.1.norm1.gamma"), 0),
        ];
        let middle_channels =
            known.extent(middle_channels).ok_or_else(|| missing("decoder.conv_in.weight", &[384, 16, 3, 3, 3]))?;
        let latent = [
            at("decoder.conv_in.weight", 1),
            at("post_quant_conv.weight", 0),
            at("post_quant_conv.weight", 1),
            at("post_quant_conv.bias", 0),
        ];
        let latent_channels =
            known.extent(latent).ok_or_else(|| missing("decoder.conv_in.weight", &[middle_channels, 16, 3, 3, 3]))?;
        let mut up_blocks = Vec::new();
        let mut into = middle_channels;
        for index in 0..known.count("decoder.up_blocks") {
            let block = Self::read_block(&known, identity.family, index, into)?;
            into = block.upsample.map_or(block.channels, |upsample| upsample.channels);
            up_blocks.push(block);
        }
        if up_blocks.is_empty() {
            let shape = [middle_channels, middle_channels, 3, 3, 3];
            return Err(missing("decoder.up_blocks.0.resnets.0.conv1.weight", &shape));
        }
        let ends = [at("decoder.conv_out.weight", 0), at("decoder.conv_out.bias", 0)];
        let out_channels = known.extent(ends).ok_or_else(|| missing("decoder.conv_out.weight", &[3, into, 3, 3, 3]))?;
        let refused = |reason| Error::Unknown { path: file.path().to_owned(), reason };
        let (patch, image_channels) = patch(out_channels).ok_or_else(|| {
            refused(format!(
                "the decoder ends in {out_channels} channels: pictures have 3 or 4, or 12 where each is four pixels"
            ))
        })?;
        let (latents_mean, latents_std) = statistics::read(file, identity, latent_channels)?.unzip();
        let config = Self {
            family: identity.family,
            latent_channels,
            middle_channels,
            up_blocks,
            out_channels,
            patch,
            image_channels,
            latents_mean,
            latents_std,
        };
        config.check().map_err(refused)?;
        Ok(config)
    }

    fn scales(&self) -> [u32; 2] {
        [self.spatial_scale(), self.temporal_scale()]
    }

    fn attention_width(&self) -> Option<usize> {
        Some(self.middle_channels)
    }

    fn build<O: CausalOps>(&self, scope: &Scope<'_, O>) -> Result<Network<O>> {
        Network::build(scope, self)
    }

    fn course(&self) -> Result<Vec<f64>> {
        step_products(self)
    }

    fn pass(&self, network: &Network<Meter>, meter: &Meter, extent: &Extent, _: &OnceLock<Vec<f64>>) -> Result<Pass> {
        Decode::new(self, network, meter, extent)?.cost()
    }
}

impl DecoderConfig for Config {
    type Encoder = EncoderConfig;

    fn family(&self) -> Family {
        self.family
    }

    fn latent_channels(&self) -> usize {
        self.latent_channels
    }

    fn scaling(&self) -> Option<Scaling> {
        let (mean, std) = (self.latents_mean.clone()?, self.latents_std.clone()?);
        Some(Scaling::PerChannel { mean, std })
    }
}
