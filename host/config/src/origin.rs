//! The text that a configuration was read from, which gives later errors their line.

use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use tilewright_plan::words::did_you_mean;
use toml::de::{DeTable, DeValue};

use crate::Error;

/// Words of the parser, and TOML's words for the same.
const WORDS: [(&str, &str); 5] = [
    ("expected a sequence", "expected a list"),
    ("expected a map", "expected a table"),
    ("invalid type: sequence", "invalid type: list"),
    ("invalid type: map", "invalid type: table"),
    ("wanted string or table", "expected a text"),
];

/// The file of a configuration. Any two are equal: another comment makes no other configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    path: PathBuf,
    text: Arc<str>,
}

/// A fault and its key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Keys, and indices from 0 within lists, joined by `/`: `routes/0/canary/policy`.
    pub at: String,
    /// The fault, and the allowed values.
    pub detail: String,
}

impl PartialEq for Origin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Origin {}

impl Origin {
    pub(crate) fn new(path: &Path, text: &str) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    /// The folder that relative paths start from.
    pub(crate) fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// The error of a fault, with the line of its key.
    pub(crate) fn fault(&self, Fault { at, detail }: Fault) -> Error {
        self.error_at(span(&self.text, &at), &detail)
    }

    /// True if there is a file, false for the defaults.
    pub(crate) fn is_of_file(&self) -> bool {
        !self.path.as_os_str().is_empty()
    }

    fn error_at(&self, at: Option<Range<usize>>, detail: &str) -> Error {
        Error::Wrong { path: self.path.clone(), line: self.line(at), detail: in_one_line(detail) }
    }

    /// The parser's error of these bytes of the text.
    pub(crate) fn unparsed(&self, at: Option<Range<usize>>, detail: &str) -> Error {
        Error::Unparsed { path: self.path.clone(), line: self.line(at), detail: in_one_line(detail) }
    }

    fn line(&self, at: Option<Range<usize>>) -> Option<usize> {
        at.map(|at| line(&self.text, at.start))
    }
}

fn in_one_line(detail: &str) -> String {
    suggest_name(&use_toml_words(&detail.lines().collect::<Vec<_>>().join(", ")))
}

/// The parser's message in TOML's words.
fn use_toml_words(detail: &str) -> String {
    WORDS.iter().fold(detail.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

/// The message; for an unknown name, with the most similar known one.
fn suggest_name(detail: &str) -> String {
    let known = detail.strip_prefix("unknown ").and_then(|rest| rest.split_once("expected"));
    let Some((first, others)) = known else { return detail.to_owned() };
    let mut names = first.split('`').skip(1).step_by(2);
    let Some(given) = names.next() else { return detail.to_owned() };
    format!("{detail}{}", did_you_mean(given, others.split('`').skip(1).step_by(2)))
}

/// The span of this key's value, or of its innermost parent that is written.
fn span(text: &str, at: &str) -> Option<Range<usize>> {
    let root = DeTable::parse(text).ok()?;
    let mut steps = at.split('/');
    let mut here = root.get_ref().get(steps.next()?)?;
    for step in steps {
        let inner = match here.get_ref() {
            DeValue::Table(table) => table.get(step),
            DeValue::Array(list) => step.parse().ok().and_then(|place: usize| list.get(place)),
            _ => None,
        };
        let Some(inner) = inner else { break };
        here = inner;
    }
    Some(here.span())
}

/// The line, from 1, that holds this byte.
fn line(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_or_what_it_would_be_in() {
        let text = "[server]\nlisten = \"x\"\n\n[[routes]]\n[[routes]]\nmodel = [\n\"a\",\n\"b\"]\npolicy.name = 1\n";
        for (at, line) in [
            ("server", Some(1)),
            ("server/listen", Some(2)),
            ("server/tls/key", Some(1)),
            ("routes/0", Some(4)),
            ("routes/1/model/1", Some(8)),
            ("routes/1/model/7", Some(6)),
            ("routes/1/policy/name", Some(9)),
            ("routes/1/name", Some(5)),
            ("models/flux", None),
        ] {
            let error = Origin::new(Path::new("c"), text).fault(Fault { at: at.into(), detail: "a\nb".into() });
            let place = line.map_or(String::new(), |line: usize| format!(":{line}"));
            assert_eq!(error.to_string(), format!("c{place}: a, b"), "{at}");
        }
    }
}
