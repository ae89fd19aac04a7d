//! Files of `torch.save`: whatever one holds, it is refused or looked into, every tensor within the
//! file. The bytes are a whole file, and the pickle in an archive of two storages.

#![no_main]

mod checkpoints;

use libfuzzer_sys::fuzz_target;
use tilewright_models::Checkpoint;

/// Storages beside the pickle: name and bytes.
const STORAGES: [(&str, usize); 2] = [("x/data/0", 64), ("x/data/1", 4096)];

/// An archive of entries that stand in it as they are.
fn archive(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, contents) in entries {
        let (at, size, named) = (file.len() as u32, contents.len() as u32, name.len() as u16);
        let sizes = [size.to_le_bytes(), size.to_le_bytes()].concat();
        file.extend([&b"PK\x03\x04\x14\0"[..], &[0; 12], &sizes, &named.to_le_bytes(), &[0; 2]].concat());
        file.extend(name.as_bytes());
        file.extend(contents);
        directory.extend([&b"PK\x01\x02\x14\0\x14\0"[..], &[0; 12], &sizes, &named.to_le_bytes(), &[0; 12]].concat());
        directory.extend(at.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let (count, start) = ((entries.len() as u16).to_le_bytes(), (file.len() as u32).to_le_bytes());
    let length = (directory.len() as u32).to_le_bytes();
    file.extend(directory);
    file.extend([&b"PK\x05\x06\0\0\0\0"[..], &count, &count, &length, &start, &[0; 2]].concat());
    file
}

fn look(file: Option<Checkpoint>, length: usize) {
    let Some(file) = file else { return };
    for name in file.names() {
        let read = file.bytes(name).expect("a tensor that is listed has bytes");
        assert!(read.len() <= length);
        assert_eq!(file.shared_bytes(name).expect("as well").as_slice(), read);
    }
    checkpoints::expand(&file);
    checkpoints::load(file);
}

fuzz_target!(|bytes: &[u8]| {
    look(checkpoints::open("pickle", bytes), bytes.len());
    let storages = STORAGES.map(|(name, length)| (name, vec![1; length]));
    let file = archive(&[("x/data.pkl", bytes.to_vec())].into_iter().chain(storages).collect::<Vec<_>>());
    look(checkpoints::open("pickle", &file), file.len());
});
