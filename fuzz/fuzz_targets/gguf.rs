//! GGUF files: whatever one holds, it is refused or looked into, and every matrix of it expands
//! within the file.

#![no_main]

mod checkpoints;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // The format is told by its first bytes.
    let mut file = b"GGUF".to_vec();
    file.extend_from_slice(bytes.strip_prefix(b"GGUF").unwrap_or(bytes));
    if let Some(file) = checkpoints::open("gguf", &file) {
        checkpoints::expand(&file);
        checkpoints::load(file);
    }
});
