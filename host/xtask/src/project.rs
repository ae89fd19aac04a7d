//! Paths of the checkout.

use std::{
    env,
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
        let home = env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
        let cargo = home.map(|home| (home, "/cargo"));
        std::iter::once((self.root.clone(), ".")).chain(cargo).collect()
    }

    /// Has a cargo hide these folders from what it compiles of Rust; flags of the user's stay.
    pub fn hide_folders(&self, cargo: &mut Command) {
        let own = env::var("RUSTFLAGS").unwrap_or_default();
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
