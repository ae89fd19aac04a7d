//! The networks' weights by diffusers' names, from a file of any layout.

use tch::{Device, Kind, Tensor};
use tilewright_nn::{ComputeFormat, Costs, Listing, Meter, Scope, Source, Torch};
use tilewright_plan::Layout;

use super::{Config, EncoderConfig, config::known, encoder::EncoderNetwork, network::Network};
use crate::{
    Checkpoint, Error, Identity, Result,
    known::{Known, Needed},
    names::wan::Naming,
};

/// A network's part of a file, and what the network needs of it.
#[derive(Debug)]
pub(super) struct Weights<'a> {
    known: Known<'a, Naming>,
    needed: Vec<Needed>,
    left_over: Vec<String>,
    device: Device,
    /// What an error calls it.
    network: &'static str,
}

impl<'a> Weights<'a> {
    /// The decoder's, for a device.
    ///
    /// # Errors
    /// The file is no video autoencoder.
    pub fn new(file: &'a Checkpoint, identity: &'a Identity, config: &Config, device: Device) -> Result<Self> {
        let left_over = Config::left_over(file, identity);
        Ok(Self { known: known(file, identity)?, needed: config.needed(), left_over, device, network: "decoder" })
    }

    /// The encoder's, for a device.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_encoder(
        file: &'a Checkpoint,
        identity: &'a Identity,
        config: &EncoderConfig,
        device: Device,
    ) -> Result<Self> {
        let left_over = EncoderConfig::left_over(file, identity);
        Ok(Self { known: known(file, identity)?, needed: config.needed(), left_over, device, network: "encoder" })
    }

    /// Compares all shapes and types, before any weight is copied.
    ///
    /// # Errors
    /// A tensor that is missing, misshapen, left over or of a type that can't be computed from, by the file's own name.
    pub fn all_present(&self) -> Result<()> {
        Error::refuse_left_over(self.known.file.path(), self.network, &self.left_over)?;
        self.known.all_loadable(&self.needed)
    }

    fn load(&self, name: &str, shape: &[i64], kind: Kind) -> Result<Tensor> {
        let Some(needed) = self.needed.iter().find(|needed| needed.name == name) else {
            let shape: Vec<usize> = shape.iter().map(|&extent| extent as usize).collect();
            return Err(self.known.missing(name, &shape));
        };
        let (name, found) = self.known.locate(needed)?;
        Ok(self.known.file.load(name, found, kind, self.device)?.f_reshape(shape)?)
    }
}

impl Source<Torch> for Weights<'_> {
    fn weight(&self, name: &str, shapes: &[&[i64]], kind: Kind) -> tilewright_nn::Result<Tensor> {
        self.load(name, shapes.first().copied().unwrap_or_default(), kind).map_err(|error| match error {
            Error::Torch(error) => error.into(),
            other => tilewright_nn::Error::Weight { name: name.to_owned(), detail: other.to_string() },
        })
    }
}

/// Builds a network on the meter; gives it with the tensors that it asks for.
fn listing<N>(build: impl Fn(&Scope<'_, Meter>) -> Result<N>) -> Result<(N, Vec<Needed>)> {
    let format = ComputeFormat { convolution: Kind::Float, rest: Kind::Float, layout: Layout::ChannelsFirst };
    let (meter, listing) = (Meter::new(format, Costs::default()), Listing::default());
    let network = build(&Scope::new(&listing, &meter))?;
    Ok((network, listing.needed()))
}

/// The decoder's network without its weights.
///
/// # Errors
/// The architecture's widths don't go together.
pub(super) fn listed(config: &Config) -> Result<Network<Meter>> {
    Ok(listing(|scope| Network::build(config, scope))?.0)
}

/// The decoder's network on a meter.
///
/// # Errors
/// As [`listed`].
pub(super) fn metered(config: &Config, meter: &Meter) -> Result<Network<Meter>> {
    Network::build(config, &Scope::new(&Listing::default(), meter))
}

impl Config {
    /// Every tensor that the decoder needs.
    pub(super) fn needed(&self) -> Vec<Needed> {
        listing(|scope| Network::build(self, scope)).map(|(_, needed)| needed).unwrap_or_default()
    }
}

/// The encoder's network on a meter.
///
/// # Errors
/// As [`listed`].
pub(super) fn metered_encoder(config: &EncoderConfig, meter: &Meter) -> Result<EncoderNetwork<Meter>> {
    EncoderNetwork::build(config, &Scope::new(&Listing::default(), meter))
}

impl EncoderConfig {
    /// Every tensor that the encoder needs.
    pub(super) fn needed(&self) -> Vec<Needed> {
        listing(|scope| EncoderNetwork::build(self, scope)).map(|(_, needed)| needed).unwrap_or_default()
    }
}
