//! Patterns of layer names. Matching allocates nothing: it is done for each layer that runs.

use std::{fmt, str::FromStr};

use crate::{Error, Result};

/// The longest pattern, in bytes.
const LONGEST: usize = 1024;

/// Patterns over dotted layer names, separated by commas: a name that one of them fits is captured.
/// `*` stands for any characters within one dotted part, and a part `**` for any number of parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPattern {
    text: String,
    patterns: Vec<Vec<Part>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// `**`.
    Any,
    /// One dotted part, with or without `*`.
    One(String),
}

impl LayerPattern {
    /// True if one of the patterns fits the name.
    pub fn matches(&self, name: &str) -> bool {
        self.patterns.iter().any(|parts| parts_match(parts, name))
    }
}

impl fmt::Display for LayerPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for LayerPattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused = |reason| {
            let pattern = text.chars().take(100).collect();
            Err(Error::Pattern { pattern, reason })
        };
        if text.len() > LONGEST {
            return refused("longer than 1024 bytes: give dotted names");
        }
        let mut patterns = Vec::new();
        for pattern in text.split(',').map(str::trim) {
            if pattern.split('.').any(str::is_empty) {
                return refused("a name or a part of one is empty: give dotted names");
            }
            if pattern.split('.').any(|part| part != "**" && part.contains("**")) {
                return refused("** stands for whole parts: give it between dots");
            }
            patterns.push(pattern.split('.').map(Part::of).collect());
        }
        Ok(Self { text: text.trim().to_owned(), patterns })
    }
}

impl Part {
    fn of(text: &str) -> Self {
        if text == "**" { Self::Any } else { Self::One(text.to_owned()) }
    }
}

/// The first dotted part of a name, and the rest if there is more.
fn first(name: &str) -> (&str, Option<&str>) {
    name.split_once('.').map_or((name, None), |(first, rest)| (first, Some(rest)))
}

fn parts_match(parts: &[Part], name: &str) -> bool {
    let (mut parts, mut name) = (parts, Some(name));
    // The place after the last `**`, and the name from which it is tried next: an earlier `**`
    // need not take more than it did.
    let mut again: Option<(&[Part], Option<&str>)> = None;
    loop {
        match (parts.split_first(), name) {
            (None, None) => return true,
            (Some((Part::Any, rest)), _) => {
                again = Some((rest, name));
                parts = rest;
                continue;
            }
            (Some((Part::One(part), rest)), Some(text)) => {
                let (text, more) = first(text);
                if part_matches(part.as_bytes(), text.as_bytes()) {
                    (parts, name) = (rest, more);
                    continue;
                }
            }
            _ => {}
        }
        let Some((after, Some(from))) = again else { return false };
        (parts, name) = (after, first(from).1);
        again = Some((after, name));
    }
}

fn part_matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut pattern, mut text) = (pattern, text);
    let mut again: Option<(&[u8], &[u8])> = None;
    loop {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => return true,
            (Some((b'*', rest)), _) => {
                again = Some((rest, text));
                pattern = rest;
                continue;
            }
            (Some((wanted, rest)), Some((found, more))) if wanted == found => {
                (pattern, text) = (rest, more);
                continue;
            }
            _ => {}
        }
        let Some((after, [_, from @ ..])) = again else { return false };
        (pattern, text) = (after, from);
        again = Some((after, from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stay_within_a_part_and_double_stars_do_not() {
        let cases = [
            ("double_blocks.*.img_attn.qkv", "double_blocks.17.img_attn.qkv", true),
            ("double_blocks.*.img_attn.qkv", "double_blocks.17.x.img_attn.qkv", false),
            ("double_blocks.*", "double_blocks.1.norm", false),
            ("double_blocks.**", "double_blocks.1.norm", true),
            ("double_blocks.**", "double_blocks", true),
            ("**", "a.b.c", true),
            ("**.norm", "norm", true),
            ("**.norm", "a.norm.b.norm", true),
            ("**.norm", "a.norm.b", false),
            ("**.a.**.b", "x.a.a.y.z.b", true),
            ("**.a.**.b", "x.b.a", false),
            ("**.**.a", "a", true),
            ("*_blocks.1*.q*v", "single_blocks.12.qkv", true),
            ("*_blocks.1*.q*v", "single_blocks.21.qkv", false),
            ("a*b*c", "aXbXbc", true),
            ("a*b*c", "aXbXbcd", false),
            ("a", "a", true),
            ("a", "a.b", false),
            ("a.b", "a", false),
            ("a, b.*", "b.c", true),
            ("*", "", true),
            ("a", "", false),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(pattern.parse::<LayerPattern>().unwrap().matches(name), expected, "{pattern}: {name}");
        }
    }

    #[test]
    fn a_pattern_that_means_nothing_is_refused() {
        let long = "a".repeat(LONGEST + 1);
        for pattern in ["", " ", ",", "a,,b", "a,", "a..b", ".a", "a.", "a**", "**b.c", &long] {
            let error = pattern.parse::<LayerPattern>().unwrap_err();
            assert!(matches!(error, Error::Pattern { .. }), "{pattern}");
            assert!(error.to_string().len() < 250, "{error}");
        }
    }

    #[test]
    fn a_hostile_pattern_ends_soon() {
        let pattern: LayerPattern = format!("{}b", "*a".repeat(300)).parse().unwrap();
        assert!(!pattern.matches(&"a".repeat(5000)));
        let pattern: LayerPattern = format!("{}b", "**.a.".repeat(200)).parse().unwrap();
        assert!(!pattern.matches(&"a.".repeat(3000)));
    }
}
