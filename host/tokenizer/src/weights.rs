//! ComfyUI's weights: `(text)` is 1.1 times as heavy, `(text:1.3)` weighs 1.3, and so on inside.
//!
//! The treatment of brackets that do not match was found out from its behaviour, and is kept: a
//! group is what opens where no other is open, and one that never closes ends at the text's last
//! character if that is a bracket, and is plain text if not. After a `)` too many, the next `(`
//! only makes up for it.

use crate::error::{Error, Result};

/// The deepest nesting of brackets. ComfyUI fails at about a thousand.
pub const MAX_DEPTH: usize = 256;

/// The factor of a pair of brackets without a number.
const STEP: f64 = 1.1;

/// A part of a prompt that weighs the same throughout.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// The text, without the brackets that weight it; `\(` and `\)` are brackets again.
    pub text: String,
    /// The weight of the text, 1 where nothing weights it.
    pub weight: f64,
    /// The byte of the prompt at which the text begins.
    pub start: usize,
}

/// A stretch of the prompt whose brackets are still to be read.
struct Stretch {
    start: usize,
    end: usize,
    weight: f64,
    depth: usize,
}

/// The prompt's segments in order, none of them empty. A number that is not finite in f32 is read
/// as text.
///
/// # Errors
/// [`Error::TooDeep`].
pub fn segments(prompt: &str) -> Result<Vec<Segment>> {
    let closing = closing(prompt);
    let mut out = Vec::new();
    let mut left = vec![Stretch { start: 0, end: prompt.len(), weight: 1.0, depth: 0 }];
    let mut emit = |start: usize, end: usize, weight| {
        if let Some(text) = prompt.get(start..end).filter(|text| !text.is_empty()) {
            out.push(Segment { text: text.replace("\\)", ")").replace("\\(", "("), weight, start });
        }
    };
    while let Some(Stretch { start, end, weight, depth }) = left.pop() {
        if depth > MAX_DEPTH {
            return Err(Error::TooDeep { limit: MAX_DEPTH });
        }
        let mut too_many = 0usize;
        let mut at = start;
        let opening = loop {
            match bracket(prompt, at, end) {
                Some((at, b'(')) if too_many == 0 => break Some(at),
                Some((next, b'(')) => {
                    too_many -= 1;
                    at = next + 1;
                }
                Some((next, _)) => {
                    too_many += 1;
                    at = next + 1;
                }
                None => break None,
            }
        };
        let Some(opening) = opening else {
            emit(start, end, weight);
            continue;
        };
        emit(start, opening, weight);
        let closed = closing.get(opening).copied().flatten().filter(|closed| *closed < end);
        // A bracket before the end, which may be another group's.
        let last = end.checked_sub(1).filter(|last| *last > opening && is_bracket(prompt, *last) == Some(b')'));
        let Some(closed) = closed.or(last) else {
            emit(opening, end, weight);
            continue;
        };
        let inner = opening + 1..closed;
        let (inner_end, inner_weight) = match number(prompt, inner.start, inner.end) {
            Some((colon, weight)) => (colon, weight),
            None => (inner.end, weight * STEP),
        };
        left.push(Stretch { start: closed + 1, end, weight, depth });
        left.push(Stretch { start: inner.start, end: inner_end, weight: inner_weight, depth: depth + 1 });
    }
    Ok(out)
}

/// For each byte that is an opening bracket, where the one that closes it is.
fn closing(prompt: &str) -> Vec<Option<usize>> {
    let mut closing = vec![None; prompt.len()];
    let mut open = Vec::new();
    let mut at = 0;
    while let Some((found, kind)) = bracket(prompt, at, prompt.len()) {
        match kind {
            b'(' => open.push(found),
            _ => {
                if let Some(slot) = open.pop().and_then(|opening: usize| closing.get_mut(opening)) {
                    *slot = Some(found);
                }
            }
        }
        at = found + 1;
    }
    closing
}

/// The first bracket from `from` on that no backslash stands before.
fn bracket(prompt: &str, from: usize, end: usize) -> Option<(usize, u8)> {
    (from..end).find_map(|at| is_bracket(prompt, at).map(|kind| (at, kind)))
}

fn is_bracket(prompt: &str, at: usize) -> Option<u8> {
    let byte = |at: usize| prompt.as_bytes().get(at).copied();
    let kind = byte(at).filter(|byte| matches!(byte, b'(' | b')'))?;
    (at.checked_sub(1).and_then(byte) != Some(b'\\')).then_some(kind)
}

