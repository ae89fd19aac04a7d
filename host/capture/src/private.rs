//! Words of free text that show more than they should: tokens by their form, credentials in
//! addresses, paths and file names.

use std::ops::Range;

use crate::LEFT_OUT;

/// Beginnings of tokens that services hand out.
const TOKENS: [&str; 11] =
    ["hf_", "ghp_", "gho_", "github_pat_", "glpat-", "sk-", "xoxb-", "xoxp-", "AKIA", "eyJ", "npm_"];

/// The fewest bytes of a token.
const SHORTEST_TOKEN: usize = 16;

/// The beginning of a key's text.
const KEY: &str = "-----BEGIN ";

/// Endings of files that users name, parted by blanks.
const ENDINGS: &str = "avi bin bmp ckpt conf csv db exr gguf gif heic jpeg jpg json jxl latent log md \
     mkv mov mp4 npy npz onnx pem png pt pth safetensors tif tiff toml txt wasm webp";

/// Beginnings of paths.
const PATHS: [&str; 6] = ["~/", "./", "../", "\\\\", "file:", "~\\"];

/// Characters that part words, beside blanks.
const BETWEEN: [char; 16] = ['"', '\'', '`', '=', ',', ';', '|', '(', ')', '[', ']', '{', '}', '<', '>', '\u{201c}'];

/// A text without tokens and credentials.
pub(crate) fn without_secrets(text: &str) -> String {
    if text.contains(KEY) {
        return LEFT_OUT.into();
    }
    let is_token = |word: &str| word.len() >= SHORTEST_TOKEN && TOKENS.iter().any(|begin| word.starts_with(begin));
    let mut spans: Vec<_> = words(text).filter(|span| text.get(span.clone()).is_some_and(is_token)).collect();
    let mut after_bearer = false;
    for span in words(text) {
        if after_bearer {
            spans.push(span.clone());
        }
        after_bearer = text.get(span.clone()).is_some_and(|word| word.eq_ignore_ascii_case("bearer"));
        spans.extend(credentials(text, span));
    }
    replace(text, spans)
}

/// The credentials of an address such as `https://me:secret@example.org`.
fn credentials(text: &str, word: Range<usize>) -> Option<Range<usize>> {
    let address = text.get(word.clone())?;
    let from = address.find("://")? + 3;
    let host = address.get(from..)?;
    let end = host.split('/').next()?.rfind('@')?;
    Some(word.start + from..word.start + from + end)
}

/// A text without paths and file names. All between the first and the last is left out: paths may
/// have blanks in them.
pub(crate) fn without_names(text: &str) -> String {
    if begins_path(text.trim_start()) {
        return LEFT_OUT.into();
    }
    let mut named = words(text).filter(|span| text.get(span.clone()).is_some_and(is_path));
    let Some(first) = named.next() else { return text.to_owned() };
    let end = named.last().map_or(first.end, |last| last.end);
    replace(text, std::iter::once(first.start..end))
}

/// True for a text that begins as a path does.
fn begins_path(text: &str) -> bool {
    let drive = text.strip_prefix(|first: char| first.is_ascii_alphabetic()).and_then(|rest| rest.strip_prefix(':'));
    is_rooted(text) || drive.is_some_and(is_rooted) || PATHS.iter().any(|begin| text.starts_with(begin))
}

fn is_rooted(text: &str) -> bool {
    let is_name = |character: char| character.is_alphanumeric() || "._-~".contains(character);
    text.strip_prefix(['/', '\\']).is_some_and(|rest| rest.starts_with(is_name))
}

/// True for a word that is a path or a file's name.
fn is_path(word: &str) -> bool {
    let after_colon = || word.match_indices(':').any(|(at, _)| word.get(at + 1..).is_some_and(is_rooted));
    if begins_path(word) || after_colon() {
        return true;
    }
    let word = word.trim_end_matches(['.', ':', '!', '?']);
    let name = word.rsplit(['/', '\\']).next().unwrap_or(word);
    name.rsplit_once('.').is_some_and(|(stem, ending)| {
        !stem.is_empty() && ENDINGS.split(' ').any(|known| known.eq_ignore_ascii_case(ending))
    })
}

/// The places of words.
fn words(text: &str) -> impl Iterator<Item = Range<usize>> {
    let parts = |character: char| character.is_whitespace() || BETWEEN.contains(&character);
    let mut from = 0;
    text.split(parts).filter_map(move |word| {
        // Each is a part of the text.
        let start = text.get(from..)?.find(word)? + from;
        from = start + word.len();
        (!word.is_empty()).then_some(start..from)
    })
}

/// A text with something else at these places.
fn replace(text: &str, spans: impl IntoIterator<Item = Range<usize>>) -> String {
    let mut spans: Vec<_> = spans.into_iter().collect();
    spans.sort_by_key(|span| span.start);
    let (mut result, mut from) = (String::new(), 0);
    for span in spans {
        if span.start >= from {
            result.push_str(text.get(from..span.start).unwrap_or_default());
            result.push_str(LEFT_OUT);
            from = span.end;
        }
    }
    result.push_str(text.get(from..).unwrap_or_default());
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_file_names_are_left_out_of_sentences() {
        for (text, expected) in [
            ("can't read /home/me/cat.png: it is gone", "can't read left out it is gone"),
            ("'/home/me/my cat/a b.png' and more", "'left out' and more"),
            ("/home/me/my cat", "left out"),
            ("error:/home/me", "left out"),
            ("C:\\Users\\me\\a", "left out"),
            ("it is at C:\\Users\\me and", "it is at left out and"),
            ("see cat.safetensors.", "see left out"),
            ("see ../up and ~/down now", "see left out now"),
            ("path=/x/y", "path=left out"),
            ("3 / 4 of f16/f32 at 0.5 s", "3 / 4 of f16/f32 at 0.5 s"),
            ("double_blocks.0.img_attn.qkv", "double_blocks.0.img_attn.qkv"),
            ("http://127.0.0.1:4318 answers", "http://127.0.0.1:4318 answers"),
            ("", ""),
        ] {
            assert_eq!(without_names(text), expected, "{text}");
        }
    }

    #[test]
    fn tokens_are_known_by_their_form() {
        for (text, expected) in [
            ("with hf_abcdefghijklmnop it", "with left out it"),
            ("Authorization: Bearer abc", "Authorization: Bearer left out"),
            ("https://me:pass@example.org/a", "https://left out@example.org/a"),
            ("a\n-----BEGIN PRIVATE KEY-----\nb", "left out"),
            ("hf_short sk-1 and oci://registry/a@sha256:b", "hf_short sk-1 and oci://registry/a@sha256:b"),
        ] {
            assert_eq!(without_secrets(text), expected, "{text}");
        }
    }
}
