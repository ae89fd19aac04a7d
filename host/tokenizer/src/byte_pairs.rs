//! CLIP's byte-pair encoding: text to lower case, words by a pattern, bytes merged pair by pair.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::characters::{Category, category};

/// The end of a token that ends a word.
const WORD_END: &str = "</w>";
/// The special tokens, as they are written in a prompt.
const START: &str = "<|startoftext|>";
const END: &str = "<|endoftext|>";
/// Endings that are words of their own, tried before a run of signs.
const ENDINGS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];

/// CLIP's merges and tokens.
#[derive(Debug)]
pub(crate) struct BytePairs {
    /// Each byte's token within a word, and at its end.
    letters: Vec<[u32; 2]>,
    /// The token that two in a row become, and how early.
    merges: HashMap<(u32, u32), (u32, u32)>,
    start: u32,
    end: u32,
}

impl BytePairs {
    /// The encoding of a file with a pair a line, `a b</w>`, which says all tokens' ids: first the
    /// bytes', then the bytes' at a word's end, then the merges', then the two special ones.
    pub(crate) fn from_merges(file: &str) -> Result<Self, String> {
        let pairs: Vec<(&str, &str)> = file.lines().map_while(|line| line.split_once(' ')).collect();
        let letters = byte_letters();
        let ordered = letters_in_order(&letters);
        let mut ids: HashMap<String, u32> = HashMap::with_capacity(pairs.len() + 514);
        let names = ordered.iter().map(char::to_string);
        let names = names.chain(ordered.iter().map(|letter| format!("{letter}{WORD_END}")));
        let names = names.chain(pairs.iter().map(|(a, b)| format!("{a}{b}")));
        let names = names.chain([START.to_owned(), END.to_owned()]);
        ids.extend(names.zip(0..));
        Self::new(|name| ids.get(name).copied(), &pairs)
    }

    /// The encoding of these merges, `id` telling each token's id.
    pub(crate) fn new(id: impl Fn(&str) -> Option<u32>, pairs: &[(&str, &str)]) -> Result<Self, String> {
        let id = |name: &str| id(name).ok_or_else(|| format!("its vocabulary lacks the token {name:?}"));
        let letters = byte_letters()
            .iter()
            .map(|letter| Ok([id(letter.encode_utf8(&mut [0; 4]))?, id(&format!("{letter}{WORD_END}"))?]))
            .collect::<Result<_, String>>()?;
        let mut merges = HashMap::with_capacity(pairs.len());
        let mut merged = String::new();
        for (&(a, b), rank) in pairs.iter().zip(0..) {
            merged.clear();
            merged.push_str(a);
            merged.push_str(b);
            merges.insert((id(a)?, id(b)?), (rank, id(&merged)?));
        }
        Ok(Self { letters, merges, start: id(START)?, end: id(END)? })
    }

    /// One more than the largest id that a text can have.
    pub(crate) fn size(&self) -> usize {
        let merged = self.merges.values().map(|(_, id)| *id);
        let ids = self.letters.iter().flatten().copied().chain(merged).chain(self.ends());
        ids.max().map_or(0, |id| id as usize + 1)
    }

    /// The ids of the special tokens at a text's start and end.
    pub(crate) fn ends(&self) -> [u32; 2] {
        [self.start, self.end]
    }

