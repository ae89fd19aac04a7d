//! Text from files, policies and servers on its way to a terminal: characters that have any other
//! effect there than being shown are written as escapes. [`Clean`] does so for everything that is
//! printed, [`one_line`] for line breaks too.

use std::{
    borrow::Cow,
    io::{self, Write},
};

/// True if a terminal only shows the character: it is no control character of either set, no mark
/// of writing direction, no separator of lines or paragraphs, and no annotation.
pub fn is_safe(character: char) -> bool {
    !character.is_control()
        && !matches!(
            character,
            '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}'
        )
}

/// The text with every unsafe character as its JSON escape, line breaks and tabs included.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// [`one_line`] of the first `most` characters, followed by `…` if there are more.
pub fn shorten(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", one_line(&text[..end])),
        None => one_line(text).into_owned(),
    }
}

/// The first `most` characters with spaces for unsafe ones, followed by `…` if there are more: for
/// text that is recorded and shown to everybody.
pub fn blank_unprintable(text: String, most: usize) -> String {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~');
    if text.len() <= most && (text.as_bytes().iter().all(is_plain) || text.chars().all(is_safe)) {
        return text;
    }
    let mut short: String = text.chars().take(most).map(|one| if is_safe(one) { one } else { ' ' }).collect();
    if text.chars().nth(most).is_some() {
        short.push('…');
    }
    short
}

/// Escapes as JSON does, so that the result is right in JSON too, where such characters occur only
/// in strings.
fn escape(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_fine = |character: char| is_safe(character) || stays(character);
    if text.chars().all(is_fine) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            _ if is_fine(character) => clean.push(character),
            '\n' => clean.push_str("\\n"),
            '\r' => clean.push_str("\\r"),
            '\t' => clean.push_str("\\t"),
            _ => clean.push_str(&format!("\\u{:04x}", u32::from(character))),
        }
    }
    Cow::Owned(clean)
}

/// A writer to a terminal, or to anything that may end on one. Line breaks and tabs are the
/// program's own and pass; every other unsafe character is escaped, and bytes that are not UTF-8
/// become U+FFFD.
#[derive(Debug)]
pub struct Clean<W> {
    inner: W,
    /// The first bytes of a character that is not complete yet.
    begun: Vec<u8>,
}

impl<W: Write> Clean<W> {
    /// A writer that cleans everything on its way to `inner`.
    pub fn new(inner: W) -> Self {
        Self { inner, begun: Vec::new() }
    }
}

impl<W: Write> Write for Clean<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let joined = [std::mem::take(&mut self.begun).as_slice(), bytes].concat();
        let mut clean = String::with_capacity(joined.len());
        let mut chunks = joined.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            clean += &escape(chunk.valid(), |character| matches!(character, '\n' | '\t'));
            let broken = chunk.invalid();
            let goes_on =
                chunks.peek().is_none() && std::str::from_utf8(broken).is_err_and(|error| error.error_len().is_none());
            match goes_on {
                true => self.begun = broken.to_vec(),
                false if !broken.is_empty() => clean.push(char::REPLACEMENT_CHARACTER),
                false => {}
            }
        }
        self.inner.write_all(clean.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(pieces: &[&[u8]]) -> String {
        let mut clean = Clean::new(Vec::new());
        pieces.iter().for_each(|piece| clean.write_all(piece).unwrap());
        String::from_utf8(clean.inner).unwrap()
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(one_line("AMD Radeon™ 8060S, 木"), "AMD Radeon™ 8060S, 木");
        assert_eq!(one_line("a\u{1b}[31m\r\n\t\u{9b}\u{202e}"), r"a\u001b[31m\r\n\t\u009b\u202e");
        assert_eq!(shorten(&"x".repeat(50), 40), format!("{}…", "x".repeat(40)));
        assert_eq!(shorten("ä\u{7}ü", 3), r"ä\u0007ü");
    }

    #[test]
    fn recorded_texts_are_cut_and_blanked() {
        for (text, most, expected) in [
            ("plain", 400, "plain"),
            ("a\nb\x1b[31m\u{202e}c", 400, "a b [31m c"),
            ("a\u{61c}b", 400, "a b"),
            ("äöü", 2, "äö…"),
            ("äöü", 3, "äöü"),
        ] {
            assert_eq!(blank_unprintable(text.into(), most), expected);
        }
    }

    #[test]
    fn printed_lines_stay_lines_and_characters_may_come_in_pieces() {
        assert_eq!(written(&[b"a\tb\n\x1b]0;title\x07\n"]), "a\tb\n\\u001b]0;title\\u0007\n");
        assert_eq!(written(&["木".as_bytes().split_at(1).0, "木".as_bytes().split_at(1).1]), "木");
        assert_eq!(written(&[b"\xc2", b"\x9b"]), r"\u009b", "in two pieces it is the same control character");
        assert_eq!(written(&[b"\xff\xfe", b"a"]), "\u{fffd}\u{fffd}a");
    }

    #[test]
    fn json_stays_json() {
        let text = "\u{9b}\u{7f}\u{202e}\n";
        let json = serde_json::to_string(text).unwrap();
        let clean = written(&[json.as_bytes()]);
        assert!(clean.chars().all(is_safe), "{clean}");
        assert_eq!(serde_json::from_str::<String>(&clean).unwrap(), text);
    }

    proptest! {
        #[test]
        fn nothing_unsafe_passes(bytes: Vec<u8>, at in 0_usize..64) {
            let (one, other) = bytes.split_at(at.min(bytes.len()));
            prop_assert!(written(&[one, other]).chars().all(|character| is_safe(character) || "\n\t".contains(character)));
        }
    }
}
