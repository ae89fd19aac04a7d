//! The kinds of autoencoder: everything that differs between them before a network runs.

use std::fmt;

use tch::Device;
use tilewright_models::{
    Checkpoint, ComputeFormat, Destination, Family, Identity, Latent, LatentFile, Scaling, kl, wan_vae,
};
use tilewright_plan::Model;
use tilewright_torch::kernels;

use crate::{Error, Result};

/// The user's knowledge of a file, which counts more than the file's own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overrides {
    /// The family, which names the scaling and shift.
    pub family: Option<Family>,
    /// The scaling factor.
    pub scaling: Option<f64>,
    /// The shift.
    pub shift: Option<f64>,
}

/// A kind of autoencoder: its architecture, read off a file, and its two networks.
pub trait Autoencoder: fmt::Debug + Sized {
    /// The decoder's architecture.
    type Config: fmt::Debug;
    /// The encoder's architecture.
    type EncoderConfig: fmt::Debug;
    /// The decoder with its weights.
    type Decoder: Send + 'static;
    /// The encoder with its weights.
    type Encoder: Send + 'static;

    /// Reads the decoder's architecture off the tensors' names and shapes.
    ///
    /// # Errors
    /// The file lacks tensors that tell the architecture, is of another family than `overrides`
    /// says, or there is nothing to override in it.
    fn read(file: &Checkpoint, identity: &Identity, overrides: Overrides) -> Result<Self::Config>;

    /// The facts about the decoder that policies receive.
    fn model(file: &Checkpoint, identity: &Identity, config: &Self::Config) -> Model;

    /// Bytes of the decoder's weights, as they are laid out in a format on a device.
    ///
    /// # Errors
    /// The architecture's widths don't go together.
    fn decoder_bytes(config: &Self::Config, format: ComputeFormat, device: Device) -> Result<u64>;

    /// Checks that the decoder's weights can be loaded.
    ///
    /// # Errors
    /// A tensor is missing, misshapen, left over, or of a type that can't be computed from.
    fn check_weights(file: &Checkpoint, identity: &Identity, config: &Self::Config) -> Result<()>;

    /// Loads the decoder.
    ///
    /// # Errors
    /// As [`Self::check_weights`]; libtorch's failures, and the end that a listener asks for.
    fn load_decoder(
        file: &Checkpoint,
        identity: &Identity,
        config: &Self::Config,
        format: ComputeFormat,
        destination: Destination<'_>,
    ) -> Result<Self::Decoder>;

    /// Reads the encoder's architecture, and checks that its weights can be loaded.
    ///
    /// # Errors
    /// The file holds no encoder, lacks tensors of it, or has them in a type that can't be computed
    /// from.
    fn read_encoder(file: &Checkpoint, identity: &Identity) -> Result<Self::EncoderConfig>;

    /// The facts about the encoder that policies receive.
    fn encoder_model(
        file: &Checkpoint,
        identity: &Identity,
        config: &Self::Config,
        encoder: &Self::EncoderConfig,
    ) -> Model;

    /// Bytes of the encoder's weights, as [`Self::decoder_bytes`].
    ///
    /// # Errors
    /// As [`Self::decoder_bytes`].
    fn encoder_bytes(config: &Self::EncoderConfig, format: ComputeFormat, device: Device) -> Result<u64>;

    /// Loads the encoder.
    ///
    /// # Errors
    /// As [`Self::load_decoder`].
    fn load_encoder(
        file: &Checkpoint,
        identity: &Identity,
        config: &Self::EncoderConfig,
        format: ComputeFormat,
        destination: Destination<'_>,
    ) -> Result<Self::Encoder>;

    /// Checks that a latent's header is of this model, before its values are read.
    ///
    /// # Errors
    /// It is of another one.
    fn check_header(config: &Self::Config, latent: &LatentFile) -> Result<()>;

    /// Checks that a latent is of this model.
    ///
    /// # Errors
    /// It is of another one.
    fn check_latent(config: &Self::Config, latent: &Latent) -> Result<()>;

    /// The way from latents saved by diffusers into the autoencoder's own space, if it is known.
    fn scaling(config: &Self::Config) -> Option<Scaling>;
}

/// The autoencoder of pictures that Stable Diffusion and Flux have.
#[derive(Clone, Copy, Debug)]
pub enum Kl {}

/// WAN's autoencoder of clips.
#[derive(Clone, Copy, Debug)]
pub enum Wan {}

impl Autoencoder for Kl {
    type Config = kl::Config;
    type EncoderConfig = kl::EncoderConfig;
    type Decoder = kl::Decoder;
    type Encoder = kl::Encoder;

    fn read(file: &Checkpoint, identity: &Identity, overrides: Overrides) -> Result<kl::Config> {
        let mut config = kl::Config::read(file, identity)?;
        if let Some(family) = overrides.family {
            // The configuration beside the file may say what its tensors don't.
            if family != config.family {
                identity.check_family(file, family)?;
            }
            config.family = family;
            if let Some((factor, shift)) = family.scaling() {
                config.scaling = Some(factor);
                config.shift = shift;
            }
        }
        config.scaling = overrides.scaling.or(config.scaling);
        config.shift = overrides.shift.unwrap_or(config.shift);
        Ok(config)
    }

