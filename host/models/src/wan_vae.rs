//! The causal video autoencoders of WAN 2.1 and 2.2, and of Qwen-Image, which has the former's
//! shape: convolutions over space and the two frames before, norms per pixel, one attention per
//! frame in the middle.
//!
//! The networks follow diffusers' `AutoencoderKLWan` (models/autoencoders/autoencoder_kl_wan.py),
//! whose names they use.

mod clip;
#[cfg(feature = "torch")]
mod clip_state;
mod config;
mod cost;
#[cfg(feature = "torch")]
mod decoder;
#[cfg(feature = "torch")]
mod encoder;
mod encoder_config;
mod encoder_cost;
mod encoder_layers;
mod encoder_network;
#[cfg(feature = "torch")]
mod encoder_state;
mod layers;
mod network;
mod statistics;
mod steps;

pub use clip::Spread;
pub use config::{Config, UpBlock, Upsample};
pub use cost::{Extent, Tiled};
#[cfg(feature = "torch")]
pub use decoder::Decoder;
#[cfg(feature = "torch")]
pub use encoder::Encoder;
pub use encoder_config::{DownBlock, Downsample, EncoderConfig};
pub use encoder_cost::EncoderExtent;
#[cfg(feature = "torch")]
pub use encoder_state::{EncoderState, Place, PlacedState};
pub(crate) use statistics::PUBLISHED;

/// The causal state of a clip, and its frames that are under way.
#[cfg(feature = "torch")]
pub type Clip = clip::Clip<tch::Tensor>;
