//! Tokenizers of CLIP, T5 and UMT5, from whatever holds their vocabulary.

use std::fmt::{Display, Formatter};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::byte_pairs::BytePairs;
use crate::charsmap::CharacterMap;
use crate::error::{Error, Result};
use crate::prompt::MAX_TEXT_BYTES;
use crate::trie::Trie;
use crate::unigram::{self, Entry, Kind, Scoring, Unigram};
use crate::{cleaning, json, sentencepiece, vocabularies};

/// The largest vocabulary file that is read, in bytes. UMT5's `tokenizer.json` has 17 MB.
pub const MAX_FILE_BYTES: usize = 64 << 20;
/// The most pieces that a vocabulary may have. UMT5's has 256,300.
pub const MAX_PIECES: usize = 1 << 20;
/// The longest piece that a vocabulary may have, in bytes.
pub const MAX_PIECE_BYTES: usize = 512;

/// The most bytes of all pieces together: UMT5's have three million.
const MAX_ALL_BYTES: usize = 16 << 20;
/// The sign that sentencepiece writes for a space.
const SPACE: &str = "\u{2581}";
/// The ids of `<pad>` and `</s>` in T5's and UMT5's vocabularies.
pub(crate) const PADDING: u32 = 0;
pub(crate) const SENTENCE_END: u32 = 1;

/// Encoders that share a vocabulary and a way to read text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// CLIP, OpenAI's and OpenCLIP's: byte pairs, 49,408 tokens.
    Clip,
    /// T5, T5 v1.1 and FLAN-T5: unigram, 32,100 pieces.
    T5,
    /// UMT5: unigram, 256,300 pieces, bytes among them.
    Umt5,
}

impl Family {
    /// The number of tokens `<extra_id_N>` that Hugging Face adds behind the model's pieces.
    fn extra(self) -> usize {
        match self {
            Self::Clip => 0,
            Self::T5 => 100,
            Self::Umt5 => 300,
        }
    }
}

impl Display for Family {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Clip => "CLIP",
            Self::T5 => "T5",
            Self::Umt5 => "UMT5",
        })
    }
}

/// The program whose way to read a prompt is followed: `--as`. They differ on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reading {
    /// ComfyUI's: brackets weight, `embedding:` names vectors, nothing is cut off. CLIP by
    /// transformers 5's tokenizer, T5 by the `tokenizer.json` that ComfyUI carries, UMT5 by
    /// sentencepiece.
    #[default]
    ComfyUi,
    /// diffusers': the text as it stands, cut at the encoder's length. CLIP and T5 by
    /// transformers' fast tokenizers, UMT5 by transformers 4's after [`crate::clean`].
    Diffusers,
}

/// A vocabulary, and how its family turns text into ids. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tokenizer(Arc<Model>);

#[derive(Debug)]
enum Model {
    BytePairs(BytePairs),
    Unigram(Box<Pieces>),
}

#[derive(Debug)]
struct Pieces {
    family: Family,
    count: usize,
    unigram: Unigram,
    charsmap: Option<CharacterMap>,
    /// Tokens that are read from the text as they are written, before all else.
    special: Trie,
    special_ids: Vec<u32>,
}

/// A GGUF file's metadata about its tokenizer, without the prefix `tokenizer.ggml.`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gguf<'a> {
    /// The pieces' texts, by id.
    pub tokens: &'a [&'a str],
    /// The pieces' scores.
    pub scores: &'a [f32],
    /// The kinds of pieces: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    /// All are normal where the file says nothing.
    pub token_type: &'a [i32],
    /// The map of characters, empty where the file has none.
    pub precompiled_charsmap: &'a [u8],
    /// The unknown token's id; without it, the piece of type 2.
    pub unknown_token_id: Option<u32>,
}

impl Tokenizer {
    /// The family's own vocabulary, which is in the program. It is unpacked once a process.
    ///
    /// # Errors
    /// None: that the bundled files are sound is tested.
    pub fn bundled(family: Family) -> Result<Self> {
        vocabularies::bundled(family)
    }

