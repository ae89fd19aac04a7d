//! Prompts: text to token ids and weights. Knows no network and no libtorch.
//!
//! A [`Tokenizer`] holds a vocabulary: one of the three bundled ones (CLIP's, T5's, UMT5's) or a
//! checkpoint's own. [`Encoder::tokens`] reads a prompt with it, weights and embeddings included,
//! as the [`Reading`] says, and cuts it into the chunks that a text encoder runs.
//!
//! The three families' ways to read text are written out here rather than taken from the crate
//! `tokenizers`: a checkpoint's vocabulary is a stranger's, and that crate panics on a damaged one;
//! UMT5 has to be added up in f32 as sentencepiece does; and it brings some twenty crates to build.
//!
//! ```
//! use tilewright_tokenizer::{Encoder, Reading, Tokenizer};
//!
//! let encoder = Encoder::ClipL;
//! let tokenizer = Tokenizer::bundled(encoder.family())?;
//! let tokens = encoder.tokens(&tokenizer, "a (red:1.2) circle", Reading::ComfyUi, None, None)?;
//! assert_eq!(tokens.chunks.len(), 1);
//! assert_eq!(tokens.chunks[0].used, 5);
//! assert!(tokens.weighted());
//! # Ok::<(), tilewright_tokenizer::Error>(())
//! ```

#![forbid(unsafe_code)]

mod byte_pairs;
mod characters;
mod charsmap;
mod chunks;
mod cleaning;
mod columns;
mod error;
mod json;
mod prompt;
mod sentencepiece;
mod tokenizer;
mod trie;
mod unigram;
mod vocabularies;
mod weights;

pub use chunks::{Chunk, Encoder, Token, Tokens};
pub use cleaning::clean;
pub use error::{Error, Result};
pub use prompt::{Embeddings, MAX_TEXT_BYTES, Piece, pieces};
pub use tokenizer::{Family, Gguf, MAX_FILE_BYTES, MAX_PIECE_BYTES, MAX_PIECES, Reading, Tokenizer};
pub use vocabularies::bundled_file;
pub use weights::{MAX_DEPTH, Segment, segments};
