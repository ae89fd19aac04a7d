//! A decoder's architecture, read off the tensors' names and shapes.

mod encoder;

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use tilewright_checkpoint::Error as FileError;
use tilewright_nn::{CausalOps, Meter, Scope};

use super::{
    decoder_network::DecoderNetwork,
    metered::{self, Course, Extent},
};
use crate::{
    Checkpoint, DecoderConfig, Error, Family, HalfConfig, Identity, Kind, Pass, Result, Scaling, config_json,
    known::{Half, Known, check_channels},
};

pub use encoder::{DownBlock, EncoderConfig};

/// Groups of every published KL autoencoder's norms; only config.json can say otherwise.
const USUAL_GROUPS: usize = 32;

/// One up block: `layers` residual layers, then twice the size if it is not the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UpBlock {
    /// Channels of its output.
    pub channels: usize,
    /// Residual layers.
    pub layers: usize,
    /// Doubles height and width at its end.
    pub upsamples: bool,
}

/// A decoder's architecture and its latents' scaling.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// The family, which also names the scaling.
    pub family: Family,
    /// Channels of the latent.
    pub latent_channels: usize,
    /// Channels of the picture.
    pub image_channels: usize,
    /// Channels of the middle block.
    pub middle_channels: usize,
    /// From the latent to the picture.
    pub up_blocks: Vec<UpBlock>,
    /// Groups of every norm.
    pub norm_groups: usize,
    /// A 1×1 convolution stands before the decoder.
    pub post_quant: bool,
    /// An attention stands after the middle's first residual layer.
    pub middle_attention: bool,
    /// Residual layers of the middle block.
    pub middle_layers: usize,
    /// Undone by `z / scaling + shift`; none if neither file nor family specifies it.
    pub scaling: Option<f64>,
    /// See [`Self::scaling`].
    pub shift: f64,
    /// The side of the pictures that the model was trained on, in pixels, if config.json specifies
    /// it.
    pub sample_size: Option<u32>,
}

/// The values taken from diffusers' config.json; the rest is read off the tensors.
#[derive(Default, Deserialize)]
struct ConfigFile {
    norm_num_groups: Option<usize>,
    scaling_factor: Option<f64>,
    shift_factor: Option<f64>,
    act_fn: Option<String>,
    sample_size: Option<u32>,
}

impl Config {
    fn check(&self, file: &Checkpoint) -> Result<()> {
        let normed = std::iter::once(self.middle_channels).chain(self.up_blocks.iter().map(|block| block.channels));
        let checked = sound(normed.collect(), [self.latent_channels, self.image_channels], self.norm_groups);
        let checked = checked.and_then(|()| match self.image_channels {
            1 | 3 | 4 => Ok(()),
            channels => Err(format!("the decoder ends in {channels} channels: pictures have 1, 3 or 4")),
        });
        checked.map_err(|reason| Error::Unknown { path: file.path().to_owned(), reason })
    }

    /// Output pixels per latent pixel.
    pub fn spatial_scale(&self) -> u32 {
        1 << self.up_blocks.iter().filter(|block| block.upsamples).count().min(16)
    }
}

impl HalfConfig for Config {
    const HALF: Half = Half::Decoder;
    const KIND: Kind = Kind::KlAutoencoder;

    type Network<O: CausalOps> = DecoderNetwork<O>;
    type Course = Course;
    type Extent = Extent;

