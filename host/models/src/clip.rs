//! CLIP's encoders of text and of pictures, as OpenAI and OpenCLIP publish them.

mod config;
mod names;
mod network;
mod published;

#[cfg(feature = "torch")]
pub(crate) use config::CHANNELS;
pub use config::{Config, Picture};
pub(crate) use names::rows;
pub use network::Network;
pub(crate) use published::{PUBLISHED, SIGNS};
