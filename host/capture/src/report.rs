//! A report: a capture and other facts in one tar file that can be sent to others. Nothing in it
//! names its user, and it is the same of the same contents.

use std::{
    fs,
    io::{self, BufWriter, Read, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tar::{Builder, Header};
use tilewright_files::{digest, json_fault};
use tilewright_outputs::{destination, folder_of, place, temporary};
use tilewright_plan::Stage;

use crate::{
    Captured, Error, FileEntry, Keep, MANIFEST, Manifest, Result,
    fields::Kind,
    manifest::{FACTS, LAYERS, OUTPUTS, RECORD},
    redact::Redactor,
    room::{self, Measure},
    verify::{self, check_digest},
};

/// The folders of a report.
const CAPTURE: &str = "report/capture";
const FOLDER: &str = "report";

/// Bytes of a tar file for each file in it, at most: its header and the filling of its last block.
const BYTES_PER_FILE: u64 = 2048;

/// A file of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The path in the report.
    pub path: String,
    /// The size in bytes.
    pub bytes: u64,
}

/// The packing of reports.
#[derive(Clone, Copy, Debug)]
pub struct Report;

/// A file to pack: one of the capture as it is, or bytes.
enum Content<'a> {
    File(&'a FileEntry),
    Bytes(Vec<u8>),
}

impl Report {
    /// Packs a capture and further files, each with its name, as one tar file for this user alone,
    /// and returns what is in it. Unpacked, `report/capture` is a capture.
    ///
    /// Prompts and file names are left out unless they are kept, and with prompts the inputs and
    /// layers of text stages; secrets always are. Further files are JSON (`.json`), TOML (`.toml`,
    /// which becomes `.toml.json`, without its comments) or lines of text (`.txt`, `.log`).
    ///
    /// # Errors
    /// [`Error::Extra`] for a file of another kind, or one that can't be parsed;
    /// [`Error::Changed`] if the capture has changed since it was opened; [`Error::NoRoom`]; the
    /// output can't be written, or something stands there that may not be replaced.
    pub fn pack(captured: &Captured, extra: &[(&str, &[u8])], output: &Path, keep: Keep) -> Result<Vec<Entry>> {
        Self::pack_with(captured, extra, output, &Redactor::new(keep), keep, Box::new(room::measure))
    }

    fn pack_with(
        captured: &Captured,
        extra: &[(&str, &[u8])],
        output: &Path,
        redactor: &Redactor,
        keep: Keep,
        measure: Measure,
    ) -> Result<Vec<Entry>> {
        let target = destination(output).map_err(|refused| Error::io(output, "written")(refused.into()))?;
        check_outside(captured, output)?;
        let mut contents = capture_files(captured, redactor, keep)?;
        for (name, bytes) in extra {
            let (name, bytes) = extra_file(name, bytes, redactor)?;
            let path = format!("{FOLDER}/{name}");
            if contents.iter().any(|(other, _)| *other == path) {
                return Err(Error::Extra { name, reason: "there is another one of its name".into() });
            }
            contents.push((path, Content::Bytes(bytes)));
        }
        let entries: Vec<Entry> =
            contents.iter().map(|(path, content)| Entry { path: path.clone(), bytes: content.bytes() }).collect();
        let needed = entries.iter().map(|entry| entry.bytes.saturating_add(BYTES_PER_FILE)).sum();
        let folder = folder_of(&target);
        room::check(measure(folder), folder, needed)?;

        let file = temporary(output, ".tmp").map_err(|error| Error::io(output, "written")(error.kind().into()))?;
        let unwritten = |error| Error::io(output, "written")(error);
        file.as_file().set_permissions(fs::Permissions::from_mode(0o600)).map_err(unwritten)?;
        let mut builder = Builder::new(BufWriter::new(file.as_file()));
        for (path, content) in &contents {
            append(&mut builder, captured, path, content, output)?;
        }
        builder.into_inner().and_then(|mut writer| writer.flush()).map_err(unwritten)?;
        place(file, output).map_err(unwritten)?;
        Ok(entries)
    }
}

impl Content<'_> {
    fn bytes(&self) -> u64 {
        match self {
            Self::File(file) => file.bytes,
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }
}

/// Checks that an output is not in the capture's folder: with another file in it, it is no capture.
fn check_outside(captured: &Captured, output: &Path) -> Result<()> {
    let (folder, capture) = (fs::canonicalize(folder_of(output)), fs::canonicalize(captured.folder()));
    match (folder, capture) {
        (Ok(folder), Ok(capture)) if folder.starts_with(&capture) => Err(Error::Folder {
            folder: output.to_owned(),
            reason: "is in the capture's folder, which holds nothing else: give another name",
        }),
        // A folder that is missing is found when the output is made.
        _ => Ok(()),
    }
}

/// The files of a capture without what is not kept, and the manifest of those.
fn capture_files<'a>(captured: &'a Captured, redactor: &Redactor, keep: Keep) -> Result<Vec<(String, Content<'a>)>> {
    let mut manifest: Manifest = captured.manifest().clone();
    manifest.prompts &= keep.prompts;
    manifest.files.clear();
    let mut contents = Vec::new();
    for file in &captured.manifest().files {
        let (folder, name) = file.path.split_once('/').unwrap_or_default();
        let stage = manifest.stages.iter_mut().find(|stage| stage.folder == folder);
        let (entry, content) = match stage {
            Some(stage) if stage.stage == Stage::Text && !keep.prompts && ![OUTPUTS, FACTS, RECORD].contains(&name) => {
                stage.withheld += if name.starts_with(LAYERS) { 1 } else { captured.inputs(stage)?.len() as u64 };
                continue;
            }
            _ if [FACTS, RECORD].contains(&name) => {
                let mut value = captured.value(file)?;
                redactor.value(&mut value, Kind::Open);
                let bytes = json(&value);
                let entry =
                    FileEntry { path: file.path.clone(), bytes: bytes.len() as u64, sha256: digest::sha256(&bytes) };
                (entry, Content::Bytes(bytes))
            }
            _ => (file.clone(), Content::File(file)),
        };
        contents.push((format!("{CAPTURE}/{}", file.path), content));
        manifest.files.push(entry);
    }
    manifest.bytes = manifest.files.iter().map(|file| file.bytes).sum();
    contents.push((format!("{CAPTURE}/{MANIFEST}"), Content::Bytes(manifest.sealed())));
    Ok(contents)
}