    fn read(file: &Checkpoint, identity: &Identity) -> Result<Self> {
        let names = Known::of(file, identity, Kind::KlAutoencoder)?;
        let middle = [
            "decoder.mid_block.resnets.0.norm1.weight",
            "decoder.mid_block.resnets.0.conv1.weight",
            "decoder.mid_block.resnets.1.norm1.weight",
        ];
        let middle = ["decoder.conv_in.weight", "decoder.conv_in.bias"].iter().chain(&middle).map(|name| (*name, 0));
        let middle_channels =
            names.extent(middle).ok_or_else(|| names.missing("decoder.conv_in.weight", &[512, 4, 3, 3]))?;
        let latent = [("decoder.conv_in.weight", 1), ("post_quant_conv.weight", 0), ("post_quant_conv.bias", 0)];
        let post_quant = names.has("post_quant_conv");
        // If nothing tells: as in the published networks with and without the 1×1 convolution.
        let latent_channels = names.extent(latent).unwrap_or(if post_quant { 4 } else { 16 });
        let mut up_blocks = Vec::new();
        for block in 0..names.rules.blocks {
            let up = format!("decoder.up_blocks.{block}");
            let layers = names.count(&format!("{up}.resnets"));
            let channels = names.resnet_channels(&format!("{up}.resnets.0"), middle_channels, &[3, 3])?;
            up_blocks.push(UpBlock { channels, layers, upsamples: names.has(&format!("{up}.upsamplers")) });
        }
        if up_blocks.is_empty() {
            return Err(
                names.missing("decoder.up_blocks.0.resnets.0.conv1.weight", &[middle_channels, middle_channels, 3, 3])
            );
        }
        let written = config_file(file, identity)?;
        let family = written.scaling_factor.and_then(Family::with_scaling).unwrap_or(identity.family);
        let (scaling, shift) = match (written.scaling_factor, family.scaling()) {
            (Some(factor), _) => (Some(factor), written.shift_factor.unwrap_or(0.0)),
            (None, Some((factor, shift))) => (Some(factor), written.shift_factor.unwrap_or(shift)),
            (None, None) => (None, 0.0),
        };
        let middle_layers = names.count("decoder.mid_block.resnets");
        let config = Self {
            family,
            latent_channels,
            image_channels: names.extent([("decoder.conv_out.weight", 0), ("decoder.conv_out.bias", 0)]).unwrap_or(3),
            middle_channels,
            up_blocks,
            norm_groups: written.norm_num_groups.unwrap_or(USUAL_GROUPS),
            post_quant,
            middle_attention: names.has("decoder.mid_block.attentions.0"),
            // The network has two at least; if the file has fewer, they are missing.
            middle_layers: middle_layers.max(2),
            scaling,
            shift,
            sample_size: written.sample_size,
        };
        config.check(file)?;
        Ok(config)
    }

    fn scales(&self) -> [u32; 2] {
        [self.spatial_scale(), 1]
    }

    fn attention_width(&self) -> Option<usize> {
        self.middle_attention.then_some(self.middle_channels)
    }

    fn build<O: CausalOps>(&self, scope: &Scope<'_, O>) -> Result<DecoderNetwork<O>> {
        DecoderNetwork::build(scope, self)
    }

    fn course(&self) -> Result<Course> {
        Ok(Course { shares: metered::decoder_shares(self)?, kept: metered::held_pictures(self)? })
    }

    fn pass(
        &self,
        network: &DecoderNetwork<Meter>,
        meter: &Meter,
        extent: &Extent,
        course: &OnceLock<Course>,
    ) -> Result<Pass> {
        metered::decode(self, network, meter, extent, course)
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
        self.scaling.map(|factor| Scaling::Factor { factor, shift: self.shift })
    }
}

/// Checks the widths of normed layers and of others, or says why there can't be such layers.
fn sound(normed: Vec<usize>, others: [usize; 2], groups: usize) -> std::result::Result<(), String> {
    check_channels(normed.iter().copied().chain(others))?;
    if groups == 0 || normed.iter().any(|width| width % groups != 0) {
        return Err(format!(
            "channels of {normed:?} can't be normed in {groups} groups: put norm_num_groups into a config.json beside the file"
        ));
    }
    Ok(())
}

/// Reads config.json beside a file of diffusers' layout; nothing if there is none or it is of
/// another class.
fn config_file(file: &Checkpoint, identity: &Identity) -> Result<ConfigFile> {
    let Some((path, config)) = config_json::read::<ConfigFile>(file, identity, &["AutoencoderKL"])? else {
        return Ok(ConfigFile::default());
    };
    let broken = |reason: String| Error::from(FileError::Format { path: path.clone(), reason });
    if let Some(activation) = config.act_fn.as_deref().filter(|name| !matches!(*name, "silu" | "swish")) {
        return Err(broken(format!("the activation '{activation}' is not supported: only silu is")));
    }
    if let Some(factor) = config.scaling_factor.filter(|factor| !factor.is_normal()) {
        return Err(broken(format!("a scaling_factor of {factor} is nonsense")));
    }
    Ok(config)
}
