//! CLIP's text encoder, as OpenAI and OpenCLIP publish it.

mod config;
mod names;
mod network;

pub use config::Config;
pub(crate) use names::rows;
pub use network::{Network, States};
