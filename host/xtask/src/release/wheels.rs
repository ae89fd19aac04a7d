//! The wheels of a release: what their own metadata says.

use std::{fs::File, io, path::Path};

use anyhow::{Context, Result, bail};
use zip::ZipArchive;

use super::{VERSION, checksums, names};
use crate::wheel::{ENGINE, LIBRARY};

/// A wheel.
pub struct Wheel {
    /// The file's name.
    pub file: String,
    /// The project's name.
    pub name: String,
    /// The version, with a local part if it has one.
    pub version: String,
    /// The licence, an expression of SPDX's.
    pub license: String,
    /// One line about it.
    pub summary: String,
    /// The requirements.
    pub needs: Vec<Requirement>,
    /// The SHA-256 of the file.
    pub digest: String,
}

/// A line `Requires-Dist`.
#[derive(Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The project's name.
    pub name: String,
    /// The versions that serve, as in `==2.11.*`; may be empty.
    pub versions: String,
    /// True if an extra needs it, and the wheel itself does not.
    pub is_optional: bool,
}

impl Requirement {
    fn parse(line: &str) -> Self {
        let (requirement, marker) = line.split_once(';').unwrap_or((line, ""));
        let requirement = requirement.trim();
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&letter);
        let end = requirement.find(|letter| !is_name(letter)).unwrap_or(requirement.len());
        let (name, versions) = requirement.split_at(end);
        let is_optional = marker.contains("extra ==");
        Self { name: name.to_owned(), versions: versions.trim().to_owned(), is_optional }
    }
}

/// Reads both wheels of a folder, the library's first.
///
/// # Errors
/// If one is missing, there is another one, or a version is not that of the release.
pub fn read(folder: &Path) -> Result<Vec<Wheel>> {
    let files = names(folder)?.into_iter().filter(|name| name.ends_with(".whl"));
    let mut wheels = files.map(|file| open(folder, file)).collect::<Result<Vec<_>>>()?;
    wheels.sort_by(|one, other| one.name.cmp(&other.name));
    let found: Vec<&str> = wheels.iter().map(|wheel| wheel.name.as_str()).collect();
    if found != [LIBRARY, ENGINE] {
        bail!(
            "{}: the wheels of {LIBRARY} and {ENGINE} are needed, and there are: {}",
            folder.display(),
            found.join(", ")
        );
    }
    let is_other = |wheel: &&Wheel| wheel.version.split('+').next() != Some(VERSION);
    if let Some(other) = wheels.iter().find(is_other) {
        bail!("{}: is of version {}, the release is {VERSION}", other.file, other.version);
    }
    Ok(wheels)
}

fn open(folder: &Path, file: String) -> Result<Wheel> {
    let path = folder.join(&file);
    let at = || path.display().to_string();
    let mut zip = ZipArchive::new(File::open(&path).with_context(at)?).with_context(at)?;
    let metadata = zip.file_names().find(|name| name.ends_with(".dist-info/METADATA")).map(str::to_owned);
    let metadata = metadata.with_context(|| format!("{}: has no METADATA", path.display()))?;
    let text = io::read_to_string(zip.by_name(&metadata)?).with_context(at)?;
    // The description follows an empty line.
    let fields: Vec<(&str, &str)> =
        text.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.split_once(": ")).collect();
    let all = |name: &'static str| fields.iter().filter(move |(field, _)| *field == name).map(|(_, value)| *value);
    let one = |name| all(name).next().map(str::to_owned).with_context(|| format!("{file}: METADATA has no {name}"));
    Ok(Wheel {
        name: one("Name")?,
        version: one("Version")?,
        license: one("License-Expression")?,
        summary: one("Summary")?,
        needs: all("Requires-Dist").map(Requirement::parse).collect(),
        digest: checksums::digest(&path)?,
        file,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_read_as_wheels_have_them() {
        let read = |line| {
            let Requirement { name, versions, is_optional } = Requirement::parse(line);
            (name, versions, is_optional)
        };
        assert_eq!(read("torch==2.11.*"), ("torch".into(), "==2.11.*".into(), false));
        assert_eq!(read("httpx >=0.27"), ("httpx".into(), ">=0.27".into(), false));
        assert_eq!(
            read("tilewright-engine==0.1.0; extra == 'engine'"),
            ("tilewright-engine".into(), "==0.1.0".into(), true)
        );
        assert_eq!(read("numpy"), ("numpy".into(), String::new(), false));
    }
}
