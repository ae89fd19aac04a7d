//! A prompt's pieces: ids with weights, and names of embeddings.

use crate::error::{Error, Result};
use crate::tokenizer::{Family, Reading, Tokenizer};
use crate::weights::{is_space, segments};

/// The longest prompt that is read, in bytes.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

/// The beginning of a word that names an embedding.
const EMBEDDING: &str = "embedding:";

/// The embeddings that a prompt can name.
pub trait Embeddings {
    /// The number of vectors of the embedding of this name, or `None` if there is none.
    fn vectors(&self, name: &str) -> Option<usize>;

    /// Told of a name that the prompt has and that is left out.
    fn left_out(&self, _name: &str) {}
}

impl<F: Fn(&str) -> Option<usize>> Embeddings for F {
    fn vectors(&self, name: &str) -> Option<usize> {
        self(name)
    }
}

/// A part of a prompt. If it is short, no chunk's end may part it.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Text that weighs the same throughout.
    Text {
        /// The ids of the text's tokens.
        ids: Vec<u32>,
        /// The weight of the text.
        weight: f32,
    },
    /// An embedding's vectors in the place of tokens.
    Embedding {
        /// The name, as the file's is looked for.
        name: String,
        /// The number of its vectors.
        vectors: usize,
        /// The weight of the embedding.
        weight: f32,
    },
}

/// The pieces of a prompt.
///
/// For ComfyUI each weighted segment is read on its own, and is parted before each ` embedding:`
/// and line that begins with `embedding:`. The embedding's name goes to the next white space;
/// commas around it are left out if the name with them is unknown. An unknown embedding is left
/// out. Without `embeddings`, and for UMT5, such words are text, parted all the same. For diffusers
/// the prompt is one piece.
///
/// # Errors
/// [`Error::TooLong`], [`Error::TooDeep`].
pub fn pieces(
    tokenizer: &Tokenizer,
    prompt: &str,
    reading: Reading,
    embeddings: Option<&dyn Embeddings>,
) -> Result<Vec<Piece>> {
    if prompt.len() > MAX_TEXT_BYTES {
        return Err(Error::TooLong { bytes: prompt.len(), limit: MAX_TEXT_BYTES });
    }
    if reading == Reading::Diffusers {
        return Ok(vec![Piece::Text { ids: tokenizer.ids(prompt, reading)?, weight: 1.0 }]);
    }
    // ComfyUI gives UMT5 none.
    let embeddings = embeddings.filter(|_| tokenizer.family() != Family::Umt5);
    let mut pieces = Vec::new();
    for segment in segments(prompt)? {
        let weight = segment.weight.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32;
        for word in words(&segment.text) {
            let mut word = word.to_owned();
            if let (Some(rest), Some(embeddings)) = (word.strip_prefix(EMBEDDING), embeddings) {
                let (embedding, leftover) = embedding(rest.trim_matches('\n'), embeddings);
                pieces.extend(embedding.map(|(name, vectors)| Piece::Embedding { name, vectors, weight }));
                word = leftover;
            }
            if !word.is_empty() {
                pieces.push(Piece::Text { ids: tokenizer.ids(&word, reading)?, weight });
            }
        }
    }
    Ok(pieces)
}

/// The parts of a segment, each of which but the first begins with `embedding:`.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let (mut start, mut from) = (0, 0);
    while let Some(found) = text.get(from..).and_then(|rest| rest.find(EMBEDDING)) {
        let at = from + found;
        // The white space before it may not be in the match before.
        let before = at.checked_sub(1).filter(|before| *before >= from);
        if let Some(before) = before.filter(|before| matches!(text.as_bytes().get(*before), Some(b' ' | b'\n'))) {
            words.extend(text.get(start..before));
            start = at;
        }
        from = at + EMBEDDING.len();
    }
    words.extend(text.get(start..));
    words.retain(|word| !word.is_empty());
    words
}

/// The embedding that `text` begins with, and what is left of the text.
fn embedding(text: &str, embeddings: &dyn Embeddings) -> (Option<(String, usize)>, String) {
    let mut parts = text.split(is_space).filter(|part| !part.is_empty());
    let Some(name) = parts.next() else { return (None, String::new()) };
    let leftover = parts.collect::<Vec<_>>().join(" ");
    if let Some(vectors) = embeddings.vectors(name) {
        return (Some((name.to_owned(), vectors)), leftover);
    }
    let stripped = name.trim_matches(',');
    if stripped.len() == name.len() {
        embeddings.left_out(name);
        return (None, leftover);
    }
    // As many characters as the stripped name has are cut off, even where commas led it.
    let rest: String = name.chars().skip(stripped.chars().count()).collect();
    let found = embeddings.vectors(stripped).map(|vectors| (stripped.to_owned(), vectors));
    if found.is_none() {
        embeddings.left_out(stripped);
    }
    (found, format!("{rest} {leftover}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_part_before_embeddings() {
        assert_eq!(words("a embedding:b c\nembedding:d"), ["a", "embedding:b c", "embedding:d"]);
        assert_eq!(words("embedding:a,embedding:b"), ["embedding:a,embedding:b"]);
        assert_eq!(words(" embedding: embedding:x"), ["embedding:", "embedding:x"]);
        assert_eq!(words(""), Vec::<&str>::new());
    }

    #[test]
    fn commas_around_a_name_are_left_out_if_need_be() {
        let known = |name: &str| (name == "a" || name == "b,").then_some(2);
        let found = |text: &str| embedding(text, &known);
        let name = |name: &str| Some((name.to_owned(), 2));
        assert_eq!(found("a cat"), (name("a"), "cat".to_owned()));
        assert_eq!(found("a,"), (name("a"), ", ".to_owned()));
        assert_eq!(found("b, x  y"), (name("b,"), "x y".to_owned()));
        assert_eq!(found(",a, x"), (name("a"), "a, x".to_owned()));
        assert_eq!(found("c, x"), (None, ", x".to_owned()));
        assert_eq!(found("c x"), (None, "x".to_owned()));
        assert_eq!(found(" "), (None, String::new()));
    }
}
