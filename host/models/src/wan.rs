//! WAN's transformers: 2.1 and 2.2, text and image to video.

mod config;
mod names;
mod network;
mod published;

pub use config::Config;
pub use network::{Context, Network};

pub(crate) use names::rows;
pub(crate) use published::{NAME, SIGNS};
