//! Files of PyTorch's `torch.save`: a pickle that describes tensors, and the bytes of their
//! storages, in a zip archive or (as before PyTorch 1.6) one behind the other. Nothing is run: a
//! machine of a few dozen instructions builds tensors, dicts, lists and numbers, and refuses every
//! other name by that name. Format: `torch/serialization.py` of PyTorch 2.11.

mod known;
mod legacy;
mod machine;
mod tensor;
mod tree;
mod zip;

use std::{io::Read as _, ops::Range, path::Path};

use tilewright_files::{Format, LOOKED_AT};

use self::{machine::Pickled, tensor::Storage, zip::Archive};
use crate::contents::Contents;

/// The ends of names of such files, in the order in which they are preferred. Other programs use
/// them, too.
pub const PICKLE_ENDINGS: [&str; 4] = [".pth", ".pt", ".bin", ".ckpt"];

/// True if a file is a pickle by its first bytes.
pub fn is_pickle(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = tilewright_files::open(path).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut start));
    read.is_ok() && matches!(Format::of(&start), Some(Format::Pickle | Format::PickleInZip))
}

/// The longest pickle, in bytes: one of 10,000 tensors has two million.
const LONGEST_PICKLE: usize = 64 << 20;

/// The entry that holds the pickle, and the beginning of those that hold storages, behind the
/// archive's own name.
const PICKLE: &str = "data.pkl";
const STORAGES: &str = "data/";

const BIG_ENDIAN: &str = "written on a big-endian machine: save it anew on another one";

/// Reads an archive of `torch.save` from all its bytes.
///
/// # Errors
/// One line: the fault and its place.
pub fn read_zip(file: &[u8]) -> Result<Contents, String> {
    let archive = Archive::read(file)?;
    let name = archive.names().find(|name| name.rsplit('/').next() == Some(PICKLE));
    let name = name.ok_or_else(|| format!("a zip archive without {PICKLE}, which torch.save writes: unpack it"))?;
    let within = name.strip_suffix(PICKLE).unwrap_or_default();
    let entry = |name: &str| archive.find(&format!("{within}{name}"));
    if entry("byteorder").is_some_and(|range| &file[range] == b"big") {
        return Err(BIG_ENDIAN.into());
    }
    let pickle = entry(PICKLE).map(|range| &file[range]).unwrap_or_default();
    let pickled = Pickled::read(pickle)?;
    contents(&pickled, |storage| {
        let name = format!("{STORAGES}{}", storage.key);
        entry(&name).ok_or_else(|| format!("truncated: the archive lacks its entry {}", name.escape_debug()))
    })
}

/// Reads a file of `torch.save` from before archives from all its bytes.
///
/// # Errors
/// One line: the fault and its place.
pub fn read_legacy(file: &[u8]) -> Result<Contents, String> {
    let legacy = legacy::Legacy::read(file)?;
    contents(&legacy.pickled, |storage| {
        let found = legacy.storages.get(storage.key).cloned();
        found.ok_or_else(|| format!("truncated: storage {} is not in the file", storage.key.escape_debug()))
    })
}

/// The tensors of a pickle, each within its storage.
fn contents<'a>(
    pickled: &Pickled<'a>,
    find: impl Fn(&Storage<'a>) -> Result<Range<usize>, String>,
) -> Result<Contents, String> {
    let mut contents = Contents::default();
    // Tensors that lie otherwise than row by row are copied when they are used: together they may
    // take as much memory as the file, and no more.
    let (mut copied, mut all) = (0_usize, 0);
    for (name, tensor) in tree::tensors(pickled)? {
        let range = find(&tensor.storage)?;
        all = all.max(range.end);
        let entry = tensor.place(&name, range)?;
        if entry.strides.is_some() {
            copied = copied.saturating_add(entry.stored.bytes(&entry.shape).unwrap_or(usize::MAX));
        }
        contents.tensors.insert(name, entry);
    }
    match copied <= all {
        true => Ok(contents),
        false => Err("tensors repeat values of their storages: save them with .contiguous()".into()),
    }
}