    /// The vocabulary of a sentencepiece model, as a checkpoint's tensor `spiece_model` holds it.
    /// Of the tokens `<extra_id_N>`, those are there that an embedding of `rows` has a row for.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] where the model is damaged or no unigram model, [`Error::Other`]
    /// where it is none of the family, [`Error::TooLarge`].
    pub fn from_sentencepiece(bytes: &[u8], family: Family, rows: usize) -> Result<Self> {
        Self::unigram(sentencepiece::SOURCE, family, sentencepiece::read(bytes)?, rows)
    }

    /// The vocabulary of a GGUF file's metadata. UMT5 is what a file without a character map holds
    /// whose pieces include bytes.
    ///
    /// # Errors
    /// As [`Tokenizer::from_sentencepiece`].
    pub fn from_gguf(gguf: &Gguf<'_>, family: Family, rows: usize) -> Result<Self> {
        let source_name = "tokenizer.ggml";
        let damaged = |reason: String| Error::damaged(source_name, reason);
        check_count(source_name, gguf.tokens.len())?;
        for (name, length) in [("scores", gguf.scores.len()), ("token_type", gguf.token_type.len())] {
            if length != gguf.tokens.len() && !(name == "token_type" && length == 0) {
                return Err(damaged(format!("{length} {name} for {} tokens", gguf.tokens.len())));
            }
        }
        let mut entries = Vec::with_capacity(gguf.tokens.len());
        for (index, (text, score)) in gguf.tokens.iter().zip(gguf.scores).enumerate() {
            let number = gguf.token_type.get(index).copied().unwrap_or(1);
            let kind = Kind::from_number(number.into()).ok_or_else(|| damaged(format!("token_type {number}")))?;
            entries.push(Entry { text: (*text).to_owned(), score: *score, kind });
        }
        let unknown = entries.iter().position(|entry| entry.kind == Kind::Unknown);
        let unknown = gguf.unknown_token_id.or(unknown.and_then(|index| u32::try_from(index).ok()));
        let unknown = unknown.ok_or_else(|| damaged("unknown_token_id is missing".to_owned()))?;
        // Pieces that are there only to fill the embedding, and those that are added again below.
        while entries.last().is_some_and(|entry| entry.kind == Kind::Unused || is_extra(&entry.text)) {
            entries.pop();
        }
        let charsmap = gguf.precompiled_charsmap.to_vec();
        Self::unigram(source_name, family, unigram::Model { entries, unknown, charsmap }, rows)
    }

    /// The vocabulary of a `tokenizer.json`: a unigram model's pieces, or CLIP's merges. Text is
    /// read as the family reads it, not as the file may say.
    ///
    /// # Errors
    /// As [`Tokenizer::from_sentencepiece`].
    pub fn from_json(bytes: &[u8], family: Family, rows: usize) -> Result<Self> {
        Self::of_contents(json::SOURCE, json::read(bytes)?, family, rows)
    }

    /// The vocabulary of CLIP's `vocab.json` and `merges.txt`, as its tokenizers were saved before
    /// there was a `tokenizer.json`.
    ///
    /// # Errors
    /// As [`Tokenizer::from_sentencepiece`].
    pub fn from_merges(vocabulary: &[u8], merges: &[u8]) -> Result<Self> {
        Self::of_contents("vocab.json", json::read_merges(vocabulary, merges)?, Family::Clip, usize::MAX)
    }

