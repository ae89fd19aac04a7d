//! Policies of the corpus, which are kept packed.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use flate2::read::GzDecoder;

/// The ending of a packed policy's file.
pub const ENDING: &str = ".wasm.gz";

/// The folder of a version.
pub fn folder(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(version)
}

/// The bytes of the policy in a packed file.
pub fn unpacked(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}
