//! The part of libtorch that tch does not give: memory accounting and limits ([`memory`]), facts
//! about devices ([`device`]), measured speeds ([`probe`]), matrices that stay packed ([`packed`]),
//! back ends loaded at run time ([`backend`]), work that ends soon when it is cancelled
//! ([`cancel`], [`pieces`]), a way round MIOpen ([`miopen`]), marks that crashes leave ([`crash`]),
//! recordings of what ran ([`profile`]), and one error type that knows out-of-memory from the rest.

pub mod attention;
pub mod backend;
pub mod cancel;
mod convolution;
pub mod crash;
pub mod device;
pub mod device_packed;
pub mod device_tokens;
mod error;
mod event;
mod ffi;
mod group_norm;
mod kernels;
pub mod memory;
pub mod miopen;
pub mod multi_head;
mod noise;
mod pace;
pub mod packed;
pub mod pieces;
mod pointwise;
mod pool;
pub mod probe;
mod products;
pub mod profile;
pub mod psnr;
pub mod scalar;
pub mod streamed;
mod tensors;
pub mod tokens;
pub mod transfer;
mod unit_norm;
pub mod winograd;

pub use convolution::conv2d;
pub use error::{Error, Result};
pub use group_norm::{group_norm, group_norm_with};
pub use kernels::kernels;
pub use noise::{NoiseStream, noise};
pub use pace::Pace;
pub use pointwise::pointwise;
pub use products::{linear, linear_onto};
pub use tensors::{
    bytes_of, channels_last, copy, dtype, from_bytes, kind, non_finite, set_threads, stored_kind, to_layout,
};
pub use unit_norm::unit_norm;
