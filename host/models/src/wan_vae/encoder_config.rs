//! A video encoder's architecture, read off the tensors' names and shapes.

use std::sync::OnceLock;

use serde::Serialize;
use tilewright_nn::{CausalOps, Meter, Scope};

use super::{
    EncoderExtent,
    config::{at, patch},
    encoder_cost,
    encoder_network::EncoderNetwork,
    layers::SquareOrder,
};
use crate::{
    Checkpoint, Error, Family, HalfConfig, Identity, Kind, Pass, Result,
    known::{Half, Known, check_channels},
};

/// The end of a down block that is not the last: half the height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Downsample {
    /// Halves the frames too: all but the first frame of a clip become one for two.
    pub temporal: bool,
}

/// One down block: `layers` residual layers, then half the height and width, and perhaps half the
/// frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DownBlock {
    /// Channels of its input.
    pub into: usize,
    /// Channels of its output.
    pub channels: usize,
    /// Residual layers.
    pub layers: usize,
    /// The block's end, unless it is the last block.
    pub downsample: Option<Downsample>,
    /// The block's input, averaged over neighbours and channels, is added to its output (WAN 2.2).
    pub averaged: bool,
}

/// An encoder's architecture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EncoderConfig {
    /// Channels of the picture.
    pub image_channels: usize,
    /// Side of the squares of pixels that enter the network as channels; 1 in WAN 2.1.
    pub patch: usize,
    /// Channels of the first convolution's input: those of the picture, times the patch's pixels.
    pub in_channels: usize,
    /// Channels of the first convolution's output.
    pub first_channels: usize,
    /// From the picture to the latent.
    pub down_blocks: Vec<DownBlock>,
    /// Channels of the latent.
    pub latent_channels: usize,
}

impl EncoderConfig {
    fn read_block(known: &Known<'_>, family: Family, index: usize, into: usize) -> Result<DownBlock> {
        let name = format!("encoder.down_blocks.{index}");
        let channels = known.resnet_channels(&format!("{name}.resnets.0"), into, &[3, 3, 3])?;
        let end = format!("{name}.downsampler");
        let downsample = known.has(&end).then(|| Downsample { temporal: known.has(&format!("{end}.time_conv")) });
        let layers = known.count(&format!("{name}.resnets"));
        Ok(DownBlock { into, channels, layers, downsample, averaged: family == Family::Wan22 })
    }

    /// The fault of the architecture, if it has one.
    fn check(&self, moments: usize) -> std::result::Result<(), String> {
        let widths = self.down_blocks.iter().map(|block| block.channels);
        check_channels(widths.chain([self.first_channels, moments / 2]))?;
        if !moments.is_multiple_of(2) {
            return Err(format!("the encoder ends in {moments} channels: means and deviations are equally many"));
        }
        if self.down_blocks.iter().filter(|block| block.downsample.is_some()).count() > 8 {
            return Err(format!("{} down blocks are nonsense", self.down_blocks.len()));
        }
        match self
            .down_blocks
            .iter()
            .find(|block| block.averaged && !(block.into * block.factor()).is_multiple_of(block.channels))
        {
            Some(block) => Err(format!(
                "a down block from {} to {} channels can't add its input to its output",
                block.into, block.channels
            )),
            None => Ok(()),
        }
    }

    /// Checks that frames of this size can be encoded.
    ///
    /// # Errors
    /// [`Error::Clip`] if they are smaller than a latent pixel, or if the network needs whole
    /// latent pixels and they don't divide into these.
    pub fn check_size(&self, height: i64, width: i64) -> Result<()> {
        let scale = i64::from(self.spatial_scale());
        let refused = |what: &str| {
            Err(Error::Clip { reason: format!("frames of {width}×{height} pixels: sides {what} {scale} expected") })
        };
        // WAN 2.1 leaves out the pixels over; WAN 2.2's patches and averages can't.
        let whole = self.patch > 1 || self.down_blocks.iter().any(|block| block.averaged);
        if whole && (height % scale != 0 || width % scale != 0) {
            return refused("that are multiples of");
        }
        if height < scale || width < scale {
            return refused("of at least");
        }
        Ok(())
    }

    /// Channels of the middle block.
    pub fn middle_channels(&self) -> usize {
        self.down_blocks.last().map_or(self.first_channels, |block| block.channels)
    }

