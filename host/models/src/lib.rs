//! Networks, and the files that they are read from. A [`Checkpoint`] is any file of weights; an
//! [`Identity`] describes its contents. Denoisers are Flux.1's ([`flux`]) and WAN's ([`wan`]);
//! [`clip`] and [`t5`] read prompts; [`kl`] and [`wan_vae`] decode and encode.
//!
//! Everything read from a file is hostile until checked: names, shapes and sizes are compared with
//! the network's before libtorch sees a byte.

#![cfg_attr(
    not(feature = "torch"),
    allow(dead_code, reason = "shares of a run and changes of LoRAs are used where networks compute")
)]

pub mod clip;
mod config_json;
mod denoiser;
mod error;
pub mod flux;
#[cfg(test)]
mod glue;
mod identify;
mod inspection;
pub mod kl;
mod known;
mod latent;
mod lora;
mod metered;
mod names;
mod network_file;
#[cfg(all(test, feature = "torch"))]
mod own;
mod parts;
mod progress;
mod published;
pub mod t5;
mod text_encoder;
pub mod transformer;
mod vae;
pub mod wan;
pub mod wan_vae;

#[cfg(feature = "torch")]
pub use denoiser::LoadedDenoiser;
pub use denoiser::{Context, DenoiserConfig, DenoiserFile, Inputs, Network};
pub use error::{Error, Result};
pub use identify::{Family, FileLayout, Identity, Kind};
pub use inspection::{
    Architecture, DecoderInspection, DenoiserInspection, EncoderInspection, FoundDenoiser, Inspection, LoraInspection,
};
#[cfg(feature = "torch")]
pub use known::Destination;
pub use known::LoadStep;
#[cfg(feature = "torch")]
pub use latent::Latent;
pub use latent::{Extents, LatentFile, Origin, Scaling};
pub use lora::{Lora, LoraFit};
pub use network_file::{AnyConfig, NetworkConfig, NetworkFile};
pub use parts::{Part, Role};
pub use published::{ComfyUi, Facts, Published, Start, Usual, Widths};
#[cfg(feature = "torch")]
pub use text_encoder::LoadedEncoder;
pub use text_encoder::{EncoderConfig, EncoderFile, EncoderKind, EncoderStates, PublishedEncoder};
pub use tilewright_checkpoint::{
    Checkpoint, FileId, PICKLE_ENDINGS, Stored, files_of, find_part, models_among, models_in, whole_of,
};
pub use tilewright_nn::{ComputeFormat, PlanFormat};
pub use transformer::{BeforeBlock, BlockChoice};
#[cfg(feature = "torch")]
pub use vae::Loaded;
pub use vae::{DecoderConfig, HalfConfig, Metered, Pass};
