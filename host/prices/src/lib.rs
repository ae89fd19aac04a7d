//! Requests priced on a measured device, and the decisions on them: everything from a file and
//! shapes to a record, without a tensor. A [`Quote`] is a request with the prices of its plans; a
//! planner (a policy, or the built-in rules) answers it.
//!
//! | quote | work |
//! |---|---|
//! | [`Quote::decode`], [`Quote::decode_clips`] | pictures, or clips, of latents |
//! | [`Quote::encode`], [`Quote::encode_clip`] | latents of pictures, or of a clip |
//! | [`Quote::text`] | the states of texts by one encoder |
//! | [`Quote::denoise`] | a sample, by one denoiser or two that take turns |
//!
//! A [`Basis`] is all that prices are made from: the facts, speeds and kernels of a device. The
//! engine reads it off the device; [`Basis::of_json`] reads it from what `tilewright device --json`
//! wrote, so that plans for a device can be priced on any machine.

#![forbid(unsafe_code)]

mod basis;
mod costs;
mod denoise;
mod error;
mod grid;
mod limit;
mod quote;
mod text;
mod vae;

pub use basis::{Attention, Basis, Described, Everywhere, Widths, default_limit};
pub use costs::{Costs, Prices, ratio};
pub use denoise::{
    DenoisePrices, Denoiser, Group, Pass, PromptShape, SampleShape, extents, padded_extents, passes, residency,
};
pub use error::{Error, Result};
pub use grid::{Axis, Grid};
pub use limit::MemoryLimit;
pub use quote::{Priced, Quote};
pub use text::{
    AskStore, Seat, Stored, TextPrices, TextsShape, USUAL_TOKENS, WeightBytes, check_lengths, encoder_model, format,
    is_held_alike,
};
pub use vae::{Autoencoder, Chunks, ClipExtents, Overrides, VaeFile, VaePrices, VideoVaeFile, chunk};
