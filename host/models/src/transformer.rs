//! Parts that transformers share: their names in files, their weights, and embeddings of time and
//! place.

mod changes;
mod embedding;
mod feed_forward;
mod names;
mod norms;
mod weights;

pub use names::Layout;
pub use weights::{Residency, TransformerFile};

/// The way of a network's run before a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Through the block.
    GoOn,
    /// To the end: the tokens are what this block and the rest would have made of them.
    SkipRest,
}

/// A function of a block's number and the image's tokens before it.
pub type BeforeBlock<'a, T> = &'a mut dyn FnMut(usize, &T) -> crate::Result<Blocks>;

pub(crate) use embedding::rotation;
pub(crate) use feed_forward::{feed_forward, parts};
pub(crate) use names::{Join, Row};
pub(crate) use norms::{AffineNorm, modulated};
pub(crate) use weights::MOST_WIDTH;
