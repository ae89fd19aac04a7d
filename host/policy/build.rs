//! Hands the built policies to `include_bytes!`, and a fingerprint of this crate's text to `env!`.

use std::{
    env, fs,
    hash::{DefaultHasher, Hasher},
    io,
    path::{Path, PathBuf},
};

/// What judges a policy, and what it is judged by: this crate, and the words that it shares with the rest.
const SOURCES: [&str; 4] = ["src", "../plan/src", "../../wit", "../../Cargo.lock"];

const NAMES: [&str; 5] = ["adaptive", "gfx1151", "comfyui", "diffusers", "fixed"];

fn main() {
    println!("cargo::rerun-if-env-changed=TILEWRIGHT_POLICIES");
    let Some(out) = env::var_os("OUT_DIR").map(PathBuf::from) else {
        return println!("cargo::error=OUT_DIR is not set: build with cargo");
    };
    let Some(policies) = env::var_os("TILEWRIGHT_POLICIES").map(PathBuf::from) else {
        return println!(
            "cargo::error=TILEWRIGHT_POLICIES is not set: build inside the workspace, after `cargo xtask setup`"
        );
    };
    for name in NAMES {
        let file = policies.join(format!("{name}.wasm"));
        println!("cargo::rerun-if-changed={}", file.display());
        if !file.is_file() {
            return println!("cargo::error={name}.wasm is missing in {}: run `cargo xtask setup`", policies.display());
        }
        if let Err(error) = fs::copy(&file, out.join(format!("{name}.wasm"))) {
            return println!("cargo::error={} can't be copied: {error}", file.display());
        }
    }
    let mut hasher = DefaultHasher::new();
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
        if let Err(error) = read(Path::new(source), &mut hasher) {
            return println!("cargo::error={source} can't be read: {error}");
        }
    }
    println!("cargo::rustc-env=TILEWRIGHT_POLICY_SOURCES={:016x}", hasher.finish());
}

/// A file, or all files in a folder in the order of their names.
fn read(path: &Path, hasher: &mut DefaultHasher) -> io::Result<()> {
    if !path.is_dir() {
        hasher.write(&fs::read(path)?);
        return Ok(());
    }
    let mut entries =
        fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    entries.iter().try_for_each(|entry| read(entry, hasher))
}