/// A further file's name and bytes without what is not kept.
fn extra_file(name: &str, bytes: &[u8], redactor: &Redactor) -> Result<(String, Vec<u8>)> {
    let refused = |reason: String| Error::Extra { name: name.to_owned(), reason };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.starts_with('.') || name.len() > 64 || !name.bytes().all(is_name) {
        return Err(refused("its name has other characters than letters, digits, . _ and -".into()));
    }
    let text = str::from_utf8(bytes).map_err(|_| refused("it is no text in UTF-8".into()))?;
    let mut value: Value = match name.rsplit_once('.') {
        Some((_, "json")) => serde_json::from_str(text).map_err(|error| refused(json_fault(&error)))?,
        // The parser's own words would quote the file.
        Some((_, "toml")) => toml::from_str(text).map_err(|_| refused("it is no TOML".into()))?,
        Some((_, "txt" | "log")) => return Ok((name.to_owned(), redactor.lines(text).into_bytes())),
        _ => return Err(refused("give .json, .toml, .txt or .log".into())),
    };
    redactor.value(&mut value, Kind::Open);
    let name = if name.ends_with(".json") { name.to_owned() } else { format!("{name}.json") };
    Ok((name, json(&value)))
}

fn json(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

fn append<W: Write>(
    builder: &mut Builder<W>,
    captured: &Captured,
    path: &str,
    content: &Content,
    output: &Path,
) -> Result<()> {
    // Neither a user nor a time is in it.
    let mut header = Header::new_gnu();
    header.set_mode(0o600);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(content.bytes());
    let mut write = |bytes: &mut dyn Read| {
        builder.append_data(&mut header, path, bytes).map_err(|error| Error::io(output, "written")(error))
    };
    match content {
        Content::Bytes(bytes) => write(&mut bytes.as_slice()),
        Content::File(file) => {
            let from = captured.folder().join(&file.path);
            let opened = verify::open(&from).map_err(Error::io(&from, "read"))?;
            let mut hashed = Hashed { reader: opened.take(file.bytes), digest: Sha256::new() };
            write(&mut hashed)?;
            check_digest(captured.folder(), file, hashed.digest)
        }
    }
}

/// A reader that hashes what is read.
struct Hashed<R> {
    reader: R,
    digest: Sha256,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.reader.read(buffer)?;
        self.digest.update(buffer.get(..bytes).unwrap_or_default());
        Ok(bytes)
    }
}
