//! Unicode's letters (L) and numbers (N), which CLIP's pattern distinguishes.

use std::sync::OnceLock;

use regex_syntax::hir::{Class, HirKind};

/// The class of a character in CLIP's pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Category {
    Letter,
    Number,
    Space,
    Other,
}

/// A character's category.
pub(crate) fn category(character: char) -> Category {
    static LETTERS: OnceLock<Vec<(char, char)>> = OnceLock::new();
    static NUMBERS: OnceLock<Vec<(char, char)>> = OnceLock::new();
    if character.is_whitespace() {
        Category::Space
    } else if character.is_ascii() {
        match character {
            'a'..='z' | 'A'..='Z' => Category::Letter,
            '0'..='9' => Category::Number,
            _ => Category::Other,
        }
    } else if within(LETTERS.get_or_init(|| ranges(r"\p{L}")), character) {
        Category::Letter
    } else if within(NUMBERS.get_or_init(|| ranges(r"\p{N}")), character) {
        Category::Number
    } else {
        Category::Other
    }
}

/// The ranges of a class in order. None where it is unknown, which the test rules out.
fn ranges(class: &str) -> Vec<(char, char)> {
    match regex_syntax::parse(class).map(|hir| hir.into_kind()) {
        Ok(HirKind::Class(Class::Unicode(class))) => class.iter().map(|range| (range.start(), range.end())).collect(),
        _ => Vec::new(),
    }
}

fn within(ranges: &[(char, char)], character: char) -> bool {
    let after = ranges.partition_point(|range| range.0 <= character);
    after.checked_sub(1).and_then(|index| ranges.get(index)).is_some_and(|range| character <= range.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_letters_numbers_and_spaces_apart() {
        for (characters, expected) in [
            ("azAZéßςЖ猫がﬁ", Category::Letter),
            ("09²½Ⅷ१〇", Category::Number),
            (" \t\u{85}\u{a0}\u{2028}\u{3000}", Category::Space),
            ("'_-\0\u{301}\u{200b}\u{200d}\u{1c}❤😀\u{e000}", Category::Other),
        ] {
            for character in characters.chars() {
                assert_eq!(category(character), expected, "{character:?}");
            }
        }
    }
}
