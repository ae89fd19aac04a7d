//! An encoder's architecture, read off the tensors' names and shapes like the decoder's.

use std::sync::OnceLock;

use serde::Serialize;
use tilewright_nn::{CausalOps, Meter, Scope};

use super::{USUAL_GROUPS, config_file, sound};
use crate::{
    Checkpoint, Error, HalfConfig, Identity, Kind, Pass, Result,
    kl::{
        encoder_network::EncoderNetwork,
        metered::{self, Extent},
    },
    known::{Half, Known},
};

/// One down block: `layers` residual layers, then half the size if it is not the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DownBlock {
    /// Channels of its output.
    pub channels: usize,
    /// Residual layers.
    pub layers: usize,
    /// Halves height and width at its end.
    pub downsamples: bool,
}

/// An encoder's architecture. The latents' scaling is in [`super::Config`], of the same file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EncoderConfig {
    /// Channels of the picture.
    pub image_channels: usize,
    /// Channels of the latent.
    pub latent_channels: usize,
    /// Channels that the first down block gets.
    pub first_channels: usize,
    /// From the picture to the latent.
    pub down_blocks: Vec<DownBlock>,
    /// Channels of the middle block.
    pub middle_channels: usize,
    /// Residual layers of the middle block.
    pub middle_layers: usize,
    /// An attention stands after the middle's first residual layer.
    pub middle_attention: bool,
    /// Groups of every norm.
    pub norm_groups: usize,
    /// A 1×1 convolution stands after the encoder.
    pub quant: bool,
}

impl EncoderConfig {
    /// Checks that pictures [N, C, H, W] of a shape can be encoded, and returns the four extents.
    ///
    /// # Errors
    /// [`Error::Picture`] if they can't.
    pub fn check_shape(&self, shape: &[i64]) -> Result<[i64; 4]> {
        let refused = |reason: String| Err(Error::Picture { reason });
        let [batch, channels, height, width] = *shape else {
            return refused(format!("a tensor of shape {shape:?} is no pictures: [N, C, H, W] is expected"));
        };
        if channels != self.image_channels as i64 {
            return refused(format!("the picture has {channels} channels, the VAE takes {}", self.image_channels));
        }
        let scale = i64::from(self.spatial_scale());
        if batch < 1 || height < 1 || width < 1 || height % scale != 0 || width % scale != 0 {
            return refused(format!(
                "{batch} pictures of {width}×{height} pixels can't be encoded: the sides have to be multiples of {scale}"
            ));
        }
        Ok([batch, channels, height, width])
    }

    /// Pixels per latent pixel.
    pub fn spatial_scale(&self) -> u32 {
        1 << self.down_blocks.iter().filter(|block| block.downsamples).count().min(16)
    }
}

impl HalfConfig for EncoderConfig {
    const HALF: Half = Half::Encoder;
    const KIND: Kind = Kind::KlAutoencoder;

    type Network<O: CausalOps> = EncoderNetwork<O>;
    /// Each layer's share of the work, in the order that they run; they add up to 1.
    type Course = Vec<f64>;
    type Extent = Extent;

    fn read(file: &Checkpoint, identity: &Identity) -> Result<Self> {
        let refused = |reason: String| Error::Unknown { path: file.path().to_owned(), reason };
        let names = Known::of_encoder(file, identity, Kind::KlAutoencoder)?;
        let first = [("encoder.conv_in.weight", 0), ("encoder.conv_in.bias", 0)];
        let first_channels =
            names.extent(first).ok_or_else(|| names.missing("encoder.conv_in.weight", &[128, 3, 3, 3]))?;
        let mut down_blocks = Vec::new();
        let mut into = first_channels;
        for block in (0..).map(|block| format!("encoder.down_blocks.{block}")).take_while(|block| names.has(block)) {
            let layers = names.count(&format!("{block}.resnets"));
            let channels = names.resnet_channels(&format!("{block}.resnets.0"), into, &[3, 3])?;
            into = channels;
            down_blocks.push(DownBlock { channels, layers, downsamples: names.has(&format!("{block}.downsamplers")) });
        }
        if down_blocks.is_empty() {
            let first = "encoder.down_blocks.0.resnets.0.conv1.weight";
            return Err(names.missing(first, &[into, into, 3, 3]));
        }
        let middle = ["norm1.weight", "conv1.weight", "conv2.weight"];
        let middle = middle.map(|part| format!("encoder.mid_block.resnets.0.{part}"));
        let out = [("quant_conv.weight", 0), ("quant_conv.bias", 0), ("encoder.conv_out.weight", 0)];
        let out = names.extent(out.into_iter().chain([("encoder.conv_out.bias", 0)]));
        let out = out.ok_or_else(|| names.missing("encoder.conv_out.weight", &[32, into, 3, 3]))?;
        // Mean and logarithm of the variance.
        if out % 2 != 0 {
            return Err(refused(format!("the encoder ends in {out} channels: mean and variance have as many each")));
        }
        let middle_layers = names.count("encoder.mid_block.resnets");
        let config = Self {
            image_channels: names.extent([("encoder.conv_in.weight", 1)]).unwrap_or(3),
            latent_channels: out / 2,
            first_channels,
            down_blocks,
            middle_channels: names.extent(middle.iter().map(|name| (name.as_str(), 0))).unwrap_or(into),
            // The network has two at least; if the file has fewer, they are missing.
            middle_layers: middle_layers.max(2),
            middle_attention: names.has("encoder.mid_block.attentions.0"),
            norm_groups: config_file(file, identity)?.norm_num_groups.unwrap_or(USUAL_GROUPS),
            quant: names.has("quant_conv"),
        };
        let normed = std::iter::once(first_channels)
            .chain(config.down_blocks.iter().map(|block| block.channels))
            .chain([config.middle_channels]);
        sound(normed.collect(), [config.latent_channels, config.image_channels], config.norm_groups)
            .map_err(refused)?;
        Ok(config)
    }

    fn scales(&self) -> [u32; 2] {
        [self.spatial_scale(), 1]
    }

    fn attention_width(&self) -> Option<usize> {
        self.middle_attention.then_some(self.middle_channels)
    }

    fn build<O: CausalOps>(&self, scope: &Scope<'_, O>) -> Result<EncoderNetwork<O>> {
        EncoderNetwork::build(scope, self)
    }

    fn course(&self) -> Result<Vec<f64>> {
        metered::encoder_shares(self)
    }

    fn pass(
        &self,
        network: &EncoderNetwork<Meter>,
        meter: &Meter,
        extent: &Extent,
        _: &OnceLock<Vec<f64>>,
    ) -> Result<Pass> {
        metered::encode(self, network, meter, extent)
    }
}
