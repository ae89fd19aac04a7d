//! Checkpoints: whatever a file holds, it is refused or looked into, every byte of it within the
//! file.

#![no_main]

use std::{fs, path::PathBuf, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use tilewright_models::{Checkpoint, Inspection};

/// In memory where the system has a file system there.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
    folder.join(format!("tilewright-fuzz-safetensors-{}", std::process::id()))
});

fuzz_target!(|bytes: &[u8]| {
    fs::write(&*FILE, bytes).expect("there is room");
    let Ok(file) = Checkpoint::open(&FILE) else { return };
    for name in file.names() {
        let read = file.bytes(name).expect("a tensor that is listed has bytes");
        assert!(read.len() <= bytes.len());
        assert!(file.shape(name).is_some() && file.find_stored(name).is_some());
    }
    let inspection = Inspection::of(&file);
    assert_eq!(inspection.tensors, file.names().len());
});
