//! Flux.1's transformer, dev and schnell.

mod config;
mod names;
mod network;
mod published;

pub use config::Config;
pub use network::{Context, Network};

pub(crate) use names::rows;
pub(crate) use published::{NAME, SIGNS};
