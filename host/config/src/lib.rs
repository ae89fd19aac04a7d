//! The user's configuration: one TOML file, its defaults where there is none, and an error that names the line where it is wrong.
//!
//! ```
//! use tilewright_config::Config;
//!
//! let config = Config::parse("[policies]\nrequire-signed = true\n", "config.toml".as_ref())?;
//! assert!(config.policies.require_signed && !config.policies.require_checked);
//! let error = Config::parse("[policies]\nrequire-sined = true\n", "config.toml".as_ref()).unwrap_err().to_string();
//! assert!(error.starts_with("config.toml:2: unknown field `require-sined`, expected one of `require-signed`"), "{error}");
//! # Ok::<(), tilewright_config::Error>(())
//! ```

#![forbid(unsafe_code)]

mod error;
mod place;
mod policies;

use std::path::Path;

use serde::Deserialize;

pub use error::{Error, Result};
pub use place::{Place, user_path};
pub use policies::Policies;

/// Everything that can be configured. A section that is left out has its defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Config {
    /// Which policies are put to work.
    pub policies: Policies,
}

impl Config {
    /// Reads the file, or gives the defaults where the user has none.
    ///
    /// # Errors
    /// [`Error::Unreadable`], also where a file that was asked for is missing; [`Error::Wrong`] for what it says.
    pub fn load(place: &Place) -> Result<Self> {
        match place.read()? {
            Some((path, text)) => Self::parse(&text, &path),
            None => Ok(Self::default()),
        }
    }

    /// Reads a configuration's text; `path` names it in errors.
    ///
    /// # Errors
    /// [`Error::Wrong`], with the line.
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        toml::from_str(text).map_err(|error| Error::Wrong {
            path: path.into(),
            line: error.span().map(|span| line(text, span.start)),
            detail: error.message().lines().collect::<Vec<_>>().join(", "),
        })
    }
}

/// The line, from 1, that holds this byte.
fn line(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";

    fn parsed(text: &str) -> Result<Config> {
        Config::parse(text, Path::new("config.toml"))
    }

    #[test]
    fn an_empty_file_has_the_defaults() {
        let config = parsed("# nothing yet\n").unwrap();
        assert_eq!(config, Config::default());
        assert!(!config.policies.require_signed && !config.policies.require_checked);
        assert!(config.policies.trusted.keys().is_empty());
    }

    #[test]
    fn keys_have_names() {
        let text = format!(
            "[policies]\nrequire-signed = true\nrequire-checked = true\n[[policies.trusted]]\nname = \"Ada\"\nkey = \"{KEY}\"\n"
        );
        let policies = parsed(&text).unwrap().policies;
        assert!(policies.require_signed && policies.require_checked);
        let [ada] = policies.trusted.keys() else { panic!("{policies:?}") };
        assert_eq!((ada.name.as_str(), ada.key.to_string().as_str()), ("Ada", KEY));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_what_is_allowed() {
        let key = format!("key = \"{KEY}\"");
        for (text, line, words) in [
            (
                "[policies]\n\nrequire_signed = true",
                3,
                "expected one of `require-signed`, `require-checked`, `trusted`",
            ),
            ("[policy]\n", 1, "expected `policies`"),
            ("[policies]\nrequire-signed = \"yes\"", 2, "expected a boolean"),
            ("[policies]\nrequire-signed = true\nrequire-signed = true", 3, "duplicate key"),
            ("[policies\n", 1, ""),
            ("[[policies.trusted]]\nname = \"Ada\"", 1, "missing field `key`"),
            ("[[policies.trusted]]\nname = \"Ada\"\nkey = \"RW\"", 3, "not a minisign public key"),
            (&format!("[[policies.trusted]]\nname = \"\"\n{key}"), 1, "an empty name"),
            (&format!("[[policies.trusted]]\nname = \"a\\nb\"\n{key}"), 1, "control characters"),
            (
                &format!("[[policies.trusted]]\nname = \"Ada\"\n{key}\n[[policies.trusted]]\nname = \"Ada\"\n{key}"),
                1,
                "'Ada' is the name of another key, too",
            ),
        ] {
            let error = parsed(text).unwrap_err();
            let message = error.to_string();
            assert!(message.starts_with(&format!("config.toml:{line}: ")), "{message}");
            assert!(message.contains(words) && message.lines().count() == 1, "{message}");
        }
    }
}
