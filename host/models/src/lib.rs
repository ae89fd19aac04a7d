//! Networks, and the files that they are read from. A [`Checkpoint`] is any file of weights; an
//! [`Identity`] describes its contents; [`kl::Decoder`] and [`wan_vae::Decoder`] are the networks
//! that decode a [`Latent`].
//!
//! Everything read from a file is hostile until checked: names, shapes and sizes are compared with
//! the network's before libtorch sees a byte.

pub mod clip;
mod config_json;
mod denoiser;
mod error;
pub mod flux;
mod identify;
mod inspection;
pub mod kl;
mod known;
mod latent;
mod lora;
mod metered;
mod names;
mod network_file;
#[cfg(test)]
mod own;
mod parts;
mod progress;
mod published;
pub mod t5;
mod text_encoder;
pub mod transformer;
pub mod wan;
pub mod wan_vae;

pub use denoiser::{Context, DenoiserConfig, DenoiserFile, Inputs, LoadedDenoiser, Network};
pub use error::{Error, Result};
pub use identify::{Family, FileLayout, Identity, Kind};
pub use inspection::{
    Architecture, DecoderInspection, DenoiserInspection, EncoderInspection, FoundDenoiser, Inspection, LoraInspection,
};
pub use known::{Destination, LoadStep};
pub use latent::{Extents, Latent, LatentFile, Origin, Scaling};
pub use lora::{Lora, LoraFit};
pub use network_file::{NetworkConfig, NetworkFile};
pub use parts::{Part, Role};
pub use published::{ComfyUi, Facts, Published, Start, Usual, Widths};
pub use text_encoder::{EncoderConfig, EncoderFile, EncoderKind, EncoderStates, LoadedEncoder, PublishedEncoder};
pub use tilewright_checkpoint::{
    Checkpoint, FileId, PICKLE_ENDINGS, Stored, files_of, find_part, models_among, models_in, whole_of,
};
pub use tilewright_nn::{ComputeFormat, PlanFormat};
pub use transformer::{BeforeBlock, Blocks};
