//! Compilers for wasm32-unknown-unknown: the target that rustup has or can add, or else Debian's
//! compiler, which brings the standard library as source.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{project::Project, tools};

/// The target of policies.
pub const TARGET: &str = "wasm32-unknown-unknown";

/// The variable that skips rustup with the value `debian`.
const FORCE: &str = "TILEWRIGHT_WASM";

/// Debian's compiler, and the oldest release that compiles the workspace.
const DEBIAN: &str = "/usr/bin/rustc";
const LEAST: &str = concat!("rustc ", env!("CARGO_PKG_RUST_VERSION"));

/// Longer than fetching 20 MB takes.
const RUSTUP_LIMIT: Duration = Duration::from_secs(180);

/// A compiler that works.
pub enum WasmCompiler {
    /// The toolchain has the target's standard library.
    Installed,
    /// Debian's rustc compiles the standard library too.
    Debian {
        /// The linker.
        linker: PathBuf,
    },
}

impl WasmCompiler {
    /// Finds the first compiler that works, and installs missing parts if possible.
    pub fn find(project: &Project) -> Result<Self> {
        let debian = env::var(FORCE).is_ok_and(|value| value == "debian");
        if !debian && is_installed() {
            return Ok(WasmCompiler::Installed);
        }
        if !debian && tools::ask(Command::new("rustup").arg("--version")).is_some() {
            tools::say(&format!("adding the target {TARGET}"));
            if add_by_rustup(project) && is_installed() {
                return Ok(WasmCompiler::Installed);
            }
        }
        let works = || has_sources(Path::new(DEBIAN)) && linker().is_some();
        let asked = format!("Rust's target {TARGET}");
        // rustc-web conflicts with these: apt-get would remove what the user builds with.
        if let Some(package) = ["rustc", "rustup"].iter().find(|package| !works() && tools::has_package(package)) {
            bail!(
                "{asked} is needed, and can't be installed beside Debian's {package}: run 'rustup target add {TARGET}', or use rustup's own toolchain"
            );
        }
        tools::ensure(works, &["rustc-web", "rust-web-src", "lld"], &asked)
            .with_context(|| format!("run 'rustup target add {TARGET}', or else"))?;
        let linker = linker().context("no linker for WebAssembly: install lld")?;
        Ok(WasmCompiler::Debian { linker })
    }

    /// cargo, ready to compile packages for the target, and the folder of the modules.
    pub fn cargo(&self, project: &Project) -> (Command, PathBuf) {
        let mut cargo = project.cargo();
        cargo.args(["build", "--profile", "policy", "--target", TARGET]);
        project.hide_folders(&mut cargo);
        let target = match self {
            WasmCompiler::Installed => project.target(),
            WasmCompiler::Debian { linker } => {
                // A folder of its own: two compilers would throw each other's work away.
                let target = project.target().join("debian");
                cargo
                    .env("RUSTC", DEBIAN)
                    .env("RUSTC_BOOTSTRAP", "1")
                    // The libraries of the toolchain around this.
                    .env_remove("LD_LIBRARY_PATH")
                    .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
                cargo.arg("-Zbuild-std=std,panic_abort").arg("--target-dir").arg(&target);
                target
            }
        };
        (cargo, target.join(TARGET).join("policy"))
    }
}

/// Asks rustup for the target. Without a network it would go on trying.
fn add_by_rustup(project: &Project) -> bool {
    let mut rustup = Command::new("rustup");
    let Ok(mut child) = rustup.args(["target", "add", TARGET]).current_dir(&project.root).stdin(Stdio::null()).spawn()
    else {
        return false;
    };
    let ended = tools::wait_or_kill(&mut child, RUSTUP_LIMIT);
    if matches!(ended, Ok(None)) {
        tools::say("rustup doesn't get on: trying without it");
    }
    ended.is_ok_and(|status| status.is_some_and(|status| status.success()))
}

fn sysroot(rustc: &Path) -> Option<PathBuf> {
    tools::ask(Command::new(rustc).args(["--print", "sysroot"])).map(PathBuf::from)
}

/// The compiler that cargo uses.
fn current_compiler() -> PathBuf {
    env::var_os("RUSTC").map_or_else(|| "rustc".into(), PathBuf::from)
}

fn is_installed() -> bool {
    sysroot(&current_compiler()).is_some_and(|root| root.join("lib/rustlib").join(TARGET).join("lib").is_dir())
}

/// True if a compiler is installed, recent enough, with the sources of its standard library.
fn has_sources(rustc: &Path) -> bool {
    let version = tools::ask(Command::new(rustc).arg("--version").env_remove("LD_LIBRARY_PATH"));
    let is_recent = version.is_some_and(|version| release(&version) >= release(LEAST));
    is_recent && sysroot(rustc).is_some_and(|root| root.join("lib/rustlib/src/rust/library/std/Cargo.toml").is_file())
}

/// Major and minor number out of `rustc 1.96.0 (…)`.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split_whitespace().nth(1)?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The toolchain's own linker, or Debian's.
fn linker() -> Option<PathBuf> {
    let host = format!("lib/rustlib/{}-unknown-linux-gnu/bin/rust-lld", env::consts::ARCH);
    let own = sysroot(&current_compiler()).map(|root| root.join(host));
    own.into_iter()
        .chain([PathBuf::from("/usr/bin/wasm-ld"), PathBuf::from("/usr/bin/wasm-ld-14")])
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_compare_as_numbers() {
        assert!(release("rustc 1.100.0 (abc 2027-01-01)") > release(LEAST));
        assert!(release("rustc 1.63.0") < release(LEAST));
        assert_eq!(release("no version"), None);
    }
}
