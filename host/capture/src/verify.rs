//! Checks of a folder against its manifest: every file stands in it with its size and digest, and
//! nothing else is.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use rustix::fs::OFlags;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tilewright_files::json_fault;

use crate::{
    Error, FileEntry, MANIFEST, Manifest, Result,
    manifest::{FORMAT, FORMAT_VERSION, LAYERS, TILEWRIGHT},
};

/// The most bytes of a manifest.
const MOST_MANIFEST: u64 = 32 << 20;

/// Bytes that are hashed at a time.
const PIECE: usize = 1 << 20;

/// The part of a manifest that every version has.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u64,
    tilewright: String,
}

/// The name of a digest, as the manifest has it.
pub(crate) fn name_of(digest: Sha256) -> String {
    let hex: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Reads a folder's manifest, and checks it against itself and this program's version.
///
/// # Errors
/// As [`parse_manifest`], or it is missing or can't be read.
pub(crate) fn read_manifest(folder: &Path) -> Result<Manifest> {
    match open(&folder.join(MANIFEST)).and_then(|file| read(file, MOST_MANIFEST)) {
        Ok(bytes) => parse_manifest(folder, &bytes),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            let reason = format!("is no capture, or not a whole one: it has no {MANIFEST}");
            Err(Error::NoCapture { folder: folder.to_owned(), reason })
        }
        Err(error) => Err(Error::io(folder.join(MANIFEST), "read")(error)),
    }
}

/// The manifest of these bytes, checked against itself and this program's version.
///
/// # Errors
/// [`Error::NoCapture`], [`Error::Format`], [`Error::Version`], [`Error::Changed`].
pub(crate) fn parse_manifest(folder: &Path, bytes: &[u8]) -> Result<Manifest> {
    let none = |reason: String| Error::NoCapture { folder: folder.to_owned(), reason };
    let head: Head = serde_json::from_slice(bytes)
        .map_err(|error| none(format!("{MANIFEST} is none of a capture: {}", json_fault(&error))))?;
    if head.format != FORMAT {
        return Err(none(format!("{MANIFEST} is none of a capture: its format is another")));
    }
    // Words of the file go into messages only if they can be a version.
    let is_version = |byte: u8| byte.is_ascii_alphanumeric() || b".-+".contains(&byte);
    if head.tilewright.len() > 64 || !head.tilewright.bytes().all(is_version) {
        return Err(none(format!("{MANIFEST} names a version of Tilewright that is none")));
    }
    if head.version != u64::from(FORMAT_VERSION) {
        let Head { version, tilewright, .. } = head;
        return Err(Error::Format { folder: folder.to_owned(), found: version, ours: FORMAT_VERSION, tilewright });
    }
    if head.tilewright != TILEWRIGHT {
        return Err(Error::Version { folder: folder.to_owned(), found: head.tilewright, ours: TILEWRIGHT });
    }
    let rewritten = || changed(folder, MANIFEST, "is not as it was written");
    let manifest: Manifest = serde_json::from_slice(bytes).map_err(|_| rewritten())?;
    if !manifest.is_sealed_as(bytes) {
        return Err(rewritten());
    }
    manifest.check().map_err(|reason| changed(folder, MANIFEST, reason))?;
    Ok(manifest)
}

/// Checks that a folder holds the files of its manifest, with their contents, and nothing else.
///
/// # Errors
/// [`Error::Changed`], or a file can't be read.
pub(crate) fn check(folder: &Path, manifest: &Manifest) -> Result<()> {
    let mut missing: BTreeMap<&str, &FileEntry> =
        manifest.files.iter().map(|file| (file.path.as_str(), file)).collect();
    for (path, is_folder) in entries(folder, "")? {
        let is_known = match is_folder {
            true => manifest.stages.iter().any(|stage| stage.folder == path),
            false => path == MANIFEST,
        };
        if !is_known {
            return Err(changed(folder, &path, "is no part of the capture"));
        }
        if !is_folder {
            continue;
        }
        let mut inner = entries(folder, &path)?;
        let layers = format!("{path}/{LAYERS}");
        if let Some(at) = inner.iter().position(|(path, is_folder)| *is_folder && *path == layers) {
            inner.remove(at);
            inner.extend(entries(folder, &layers)?);
        }
        for (path, is_folder) in inner {
            match missing.remove(path.as_str()) {
                Some(file) if !is_folder => check_file(folder, file)?,
                _ => return Err(changed(folder, &path, "is no part of the capture")),
            }
        }
    }
    missing.keys().next().map_or(Ok(()), |path| Err(changed(folder, path, "is missing")))
}

