//! A video encoder's architecture, read off the tensors' names and shapes.

use serde::Serialize;
use tilewright_plan::{Dtype, Model};

use super::{
    config::{MOST_CHANNELS, at, known, patch, resnet_channels},
    weights,
};
use crate::{Checkpoint, Error, Family, Identity, Result, identify::most_common, known::Known};

/// The end of a down block that is not the last: half the height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Downsample {
    /// Halves the frames too: all but the first frame of a clip become one for two.
    pub temporal: bool,
}

/// One down block: so many residual layers, then half the height and width, and perhaps half the
/// frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DownBlock {
    /// Channels of its input.
    pub into: usize,
    /// Channels of its output.
    pub channels: usize,
    /// Residual layers.
    pub layers: usize,
    /// Its end.
    pub downsample: Option<Downsample>,
    /// The block's input, averaged over neighbours and channels, is added to its output (WAN 2.2).
    pub averaged: bool,
}

/// The beginnings of diffusers' names of the encoder's tensors.
pub(super) const ENCODER: [&str; 2] = ["encoder.", "quant_conv."];

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
    /// True if the file has tensors of an encoder.
    pub fn there(file: &Checkpoint, identity: &Identity) -> bool {
        known(file, identity).is_ok_and(|known| known.has("encoder"))
    }

    /// Reads the architecture.
    ///
    /// # Errors
    /// [`Error::Unknown`] where the file has no encoder; a tensor that the architecture is read
    /// from is missing or misshapen; widths are nonsense.
    pub fn read(file: &Checkpoint, identity: &Identity) -> Result<Self> {
        let known = known(file, identity)?;
        let refused = |reason| Error::Unknown { path: file.path().to_owned(), reason };
        if !known.has("encoder") {
            return Err(refused("no encoder in it: only the decoder's part is there; give the whole VAE".into()));
        }
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

    fn read_block(known: &Known<'_>, family: Family, index: usize, into: usize) -> Result<DownBlock> {
        let name = format!("encoder.down_blocks.{index}");
        let first = format!("{name}.resnets.0");
        let channels = known
            .extent(resnet_channels(&first))
            .ok_or_else(|| known.missing(&format!("{first}.conv1.weight"), &[into, into, 3, 3, 3]))?;
        let end = format!("{name}.downsampler");
        let downsample = known.has(&end).then(|| Downsample { temporal: known.has(&format!("{end}.time_conv")) });
        let layers = known.count(&format!("{name}.resnets"));
        Ok(DownBlock { into, channels, layers, downsample, averaged: family == Family::Wan22 })
    }

    /// The fault of the architecture, if it has one.
    fn check(&self, moments: usize) -> std::result::Result<(), String> {
        let widths = self.down_blocks.iter().map(|block| block.channels).chain([self.first_channels, moments / 2]);
        if let Some(width) = widths.into_iter().find(|width| *width == 0 || *width > MOST_CHANNELS) {
            return Err(format!("a layer of {width} channels is nonsense"));
        }
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

    /// Tensors in the encoder's part of the file that the network has no place for; where the
    /// architecture can't be read, those that no network has.
    pub fn left_over(file: &Checkpoint, identity: &Identity) -> Vec<String> {
        let Ok(known) = known(file, identity) else { return Vec::new() };
        let needed = Self::read(file, identity).ok().map(|config| config.needed());
        known.left_over(&ENCODER, needed.as_deref())
    }

    /// Checks, before anything is decided or loaded, that the weights can be loaded.
    ///
    /// # Errors
    /// A tensor is missing, misshapen, left over, or of a type that can't be computed from, such as
    /// FP8.
    pub fn check_weights(&self, file: &Checkpoint, identity: &Identity) -> Result<()> {
        weights::of_encoder(file, identity, self)?.check()
    }

    /// The reasons why the encoder can't be loaded, a line each.
    pub fn problems(&self, file: &Checkpoint, identity: &Identity) -> Vec<String> {
        let Ok(known) = known(file, identity) else { return Vec::new() };
        known.problems(&self.needed())
    }

    /// Checks that frames of this size can be encoded.
    ///
    /// # Errors
    /// [`Error::Clip`] where they are smaller than a latent pixel, or don't divide into whole ones
    /// where the network needs that.
    pub fn check_size(&self, height: i64, width: i64) -> Result<()> {
        let scale = i64::from(self.spatial_scale());
        let refused = |what: &str| {
            Err(Error::Clip { reason: format!("frames of {width}×{height} pixels: sides {what} {scale} expected") })
        };
        // WAN 2.1 leaves out what is over; WAN 2.2's patches and averages can't.
        let whole = self.patch > 1 || self.down_blocks.iter().any(|block| block.averaged);
        if whole && (height % scale != 0 || width % scale != 0) {
            return refused("that are multiples of");
        }
        if height < scale || width < scale {
            return refused("of at least");
        }
        Ok(())
    }

    /// The share that each layer has in the work, as the encoder counts layers: by multiplications,
    /// the attention aside.
    pub(super) fn layer_shares(&self) -> Vec<f64> {
        let conv = |into: usize, out: usize| (27 * into * out) as f64;
        let mut shares = vec![conv(self.in_channels, self.first_channels)];
        let mut area = 1.0;
        for block in &self.down_blocks {
            for layer in 0..block.layers {
                let into = if layer == 0 { block.into } else { block.channels };
                shares.push(area * (conv(into, block.channels) + conv(block.channels, block.channels)));
            }
            if block.downsample.is_some() {
                shares.push(area / 12.0 * conv(block.channels, block.channels));
                area /= block.factor() as f64;
            }
        }
        let middle = self.middle_channels();
        shares.extend([2.0 * area * conv(middle, middle); 2]);
        shares.push(area * conv(middle, 2 * self.latent_channels));
        let sum: f64 = shares.iter().sum();
        shares.iter().map(|share| share / sum).collect()
    }

    /// The model as policies are told of it.
    pub fn model(&self, family: Family, file: &Checkpoint, identity: &Identity) -> Model {
        let part = |known: Known<'_>| known.part(&ENCODER).map(str::to_owned).collect();
        let names: Vec<String> = known(file, identity).map(part).unwrap_or_default();
        Model {
            family: family.name().to_owned(),
            stored: most_common(file, &names).unwrap_or(Dtype::F32),
            quantized: false,
            parameter_bytes: names.iter().filter_map(|name| file.bytes(name)).map(|bytes| bytes.len() as u64).sum(),
            spatial_scale: self.spatial_scale(),
            temporal_scale: self.temporal_scale(),
        }
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
