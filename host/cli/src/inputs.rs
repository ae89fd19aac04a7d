//! The input files of a command: named ones, those in folders, and standard input.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, IsTerminal, Read},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

use tilewright_media::STANDARD;
use tilewright_outputs::Roles;

use crate::{
    failure::{Failure, Outcome},
    files,
};

/// The size limit of standard input, in bytes.
const MOST_BYTES: u64 = 8 << 30;

/// The most inputs in one folder.
const MOST_FILES: usize = 100_000;

/// The name of standard input in messages.
const STANDARD_INPUT: &str = "standard input";

/// One file to work on.
pub struct Input {
    /// The path that it is opened by.
    pub path: PathBuf,
    /// The name in messages.
    pub shown: String,
    /// The name that outputs are derived from; none for standard input.
    pub stem: Option<OsString>,
    /// The contents of standard input, in a nameless file that is removed with this.
    _taken: Option<File>,
}

impl Input {
    fn from_path(path: &Path) -> Self {
        let stem = path.file_stem().unwrap_or(path.as_os_str()).to_owned();
        Self { path: path.to_owned(), shown: path.display().to_string(), stem: Some(stem), _taken: None }
    }

    fn standard() -> Outcome<Self> {
        let mut stdin = io::stdin().lock();
        if stdin.is_terminal() {
            return Err(Failure::input("standard input is a terminal: send a file into it, or name one"));
        }
        let failed = |error: io::Error| Failure::work(format!("{STANDARD_INPUT}: can't be read: {error}"));
        let mut file = tempfile::tempfile().map_err(failed)?;
        let count = io::copy(&mut stdin.by_ref().take(MOST_BYTES + 1), &mut file).map_err(failed)?;
        if count > MOST_BYTES {
            return Err(Failure::input(format!("{STANDARD_INPUT}: more than 8 GiB: give it as a file")));
        }
        // The file's only name, by which it can be opened again and again.
        let folder = if Path::new("/proc/self/fd").is_dir() { "/proc/self/fd" } else { "/dev/fd" };
        let path = Path::new(folder).join(file.as_raw_fd().to_string());
        Ok(Self { path, shown: STANDARD_INPUT.to_owned(), stem: None, _taken: Some(file) })
    }

    /// True if it came from standard input.
    pub fn is_standard(&self) -> bool {
        self.stem.is_none()
    }

    /// Adds it to what no output may replace: for standard input, the file behind it.
    pub fn kept_by(&self, roles: Roles, what: &str) -> Roles {
        let roles = roles.reads(what, &self.path);
        if self.is_standard() { roles.reads_open(what, io::stdin()) } else { roles }
    }

    /// The failure with the name that the user knows the input by.
    pub fn rename(&self, failure: Failure) -> Failure {
        if self.is_standard() { failure.rename(&self.path.display().to_string(), &self.shown) } else { failure }
    }
}

/// The named files; in place of a folder, its files with one of the endings, sorted by name,
/// without hidden ones. If no endings are given, a folder counts as a file itself.
pub fn list_inputs(given: &[PathBuf], what: &str, endings: Option<&[&str]>) -> Outcome<Vec<Input>> {
    let mut inputs: Vec<Input> = Vec::new();
    for path in given {
        match endings {
            _ if path.as_os_str() == STANDARD => {
                if inputs.iter().any(Input::is_standard) {
                    return Err(Failure::input("- is given twice: standard input can be read once"));
                }
                inputs.push(Input::standard()?);
            }
            Some(endings) if path.is_dir() => inputs.extend(inside(path, what, endings)?),
            _ => inputs.push(Input::from_path(path)),
        }
    }
    Ok(inputs)
}

fn inside(folder: &Path, what: &str, endings: &[&str]) -> Outcome<Vec<Input>> {
    let failed = files::unreadable(folder);
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(&failed)? {
        let path = entry.map_err(&failed)?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
        if !hidden && endings.contains(&ending.as_str()) && !path.is_dir() {
            paths.push(path);
        }
        if paths.len() > MOST_FILES {
            return Err(Failure::input(format!("{}: a folder of more than {MOST_FILES} {what}", folder.display())));
        }
    }
    if paths.is_empty() {
        let endings: Vec<_> = endings.iter().map(|ending| format!(".{ending}")).collect();
        return Err(Failure::input(format!(
            "{}: a folder that holds no {what} ({})",
            folder.display(),
            endings.join(", ")
        )));
    }
    paths.sort();
    Ok(paths.iter().map(|path| Input::from_path(path)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_listed_by_name_and_hidden_files_left_out() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.latent", "a.SAFETENSORS", ".c.latent", "d.txt"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        fs::create_dir(folder.path().join("e.latent")).unwrap();
        let given = [folder.path().to_owned(), "x.latent".into()];
        let inputs = list_inputs(&given, "latents", Some(&["latent", "safetensors"])).unwrap();
        let stems: Vec<_> = inputs.iter().map(|input| input.stem.as_deref().unwrap()).collect();
        assert_eq!(stems, ["a", "b", "x"]);
        let error = list_inputs(&given[..1], "pictures", Some(&["png"])).err().unwrap().to_string();
        assert!(error.ends_with(": a folder that holds no pictures (.png)"), "{error}");
        assert_eq!(list_inputs(&given[..1], "pictures", None).unwrap().len(), 1);
    }
}
