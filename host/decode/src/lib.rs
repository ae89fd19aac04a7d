//! A decode from a latent's file to an output's file: the parts that the program and the service share.
//!
//! [`Model`] is an autoencoder's file, of pictures or of clips; [`frame`] and [`frames`] lead from tensors to what files are made of.

#![forbid(unsafe_code)]

mod error;
mod frames;
mod model;
mod texts;

pub use error::{Error, Result};
pub use frames::{frame, frames};
pub use model::{Model, Size, published_rate, unscale};
pub use texts::{RECORD_KEYWORD, carried, texts};

/// The share of free memory that is used where nobody sets a limit.
pub const SHARE_OF_FREE: f64 = 0.8;
