//! Reasons why a request has no price, or no plan that fits.

use std::path::PathBuf;

use thiserror::Error;
use tilewright_plan::bytes;

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why a request is refused before anything is carried out. Each is one line: what,
/// where, what to do.
#[derive(Debug, Error)]
pub enum Error {
    /// A file is unsound or of the wrong kind.
    #[error(transparent)]
    Model(#[from] tilewright_models::Error),
    /// A device's description is unsound.
    #[error("{0}")]
    Device(String),
    /// Overrides for a file that has nothing to override.
    #[error(
        "{}: a video VAE's scaling is one per channel, from its config.json or as published: leave family, scaling factor and shift factor out",
        path.display()
    )]
    NothingToOverride {
        /// The file.
        path: PathBuf,
    },
    /// A request for no picture or clip at all.
    #[error("{batch} samples of {frames} frames of {width}×{height} pixels: at least 1 of each was expected")]
    Nothing {
        /// The samples.
        batch: u32,
        /// The frames of each.
        frames: u32,
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
    /// No plan fits in the memory limit.
    #[error(
        "a memory limit of {} is too little for this {what}: the least is about {}{} (tiles of {tile} pixels)",
        bytes::display(*limit), bytes::display(*least), if *counts_weights { ", weights included" } else { "" }
    )]
    DoesNotFit {
        /// "picture" or "clip".
        what: &'static str,
        /// The limit in bytes.
        limit: u64,
        /// The peak of the leanest plan, in bytes.
        least: u64,
        /// The limit counts the weights, and so does the least.
        counts_weights: bool,
        /// The side of its tiles.
        tile: u32,
    },
    /// A plan that the device or the weights do not allow.
    #[error("{0}")]
    NotOffered(String),
    /// Not even weights that are read block by block fit in the memory limit.
    #[error(
        "a memory limit of {} is too little for this sample: the least is about {}, weights included{}",
        bytes::display(*limit), bytes::display(*least),
        long_text.map_or_else(String::new, |tokens| format!(", with a prompt of {tokens} tokens: shorten it"))
    )]
    SampleDoesNotFit {
        /// The limit in bytes.
        limit: u64,
        /// The peak of the leanest plan, in bytes.
        least: u64,
        /// The tokens of a prompt that is longer than those that models are trained with.
        long_text: Option<u32>,
    },
    /// A text encoder does not fit into the memory limit.
    #[error(
        "a memory limit of {} is too little for {encoder}: the least is about {}, weights included; raise it, or give the encoder in FP8 or GGUF",
        bytes::display(*limit), bytes::display(*least)
    )]
    EncoderDoesNotFit {
        /// The encoder, in words.
        encoder: String,
        /// The limit in bytes.
        limit: u64,
        /// The bytes that its leanest run holds.
        least: u64,
    },
    /// A text is longer than the memory limit allows an encoder to read.
    #[error(
        "the prompt is too long: it has {tokens} tokens for {encoder}, and about {most} fit into a memory limit of {}; shorten it, or raise the limit",
        bytes::display(*limit)
    )]
    PromptTooLong {
        /// The encoder, in words.
        encoder: String,
        /// The tokens of the text.
        tokens: u64,
        /// The tokens that fit.
        most: u64,
        /// The limit in bytes.
        limit: u64,
    },
}

impl From<tilewright_nn::Error> for Error {
    fn from(error: tilewright_nn::Error) -> Self {
        Error::Model(error.into())
    }
}
