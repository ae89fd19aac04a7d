//! WAN's transformers: 2.1 and 2.2, text and image to video.

mod config;
mod names;
mod network;

pub use config::Config;
pub use network::{Conditioning, Context, Network};

pub(crate) use names::rows;
