//! Faults of a body, a query or a form, in the API's words: the field, the value expected there,
//! and the value received. Parsers name their own types and places in the text, which mean nothing
//! to the author of a client.

use serde::de::{DeserializeOwned, IgnoredAny};

/// Parsers' names of types, with those of the API's description.
const EXPECTED: [(&str, &str); 14] = [
    ("a string", "a text"),
    ("a borrowed string", "a text"),
    ("string or map", "a text"),
    ("a boolean", "true or false"),
    ("a map", "an object"),
    ("a sequence", "a list"),
    ("unit", "nothing"),
    ("option", "a value or null"),
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number from 0 on"),
    ("i64", "a whole number"),
    ("f64", "a number"),
];

/// Faults of numbers in a query, in the words of Rust's own parser.
const NUMBERS: [&str; 6] = [
    "invalid digit found in string",
    "number too large to fit in target type",
    "number too small to fit in target type",
    "cannot parse integer from empty string",
    "invalid float literal",
    "cannot parse float from empty string",
];

/// Beginnings of messages that our own readers of values word for a client.
const OURS: [&str; 2] = ["expected ", "'"];

/// The most characters of such a message.
const LONGEST: usize = 240;

/// The most characters of a name or value that a message repeats.
const SHOWN: usize = 64;

/// A fault of a JSON text.
#[derive(Debug, PartialEq, Eq)]
pub enum Fault {
    /// The text is not JSON.
    Syntax(String),
    /// The text is JSON, but does not fit the description.
    Data(String),
}

/// Reads an object.
///
/// # Errors
/// A [`Fault`] with a line for the client.
pub fn parse_object<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    // Serde would accept a list of the fields in order, too.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(Fault::Data("expected an object, not a list".into()));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let place = |error: &serde_json::Error| {
        Fault::Syntax(format!("not JSON, from line {}, column {} on", error.line(), error.column()))
    };
    let read = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        match error.inner() {
            data if data.is_data() => Fault::Data(describe_fault(&path, &data.to_string())),
            // The parser reports some values of a wrong type as a fault of the syntax.
            _ if serde_json::from_slice::<IgnoredAny>(bytes).is_ok() => Fault::Data(describe_fault(&path, "")),
            syntax => place(syntax),
        }
    })?;
    // Anything after the object is a fault.
    reader.end().map_err(|error| place(&error)).map(|()| read)
}

/// Turns a parser's message about a field into a line. `path` is the field's place, `.` for the
/// whole.
pub fn describe_fault(path: &str, message: &str) -> String {
    let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
    let place =
        if path.is_empty() || path == "." || path == "?" { String::new() } else { format!("{}: ", shorten(path)) };
    let quoted = |start: &str| message.strip_prefix(start).and_then(|rest| rest.strip_prefix('`')?.split_once('`'));
    if let Some((name, rest)) = quoted("unknown field ") {
        return format!("{}: there is no such field{}", shorten(&within(path, name)), list_known(rest));
    }
    if let Some((name, _)) = quoted("missing field ") {
        return format!("{}: is missing", shorten(name));
    }
    if let Some((name, _)) = quoted("duplicate field ") {
        return format!("{}: is given twice", shorten(name));
    }
    if let Some((name, rest)) = quoted("unknown variant ") {
        return format!("{place}'{}' is not known{}", shorten(name), list_known(rest));
    }
    let typed = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    if let Some((came, expected)) = typed.and_then(|rest| rest.rsplit_once(", expected ")) {
        return format!("{place}expected {}, not {}", name_expected(expected), name_received(came));
    }
    if NUMBERS.contains(&message) {
        return format!("{place}expected a number within its bounds");
    }
    if OURS.iter().any(|start| message.starts_with(start)) {
        return format!("{place}{}", shorten_to(message, LONGEST));
    }
    format!("{place}not as it is described in /openapi.json")
}

/// The path of a field that the object at a path does not have; parsers give the one or the other.
fn within(path: &str, name: &str) -> String {
    match path {
        "" | "." | "?" => name.to_owned(),
        path if path == name || path.ends_with(&format!(".{name}")) => path.to_owned(),
        path => format!("{path}.{name}"),
    }
}

/// Turns the query extractor's message into a line.
pub fn describe_query_fault(text: &str) -> String {
    let text = text.rsplit_once("deserialize query string: ").map_or(text, |(_, rest)| rest);
    match text.split_once(": ") {
        Some((path, message)) if path.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') => {
            describe_fault(path, message)
        }
        _ => describe_fault(".", text),
    }
}

/// Turns serde's ", expected one of `a`, `b`" into a list of the known names.
fn list_known(rest: &str) -> String {
    let names: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
    if names.is_empty() { String::new() } else { format!(": there are {}", names.join(", ")) }
}

fn name_expected(expected: &str) -> &str {
    if expected.starts_with("struct ") {
        return "an object";
    }
    EXPECTED.iter().find(|(theirs, _)| *theirs == expected).map_or("what /openapi.json describes", |(_, ours)| ours)
}

