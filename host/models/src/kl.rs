//! The KL autoencoders of Stable Diffusion 1 to 3, SDXL and Flux: convolutions, group norms, one attention in the middle.
//!
//! The network follows diffusers' `AutoencoderKL` (models/autoencoders/vae.py, `Decoder` and `Encoder`), whose names it uses.

mod bands;
mod config;
mod decoder;
mod encoder;
mod metered;
mod network;
mod progress;

pub use config::{Config, DownBlock, EncoderConfig};
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use metered::{Extent, Metered, Pass};