/// The entries of a folder of a capture: their paths in it, and true for folders.
fn entries(folder: &Path, within: &str) -> Result<Vec<(String, bool)>> {
    let path = folder.join(within);
    let read = || -> io::Result<Vec<(String, bool, bool)>> {
        let entry = |entry: io::Result<fs::DirEntry>| {
            let entry = entry?;
            let (kind, name) = (entry.file_type()?, entry.file_name());
            let name = name.to_string_lossy().escape_default().take(100).collect::<String>();
            let path = if within.is_empty() { name } else { format!("{within}/{name}") };
            Ok((path, kind.is_dir(), kind.is_file()))
        };
        fs::read_dir(&path)?.map(entry).collect()
    };
    let found = read().map_err(Error::io(&path, "read"))?;
    match found.iter().find(|(_, is_folder, is_file)| !is_folder && !is_file) {
        Some((path, ..)) => Err(changed(folder, path, "is a link or another thing that is no file")),
        None => Ok(found.into_iter().map(|(path, is_folder, _)| (path, is_folder)).collect()),
    }
}

fn check_file(folder: &Path, file: &FileEntry) -> Result<()> {
    let path = folder.join(&file.path);
    let mut opened = open(&path).map_err(Error::io(&path, "read"))?;
    let length = opened.metadata().map_err(Error::io(&path, "read"))?.len();
    if length != file.bytes {
        return Err(changed(folder, &file.path, format!("has {length} bytes, not {}", file.bytes)));
    }
    let mut digest = Sha256::new();
    let mut piece = vec![0; PIECE];
    loop {
        match opened.read(&mut piece) {
            Ok(0) => break,
            Ok(bytes) => digest.update(piece.get(..bytes).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io(&path, "read")(error)),
        }
    }
    check_digest(folder, file, digest)
}

/// A file's contents, checked once more: it may have changed since the capture was opened.
///
/// # Errors
/// [`Error::Changed`], or it can't be read.
pub(crate) fn contents(folder: &Path, file: &FileEntry) -> Result<Vec<u8>> {
    let path = folder.join(&file.path);
    let bytes = open(&path).and_then(|opened| read(opened, file.bytes)).map_err(Error::io(&path, "read"))?;
    check_digest(folder, file, Sha256::new_with_prefix(&bytes))?;
    Ok(bytes)
}

/// Checks a file's digest.
///
/// # Errors
/// [`Error::Changed`].
pub(crate) fn check_digest(folder: &Path, file: &FileEntry, digest: Sha256) -> Result<()> {
    if name_of(digest) == file.sha256 {
        return Ok(());
    }
    Err(changed(folder, &file.path, "has other contents than were written"))
}

pub(crate) fn changed(folder: &Path, file: &str, reason: impl Into<String>) -> Error {
    Error::Changed { folder: folder.to_owned(), file: file.to_owned(), reason: reason.into() }
}

/// Opens a plain file, and follows no link.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    tilewright_files::regular(&file.metadata()?)?;
    Ok(file)
}

fn read(file: File, most: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    if length > most {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("it is larger than {most} bytes")));
    }
    let mut bytes = Vec::new();
    // A sparse file can have any length.
    bytes.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX)).map_err(|_| ErrorKind::OutOfMemory)?;
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}
