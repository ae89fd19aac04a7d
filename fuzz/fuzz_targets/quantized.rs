//! Quantized weights in safetensors: whatever describes them, in tensors beside them or in the
//! file's metadata, a matrix is refused or expands to finite extents.

#![no_main]

mod checkpoints;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(file) = checkpoints::open("quantized", bytes) {
        checkpoints::expand(&file);
        checkpoints::load(file);
    }
});
