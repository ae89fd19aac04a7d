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

/// The choice of a [`BeforeBlock`]: run the block, or go on after the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockChoice {
    /// The block is run.
    Run,
    /// The blocks that are left are not run: the function has written their result over the
    /// tokens, in place.
    SkipRest,
}

/// A function that is called with each block's number and the image's tokens before it, and after
/// the last block with the number of blocks.
pub type BeforeBlock<'a, T> = &'a mut dyn FnMut(usize, &T) -> crate::Result<BlockChoice>;

pub(crate) use embedding::rotation;
pub(crate) use feed_forward::{feed_forward, token_ranges};
pub(crate) use names::{Join, Row};
pub(crate) use norms::{AffineNorm, modulated};
pub(crate) use weights::MOST_WIDTH;