    fn of_contents(source_name: &'static str, contents: json::Contents, family: Family, rows: usize) -> Result<Self> {
        let other = |reason: &str| Error::Other { source_name, family, reason: reason.to_owned() };
        match contents {
            json::Contents::Unigram(mut model) => {
                while model.entries.last().is_some_and(|entry| is_extra(&entry.text)) {
                    model.entries.pop();
                }
                Self::unigram(source_name, family, model, rows)
            }
            json::Contents::BytePairs { .. } if family != Family::Clip => Err(other("it has byte pairs, not pieces")),
            json::Contents::BytePairs { tokens, merges } => {
                check_count(source_name, tokens.len().max(merges.len()))?;
                let pairs: Vec<(&str, &str)> = merges.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
                let model = BytePairs::new(|name| tokens.get(name).copied(), &pairs);
                Ok(Self::clip(model.map_err(|reason| Error::damaged(source_name, reason))?))
            }
        }
    }

    pub(crate) fn clip(model: BytePairs) -> Self {
        Self(Arc::new(Model::BytePairs(model)))
    }

    fn unigram(source_name: &'static str, family: Family, model: unigram::Model, rows: usize) -> Result<Self> {
        let unigram::Model { mut entries, unknown, charsmap } = model;
        let damaged = |reason: &str| Error::damaged(source_name, reason);
        let other = |reason: &str| Error::Other { source_name, family, reason: reason.to_owned() };
        if family == Family::Clip {
            return Err(other("it has pieces, not byte pairs"));
        }
        check_count(source_name, entries.len())?;
        let lengths = || entries.iter().map(|entry| entry.text.len());
        check_limit(source_name, "a piece's length in bytes", lengths().max().unwrap_or(0), MAX_PIECE_BYTES)?;
        check_limit(source_name, "the pieces' length in bytes", lengths().sum(), MAX_ALL_BYTES)?;
        if entries.iter().any(|entry| !entry.score.is_finite()) {
            return Err(damaged("a piece's score is no number"));
        }
        if entries.get(unknown as usize).is_none() {
            return Err(damaged("the unknown token's id is beyond the last piece"));
        }
        for (id, name) in [(PADDING, "<pad>"), (SENTENCE_END, "</s>")] {
            if entries.get(id as usize).is_none_or(|entry| entry.text != name) {
                return Err(other(&format!("its piece {id} is not {name}")));
            }
        }
        let charsmap = match &charsmap[..] {
            [] => None,
            bytes => Some(CharacterMap::new(bytes).map_err(damaged)?),
        };
        let extra = family.extra().min(rows.saturating_sub(entries.len()));
        let extra = (0..extra).rev().map(|number| format!("<extra_id_{number}>"));
        entries.extend(extra.map(|text| Entry { text, score: 0.0, kind: Kind::Control }));
        let special = |entry: &Entry| matches!(entry.kind, Kind::Control | Kind::Unknown);
        let special_ids: Vec<u32> = (0..).zip(&entries).filter(|(_, entry)| special(entry)).map(|(id, _)| id).collect();
        Ok(Self(Arc::new(Model::Unigram(Box::new(Pieces {
            family,
            count: entries.len(),
            unigram: Unigram::new(&entries, unknown),
            charsmap,
            special: Trie::new(entries.iter().filter(|entry| special(entry)).map(|entry| entry.text.as_str())),
            special_ids,
        })))))
    }

    /// The family whose text is read.
    #[must_use]
    pub fn family(&self) -> Family {
        match &*self.0 {
            Model::BytePairs(_) => Family::Clip,
            Model::Unigram(pieces) => pieces.family,
        }
    }

    /// One more than the largest id: the fewest rows that an embedding needs.
    #[must_use]
    pub fn size(&self) -> usize {
        match &*self.0 {
            Model::BytePairs(model) => model.size(),
            Model::Unigram(pieces) => pieces.count,
        }
    }

    /// The ids that stand at a text's start, where the family has one, and at its end.
    pub(crate) fn ends(&self) -> (Option<u32>, u32) {
        match &*self.0 {
            Model::BytePairs(model) => {
                let [start, end] = model.ends();
                (Some(start), end)
            }
            Model::Unigram(_) => (None, SENTENCE_END),
        }
    }

