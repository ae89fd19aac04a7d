//! A trie over bytes: which entries of a list is a text's beginning?

/// No entry ends here.
const NONE: u32 = u32::MAX;

/// A trie of byte strings, laid out level by level: a node's children lie side by side in order.
#[derive(Debug, Default)]
pub(crate) struct Trie {
    /// The byte that leads to each node. The root's counts for nothing.
    labels: Vec<u8>,
    /// The entry that ends at each node, or [`NONE`].
    entries: Vec<u32>,
    /// Each node's first child; the next node's first child ends its row. One longer than `labels`.
    first: Vec<u32>,
}

impl Trie {
    /// A trie of `strings`. Of equal strings the last counts, and empty ones are left out.
    pub(crate) fn new<'a>(strings: impl Iterator<Item = &'a str>) -> Self {
        let strings: Vec<&[u8]> = strings.map(str::as_bytes).collect();
        let mut order: Vec<(u64, u32)> = (0u32..)
            .zip(&strings)
            .filter(|(_, string)| !string.is_empty())
            .map(|(index, string)| (opening(string), index))
            .collect();
        let string = |index: u32| strings.get(index as usize).copied().unwrap_or_default();
        order.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| string(a.1).cmp(string(b.1))).then(a.1.cmp(&b.1)));

        let mut trie = Self { labels: vec![0], entries: vec![NONE], first: Vec::new() };
        // The strings below each node of a level, and of the next one.
        let mut level: Vec<&[(u64, u32)]> = vec![&order];
        let mut depth = 0;
        while !level.is_empty() {
            let mut next = Vec::new();
            for mut below in level {
                trie.first.push(trie.labels.len() as u32);
                // Strings that end here come first; their node has been given the entry already.
                while let Some(((_, index), rest)) = below.split_first() {
                    if string(*index).len() > depth {
                        break;
                    }
                    below = rest;
                }
                while let Some((_, index)) = below.first() {
                    let Some(&label) = string(*index).get(depth) else { break };
                    let same = below.partition_point(|(_, other)| string(*other).get(depth) == Some(&label));
                    let (group, rest) = below.split_at(same);
                    let ends = group.iter().take_while(|(_, other)| string(*other).len() == depth + 1).last();
                    trie.labels.push(label);
                    trie.entries.push(ends.map_or(NONE, |(_, index)| *index));
                    next.push(group);
                    below = rest;
                }
            }
            level = next;
            depth += 1;
        }
        trie.first.push(trie.labels.len() as u32);
        trie
    }

    /// Calls `found` with the length and the entry of each string that `text` begins with, the
    /// shortest first.
    pub(crate) fn prefixes(&self, text: &[u8], mut found: impl FnMut(usize, u32)) {
        let mut node = 0;
        for (index, byte) in text.iter().enumerate() {
            let Some(&[start, end]) = self.first.get(node..node + 2) else { return };
            let Some(children) = self.labels.get(start as usize..end as usize) else { return };
            let Ok(child) = children.binary_search(byte) else { return };
            node = start as usize + child;
            match self.entries.get(node) {
                Some(&entry) if entry != NONE => found(index + 1, entry),
                _ => {}
            }
        }
    }

    /// The longest string that `text` begins with: its length and its entry.
    pub(crate) fn longest(&self, text: &[u8]) -> Option<(usize, u32)> {
        let mut longest = None;
        self.prefixes(text, |length, entry| longest = Some((length, entry)));
        longest
    }

    /// The entry of exactly this string.
    pub(crate) fn find(&self, text: &str) -> Option<u32> {
        self.longest(text.as_bytes()).and_then(|(length, entry)| (length == text.len()).then_some(entry))
    }
}

/// A string's first eight bytes as a number that sorts as they do; zeros stand for what is missing.
fn opening(string: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(string).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(trie: &Trie, text: &str) -> Vec<(usize, u32)> {
        let mut all = Vec::new();
        trie.prefixes(text.as_bytes(), |length, entry| all.push((length, entry)));
        all
    }

    #[test]
    fn finds_each_string_that_a_text_begins_with() {
        let trie = Trie::new(["b", "abc", "a", "", "ab\0", "abcd", "ab\0\0x", "猫", "猫耳"].into_iter());
        assert_eq!(prefixes(&trie, "abcde"), [(1, 2), (3, 1), (4, 5)]);
        assert_eq!(prefixes(&trie, "ab\0\0x"), [(1, 2), (3, 4), (5, 6)]);
        assert_eq!(prefixes(&trie, "猫耳"), [(3, 7), (6, 8)]);
        assert_eq!(prefixes(&trie, "c"), []);
        assert_eq!(prefixes(&trie, ""), []);
        assert_eq!(trie.find("abcd"), Some(5));
        assert_eq!(trie.find("abcde"), None);
        assert_eq!(trie.find("ab"), None);
    }

    #[test]
    fn of_equal_strings_the_last_counts() {
        let trie = Trie::new(["x", "y", "x"].into_iter());
        assert_eq!(trie.find("x"), Some(2));
        assert_eq!(trie.find("y"), Some(1));
    }

    #[test]
    fn an_empty_trie_finds_nothing() {
        assert_eq!(Trie::new(std::iter::empty()).longest(b"a"), None);
        assert_eq!(Trie::default().longest(b"a"), None);
    }
}
