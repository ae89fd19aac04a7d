//! Reads a `tokenizer.json`: its pieces and merges. How text is normalised and split is the
//! family's, whatever the file says; it says the same in other words, or less.

use std::collections::HashMap;

use base64::Engine;
use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::tokenizer::check_size;
use crate::unigram::{Entry, Kind};

/// What holds the vocabulary, in messages.
pub(crate) const SOURCE: &str = "tokenizer.json";

#[derive(Deserialize)]
struct File {
    model: Model,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    added_tokens: Vec<Added>,
}

/// The fields of `Unigram` and of `BPE`; older files do not say which it is.
#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    unk_id: Option<u32>,
    vocab: Vocabulary,
    #[serde(default)]
    merges: Vec<Merge>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Vocabulary {
    Pieces(Vec<(String, f64)>),
    Tokens(HashMap<String, u32>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Line(String),
    Pair(String, String),
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

/// What a file holds.
pub(crate) enum Contents {
    Unigram { entries: Vec<Entry>, unknown: u32, charsmap: Vec<u8> },
    BytePairs { tokens: HashMap<String, u32>, merges: Vec<(String, String)> },
}

/// Reads a file.
pub(crate) fn read(bytes: &[u8]) -> Result<Contents> {
    check_size(SOURCE, bytes.len())?;
    let file: File = serde_json::from_slice(bytes).map_err(|error| damaged(&error.to_string()))?;
    match file.model.vocab {
        Vocabulary::Pieces(pieces) => {
            let mut entries: Vec<Entry> = pieces
                .into_iter()
                .map(|(text, score)| Entry { kind: kind(&text, score), text, score: score as f32 })
                .collect();
            for added in file.added_tokens.iter().filter(|added| added.special) {
                if let Some(entry) = entries.get_mut(added.id as usize).filter(|entry| entry.text == added.content) {
                    entry.kind = Kind::Control;
                }
            }
            let unknown = file.model.unk_id.ok_or_else(|| damaged("its model has no unk_id"))?;
            let charsmap = match charsmap(&file.normalizer, 0) {
                Some(text) => base64::engine::general_purpose::STANDARD
                    .decode(text)
                    .map_err(|_| damaged("its precompiled_charsmap is not base64"))?,
                None => Vec::new(),
            };
            Ok(Contents::Unigram { entries, unknown, charsmap })
        }
        Vocabulary::Tokens(mut tokens) => {
            tokens.extend(file.added_tokens.into_iter().map(|added| (added.content, added.id)));
            let merges = file.model.merges.into_iter().map(|merge| match merge {
                Merge::Pair(a, b) => Ok((a, b)),
                Merge::Line(line) => match line.split_once(' ') {
                    Some((a, b)) => Ok((a.to_owned(), b.to_owned())),
                    None => Err(damaged(&format!("{line:?} is no merge"))),
                },
            });
            Ok(Contents::BytePairs { tokens, merges: merges.collect::<Result<_>>()? })
        }
    }
}

/// The format says nothing of what a piece is for. A byte's name does, and no score but a
/// user-defined piece's is 0.
fn kind(text: &str, score: f64) -> Kind {
    match text.as_bytes() {
        [b'<', b'0', b'x', a, b, b'>'] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => Kind::Byte,
        _ if score == 0.0 => Kind::UserDefined,
        _ => Kind::Normal,
    }
}

/// The character map among the normalizers, which may be nested.
fn charsmap(normalizer: &Value, depth: usize) -> Option<&str> {
    if let Some(Value::String(text)) = normalizer.get("precompiled_charsmap") {
        return Some(text);
    }
    let inner = normalizer.get("normalizers")?.as_array()?;
    if depth < 8 { inner.iter().find_map(|inner| charsmap(inner, depth + 1)) } else { None }
}

fn damaged(reason: &str) -> Error {
    Error::Vocabulary { source_name: SOURCE, reason: reason.to_owned() }
}
