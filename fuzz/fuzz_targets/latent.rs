//! Latents: refused, or finite values of five extents.

#![no_main]

use std::{fs, path::PathBuf, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use tilewright_models::Latent;

/// In memory where the system has a file system there.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
    folder.join(format!("tilewright-fuzz-latent-{}", std::process::id()))
});

fuzz_target!(|bytes: &[u8]| {
    fs::write(&*FILE, bytes).expect("there is room");
    let Ok(latent) = Latent::read(&FILE, None) else { return };
    let extents = latent.extents();
    assert!([extents.samples, extents.frames, extents.height, extents.width].iter().all(|&extent| extent > 0));
    // A picture has one frame, and any other is told to be a clip.
    assert_eq!(latent.pictures().is_ok(), extents.frames == 1);
});