/// Names the value received; serde calls it `string "x"`, ``integer `1` ``, `null`.
fn name_received(came: &str) -> String {
    let inner = || came.split_once('`').and_then(|(_, rest)| rest.rsplit_once('`')).map(|(inner, _)| shorten(inner));
    match came.split(' ').next() {
        Some("string") => "a text".into(),
        Some("integer" | "floating" | "number") => {
            inner().map_or_else(|| "that number".into(), |number| format!("the number {number}"))
        }
        Some("boolean") => inner().unwrap_or_else(|| "true or false".into()),
        Some("null" | "unit" | "Option") => "null".into(),
        Some("map") => "an object".into(),
        Some("sequence") => "a list".into(),
        _ => "what came".into(),
    }
}

fn shorten(text: &str) -> String {
    shorten_to(text, SHOWN)
}

fn shorten_to(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only its shape counts")]
    struct Sample {
        model: String,
        #[serde(default)]
        kind: Option<Kind>,
        #[serde(default)]
        most: Option<u64>,
        #[serde(default)]
        scaled: bool,
        #[serde(default)]
        settings: BTreeMap<String, u16>,
        #[serde(default)]
        inner: Option<Inner>,
        #[serde(default)]
        word: Option<Word>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only its shape counts")]
    struct Inner {
        #[serde(default)]
        seed: Option<Seed>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(untagged, expecting = "expected a number or a list of them")]
    #[allow(dead_code, reason = "only its shape counts")]
    enum Seed {
        One(u64),
        Many(Vec<u64>),
    }

    #[derive(Debug, Deserialize)]
    #[serde(try_from = "String")]
    struct Word;

    impl TryFrom<String> for Word {
        type Error = String;

        fn try_from(word: String) -> Result<Self, String> {
            Err(format!("'{word}': expected another"))
        }
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        Png,
        Mp4,
    }

    #[test]
    fn a_fault_names_its_field_and_what_is_expected_and_no_type_of_ours() {
        for (text, words) in [
            ("{}", "model: is missing"),
            ("[]", "expected an object, not a list"),
            ("1", "expected an object, not the number 1"),
            (r#"{"model":1}"#, "model: expected a text, not the number 1"),
            (r#"{"model":null}"#, "model: expected a text, not null"),
            (r#"{"model":"a","model":"b"}"#, "model: is given twice"),
            (r#"{"model":"a","kind":"bmp"}"#, "kind: 'bmp' is not known: there are png, mp4"),
            (r#"{"model":"a","most":-1}"#, "most: expected a whole number from 0 on, not the number -1"),
            (r#"{"model":"a","most":1.5}"#, "most: expected a whole number from 0 on, not the number 1.5"),
            (r#"{"model":"a","most":"x"}"#, "most: expected a whole number from 0 on, not a text"),
            (r#"{"model":"a","scaled":1}"#, "scaled: expected true or false, not the number 1"),
            (
                r#"{"model":"a","settings":{"tile":70000}}"#,
                "settings.tile: expected a whole number from 0 to 65535, not the number 70000",
            ),
            (
                r#"{"model":"a","what":1}"#,
                "what: there is no such field: there are model, kind, most, scaled, settings, inner, word",
            ),
            (r#"{"model":"a","inner":{"x":1}}"#, "inner.x: there is no such field: there are seed"),
            (r#"{"model":"a","inner":{"seed":-2}}"#, "inner.seed: expected a number or a list of them"),
            (r#"{"model":"a","word":"blendd"}"#, "word: 'blendd': expected another"),
        ] {
            assert_eq!(parse_object::<Sample>(text.as_bytes()).unwrap_err(), Fault::Data(words.into()), "{text}");
        }
        // An object in place of a name, and a number past all numbers.
        for text in [r#"{"model":"a","kind":{}}"#, r#"{"model":"a","most":1e999}"#] {
            let Err(Fault::Data(words)) = parse_object::<Sample>(text.as_bytes()) else { panic!("{text}") };
            assert!(words.ends_with("not as it is described in /openapi.json"), "{text}: {words}");
        }
        for text in ["", "{", "{\"model\":\"a\"} x", "{\"model\": tru}", "\u{1}"] {
            let Err(Fault::Syntax(words)) = parse_object::<Sample>(text.as_bytes()) else { panic!("{text}") };
            assert!(words.starts_with("not JSON, from line 1, column "), "{text}: {words}");
        }
    }

    #[test]
    fn a_query_is_told_in_the_same_words() {
        for (text, words) in [
            (
                "Failed to deserialize query string: limit: invalid digit found in string",
                "limit: expected a number within its bounds",
            ),
            (
                "Failed to deserialize query string: unknown field `x`, expected `limit` or `tag`",
                "x: there is no such field: there are limit, tag",
            ),
            ("Failed to deserialize query string: duplicate field `limit`", "limit: is given twice"),
            (
                "Failed to deserialize query string: state: unknown variant `any`, expected `done`",
                "state: 'any' is not known: there are done",
            ),
            ("something new", "not as it is described in /openapi.json"),
        ] {
            assert_eq!(describe_query_fault(text), words);
        }
    }
}
