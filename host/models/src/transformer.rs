//! Parts that transformers share: their names in files, their weights, and embeddings of time and
//! place.

mod changes;
mod embedding;
mod feed_forward;
mod names;
mod weights;

pub use names::Layout;
pub use weights::{Residency, TransformerFile};

pub(crate) use embedding::{rotation, sinusoid};
pub(crate) use feed_forward::{feed_forward, parts};
pub(crate) use names::{Join, Row};
pub(crate) use weights::MOST_WIDTH;
