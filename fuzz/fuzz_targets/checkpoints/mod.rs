//! Files of weights from bytes.

use std::{fs, path::PathBuf, sync::OnceLock};

use tch::Kind;
use tilewright_models::{Checkpoint, ComputeFormat, DenoiserFile, Inspection, transformer::Residency};

/// In memory where the system has a file system there.
static FILE: OnceLock<PathBuf> = OnceLock::new();

/// A file of these bytes; none if it is refused.
pub fn open(target: &str, bytes: &[u8]) -> Option<Checkpoint> {
    let path = FILE.get_or_init(|| {
        let memory = PathBuf::from("/dev/shm");
        let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
        folder.join(format!("tilewright-fuzz-{target}-{}", std::process::id()))
    });
    fs::write(path, bytes).expect("there is room");
    Checkpoint::open(path).ok()
}

/// Expands every matrix that is not refused.
#[allow(dead_code, reason = "not every target expands")]
pub fn expand(file: &Checkpoint) {
    for name in file.names() {
        let Ok(matrix) = file.matrix(name) else { continue };
        let [rows, columns] = matrix.shape();
        let Ok(expanded) = matrix.expand(0..rows, Kind::Float) else { continue };
        assert_eq!(expanded.size(), [rows as i64, columns as i64]);
    }
}

/// Looks into a file, and loads the transformer that it holds, if it does.
#[allow(dead_code, reason = "not every target looks for a transformer")]
pub fn load(file: Checkpoint) {
    drop(Inspection::of(&file));
    if let Ok(transformer) = DenoiserFile::open(file) {
        let loaded = transformer.load(ComputeFormat::single(), tch::Device::Cpu, Residency::Mapped, &mut |_| Ok(()));
        assert!(loaded.is_ok(), "what was checked can be loaded: {:?}", loaded.err());
    }
}
