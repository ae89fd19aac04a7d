//! Files that are complete or absent: each is written under a temporary name in its own folder and
//! renamed.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use tempfile::{NamedTempFile, TempDir};

use crate::destination;

/// The prefix of every temporary name.
const PREFIX: &str = ".tilewright-";

/// The folder that a path is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A temporary file in the folder of the path, or of the file that it links to; it is removed
/// unless it is placed.
///
/// # Errors
/// No file can be made there, or the path can't be an output.
pub fn temporary(path: &Path, ending: &str) -> io::Result<NamedTempFile> {
    temporary_in(folder_of(&destination(path)?), ending)
}

/// A temporary file in this folder; it is removed unless it is placed. Write through
/// [`NamedTempFile::as_file`]: the errors of its own `Write` name the temporary file, which says
/// nothing to a user.
///
/// # Errors
/// No file can be made there.
pub fn temporary_in(folder: &Path, ending: &str) -> io::Result<NamedTempFile> {
    // The umask takes away what the user does not want, as for every file.
    with_mode(folder, ending, 0o666)
}

/// A temporary folder in this folder; it is removed unless it is renamed and kept.
///
/// # Errors
/// No folder can be made there.
pub fn temporary_folder(folder: &Path) -> io::Result<TempDir> {
    let mode = fs::Permissions::from_mode(0o777);
    tempfile::Builder::new().prefix(PREFIX).permissions(mode).tempdir_in(folder)
}

/// Renames a complete file to its final name and replaces an older one. A link stays, and its
/// target is replaced.
///
/// # Errors
/// The disk is full, or a file that has appeared there can't be replaced.
pub fn place(file: NamedTempFile, path: &Path) -> io::Result<()> {
    let place = destination(path)?;
    file.as_file().sync_data()?;
    file.persist(place).map(drop).map_err(|error| error.error)
}

/// Renames a complete file to its final name if nothing has that name, not even a link to nothing;
/// otherwise returns the file.
///
/// # Errors
/// The disk is full, or the file can't be renamed for another reason.
pub fn place_new(file: NamedTempFile, path: &Path) -> io::Result<Option<NamedTempFile>> {
    file.as_file().sync_data()?;
    match file.persist_noclobber(path) {
        Ok(_) => Ok(None),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(Some(error.file)),
        Err(error) => Err(error.error),
    }
}

/// Writes a complete file under its final name and replaces an older one.
///
/// # Errors
/// It can't be written; nothing of it is left behind then.
pub fn write_whole(path: &Path, contents: &[u8]) -> io::Result<()> {
    place(stage(path, contents, 0o666)?, path)
}

/// A temporary file with these contents, on the disk and ready to be placed at the path; it is
/// removed unless it is placed. `mode` is its mode before the user's umask. If several files belong
/// together, all are staged before the first is placed.
///
/// # Errors
/// As [`write_whole`].
pub fn stage(path: &Path, contents: &[u8], mode: u32) -> io::Result<NamedTempFile> {
    let folder = folder_of(&destination(path)?).to_owned();
    let mut file = with_mode(&folder, ".tmp", mode)?;
    file.as_file_mut().write_all(contents)?;
    file.as_file().sync_data()?;
    Ok(file)
}

fn with_mode(folder: &Path, ending: &str, mode: u32) -> io::Result<NamedTempFile> {
    let mode = fs::Permissions::from_mode(mode);
    tempfile::Builder::new().prefix(PREFIX).suffix(ending).permissions(mode).tempfile_in(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_link_stays_and_what_it_leads_to_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("far/file"), folder.path().join("link"));
        fs::create_dir(folder.path().join("far")).unwrap();
        fs::write(&file, "old").unwrap();
        symlink("far/file", &link).unwrap();
        write_whole(&link, b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(
            (names(folder.path()), names(&folder.path().join("far"))),
            (vec!["far".into(), "link".into()], vec!["file".into()])
        );
    }

    #[test]
    fn nothing_that_may_not_be_replaced_is_and_nothing_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "old").unwrap();
        let file = temporary(&path, ".tmp").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        // The path became protected while the file was written.
        assert!(place(file, &path).unwrap_err().to_string().contains("write-protected"));
        assert!(write_whole(&path, b"new").is_err());
        assert_eq!((fs::read_to_string(&path).unwrap(), names(folder.path())), ("old".into(), vec!["a".to_owned()]));
    }

    #[test]
    fn a_new_file_takes_no_name_that_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert!(place_new(temporary(&path, "").unwrap(), &path).unwrap().is_none());
        symlink("nowhere", folder.path().join("b")).unwrap();
        for name in ["a", "b"] {
            let path = folder.path().join(name);
            let file = place_new(temporary(&folder.path().join("new"), "").unwrap(), &path).unwrap();
            assert!(file.is_some(), "{name}");
        }
        assert_eq!(names(folder.path()), ["a", "b"]);
    }
}
