//! The tokenizer in a GGUF file's keys: arrays that are read when they are asked for.

use crate::{
    Checkpoint, Error, Result,
    gguf::{self, Array, TOKENIZER as KEYS},
};

/// The most pieces: past this a file is hostile rather than large.
const MOST_PIECES: usize = 1 << 21;

/// A tokenizer's pieces, as gguf-py writes them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufTokenizer<'a> {
    /// The texts of pieces, by their numbers.
    pub tokens: Vec<&'a str>,
    /// Their scores.
    pub scores: Vec<f32>,
    /// Their kinds; none if the file has none.
    pub token_type: Vec<i32>,
    /// The map of characters; empty if the file has none.
    pub precompiled_charsmap: Vec<u8>,
    /// The number of the unknown piece.
    pub unknown_token_id: Option<u32>,
}

impl Checkpoint {
    /// The tokenizer among a GGUF file's keys, if there is one.
    ///
    /// # Errors
    /// An array of it is of another type, or too long.
    pub fn gguf_tokenizer(&self) -> Result<Option<GgufTokenizer<'_>>> {
        let failed = |key: &str, reason: String| Error::Format {
            path: self.path().to_owned(),
            reason: format!("key {KEYS}{key}: {reason}"),
        };
        let array = |key: &str| -> Result<Option<Array<'_>>> {
            let Some(bytes) = self.array_bytes(&format!("{KEYS}{key}")) else { return Ok(None) };
            gguf::array(bytes, MOST_PIECES).map(Some).map_err(|reason| failed(key, reason))
        };
        let other = |key: &str| failed(key, "an array of another type than it should be".into());
        macro_rules! array_of {
            ($kind:ident, $key:literal) => {
                match array($key)? {
                    Some(Array::$kind(values)) => values,
                    Some(_) => return Err(other($key)),
                    None => Vec::new(),
                }
            };
        }
        if self.array_bytes(&format!("{KEYS}tokens")).is_none() {
            return Ok(None);
        }
        let unknown = self.texts().get(&format!("{KEYS}unknown_token_id"));
        Ok(Some(GgufTokenizer {
            tokens: array_of!(Texts, "tokens"),
            scores: array_of!(Numbers, "scores"),
            token_type: array_of!(Integers, "token_type"),
            // gguf-py writes bytes as numbers.
            precompiled_charsmap: array_of!(Integers, "precompiled_charsmap").iter().map(|of| *of as u8).collect(),
            unknown_token_id: unknown.and_then(|text| text.parse().ok()),
        }))
    }
}
