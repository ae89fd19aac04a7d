//! Paths of the checkout.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::tools;

/// The checkout that this program was built in.
pub struct Project {
    /// The folder of the workspace's Cargo.toml.
    pub root: PathBuf,
}

impl Project {
    /// Finds the checkout.
    pub fn find() -> Result<Self> {
        let manifest = env::var_os("CARGO_MANIFEST_DIR").context("run this as 'cargo xtask …'")?;
        let root = Path::new(&manifest).ancestors().nth(2).context("host/xtask stands in a checkout")?;
        Ok(Self { root: root.to_owned() })
    }

    /// The folder of everything that set-up lays out for libtorch.
    pub fn libtorch(&self) -> PathBuf {
        self.root.join(".libtorch")
    }

    /// The folder that everything is linked against, whatever the flavour; `.cargo/config.toml`
    /// names it.
    pub fn link(&self) -> PathBuf {
        self.libtorch().join("link")
    }

    /// The folder that compiled policies are embedded from; `.cargo/config.toml` names it.
    pub fn policies(&self) -> PathBuf {
        self.root.join("target/policies")
    }

    /// The folder of third-party programs for tests and judges.
    pub fn tools(&self) -> PathBuf {
        self.root.join(".tools")
    }

    /// cargo's own target folder.
    pub fn target(&self) -> PathBuf {
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| self.root.join("target"), |folder| self.root.join(folder))
    }

    /// The built program.
    pub fn program(&self, profile: &str) -> PathBuf {
        self.target().join(profile).join("tilewright")
    }

    /// The cargo that runs this, in the checkout. Its variables about this crate are not passed on:
    /// a build script that watches one would run again whenever a user calls cargo directly, and
    /// everything that depends on it be rebuilt.
    pub fn cargo(&self) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        for name in names.filter(|name| ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|of| name.starts_with(of))) {
            command.env_remove(name);
        }
        command.current_dir(&self.root);
        command
    }

    /// The folders of this machine that compilers would write into what they make, each with what
    /// stands there instead: two machines make the same bytes.
    pub fn hidden_folders(&self) -> Vec<(PathBuf, &'static str)> {
        let cargo = cargo_home(env::var_os("CARGO_HOME"), env::var_os("HOME")).map(|home| (home, "/cargo"));
        std::iter::once((self.root.clone(), ".")).chain(cargo).collect()
    }

    /// Has a cargo hide these folders from what it compiles of Rust; flags of the user's stay.
    pub fn hide_folders(&self, cargo: &mut Command) {
        let own = env::var("RUSTFLAGS").unwrap_or_default();
        self.set_flags(cargo, &own);
    }

    /// The same without flags of the user's: what is made is for any machine, and two machines make
    /// the same bytes.
    pub fn hide_folders_alone(&self, cargo: &mut Command) {
        self.set_flags(cargo, "");
        cargo.env_remove("RUSTFLAGS");
    }

    fn set_flags(&self, cargo: &mut Command, own: &str) {
        let own = own.split_whitespace().map(str::to_owned);
        let hidden = self.hidden_folders().into_iter();
        let flags = hidden.map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
        cargo.env("CARGO_ENCODED_RUSTFLAGS", own.chain(flags).collect::<Vec<_>>().join("\u{1f}"));
    }

    /// Waits until no other set-up runs in this checkout; the lock is released when dropped, also
    /// when this process is killed.
    pub fn lock(&self) -> Result<File> {
        fs::create_dir_all(self.libtorch())?;
        let path = self.libtorch().join("lock");
        let file = File::create(&path).with_context(|| format!("{}", path.display()))?;
        if file.try_lock().is_err() {
            tools::say("waiting for another set-up to end");
            file.lock()?;
        }
        Ok(file)
    }
}

/// cargo's folder, by the values of `CARGO_HOME` and `HOME`. An empty one counts for nothing, as it
/// does with cargo.
fn cargo_home(own: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let given = |value: Option<OsString>| value.filter(|value| !value.is_empty()).map(PathBuf::from);
    given(own).or_else(|| Some(given(home)?.join(".cargo")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_names_no_folder() {
        let of = |own: &str, home: &str| cargo_home(Some(own.into()), Some(home.into()));
        assert_eq!(of("/c", "/h"), Some("/c".into()));
        assert_eq!(of("", "/h"), Some("/h/.cargo".into()));
        assert_eq!((of("", ""), cargo_home(None, None)), (None, None));
    }

    #[test]
    fn flags_of_the_user_stay_out_of_what_is_for_any_machine() {
        let mut cargo = Command::new("cargo");
        let project = Project { root: "/checkout".into() };
        project.hide_folders_alone(&mut cargo);
        let variables: Vec<_> = cargo.get_envs().collect();
        let value = |name: &str| variables.iter().find(|(found, _)| *found == name).map(|(_, value)| *value);
        assert_eq!(value("RUSTFLAGS"), Some(None));
        let flags = value("CARGO_ENCODED_RUSTFLAGS").flatten().unwrap().to_str().unwrap();
        assert!(flags.split('\u{1f}').all(|flag| flag.starts_with("--remap-path-prefix=")), "{flags}");
    }
}
