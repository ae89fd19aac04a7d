//! The networks' weights by diffusers' names, from a file of any layout.

use tch::Kind;
use tilewright_nn::{ComputeFormat, Costs, Listing, Meter, Scope};
use tilewright_plan::Layout;

use super::{
    Config, EncoderConfig,
    config::{DECODER, known},
    encoder::EncoderNetwork,
    encoder_config::ENCODER,
    network::Network,
};
use crate::{
    Checkpoint, Identity, Result,
    known::{Needed, Weights},
};

/// The decoder's part of a file.
///
/// # Errors
/// The file is no video autoencoder.
pub(super) fn of_decoder<'a>(file: &'a Checkpoint, identity: &'a Identity, config: &Config) -> Result<Weights<'a>> {
    Ok(Weights::new(known(file, identity)?, config.needed(), &DECODER, "decoder"))
}

/// The encoder's part of a file.
///
/// # Errors
/// As [`of_decoder`].
pub(super) fn of_encoder<'a>(
    file: &'a Checkpoint,
    identity: &'a Identity,
    config: &EncoderConfig,
) -> Result<Weights<'a>> {
    Ok(Weights::new(known(file, identity)?, config.needed(), &ENCODER, "encoder"))
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
