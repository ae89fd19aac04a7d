//! Flux.1's transformer, dev and schnell.

mod config;
mod names;
mod network;

pub use config::Config;
pub use network::{Conditioning, Context, Network};

pub(crate) use names::rows;
