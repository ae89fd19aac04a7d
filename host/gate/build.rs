//! Passes a fingerprint of the host's own text to `env!`: a verdict is valid only for the same
//! text.

use std::{
    fs,
    hash::{DefaultHasher, Hasher},
    io,
    path::Path,
};

/// All text that a verdict depends on: this crate, the host that runs policies, and the types that
/// both share with the rest.
const SOURCES: [&str; 5] = ["src", "../policy/src", "../plan/src", "../../wit", "../../Cargo.lock"];

fn main() {
    let mut hasher = DefaultHasher::new();
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
        if let Err(error) = read(Path::new(source), &mut hasher) {
            return println!("cargo::error={source} can't be read: {error}");
        }
    }
    println!("cargo::rustc-env=TILEWRIGHT_GATE_SOURCES={:016x}", hasher.finish());
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