    fn model(file: &Checkpoint, identity: &Identity, config: &kl::Config) -> Model {
        config.model(file, identity)
    }

    fn decoder_bytes(config: &kl::Config, format: ComputeFormat, device: Device) -> Result<u64> {
        Ok(config.weight_bytes(format, &kernels(device))?)
    }

    fn check_weights(file: &Checkpoint, identity: &Identity, config: &kl::Config) -> Result<()> {
        Ok(config.check_weights(file, identity)?)
    }

    fn load_decoder(
        file: &Checkpoint,
        identity: &Identity,
        config: &kl::Config,
        format: ComputeFormat,
        destination: Destination<'_>,
    ) -> Result<kl::Decoder> {
        Ok(kl::Decoder::load(file, identity, config, format, destination)?)
    }

    fn read_encoder(file: &Checkpoint, identity: &Identity) -> Result<kl::EncoderConfig> {
        let config = kl::EncoderConfig::read(file, identity)?;
        config.check_weights(file, identity)?;
        Ok(config)
    }

    fn encoder_model(
        file: &Checkpoint,
        identity: &Identity,
        config: &kl::Config,
        encoder: &kl::EncoderConfig,
    ) -> Model {
        encoder.model(config.family, file, identity)
    }

    fn encoder_bytes(config: &kl::EncoderConfig, format: ComputeFormat, device: Device) -> Result<u64> {
        Ok(config.weight_bytes(format, &kernels(device))?)
    }

    fn load_encoder(
        file: &Checkpoint,
        identity: &Identity,
        config: &kl::EncoderConfig,
        format: ComputeFormat,
        destination: Destination<'_>,
    ) -> Result<kl::Encoder> {
        Ok(kl::Encoder::load(file, identity, config, format, destination)?)
    }

    fn check_header(config: &kl::Config, latent: &LatentFile) -> Result<()> {
        Ok(latent.check_kl(config)?)
    }

    fn check_latent(config: &kl::Config, latent: &Latent) -> Result<()> {
        Ok(latent.check_kl(config)?)
    }

    fn scaling(config: &kl::Config) -> Option<Scaling> {
        config.scaling.map(|factor| Scaling::Factor { factor, shift: config.shift })
    }
}

impl Autoencoder for Wan {
    type Config = wan_vae::Config;
    type EncoderConfig = wan_vae::EncoderConfig;
    type Decoder = wan_vae::Decoder;
    type Encoder = wan_vae::Encoder;

    fn read(file: &Checkpoint, identity: &Identity, overrides: Overrides) -> Result<wan_vae::Config> {
        if overrides != Overrides::default() {
            return Err(Error::NothingToOverride { path: file.path().to_owned() });
        }
        Ok(wan_vae::Config::read(file, identity)?)
    }

    fn model(file: &Checkpoint, identity: &Identity, config: &wan_vae::Config) -> Model {
        config.model(file, identity)
    }

    fn decoder_bytes(config: &wan_vae::Config, format: ComputeFormat, device: Device) -> Result<u64> {
        Ok(config.weight_bytes(format, &kernels(device))?)
    }

    fn check_weights(file: &Checkpoint, identity: &Identity, config: &wan_vae::Config) -> Result<()> {
        Ok(config.check_weights(file, identity)?)
    }

    fn load_decoder(
        file: &Checkpoint,
        identity: &Identity,
        config: &wan_vae::Config,
        format: ComputeFormat,
        destination: Destination<'_>,
    ) -> Result<wan_vae::Decoder> {
        Ok(wan_vae::Decoder::load(file, identity, config, format, destination)?)
    }

    fn read_encoder(file: &Checkpoint, identity: &Identity) -> Result<wan_vae::EncoderConfig> {
        let config = wan_vae::EncoderConfig::read(file, identity)?;
        config.check_weights(file, identity)?;
        Ok(config)
    }

    fn encoder_model(
        file: &Checkpoint,
        identity: &Identity,
        config: &wan_vae::Config,
        encoder: &wan_vae::EncoderConfig,
    ) -> Model {
        encoder.model(config.family, file, identity)
    }

    fn encoder_bytes(config: &wan_vae::EncoderConfig, format: ComputeFormat, device: Device) -> Result<u64> {
        Ok(config.weight_bytes(format, &kernels(device))?)
    }

    fn load_encoder(
        file: &Checkpoint,
        identity: &Identity,
        config: &wan_vae::EncoderConfig,
        format: ComputeFormat,
        destination: Destination<'_>,
    ) -> Result<wan_vae::Encoder> {
        Ok(wan_vae::Encoder::load(file, identity, config, format, destination)?)
    }

    fn check_header(config: &wan_vae::Config, latent: &LatentFile) -> Result<()> {
        Ok(latent.check_wan(config)?)
    }

    fn check_latent(config: &wan_vae::Config, latent: &Latent) -> Result<()> {
        Ok(latent.check_wan(config)?)
    }

    fn scaling(config: &wan_vae::Config) -> Option<Scaling> {
        config.scaling()
    }
}
