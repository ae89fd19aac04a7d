//! Texts in EXIF, as ComfyUI writes them into WebP: `keyword:text` in ASCII tags of the first
//! directory, the prompt in Model and the workflow in Make (comfyanonymous/ComfyUI,
//! comfy_extras/nodes_images.py, `SaveAnimatedWEBP`). Its front end takes any tag of text.

use serde::de::IgnoredAny;

use crate::picture::{Texts, is_keyword};

/// The most bytes that fit a JPEG: a segment counts its length in 16 bits and begins with
/// `Exif\0\0`.
pub(crate) const MOST_IN_JPEG: usize = 65_535 - 2 - PREFIX.len();
/// The most bytes elsewhere: more than any workflow takes.
pub(crate) const MOST: usize = 1 << 30;

/// The bytes before the directory in JPEG, and in some WebP.
const PREFIX: &[u8] = b"Exif\0\0";

const MAKE: u16 = 0x010f;
const MODEL: u16 = 0x0110;
/// Tags of text for keywords without a tag by convention: ImageDescription, DocumentName, Software,
/// HostComputer, Artist, Copyright.
const OTHERS: [u16; 6] = [0x010e, 0x010d, 0x0131, 0x013c, 0x013b, 0x8298];

const ASCII: u16 = 2;
const ENTRY: usize = 12;
/// The byte order, 42 and the directory's offset; then its count. After its entries comes the next
/// directory's offset.
const HEADER: usize = 8 + 2;
const END: usize = 4;

/// Encodes the texts as a directory of at most `most` bytes, the workflow first; also returns the
/// keywords of texts that did not fit. The directory is empty if no text fits.
pub(crate) fn encode(texts: &Texts, most: usize) -> (Vec<u8>, Vec<String>) {
    let mut ordered: Vec<_> = texts.iter().collect();
    ordered.sort_by_key(|(keyword, _)| match keyword.as_str() {
        "workflow" => 0,
        "prompt" => 1,
        _ => 2,
    });
    let (mut others, mut entries, mut left_out) = (OTHERS.into_iter(), Vec::new(), Vec::new());
    let mut length = HEADER + END;
    for (keyword, text) in ordered {
        let mut value = format!("{keyword}:{}", plain(text)).replace('\0', "").into_bytes();
        value.push(0);
        // Values begin at even offsets.
        let takes = ENTRY + value.len().next_multiple_of(2);
        let tag = match keyword.as_str() {
            _ if length + takes > most => None,
            "workflow" => Some(MAKE),
            "prompt" => Some(MODEL),
            _ => others.next(),
        };
        match tag {
            Some(tag) => {
                entries.push((tag, value));
                length += takes;
            }
            None => left_out.push(keyword.clone()),
        }
    }
    if entries.is_empty() {
        return (Vec::new(), left_out);
    }
    entries.sort();
    let mut bytes = b"II*\0\x08\0\0\0".to_vec();
    bytes.extend((entries.len() as u16).to_le_bytes());
    let mut at = HEADER + ENTRY * entries.len() + END;
    for (tag, value) in &entries {
        bytes.extend([tag.to_le_bytes(), ASCII.to_le_bytes()].concat());
        bytes.extend([(value.len() as u32).to_le_bytes(), (at as u32).to_le_bytes()].concat());
        at += value.len().next_multiple_of(2);
    }
    bytes.extend([0; END]);
    for (_, value) in entries {
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(2), 0);
    }
    (bytes, left_out)
}

/// JSON in ASCII alone, since readers of EXIF decode other characters in different ways.
fn plain(text: &str) -> String {
    if text.is_ascii() || serde_json::from_str::<IgnoredAny>(text).is_err() {
        return text.to_owned();
    }
    escape(text)
}

/// JSON without characters beyond ASCII.
pub fn escape(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    for character in json.chars() {
        match character.is_ascii() {
            true => plain.push(character),
            // JSON has such characters only in its strings.
            false => plain.extend(character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}"))),
        }
    }
    plain
}

