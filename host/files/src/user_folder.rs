//! The folders of a user, by the XDG base directory specification.

use std::{env, ffi::OsString, path::PathBuf};

/// One of Tilewright's folders for a user. It may not exist yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserFolder {
    /// `$XDG_CACHE_HOME/tilewright` or `~/.cache/tilewright`: files that can be made again.
    Cache,
    /// `$XDG_CONFIG_HOME/tilewright` or `~/.config/tilewright`.
    Config,
    /// `$XDG_STATE_HOME/tilewright` or `~/.local/state/tilewright`: files that outlast a run and
    /// are no output.
    State,
}

impl UserFolder {
    /// The folder's path; none if neither its variable nor `HOME` is an absolute path.
    pub fn path(self) -> Option<PathBuf> {
        self.path_by(|name| env::var_os(name))
    }

    fn path_by(self, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        let (own, usual) = match self {
            Self::Cache => ("XDG_CACHE_HOME", ".cache"),
            Self::Config => ("XDG_CONFIG_HOME", ".config"),
            Self::State => ("XDG_STATE_HOME", ".local/state"),
        };
        let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let above = absolute(own).or_else(|| absolute("HOME").map(|home| home.join(usual)))?;
        Some(above.join("tilewright"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_path_counts_for_nothing() {
        let path = |folder: UserFolder, set: &[(&str, &str)]| {
            let found =
                folder.path_by(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()));
            found.map(|path| path.display().to_string())
        };
        let home = ("HOME", "/home/me");
        assert_eq!(path(UserFolder::Cache, &[home]).as_deref(), Some("/home/me/.cache/tilewright"));
        assert_eq!(path(UserFolder::Config, &[home]).as_deref(), Some("/home/me/.config/tilewright"));
        assert_eq!(path(UserFolder::State, &[home]).as_deref(), Some("/home/me/.local/state/tilewright"));
        assert_eq!(path(UserFolder::State, &[("XDG_STATE_HOME", "/s"), home]).as_deref(), Some("/s/tilewright"));
        assert_eq!(path(UserFolder::State, &[("XDG_STATE_HOME", "s"), home]), path(UserFolder::State, &[home]));
        assert_eq!(path(UserFolder::Cache, &[("XDG_CACHE_HOME", ""), ("HOME", "me")]), None);
    }
}
