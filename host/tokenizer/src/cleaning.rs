//! The cleaning that WAN's own code and diffusers give a prompt before UMT5 reads it.
//!
//! It is what ftfy 6.3.1's `fix_text` does, then `html.unescape` twice, then white space. Of ftfy,
//! the repair of text that was decoded wrongly (`cafÃ©`) is left out: it rests on statistics of
//! what such text looks like.

use std::collections::HashMap;
use std::sync::OnceLock;

use unicode_normalization::UnicodeNormalization;

/// Named character references of HTML: a name, with `;` where it needs one, and code points.
const ENTITIES: &str = include_str!("cleaning/entities.txt");
/// The longest name that is looked for, in characters.
const LONGEST_NAME: usize = 32;
/// The meanings of the bytes 0x80 to 0x9F in Windows-1252; those without one are themselves.
const WINDOWS: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}', '‘', '’',
    '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];
/// The most rounds of mending a line. ftfy goes on until nothing changes, which nested
/// `&amp;amp;` can put off as long as they like.
const MOST_ROUNDS: usize = 16;

/// The prompt cleaned: character references resolved, ligatures and full-width forms as plain
/// characters, quotes straight, control characters gone, white space as single spaces, NFC.
#[must_use]
pub fn clean(prompt: &str) -> String {
    let mut text = String::with_capacity(prompt.len());
    let mut references = true;
    for line in prompt.split_inclusive('\n') {
        // Text that has markup is left its references from there on.
        references &= !line.contains('<');
        text.push_str(&mend(line, references));
    }
    let text = unescape(&unescape(&text));
    text.split(char::is_whitespace).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// A line as ftfy mends it.
fn mend(line: &str, references: bool) -> String {
    let mut text = line.to_owned();
    for _ in 0..MOST_ROUNDS {
        let before = text.clone();
        if references {
            text = sure_references(&text);
        }
        text = without_controls(&plain_characters(&text)).nfc().collect();
        if text == before {
            break;
        }
    }
    text
}

/// The text with the character references that can mean nothing else resolved: those with `;`.
fn sure_references(text: &str) -> String {
    each_reference(text, |rest| {
        let number = rest.strip_prefix('#');
        let name = number.unwrap_or(rest);
        let length = name.find(|c: char| !c.is_ascii_alphanumeric()).filter(|length| (1..=24).contains(length))?;
        if name.as_bytes().get(length) != Some(&b';') {
            return None;
        }
        let whole = rest.get(..rest.len() - name.len() + length + 1)?;
        let resolved = match number {
            Some(_) => {
                let (resolved, used) = resolve(whole)?;
                (used == whole.len()).then_some(resolved)?
            }
            None => named(whole).or_else(|| capitals(whole))?,
        };
        Some((resolved, whole.len()))
    })
}

/// A reference that was written in capitals: `&EACUTE;`.
fn capitals(name: &str) -> Option<String> {
    let lower = name.to_ascii_lowercase();
    if lower == name || name.to_ascii_uppercase() != name || resolve(name).is_some() {
        return None;
    }
    named(&lower).map(|text| text.to_uppercase())
}

/// Python's `html.unescape`.
fn unescape(text: &str) -> String {
    each_reference(text, resolve)
}

/// Replaces what follows each `&` by what `resolve` makes of it, and as many bytes as it says.
fn each_reference(text: &str, resolve: impl Fn(&str) -> Option<(String, usize)>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        match resolve(after) {
            Some((resolved, used)) => {
                out.push_str(&resolved);
                rest = after.get(used..).unwrap_or_default();
            }
            None => {
                out.push('&');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// The meaning of the reference at the start of `rest`, which follows a `&`, and its length.
fn resolve(rest: &str) -> Option<(String, usize)> {
    let Some(number) = rest.strip_prefix('#') else {
        let end = rest.find(['\t', '\n', '\u{c}', ' ', '<', '&', '#', ';']);
        let mut length = end.unwrap_or(rest.len());
        length = rest.char_indices().nth(LONGEST_NAME).map_or(length, |(most, _)| length.min(most));
        if length > 0 && rest.as_bytes().get(length) == Some(&b';') {
            length += 1;
        }
        // The whole name, or the longest of two characters and more that it begins with.
        let ends = rest.char_indices().map(|(at, _)| at).skip(2).take_while(|at| *at < length);
        let ends: Vec<usize> = ends.collect();
        return std::iter::once(length)
            .chain(ends.into_iter().rev())
            .find_map(|end| Some((named(rest.get(..end)?)?, end)));
    };
    let (digits, radix) = match number.strip_prefix(['x', 'X']) {
        Some(digits) => (digits, 16),
        None => (number, 10),
    };
    let length = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let (digits, after) = digits.split_at_checked(length).filter(|(digits, _)| !digits.is_empty())?;
    let used = rest.len() - after.len() + usize::from(after.starts_with(';'));
    // A number too large for the type is no character either.
    let code = u32::from_str_radix(digits, radix).unwrap_or(u32::MAX);
    Some((numbered(code), used))
}

/// The character of a number in a reference, by HTML's rules.
fn numbered(code: u32) -> String {
    let windows = code.checked_sub(0x80).and_then(|index| WINDOWS.get(index as usize));
    match (code, windows) {
        (_, Some(character)) => character.to_string(),
        (0x1..=0x8 | 0xb | 0xe..=0x1f | 0x7f | 0xfdd0..=0xfdef, _) => String::new(),
        (0, _) => char::REPLACEMENT_CHARACTER.to_string(),
        (code, _) if code & 0xfffe == 0xfffe && code <= 0x10_ffff => String::new(),
        (code, _) => char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER).to_string(),
    }
}

/// The text of exactly this name.
fn named(name: &str) -> Option<String> {
    static NAMES: OnceLock<HashMap<&str, &str>> = OnceLock::new();
    let names = NAMES.get_or_init(|| ENTITIES.lines().filter_map(|line| line.split_once(' ')).collect());
    let codes = names.get(name)?.split(' ');
    Some(codes.filter_map(|code| u32::from_str_radix(code, 16).ok().and_then(char::from_u32)).collect())
}

/// The text with ligatures, full and half widths, curly quotes and foreign line ends made plain.
fn plain_characters(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let windows = u32::from(character).checked_sub(0x80).and_then(|index| WINDOWS.get(index as usize));
        let character = windows.copied().unwrap_or(character);
        if character == '\r' && characters.peek() == Some(&'\n') {
            continue;
        }
        match (ligature(character), character) {
            (Some(letters), _) => out.extend(letters.chars().map(straight)),
            (_, '\u{3000}') => out.push(' '),
            (_, '\u{ff01}'..='\u{ffef}') => out.extend(character.nfkc().map(straight)),
            (_, '\r' | '\u{2028}' | '\u{2029}' | '\u{85}') => out.push('\n'),
            _ => out.push(straight(character)),
        }
    }
    out
}

/// A quote as a straight one.
fn straight(character: char) -> char {
    match character {
        '\u{2bc}' | '\u{2018}'..='\u{201b}' => '\'',
        '\u{201c}'..='\u{201f}' => '"',
        _ => character,
    }
}

fn ligature(character: char) -> Option<&'static str> {
    Some(match character {
        'Ĳ' => "IJ",
        'ĳ' => "ij",
        'ŉ' => "\u{2bc}n",
        'Ǳ' => "DZ",
        'ǲ' => "Dz",
        'ǳ' => "dz",
        'Ǆ' => "D\u{17d}",
        'ǅ' => "D\u{17e}",
        'ǆ' => "d\u{17e}",
        'Ǉ' => "LJ",
        'ǈ' => "Lj",
        'ǉ' => "lj",
        'Ǌ' => "NJ",
        'ǋ' => "Nj",
        'ǌ' => "nj",
        'ﬀ' => "ff",
        'ﬁ' => "fi",
        'ﬂ' => "fl",
        'ﬃ' => "ffi",
        'ﬄ' => "ffl",
        'ﬅ' => "\u{17f}t",
        'ﬆ' => "st",
        _ => return None,
    })
}

/// The text without a terminal's colour codes and without control characters.
fn without_controls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        out.push_str(before);
        let code =
            after.strip_prefix('[').map(|code| code.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';'));
        rest = code.and_then(|code| code.strip_prefix(|c: char| c.is_ascii_alphabetic())).unwrap_or(after);
    }
    out.push_str(rest);
    out.retain(|character| {
        !matches!(
            character,
            '\0'..='\u{8}'
                | '\u{b}'
                | '\u{e}'..='\u{1f}'
                | '\u{7f}'
                | '\u{206a}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffc}'
        )
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_references_as_python_does() {
        for (text, expected) in [
            ("a &amp; b", "a & b"),
            ("&ampx;", "&x;"),
            ("&notit; &notin;", "¬it; ∉"),
            ("&#65;&#x42;&#X43 &#0;&#128;&#xD800;&#1;&#99999999999;", "ABC \u{fffd}€\u{fffd}\u{fffd}"),
            ("&;&#;&#x;& &xyz;", "&;&#;&#x;& &xyz;"),
            ("&NotEqualTilde;", "\u{2242}\u{338}"),
        ] {
            assert_eq!(unescape(text), expected, "{text:?}");
        }
    }

    #[test]
    fn cleans_a_prompt() {
        for (text, expected) in [
            ("  a\t b \n", "a b"),
            ("“quoted” ‘x’", "\"quoted\" 'x'"),
            ("ｆｕｌｌ　ｗｉｄｔｈ，ﬁne", "full width,fine"),
            ("ﾊﾝｶｸ ﾃﾞ", "ハンカク デ"),
            ("\u{1b}[31mred\u{1b}[0m\u{feff}", "red"),
            ("&EACUTE; &amp;amp;", "É &"),
            ("<b>&eacute;</b>", "<b>é</b>"),
            ("e\u{301}", "é"),
            ("caf\u{c3}\u{a9}", "caf\u{c3}\u{a9}"),
        ] {
            assert_eq!(clean(text), expected, "{text:?}");
        }
    }
}