    /// Pixels per latent pixel.
    pub fn spatial_scale(&self) -> u32 {
        self.patch as u32 * (1 << self.down_blocks.iter().filter(|block| block.downsample.is_some()).count().min(16))
    }

    /// Frames per latent frame, the first aside, which gives one.
    pub fn temporal_scale(&self) -> u32 {
        let temporal = |block: &&DownBlock| block.downsample.is_some_and(|downsample| downsample.temporal);
        1 << self.down_blocks.iter().filter(temporal).count().min(16)
    }

    /// The order of a square's pixels among channels: only WAN 2.2's blocks average.
    pub(super) fn order(&self) -> SquareOrder {
        SquareOrder::of(self.down_blocks.iter().any(|block| block.averaged))
    }
}

impl HalfConfig for EncoderConfig {
    const HALF: Half = Half::Encoder;
    const KIND: Kind = Kind::VideoAutoencoder;

    type Network<O: CausalOps> = EncoderNetwork<O>;
    /// Each layer's share of the work, in the order that they run; they add up to 1.
    type Course = Vec<f64>;
    type Extent = EncoderExtent;

    fn read(file: &Checkpoint, identity: &Identity) -> Result<Self> {
        let known = Known::of_encoder(file, identity, Kind::VideoAutoencoder)?;
        let refused = |reason| Error::Unknown { path: file.path().to_owned(), reason };
        let missing = |name: &str, shape: &[usize]| known.missing(name, shape);
        let first = "encoder.down_blocks.0.resnets.0";
        let width = [
            at("encoder.conv_in.weight", 0),
            at("encoder.conv_in.bias", 0),
            at(&format!("{first}.norm1.gamma"), 0),
            at(&format!("{first}.conv1.weight"), 1),
        ];
        let first_channels = known.extent(width).ok_or_else(|| missing("encoder.conv_in.weight", &[96, 3, 3, 3, 3]))?;
        let in_channels = known
            .extent([at("encoder.conv_in.weight", 1)])
            .ok_or_else(|| missing("encoder.conv_in.weight", &[first_channels, 3, 3, 3, 3]))?;
        let mut down_blocks: Vec<DownBlock> = Vec::new();
        let mut into = first_channels;
        for index in 0..known.count("encoder.down_blocks") {
            let block = Self::read_block(&known, identity.family, index, into)?;
            into = block.channels;
            down_blocks.push(block);
        }
        if down_blocks.is_empty() {
            return Err(missing(&format!("{first}.conv1.weight"), &[first_channels, first_channels, 3, 3, 3]));
        }
        let moments = [
            at("quant_conv.weight", 0),
            at("quant_conv.weight", 1),
            at("encoder.conv_out.weight", 0),
            at("encoder.conv_out.bias", 0),
        ];
        let moments = known.extent(moments).ok_or_else(|| missing("encoder.conv_out.weight", &[32, into, 3, 3, 3]))?;
        let (patch, image_channels) = patch(in_channels).ok_or_else(|| {
            refused(format!(
                "the encoder takes {in_channels} channels: pictures have 3 or 4, or 12 where each is four pixels"
            ))
        })?;
        let config =
            Self { image_channels, patch, in_channels, first_channels, down_blocks, latent_channels: moments / 2 };
        config.check(moments).map_err(refused)?;
        Ok(config)
    }

    fn scales(&self) -> [u32; 2] {
        [self.spatial_scale(), self.temporal_scale()]
    }

    fn attention_width(&self) -> Option<usize> {
        Some(self.middle_channels())
    }

    fn build<O: CausalOps>(&self, scope: &Scope<'_, O>) -> Result<EncoderNetwork<O>> {
        EncoderNetwork::build(scope, self)
    }

    fn course(&self) -> Result<Vec<f64>> {
        encoder_cost::shares(self)
    }

    fn pass(
        &self,
        network: &EncoderNetwork<Meter>,
        meter: &Meter,
        extent: &EncoderExtent,
        _: &OnceLock<Vec<f64>>,
    ) -> Result<Pass> {
        encoder_cost::push_by_push(self, network, meter, extent)
    }
}

impl DownBlock {
    /// Values of the input per value of the output, in one channel.
    pub(super) fn factor(&self) -> usize {
        match self.downsample {
            None => 1,
            Some(Downsample { temporal: false }) => 4,
            Some(Downsample { temporal: true }) => 8,
        }
    }
}
