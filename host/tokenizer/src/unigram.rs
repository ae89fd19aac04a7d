//! Unigram models: the pieces whose scores add up to the most, by Viterbi's algorithm.

use crate::trie::Trie;

/// Less than the least score, for a character that no piece holds: sentencepiece's `kUnkPenalty`.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The kind of a piece of a sentencepiece model. The numbers are the format's, and GGUF's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Kind {
    pub(crate) fn from_number(number: i64) -> Option<Self> {
        [Self::Normal, Self::Unknown, Self::Control, Self::UserDefined, Self::Unused, Self::Byte]
            .get(usize::try_from(number).ok()?.checked_sub(1)?)
            .copied()
    }
}

/// The way in which scores are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scoring {
    /// As Hugging Face's tokenizers do: in f64, over all pieces; unknown characters in a row are
    /// one token.
    Tokenizers,
    /// As sentencepiece does: kept in f32; only what the model's author meant to be matched is;
    /// user-defined pieces win; unknown characters become bytes where there are pieces for them.
    Sentencepiece,
}

/// A piece: its text, its score, and what it is for.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub text: String,
    pub score: f32,
    pub kind: Kind,
}

/// A unigram model as its file has it.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub entries: Vec<Entry>,
    pub unknown: u32,
    pub charsmap: Vec<u8>,
}

/// A unigram model.
#[derive(Debug)]
pub(crate) struct Unigram {
    trie: Trie,
    scores: Vec<(f32, Kind)>,
    least: f32,
    least_normal: f32,
    most_normal: f32,
    unknown: u32,
    /// The pieces of the bytes, where the model has all of them.
    bytes: Option<Vec<u32>>,
}

/// The best way to a place in the text.
#[derive(Clone, Copy)]
struct Node {
    score: f64,
    start: usize,
    /// Nothing yet where it is `None`.
    piece: Option<u32>,
}

impl Unigram {
    /// A model of `entries` with finite scores, whose index is their id.
    pub(crate) fn new(entries: &[Entry], unknown: u32) -> Self {
        let trie = Trie::new(entries.iter().map(|entry| entry.text.as_str()));
        let mut bytes = Vec::with_capacity(256);
        for byte in 0..=255u8 {
            let id = trie.find(&format!("<0x{byte:02X}>"));
            bytes.extend(id.filter(|id| entries.get(*id as usize).is_some_and(|entry| entry.kind == Kind::Byte)));
        }
        let normal = || entries.iter().filter(|entry| entry.kind == Kind::Normal).map(|entry| entry.score);
        Self {
            trie,
            scores: entries.iter().map(|entry| (entry.score, entry.kind)).collect(),
            least: entries.iter().map(|entry| entry.score).fold(f32::INFINITY, f32::min),
            least_normal: normal().fold(f32::INFINITY, f32::min),
            // sentencepiece begins there too, so that user-defined pieces win over scores below 0.
            most_normal: normal().fold(f32::MIN_POSITIVE, f32::max),
            unknown,
            bytes: (bytes.len() == 256).then_some(bytes),
        }
    }

    /// Appends the ids of the pieces that `text` is cut into.
    pub(crate) fn cut(&self, text: &str, scoring: Scoring, out: &mut Vec<u32>) {
        let found = self.path(text, scoring);
        let mut was_unknown = false;
        for &(start, end, piece) in found.iter().rev() {
            let unknown = piece == self.unknown;
            match &self.bytes {
                Some(ids) if unknown && scoring == Scoring::Sentencepiece => {
                    let bytes = text.as_bytes().get(start..end).unwrap_or_default();
                    out.extend(bytes.iter().filter_map(|byte| ids.get(usize::from(*byte))));
                }
                _ if unknown && was_unknown => {}
                _ => out.push(piece),
            }
            was_unknown = unknown;
        }
    }

    /// The best way through `text`, from its end: where each piece starts and ends, and its id.
    fn path(&self, text: &str, scoring: Scoring) -> Vec<(usize, usize, u32)> {
        let single = scoring == Scoring::Sentencepiece;
        let kept = |score: f64| if single { f64::from(score as f32) } else { score };
        let unknown_score = if single {
            f64::from(self.least_normal - UNKNOWN_PENALTY)
        } else {
            f64::from(self.least) - f64::from(UNKNOWN_PENALTY)
        };
        let bytes = text.as_bytes();
        let mut nodes = vec![Node { score: 0.0, start: 0, piece: None }; bytes.len() + 1];
        for (start, character) in text.char_indices() {
            let so_far = nodes.get(start).map_or(0.0, |node| node.score);
            let mut reach = |end: usize, candidate: f64, piece: u32| {
                if let Some(node) = nodes.get_mut(end)
                    && (node.piece.is_none() || candidate > node.score)
                {
                    *node = Node { score: candidate, start, piece: Some(piece) };
                }
            };
            let width = character.len_utf8();
            let mut whole = false;
            self.trie.prefixes(bytes.get(start..).unwrap_or_default(), |length, piece| {
                let Some(score) = self.score(piece, length, scoring) else { return };
                reach(start + length, kept(score + so_far), piece);
                whole |= length == width;
            });
            if !whole {
                reach(start + width, kept(unknown_score + so_far), self.unknown);
            }
        }
        let mut found = Vec::new();
        let mut end = bytes.len();
        while let Some(&Node { start, piece: Some(piece), .. }) = nodes.get(end)
            && start < end
        {
            found.push((start, end, piece));
            end = start;
        }
        found
    }

    /// The score that a piece of `length` bytes adds, or `None` if it can't be taken.
    fn score(&self, piece: u32, length: usize, scoring: Scoring) -> Option<f64> {
        let (score, kind) = *self.scores.get(piece as usize)?;
        match (scoring, kind) {
            (Scoring::Tokenizers, _) | (_, Kind::Normal) => Some(f64::from(score)),
            (_, Kind::UserDefined) => Some(f64::from(length as f32 * self.most_normal) - 0.1),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Unigram {
        let entries: Vec<Entry> = [
            ("<unk>", 0.0, Kind::Unknown),
            ("a", -2.0, Kind::Normal),
            ("b", -2.0, Kind::Normal),
            ("ab", -3.0, Kind::Normal),
            ("[x]", 0.0, Kind::UserDefined),
            ("</s>", 0.0, Kind::Control),
            ("never", 0.0, Kind::Unused),
        ]
        .into_iter()
        .map(|(text, score, kind)| Entry { text: text.to_owned(), score, kind })
        .collect();
        Unigram::new(&entries, 0)
    }

    fn cut(text: &str, scoring: Scoring) -> Vec<u32> {
        let mut ids = Vec::new();
        model().cut(text, scoring, &mut ids);
        ids
    }

    #[test]
    fn takes_the_pieces_with_the_best_sum() {
        for scoring in [Scoring::Tokenizers, Scoring::Sentencepiece] {
            assert_eq!(cut("abba", scoring), [3, 2, 1]);
            assert!(cut("", scoring).is_empty());
        }
    }

    #[test]
    fn unknown_characters_in_a_row_are_one_token() {
        for scoring in [Scoring::Tokenizers, Scoring::Sentencepiece] {
            assert_eq!(cut("a猫耳b!", scoring), [1, 0, 2, 0]);
        }
    }

    #[test]
    fn what_can_be_matched_depends_on_the_scoring() {
        assert_eq!(cut("[x]</s>never", Scoring::Tokenizers), [4, 5, 6]);
        assert_eq!(cut("[x]</s>never", Scoring::Sentencepiece), [4, 0]);
    }
}