    /// Appends the ids of `text`.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        // The end is looked for in the text as it stands, the start in lower case.
        for (index, part) in text.split(END).enumerate() {
            if index > 0 {
                out.push(self.end);
            }
            let composed = match is_nfc_quick(part.chars()) {
                IsNormalized::Yes => None,
                _ => Some(part.nfc().collect::<String>()),
            };
            let lower: String = composed.as_deref().unwrap_or(part).chars().flat_map(char::to_lowercase).collect();
            for (index, part) in lower.split(START).enumerate() {
                if index > 0 {
                    out.push(self.start);
                }
                self.words(part, out);
            }
        }
    }

    fn words(&self, text: &str, out: &mut Vec<u32>) {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let kind = category(first);
            let ending = ENDINGS.iter().find(|ending| rest.starts_with(**ending));
            let length = match (kind, ending) {
                (_, Some(ending)) => ending.len(),
                (Category::Number, _) => first.len_utf8(),
                _ => rest.find(|character| category(character) != kind).unwrap_or(rest.len()),
            };
            let (word, after) = rest.split_at(length);
            if kind != Category::Space {
                self.word(word.as_bytes(), out);
            }
            rest = after;
        }
    }

    /// Merges a word's bytes: the earliest merge first, of equal ones the leftmost.
    fn word(&self, bytes: &[u8], out: &mut Vec<u32>) {
        let last = bytes.len().saturating_sub(1);
        let token = |(index, byte): (usize, &u8)| {
            let [within, at_end] = *self.letters.get(usize::from(*byte))?;
            Some(if index == last { at_end } else { within })
        };
        // A token that was merged into the one before it is `None`.
        let mut tokens: Vec<Option<u32>> = bytes.iter().enumerate().map(token).collect();
        let mut links: Vec<(usize, usize)> =
            (0..tokens.len()).map(|index| (index.wrapping_sub(1), index + 1)).collect();
        let mut waiting = BinaryHeap::new();
        let at = |tokens: &[Option<u32>], index: usize| tokens.get(index).copied().flatten();
        let candidate = |tokens: &[Option<u32>], left: usize, right: usize| {
            let pair = (at(tokens, left)?, at(tokens, right)?);
            self.merges.get(&pair).map(|&(rank, merged)| Reverse((rank, left, right, pair, merged)))
        };
        waiting.extend((1..tokens.len()).filter_map(|right| candidate(&tokens, right - 1, right)));
        while let Some(Reverse((_, left, right, pair, merged))) = waiting.pop() {
            if (at(&tokens, left), at(&tokens, right)) != (Some(pair.0), Some(pair.1)) {
                continue;
            }
            let after = links.get(right).map_or(tokens.len(), |link| link.1);
            if let Some(token) = tokens.get_mut(left) {
                *token = Some(merged);
            }
            if let Some(token) = tokens.get_mut(right) {
                *token = None;
            }
            if let Some(link) = links.get_mut(after) {
                link.0 = left;
            }
            let mut before = None;
            if let Some(link) = links.get_mut(left) {
                link.1 = after;
                before = Some(link.0);
            }
            waiting.extend(before.and_then(|before| candidate(&tokens, before, left)));
            waiting.extend(candidate(&tokens, left, after));
        }
        out.extend(tokens.into_iter().flatten());
    }
}

/// The letter that stands for each byte: its own character where that can be seen, else one from
/// U+0100 on.
fn byte_letters() -> Vec<char> {
    let mut next = 0x100..;
    (0..=255u8)
        .map(|byte| {
            let seen = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let code = if seen { Some(u32::from(byte)) } else { next.next() };
            code.and_then(char::from_u32).unwrap_or('\0')
        })
        .collect()
}

/// The letters in the order of their ids: those that stand for themselves first.
fn letters_in_order(letters: &[char]) -> Vec<char> {
    let mut letters = letters.to_vec();
    letters.sort_unstable();
    letters
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Vec<u32> {
        // The letters a, b, c are 64, 65, 66, and 320, 321, 322 at a word's end.
        let encoding = BytePairs::from_merges("b c\na bc\na b\nab c</w>\n' s</w>\n").unwrap();
        let mut out = Vec::new();
        encoding.encode(text, &mut out);
        out
    }

    #[test]
    fn merges_the_earliest_pair_first() {
        assert_eq!(ids("abc"), [515]);
        assert_eq!(ids("abcb"), [513, 321]);
        assert_eq!(ids("aabca"), [64, 513, 320]);
        assert_eq!(ids("ABC's"), [515, 516]);
        assert!(ids("").is_empty());
        assert!(ids(" \n\u{3000}").is_empty());
    }

    #[test]
    fn reads_the_special_tokens_from_the_text() {
        assert_eq!(ids("<|startoftext|>a<|StartOfText|> <|endoftext|>b"), [517, 320, 517, 518, 321]);
        assert!(!ids("<|EndOfText|>").contains(&518));
    }

    #[test]
    fn the_size_counts_every_id_wherever_the_special_tokens_are() {
        let pairs = [("a", "b</w>")];
        let all = BytePairs::from_merges("a b</w>\n").unwrap();
        assert_eq!(all.size(), 515);
        // The vocabulary of a stranger: a merge's id is beyond the special tokens'.
        let own = |name: &str| match name {
            "ab</w>" => Some(958),
            START => Some(912),
            END => Some(913),
            _ => Some(1),
        };
        let far = BytePairs::new(own, &pairs).unwrap();
        assert_eq!(far.size(), 959);
    }

    #[test]
    fn a_vocabulary_without_a_token_is_refused() {
        assert_eq!(BytePairs::from_merges("a zz\n").unwrap_err(), "its vocabulary lacks the token \"zz\"");
    }
}
