//! A policy's project: created from a template in one of four languages, and built by that
//! language's own tool-chain into a component of the contract.

mod build;
mod create;
mod error;
mod templates;
mod toolchain;

use std::{fmt, path::Path, str::FromStr};

use serde::Serialize;

pub use build::{BuildOptions, Built, build};
pub use create::{Created, create};
pub use error::ProjectError;

/// A language of policy projects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// By cargo and the SDK: the smallest and fastest.
    Rust,
    /// By clang or zig cc, with bindings by wit-bindgen.
    C,
    /// By componentize-py, with CPython inside.
    Python,
    /// By componentize-qjs, with QuickJS inside.
    Js,
}

/// Name on the command line, name for people, the file that identifies its projects, and the memory
/// that its policies need beyond a policy's own.
struct LanguageFacts {
    language: Language,
    word: &'static str,
    title: &'static str,
    marker: &'static str,
    memory_bytes: Option<usize>,
}

const FACTS: [LanguageFacts; 4] = [
    LanguageFacts { language: Language::Rust, word: "rust", title: "Rust", marker: "Cargo.toml", memory_bytes: None },
    LanguageFacts { language: Language::C, word: "c", title: "C", marker: "sdk/tilewright.h", memory_bytes: None },
    LanguageFacts {
        language: Language::Python,
        word: "python",
        title: "Python",
        marker: "app.py",
        memory_bytes: Some(64 << 20),
    },
    LanguageFacts {
        language: Language::Js,
        word: "js",
        title: "JavaScript",
        marker: "package.json",
        memory_bytes: Some(32 << 20),
    },
];

impl Language {
    /// The names of all languages on the command line.
    pub fn words() -> [&'static str; 4] {
        FACTS.map(|facts| facts.word)
    }

    /// The language's name for people.
    pub fn title(self) -> &'static str {
        self.facts().title
    }

    /// Detects the language of a project.
    ///
    /// # Errors
    /// [`ProjectError::NoProject`] if no file identifies one.
    pub fn of(project: &Path) -> Result<Self, ProjectError> {
        let found = FACTS.iter().find(|facts| project.join(facts.marker).is_file());
        found.map(|facts| facts.language).ok_or_else(|| ProjectError::NoProject {
            path: project.into(),
            markers: FACTS.iter().map(|facts| format!("{} ({})", facts.marker, facts.title)).collect(),
        })
    }

    /// The memory that its policies have to be granted, in bytes, if a policy's usual limit is too
    /// low.
    pub fn memory_bytes(self) -> Option<usize> {
        self.facts().memory_bytes
    }

    fn facts(self) -> &'static LanguageFacts {
        let facts = FACTS.iter().find(|facts| facts.language == self);
        facts.unwrap_or(&FACTS[0])
    }
}

impl FromStr for Language {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = FACTS.iter().find(|facts| facts.word.eq_ignore_ascii_case(word));
        let found = found.or_else(|| FACTS.iter().find(|facts| facts.title.eq_ignore_ascii_case(word)));
        found.map(|facts| facts.language).ok_or_else(|| format!("the languages are {}", Self::words().join(", ")))
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.facts().word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_language_has_its_row() {
        for language in [Language::Rust, Language::C, Language::Python, Language::Js] {
            assert_eq!(language.facts().language, language);
            assert_eq!(language.to_string().parse(), Ok(language));
        }
        assert_eq!("JavaScript".parse(), Ok(Language::Js));
        assert_eq!("go".parse::<Language>(), Err("the languages are rust, c, python, js".into()));
    }
}
