//! Networks are written once. Layers are generic over [`Ops`]: with [`Torch`] a `forward` computes,
//! with [`Meter`] the same `forward` runs on shapes alone and counts the bytes that it would hold
//! and the time that it would take.
//!
//! A layer takes a tensor by value if it is the last to need it, so that memory is given back at
//! the same moment with either back end.

mod causal;
mod error;
mod format;
mod laps;
mod layer;
pub mod layers;
mod meter;
mod ops;
mod scope;
mod tokens;
#[cfg(feature = "torch")]
mod torch;

pub use causal::CausalOps;
pub use error::{Error, Result};
pub use format::{ComputeFormat, PlanFormat};
pub use laps::Laps;
pub use layer::{End, Layer, LayerCalls};
pub use meter::{
    Costs, Glue, LayerCosts, LayerSeconds, Meter, MeterKernel, MeterMatrix, MeterSums, MeterTensor, PackedRows,
};
pub use ops::{GroupNorm, Ops, Rows, Store, Window};
pub use scope::{Listing, Needed, Place, Scope, Source, TokenScope};
pub use tokens::{Biased, Dense, Gelu, HeadNorm, LayerNorm, TokenOps, TokenSource};
#[cfg(feature = "torch")]
pub use torch::{Look, Matrix, MatrixChange, Piece, Torch, Watch, fuses_attention};
