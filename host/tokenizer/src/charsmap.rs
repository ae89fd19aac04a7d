//! A sentencepiece model's character map (`precompiled_charsmap`): what each character becomes
//! before the text is cut into pieces. T5's is `nmt_nfkc`.
//!
//! The format is a length in bytes, a double-array trie (darts-clone) of that length over the
//! characters' bytes, and the replacements, each ended by a zero.

use unicode_segmentation::UnicodeSegmentation;

/// Clusters of this many bytes and more are mapped a character at a time, as Hugging Face's
/// tokenizers do it.
const LONG_CLUSTER: usize = 6;

/// A character map.
#[derive(Debug)]
pub(crate) struct CharacterMap {
    units: Vec<u32>,
    replacements: String,
}

impl CharacterMap {
    /// Reads a map, or says what is wrong with it. What the trie says is checked as it is used.
    pub(crate) fn new(bytes: &[u8]) -> Result<Self, &'static str> {
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or("its character map is cut off")?;
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| "its character map is too long")?;
        let (units, replacements) = rest.split_at_checked(length / 4 * 4).ok_or("its character map is cut off")?;
        Ok(Self {
            units: units.chunks_exact(4).filter_map(|unit| Some(u32::from_le_bytes(unit.try_into().ok()?))).collect(),
            replacements: String::from_utf8(replacements.to_vec()).map_err(|_| "its character map is not UTF-8")?,
        })
    }

    /// The text with each cluster, or else each character, replaced.
    pub(crate) fn apply(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for cluster in text.graphemes(true) {
            if cluster.len() < LONG_CLUSTER
                && let Some(replacement) = self.replacement(cluster)
            {
                out.push_str(replacement);
                continue;
            }
            for character in cluster.chars() {
                match self.replacement(character.encode_utf8(&mut [0; 4])) {
                    Some(replacement) => out.push_str(replacement),
                    None => out.push(character),
                }
            }
        }
        out
    }

    /// The replacement of the shortest entry that `text` begins with.
    fn replacement(&self, text: &str) -> Option<&str> {
        let start = self.find(text.as_bytes())?;
        let rest = self.replacements.get(start..)?;
        rest.split('\0').next()
    }

    fn find(&self, text: &[u8]) -> Option<usize> {
        let unit = |node: usize| self.units.get(node).copied();
        let mut node = offset(unit(0)?);
        for &byte in text {
            if byte == 0 {
                return None;
            }
            node ^= usize::from(byte);
            let found = unit(node)?;
            // The label's top bit marks a leaf, which no byte leads to.
            if found & 0x8000_00ff != u32::from(byte) {
                return None;
            }
            node ^= offset(found);
            if found & 0x100 != 0 {
                return usize::try_from(unit(node)? & 0x7fff_ffff).ok();
            }
        }
        None
    }
}

/// The distance of a node's children from it.
fn offset(unit: u32) -> usize {
    let offset = unit >> 10;
    (if unit & 0x200 == 0 { u64::from(offset) } else { u64::from(offset) << 8 }) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_maps_are_refused_or_change_nothing() {
        assert!(CharacterMap::new(&[]).is_err());
        assert!(CharacterMap::new(&[255, 255, 255, 255]).is_err());
        assert!(CharacterMap::new(&[0, 0, 0, 0, 255]).is_err());
        let empty = CharacterMap::new(&[0, 0, 0, 0]).unwrap();
        assert_eq!(empty.apply("ﬁ a\u{301}"), "ﬁ a\u{301}");
        let wild = CharacterMap::new(&[8, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, b'x']).unwrap();
        assert_eq!(wild.apply("ﬁ"), "ﬁ");
    }
}
