//! The kinds of autoencoder, and the user's knowledge of a file of either.

use tilewright_models::{Checkpoint, DecoderConfig, Family, HalfConfig, Identity, kl, wan_vae};

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

/// A kind of autoencoder, by the architecture of its decoder.
pub trait Autoencoder: DecoderConfig {
    /// Reads the decoder's architecture off the tensors' names and shapes.
    ///
    /// # Errors
    /// The file lacks tensors that tell the architecture, is of another family than `overrides`
    /// says, or there is nothing to override in it.
    fn read_with(file: &Checkpoint, identity: &Identity, overrides: Overrides) -> Result<Self>;
}

impl Autoencoder for kl::Config {
    fn read_with(file: &Checkpoint, identity: &Identity, overrides: Overrides) -> Result<Self> {
        let mut config = Self::read(file, identity)?;
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
}

impl Autoencoder for wan_vae::Config {
    fn read_with(file: &Checkpoint, identity: &Identity, overrides: Overrides) -> Result<Self> {
        if overrides != Overrides::default() {
            return Err(Error::NothingToOverride { path: file.path().to_owned() });
        }
        Ok(Self::read(file, identity)?)
    }
}
