//! The KL autoencoders of Stable Diffusion 1 to 3, SDXL and Flux: convolutions, group norms, one
//! attention in the middle.
//!
//! The network follows diffusers' `AutoencoderKL` (models/autoencoders/vae.py, `Decoder` and
//! `Encoder`), whose names it uses. It is written once, in `decoder_network.rs` and
//! `encoder_network.rs`: `decoder.rs` and `encoder.rs` run it on libtorch, and `metered.rs` on a
//! meter.

mod bands;
mod config;
#[cfg(feature = "torch")]
mod decoder;
mod decoder_network;
#[cfg(feature = "torch")]
mod encoder;
mod encoder_network;
mod metered;
mod network;

pub use config::{Config, DownBlock, EncoderConfig};
#[cfg(feature = "torch")]
pub use decoder::Decoder;
#[cfg(feature = "torch")]
pub use encoder::Encoder;
pub use metered::Extent;
