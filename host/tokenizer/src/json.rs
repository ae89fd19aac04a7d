//! Reads a `tokenizer.json`: its pieces and merges. How text is normalised and split is the
//! family's, whatever the file says; it says the same in other words, or less.

use std::collections::HashMap;
use std::fmt::Formatter;
use std::marker::PhantomData;

use base64::Engine;
use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

use crate::MAX_PIECES;
use crate::error::{Error, Result};
use crate::tokenizer::check_size;
use crate::unigram::{self, Entry, Kind};

/// The vocabulary's place, in messages.
pub(crate) const SOURCE: &str = "tokenizer.json";
const VOCABULARY: &str = "vocab.json";

#[derive(Deserialize)]
struct File {
    model: Model,
    #[serde(default)]
    normalizer: Option<Normalizer>,
    #[serde(default, deserialize_with = "limited")]
    added_tokens: Vec<Added>,
}

/// The fields of `Unigram` and of `BPE`; older files do not say which it is.
#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    unk_id: Option<u32>,
    vocab: Vocabulary,
    #[serde(default, deserialize_with = "limited")]
    merges: Vec<Merge>,
}

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

/// A `Precompiled`, a `Sequence`, or another kind.
#[derive(Deserialize)]
struct Normalizer {
    #[serde(default)]
    precompiled_charsmap: Option<String>,
    #[serde(default, deserialize_with = "limited")]
    normalizers: Vec<Normalizer>,
}

impl Normalizer {
    /// The character map among the normalizers. Their nesting is limited by the reader of JSON.
    fn charsmap(&self) -> Option<&str> {
        self.precompiled_charsmap.as_deref().or_else(|| self.normalizers.iter().find_map(Self::charsmap))
    }
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

/// The contents of a file.
pub(crate) enum Contents {
    Unigram(unigram::Model),
    BytePairs { tokens: HashMap<String, u32>, merges: Vec<(String, String)> },
}

/// Reads a file.
pub(crate) fn read(bytes: &[u8]) -> Result<Contents> {
    check_size(SOURCE, bytes.len())?;
    let file: File = serde_json::from_slice(bytes).map_err(|error| damaged(&fault(&error)))?;
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
            let charsmap = match file.normalizer.as_ref().and_then(Normalizer::charsmap) {
                Some(text) => base64::engine::general_purpose::STANDARD
                    .decode(text)
                    .map_err(|_| damaged("its precompiled_charsmap is not base64"))?,
                None => Vec::new(),
            };
            Ok(Contents::Unigram(unigram::Model { entries, unknown, charsmap }))
        }
        Vocabulary::Tokens(mut tokens) => {
            tokens.extend(file.added_tokens.into_iter().map(|added| (added.content, added.id)));
            let merges = file.model.merges.into_iter().enumerate().map(|(place, merge)| match merge {
                Merge::Pair(a, b) => Ok((a, b)),
                Merge::Line(line) => {
                    pair(&line).ok_or_else(|| damaged(&format!("its merge {} is none of two tokens", place + 1)))
                }
            });
            Ok(Contents::BytePairs { tokens, merges: merges.collect::<Result<_>>()? })
        }
    }
}

/// The fault of JSON by its place: the file may be another one, whose words are nobody's business.
fn fault(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match error.is_data() && !text.starts_with("missing field ") {
        true => format!("line {}, column {} is not what a vocabulary has there", error.line(), error.column()),
        false => text,
    }
}

/// Reads CLIP's `vocab.json`, the ids of its tokens, and the lines of its `merges.txt`.
pub(crate) fn read_merges(vocabulary: &[u8], merges: &[u8]) -> Result<Contents> {
    let damaged = |reason: String| Error::damaged(VOCABULARY, reason);
    check_size(VOCABULARY, vocabulary.len().max(merges.len()))?;
    let tokens = match serde_json::from_slice(vocabulary).map_err(|error| damaged(fault(&error)))? {
        Vocabulary::Tokens(tokens) => tokens,
        Vocabulary::Pieces(_) => return Err(damaged("a list, not a table of tokens".to_owned())),
    };
    let text = std::str::from_utf8(merges).map_err(|error| damaged(format!("merges.txt: {error}")))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !(line.is_empty() || line.starts_with("#version")));
    let merges = lines.take(MAX_PIECES).map(|(place, line)| {
        pair(line).ok_or_else(|| damaged(format!("merges.txt: line {} is none of two tokens", place + 1)))
    });
    Ok(Contents::BytePairs { tokens, merges: merges.collect::<Result<_>>()? })
}

/// The two tokens of a merge.
fn pair(line: &str) -> Option<(String, String)> {
    let (a, b) = line.split_once(' ')?;
    Some((a.to_owned(), b.to_owned()))
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

/// A list of no more than [`MAX_PIECES`].
fn limited<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<T>, D::Error> {
    struct List<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(item) = items.next_element()? {
                check(list.len())?;
                list.push(item);
            }
            Ok(list)
        }
    }
    deserializer.deserialize_seq(List(PhantomData))
}

/// Refuses one item more than [`MAX_PIECES`].
fn check<E: serde::de::Error>(length: usize) -> std::result::Result<(), E> {
    if length < MAX_PIECES { Ok(()) } else { Err(E::custom(format!("a list is longer than {MAX_PIECES}"))) }
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Vocabulary;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of pieces with scores, or tokens with ids")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> std::result::Result<Vocabulary, A::Error> {
                limited(SeqAccessDeserializer::new(items)).map(Vocabulary::Pieces)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> std::result::Result<Vocabulary, A::Error> {
                let mut tokens = HashMap::new();
                while let Some((token, id)) = items.next_entry()? {
                    check(tokens.len())?;
                    tokens.insert(token, id);
                }
                Ok(Vocabulary::Tokens(tokens))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

fn damaged(reason: &str) -> Error {
    Error::damaged(SOURCE, reason)
}