/// The texts in a directory of any origin; malformed entries are skipped.
pub(crate) fn decode(bytes: &[u8]) -> Texts {
    let bytes = bytes.strip_prefix(PREFIX).unwrap_or(bytes);
    let little = match bytes.first_chunk() {
        Some(b"II*\0") => true,
        Some(b"MM\0*") => false,
        _ => return Texts::new(),
    };
    let short = |at: usize| {
        let word = *bytes.get(at..)?.first_chunk()?;
        Some(if little { u16::from_le_bytes(word) } else { u16::from_be_bytes(word) })
    };
    let long = |at: usize| {
        let word = *bytes.get(at..)?.first_chunk()?;
        Some((if little { u32::from_le_bytes(word) } else { u32::from_be_bytes(word) }) as usize)
    };
    // Entries may share their values, so the total is bounded by the directory's length.
    let (mut texts, mut left) = (Texts::new(), bytes.len());
    let Some(start) = long(4) else { return texts };
    for entry in 0..usize::from(short(start).unwrap_or(0)) {
        let at = start + 2 + entry * ENTRY;
        let (Some(kind), Some(count), Some(place)) = (short(at + 2), long(at + 4), long(at + 8)) else { break };
        let Some(rest) = left.checked_sub(count) else { break };
        left = rest;
        let value = place.checked_add(count).and_then(|end| bytes.get(place..end));
        let text = value.filter(|_| kind == ASCII && count > 4).and_then(|value| std::str::from_utf8(value).ok());
        let Some((keyword, text)) = text.and_then(|text| text.trim_end_matches('\0').split_once(':')) else { continue };
        if is_keyword(keyword) && !texts.iter().any(|(known, _)| known == keyword) {
            texts.push((keyword.to_owned(), text.to_owned()));
        }
    }
    texts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(pairs: &[(&str, &str)]) -> Texts {
        pairs.iter().map(|(keyword, text)| ((*keyword).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_directory_is_what_comfyui_reads() {
        let given = texts(&[("prompt", r#"{"3":"日本 🐈"}"#), ("workflow", "{}"), ("note", "é")]);
        let (bytes, left_out) = encode(&given, MOST);
        assert!(left_out.is_empty() && bytes.len().is_multiple_of(2));
        // Count, then tags in rising order: ImageDescription, Make, Model.
        assert_eq!(bytes[..10], *b"II*\0\x08\0\0\0\x03\0");
        assert_eq!([bytes[10], bytes[22], bytes[34]], [0x0e, 0x0f, 0x10]);
        let at = u32::from_le_bytes(bytes[42..46].try_into().unwrap()) as usize;
        assert!(bytes[at..].starts_with(br#"prompt:{"3":"\u65e5\u672c \ud83d\udc08"}"#));
        let mut found = decode(&[PREFIX, &bytes].concat());
        found.sort();
        let ascii = r#"{"3":"\u65e5\u672c \ud83d\udc08"}"#;
        assert_eq!(found, texts(&[("note", "é"), ("prompt", ascii), ("workflow", "{}")]));
        let parsed: serde_json::Value = serde_json::from_str(ascii).unwrap();
        assert_eq!(parsed["3"], "日本 🐈");
    }

    #[test]
    fn what_has_no_room_is_named_and_the_workflow_comes_first() {
        let large = "x".repeat(MOST_IN_JPEG - 200);
        let given = texts(&[("record", &large), ("prompt", "{}"), ("workflow", &large)]);
        let (bytes, left_out) = encode(&given, MOST_IN_JPEG);
        assert!(bytes.len() <= MOST_IN_JPEG && left_out == ["record"]);
        assert_eq!(decode(&bytes), texts(&[("workflow", &large), ("prompt", "{}")]));
        assert_eq!(encode(&given, 20).0, Vec::<u8>::new());
        let many: Texts = (0..9).map(|number| (format!("k{number}"), "text".into())).collect();
        assert_eq!(encode(&many, MOST).1, ["k6", "k7", "k8"]);
    }

    proptest! {
        #[test]
        fn nothing_in_a_directory_is_trusted(bytes in prop::collection::vec(any::<u8>(), 0..200), little: bool) {
            decode(&bytes);
            let order: &[u8] = if little { b"II*\0" } else { b"MM\0*" };
            decode(&[order, &bytes].concat());
        }
    }
}
