//! The files of models: with the store of their weights where stages are carried out, and as they
//! are where these are only priced.

#[cfg(feature = "torch")]
pub(crate) use tilewright_engine::{Denoiser, VaeFile, VideoVaeFile};
#[cfg(not(feature = "torch"))]
pub(crate) use tilewright_prices::{Denoiser, VaeFile, VideoVaeFile};
