//! Ways to compile for wasm32-unknown-unknown: the target that rustup has or can add, or else Debian's compiler, which brings
//! the standard library as source.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use crate::{project::Project, tools};

const TARGET: &str = "wasm32-unknown-unknown";

/// Set to `debian` to skip rustup, as where it can't be had.
const FORCE: &str = "TILEWRIGHT_WASM";

/// A way that works.
pub enum Way {
    /// The toolchain has the target's standard library.
    Installed,
    /// Debian's rustc compiles the standard library too.
    Debian {
        /// What links.
        linker: PathBuf,
    },
}

impl Way {
    /// Finds the first way that works, installing what is missing where that is allowed.
    pub fn find() -> Result<Self> {
        let debian = env::var(FORCE).is_ok_and(|value| value == "debian");
        if !debian && is_installed() {
            return Ok(Way::Installed);
        }
        if !debian && tools::ask(Command::new("rustup").arg("--version")).is_some() {
            tools::say(&format!("adding the target {TARGET}"));
            let added = tools::run(Command::new("rustup").args(["target", "add", TARGET]));
            if added.is_ok() && is_installed() {
                return Ok(Way::Installed);
            }
        }
        let source = Path::new("/usr/lib/rustlib/src/rust/library");
        let works = || Path::new("/usr/bin/rustc").is_file() && (source.is_dir() || debian_sources()) && linker().is_some();
        let asked = format!("a compiler for {TARGET} ('rustup target add {TARGET}', or Debian's)");
        tools::ensure(works, &["rustc-web", "rust-web-src", "lld"], &asked)?;
        match linker() {
            Some(linker) => Ok(Way::Debian { linker }),
            None => bail!("{asked} is needed"),
        }
    }

    /// cargo, ready to compile packages for the target, and the folder that the modules appear in.
    pub fn cargo(&self, project: &Project) -> (Command, PathBuf) {
        let mut cargo = project.cargo();
        cargo.args(["build", "--profile", "policy", "--target", TARGET]);
        let target = match self {
            Way::Installed => project.target(),
            Way::Debian { linker } => {
                // A folder of its own: two compilers would throw each other's work away.
                let target = project.target().join("debian");
                cargo.env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1").env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
                cargo.arg("-Zbuild-std=std,panic_abort").arg("--target-dir").arg(&target);
                target
            }
        };
        (cargo, target.join(TARGET).join("policy"))
    }
}

fn sysroot(rustc: &str) -> Option<PathBuf> {
    tools::ask(Command::new(rustc).args(["--print", "sysroot"])).map(PathBuf::from)
}

fn is_installed() -> bool {
    sysroot("rustc").is_some_and(|root| root.join("lib/rustlib").join(TARGET).join("lib").is_dir())
}

fn debian_sources() -> bool {
    sysroot("/usr/bin/rustc").is_some_and(|root| root.join("lib/rustlib/src/rust/library").is_dir())
}

/// The toolchain's own linker, or Debian's.
fn linker() -> Option<PathBuf> {
    let own = sysroot("rustc").map(|root| root.join(format!("lib/rustlib/{}-unknown-linux-gnu/bin/rust-lld", env::consts::ARCH)));
    own.into_iter().chain([PathBuf::from("/usr/bin/wasm-ld"), PathBuf::from("/usr/bin/wasm-ld-14")]).find(|path| path.is_file())
}