/// The number after the last colon of a group, and where the colon is.
fn number(prompt: &str, start: usize, end: usize) -> Option<(usize, f64)> {
    let inner = prompt.get(start..end)?;
    // A bracket is in no number; to stop there keeps deep nesting linear.
    let colon =
        inner.rfind([':', '(', ')']).filter(|colon| *colon > 0 && inner.as_bytes().get(*colon) == Some(&b':'))?;
    let text = inner.get(colon + 1..)?.trim_matches(is_space);
    let digit =
        |index: Option<usize>| index.and_then(|index| text.as_bytes().get(index)).is_some_and(u8::is_ascii_digit);
    let grouped = |(index, _): (usize, &str)| digit(index.checked_sub(1)) && digit(Some(index + 1));
    if !text.match_indices('_').all(grouped) {
        return None;
    }
    let weight: f64 = text.replace('_', "").parse().ok()?;
    (weight as f32).is_finite().then_some((start + colon, weight))
}

/// True for what Python takes for white space.
pub(crate) fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(prompt: &str, expected: &[(&str, f64)]) {
        let found = segments(prompt).unwrap();
        let found: Vec<(&str, f64)> = found.iter().map(|segment| (segment.text.as_str(), segment.weight)).collect();
        assert_eq!(found, expected, "{prompt:?}");
    }

    #[test]
    fn brackets_multiply_and_numbers_set() {
        check("", &[]);
        check("a b", &[("a b", 1.0)]);
        check("a (b) c", &[("a ", 1.0), ("b", 1.1), (" c", 1.0)]);
        check("((a))", &[("a", 1.1 * 1.1)]);
        check("(a (b:0.5) c:2)", &[("a ", 2.0), ("b", 0.5), (" c", 2.0)]);
        check("(a:2 (b))", &[("a:2 ", 1.1), ("b", 1.1 * 1.1)]);
        check("((a):2)", &[("a", 2.0 * 1.1)]);
        check("()(())", &[]);
    }

    #[test]
    fn a_segment_says_where_its_text_begins() {
        let prompt = "é (a (b:0.5) c:2) d";
        let found = segments(prompt).unwrap();
        let found: Vec<&str> = found.iter().map(|segment| &prompt[segment.start..]).collect();
        assert_eq!(found, [prompt, "a (b:0.5) c:2) d", "b:0.5) c:2) d", " c:2) d", " d"]);
    }

    #[test]
    fn numbers_are_read_as_python_reads_them() {
        check("(a: 1_0.5e-1 )", &[("a", 1.05)]);
        check("(a:-.5)", &[("a", -0.5)]);
        check("(a:b:2.)", &[("a:b", 2.0)]);
        check("(:2)", &[(":2", 1.1)]);
        check("(a:)", &[("a:", 1.1)]);
        check("(a:1__0)", &[("a:1__0", 1.1)]);
        check("(a:nan)", &[("a:nan", 1.1)]);
        check("(a:1e39)", &[("a:1e39", 1.1)]);
    }

    #[test]
    fn escaped_brackets_are_text() {
        check(r"a \(b\) (c\))", &[("a (b) ", 1.0), ("c)", 1.1)]);
        check(r"\\(a)", &[(r"\(a)", 1.0)]);
        check(r"(a\)", &[("(a)", 1.0)]);
    }

    #[test]
    fn unbalanced_brackets() {
        check("(a", &[("(a", 1.0)]);
        check("a)", &[("a)", 1.0)]);
        check("a (b (c)", &[("a ", 1.0), ("b ", 1.1), ("(c", 1.1)]);
        check("((a)", &[("(a", 1.1)]);
        check("a) (b) (c)", &[("a) (b) (c)", 1.0)]);
        check("a) ((b)", &[("a) (", 1.0), ("b", 1.1)]);
        check(")(", &[(")(", 1.0)]);
    }

    #[test]
    fn deep_nesting_is_refused_and_quick() {
        for prompt in ["(".repeat(100_000), ")".repeat(100_000), "()".repeat(50_000), "(a)".repeat(33_000)] {
            segments(&prompt).unwrap();
        }
        let nested = |depth: usize| format!("{}a{}", "(".repeat(depth), ")".repeat(depth));
        assert_eq!(segments(&nested(MAX_DEPTH)).unwrap().len(), 1);
        assert_eq!(segments(&nested(50_000)), Err(Error::TooDeep { limit: MAX_DEPTH }));
        let uneven = format!("{}a{}", "(".repeat(50_000), ")".repeat(49_000));
        assert_eq!(segments(&uneven), Err(Error::TooDeep { limit: MAX_DEPTH }));
    }
}
