//! The KL autoencoders of Stable Diffusion 1 to 3, SDXL and Flux: convolutions, group norms, one
//! attention in the middle.
//!
//! The network follows diffusers' `AutoencoderKL` (models/autoencoders/vae.py, `Decoder` and
//! `Encoder`), whose names it uses. It is written once: `decoder.rs` and `encoder.rs` run on
//! libtorch, and `metered.rs` runs the same layers on a meter.

mod bands;
mod config;
mod decoder;
mod encoder;
mod metered;
mod network;

pub use config::{Config, DownBlock, EncoderConfig};
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use metered::{Extent, Metered, Pass};