    /// The ids of a text, without the special ones at its start and end. Special tokens that are
    /// written out in the text (`<|endoftext|>`, `</s>`, `<extra_id_0>`) are themselves, but for
    /// UMT5 as ComfyUI reads it, where they are text.
    ///
    /// # Errors
    /// [`Error::TooLong`].
    pub fn ids(&self, text: &str, reading: Reading) -> Result<Vec<u32>> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(Error::TooLong { bytes: text.len(), limit: MAX_TEXT_BYTES });
        }
        let mut out = Vec::new();
        match &*self.0 {
            Model::BytePairs(model) => model.encode(text, &mut out),
            Model::Unigram(pieces) => match (pieces.family, reading) {
                (Family::Umt5, Reading::ComfyUi) => pieces.plain(text, &mut out),
                (Family::Umt5, Reading::Diffusers) => pieces.encode(&cleaning::clean(text), reading, &mut out),
                _ => pieces.encode(text, reading, &mut out),
            },
        }
        Ok(out)
    }
}

impl Pieces {
    /// As sentencepiece reads a text whose model normalises nothing: all of it at once.
    fn plain(&self, text: &str, out: &mut Vec<u32>) {
        if !text.is_empty() {
            self.unigram.cut(&format!("{SPACE}{}", text.replace(' ', SPACE)), Scoring::Sentencepiece, out);
        }
    }

    /// As Hugging Face's tokenizers read a text: special tokens first, then word by word.
    fn encode(&self, text: &str, reading: Reading, out: &mut Vec<u32>) {
        let mut from = 0;
        let mut at = 0;
        while let Some(rest) = text.as_bytes().get(at..).filter(|rest| !rest.is_empty()) {
            match self.special.longest(rest) {
                Some((length, index)) => {
                    self.part(text.get(from..at).unwrap_or_default(), from == 0, reading, out);
                    out.extend(self.special_ids.get(index as usize));
                    at += length;
                    from = at;
                }
                None => at += 1,
            }
        }
        self.part(text.get(from..).unwrap_or_default(), from == 0, reading, out);
    }

    /// Text between special tokens.
    fn part(&self, text: &str, first: bool, reading: Reading, out: &mut Vec<u32>) {
        let text = match &self.charsmap {
            Some(charsmap) => spaces_to(SPACE, charsmap.apply(text).trim_end()),
            None => spaces_to(" ", text),
        };
        let mut text = text.replace(' ', SPACE);
        if text.is_empty() {
            return;
        }
        if !text.starts_with(SPACE) && (first || reading == Reading::Diffusers) {
            text.insert_str(0, SPACE);
        }
        let mut rest = text.as_str();
        while let Some(character) = rest.chars().next() {
            let after = rest.get(character.len_utf8()..).unwrap_or_default();
            let length = character.len_utf8() + after.find(SPACE).unwrap_or(after.len());
            let (word, after) = rest.split_at(length);
            self.unigram.cut(word, Scoring::Tokenizers, out);
            rest = after;
        }
    }
}

/// The text with each run of two spaces and more replaced.
fn spaces_to(replacement: &str, text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("  ") {
        let (before, spaces) = rest.split_at(at);
        out.push_str(before);
        out.push_str(replacement);
        rest = spaces.trim_start_matches(' ');
    }
    out.push_str(rest);
    out
}

fn is_extra(text: &str) -> bool {
    text.starts_with("<extra_id_")
}

/// Refuses a file that is too large.
pub(crate) fn check_size(source_name: &'static str, bytes: usize) -> Result<()> {
    check_limit(source_name, "its size in bytes", bytes, MAX_FILE_BYTES)
}

/// Refuses too many pieces.
pub(crate) fn check_count(source_name: &'static str, pieces: usize) -> Result<()> {
    check_limit(source_name, "pieces", pieces, MAX_PIECES)
}

fn check_limit(source_name: &'static str, what: &'static str, found: usize, limit: usize) -> Result<()> {
    if found > limit { Err(Error::TooLarge { source_name, what, found, limit }) } else { Ok(()) }
}
