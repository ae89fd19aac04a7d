//! Words of files in errors. A file that is not what it should be may be anybody's secret, so an
//! error's own line has none of its bytes: a [`Quote`] is a cause of its own, which those leave out
//! who report to strangers.

use std::{error::Error, fmt};

/// The most characters of a quote.
const MOST: usize = 60;

/// The beginning of a text, for its owner: a server's answer in place of a file names the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quote(String);

impl Quote {
    /// The first line of a text that is not blank, cut short.
    pub fn of_text(start: &[u8]) -> Self {
        let text = String::from_utf8_lossy(start);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        let shown: String = line.chars().take(MOST).collect();
        Self(if shown.len() < line.len() { shown + "…" } else { shown })
    }
}

impl fmt::Display for Quote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it begins with '{}'", self.0)
    }
}

impl Error for Quote {}

/// The fault of JSON in a line without the file's own words: what was found is named by its type
/// and its place alone.
pub fn json_fault(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if !error.is_data() {
        return text;
    }
    let (message, place) = match error.line() {
        0 => (&*text, String::new()),
        line => {
            let place = format!(" at line {line} column {}", error.column());
            (text.strip_suffix(&place).unwrap_or(&text), place)
        }
    };
    format!("{}{place}", without_values(message).unwrap_or_else(|| "a value that is not expected".into()))
}

/// A message of serde's without what was found; none if it is in another form.
fn without_values(message: &str) -> Option<String> {
    // These name what the program knows.
    if message.starts_with("missing field `") || message.starts_with("invalid length ") {
        return Some(message.to_owned());
    }
    if message.starts_with("duplicate field `") {
        return Some("duplicate field".into());
    }
    if !["invalid type: ", "invalid value: ", "unknown field `", "unknown variant `"]
        .iter()
        .any(|kind| message.starts_with(kind))
    {
        return None;
    }
    let (found, expected) = message.rsplit_once(", expected ").or_else(|| message.rsplit_once(", there are "))?;
    let kind = found.split(['"', '`']).next().unwrap_or_default().trim_end();
    let joint = if message.contains(", expected ") { ", expected " } else { ", there are " };
    Some(format!("{kind}{joint}{expected}"))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "read for its errors")]
    struct Facts {
        count: u32,
        kind: Option<Kind>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        Wide,
    }

    #[test]
    fn a_fault_of_json_has_its_place_and_nothing_that_stands_there() {
        for (text, expected) in [
            (r#"{"count":"s3cr3t, expected `s3cr3t`"}"#, "invalid type: string, expected u32 at line 1 column"),
            (r#"{"count":-7531}"#, "invalid value: integer, expected u32 at line 1 column"),
            (r#"{"count":7531.5}"#, "invalid type: floating point, expected u32 at line 1 column"),
            (r#"{"s3cr3t":1}"#, "unknown field, expected `count` or `kind` at line 1 column"),
            (r#"{"count":1,"kind":"s3cr3t"}"#, "unknown variant, expected `wide` at line 1 column"),
            (r#"{"count":1,"count":2}"#, "duplicate field at line 1 column"),
            ("{}", "missing field `count` at line 1 column"),
            ("[]", "invalid length 0, expected struct Facts with 2 elements at line 1 column"),
            (r#""s3cr3t""#, "invalid type: string, expected struct Facts at line 1 column"),
            ("s3cr3t", "expected value at line 1 column 1"),
            ("{\"count\": s3cr3t", "expected value at line 1 column"),
        ] {
            let fault = json_fault(&serde_json::from_str::<Facts>(text).unwrap_err());
            assert!(fault.starts_with(expected), "{fault}: {text}");
            assert!(!fault.contains("s3cr3t") && !fault.contains("7531"), "{fault}");
        }
        let own = <serde_json::Error as serde::de::Error>::custom("'s3cr3t' is no name");
        assert_eq!(json_fault(&own), "a value that is not expected");
    }

    #[test]
    fn a_quote_is_a_line_cut_short() {
        assert_eq!(Quote::of_text(b"\n  Invalid username\nor").to_string(), "it begins with 'Invalid username'");
        assert_eq!(
            Quote::of_text("é".repeat(99).as_bytes()).to_string(),
            format!("it begins with '{}…'", "é".repeat(60))
        );
    }
}
