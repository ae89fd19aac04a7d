//! The KL autoencoders of Stable Diffusion 1 to 3, SDXL and Flux: convolutions, group norms, one attention in the middle.
//!
//! The network follows diffusers' `AutoencoderKL` (models/autoencoders/vae.py, `Decoder`), whose names it uses.

mod bands;
mod config;
mod decoder;
mod footprint;
pub(crate) mod layers;

pub use config::Config;
pub use decoder::{Decoder, Numeric};
pub use footprint::{Extent, Footprint};
