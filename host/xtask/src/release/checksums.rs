//! SHA256SUMS, in the form that `sha256sum -c` reads. Signatures are not in it: they prove
//! themselves, and differ each time.

use std::{fs, fs::File, io, path::Path};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::names;

/// The file's name.
pub const NAME: &str = "SHA256SUMS";

/// The SHA-256 of a file, in hexadecimal digits.
pub fn digest(path: &Path) -> Result<String> {
    let mut hasher = Sha256::new();
    let copied = File::open(path).and_then(|mut file| io::copy(&mut file, &mut hasher));
    copied.with_context(|| path.display().to_string())?;
    Ok(hex(&hasher.finalize()))
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes the checksums of every file in a folder.
pub fn write(folder: &Path) -> Result<()> {
    let mut lines = String::new();
    for name in names(folder)?.iter().filter(|name| *name != NAME && !name.ends_with(".minisig")) {
        lines.push_str(&format!("{}  {name}\n", digest(&folder.join(name))?));
    }
    fs::write(folder.join(NAME), lines).with_context(|| folder.join(NAME).display().to_string())
}
