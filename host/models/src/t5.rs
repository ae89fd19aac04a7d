//! The encoders of T5 (version 1.1) and UMT5.

mod config;
mod names;
mod network;
mod published;

pub use config::Config;
pub(crate) use names::rows;
pub use network::Network;
pub(crate) use published::{PUBLISHED, SIGNS};
