//! Reasons why a vocabulary or a prompt can't be used.

use thiserror::Error;

use crate::Family;

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A reason why a vocabulary or a prompt can't be used. Each is one line: fault, place, remedy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The vocabulary is damaged, or of a kind that is not read here.
    #[error("{source_name}: {reason}")]
    Vocabulary {
        /// The vocabulary's place by its format: `spiece_model`, `tokenizer.ggml` and so on.
        source_name: &'static str,
        /// The fault.
        reason: String,
    },
    /// The vocabulary is larger than any that is read here.
    #[error("{source_name}: {what} is {found}, {limit} at most")]
    TooLarge {
        /// The vocabulary's place.
        source_name: &'static str,
        /// The thing that is counted.
        what: &'static str,
        /// The count of that thing.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The vocabulary is whole but another encoder's.
    #[error("{source_name}: not the vocabulary of {family}: {reason}")]
    Other {
        /// The vocabulary's place.
        source_name: &'static str,
        /// The family that is wanted.
        family: Family,
        /// The sign of another one.
        reason: String,
    },
    /// An encoder was given another family's tokenizer.
    #[error("a prompt for {wanted} can't be read with the vocabulary of {found}")]
    Mismatch {
        /// The encoder's family.
        wanted: Family,
        /// The tokenizer's family.
        found: Family,
    },
    /// The prompt is longer than any that is read.
    #[error("the prompt has {bytes} bytes, {limit} at most: shorten it")]
    TooLong {
        /// The prompt's length, in bytes.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The prompt's brackets are nested deeper than is read.
    #[error("the prompt's brackets are nested deeper than {limit}: give the weight as a number, (text:1.5)")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
}

impl Error {
    pub(crate) fn damaged(source_name: &'static str, reason: impl Into<String>) -> Self {
        Self::Vocabulary { source_name, reason: reason.into() }
    }
}
