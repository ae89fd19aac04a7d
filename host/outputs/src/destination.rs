//! The place of an output, and the checks that it passes.

use std::{
    fs::{self, FileType, Metadata},
    io::{self, ErrorKind},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use thiserror::Error;

use crate::folder_of;

/// The permission of a file's owner to write to it.
const OWNER_WRITES: u32 = 0o200;

/// The folder of the names of what this process has open.
const DESCRIPTORS: &str = "/proc/self/fd";

/// A path that can't be an output. Its message is one line: the path, the reason, the remedy.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{path}: {reason}", path = .path.display())]
pub struct OutputRefused {
    /// The path, as it was given.
    pub path: PathBuf,
    /// The reason and the remedy.
    pub reason: String,
}

impl OutputRefused {
    pub(crate) fn new(path: &Path, reason: impl Into<String>) -> Self {
        Self { path: path.to_owned(), reason: reason.into() }
    }
}

impl From<OutputRefused> for io::Error {
    fn from(refused: OutputRefused) -> Self {
        io::Error::other(refused.reason)
    }
}

/// The most links that lead from one to the next.
const MOST_LINKS: u32 = 40;

/// The words for what takes bytes and is no file that another one could replace: a pipe, a socket,
/// a device, or a name of what this process has open. None for files, folders and free names.
pub fn stream(path: &Path) -> Option<&'static str> {
    if descriptor(path).is_some() {
        return Some("a name of what this process has open");
    }
    let kind = fs::metadata(path).ok()?.file_type();
    (!kind.is_file() && !kind.is_dir()).then(|| noun(kind))
}

/// True of the names of standard output, such as `/dev/stdout`.
pub fn is_standard_output(path: &Path) -> bool {
    descriptor(path) == Some(1)
}

/// The descriptor of this process that a path stands for, as `/dev/stdout`, `/dev/fd/63` and
/// `/proc/self/fd/1` do.
fn descriptor(path: &Path) -> Option<u32> {
    let own = fs::canonicalize(DESCRIPTORS).ok()?;
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let folder = fs::canonicalize(folder_of(&path)).ok()?;
        if folder == own {
            let name = path.file_name()?.to_str()?;
            // The system knows a number by its shortest form alone.
            return name.parse().ok().filter(|number: &u32| number.to_string() == name);
        }
        path = folder.join(fs::read_link(&path).ok()?);
    }
    None
}

/// The path at which a file of this name is written or replaced: the path itself, or the target of
/// a link, which is replaced in its own folder while the link stays. A path that doesn't exist is
/// free.
///
/// # Errors
/// The path is a folder, device, pipe or socket, or a name of what this process has open; a file
/// that is write-protected or another user's; a link to nothing; or a link of another user's,
/// except root's.
pub fn destination(path: &Path) -> Result<PathBuf, OutputRefused> {
    let refused = |reason: String| Err(OutputRefused::new(path, reason));
    if let Some(noun) = stream(path) {
        return refused(format!("is {noun}, not a file: give another name"));
    }
    let unreadable = |error: io::Error| OutputRefused::new(path, format!("can't be written: {error}"));
    let facts = match fs::symlink_metadata(path) {
        Ok(facts) => facts,
        // If the folder is missing, too, making its temporary file reports that.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(path.to_owned()),
        Err(error) => return Err(unreadable(error)),
    };
    if !facts.is_symlink() {
        return replaceable(&facts).map_or_else(refused, |()| Ok(path.to_owned()));
    }
    // The system has the same rule in folders that everybody can write to; root's links are the
    // machine's own.
    if facts.uid() != user() && facts.uid() != 0 {
        return refused(format!("is a link of another user's (user {}): give another name", facts.uid()));
    }
    let place = match fs::canonicalize(path) {
        Ok(place) => place,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return refused("is a link to nothing: remove it, or give another name".into());
        }
        Err(error) => return Err(unreadable(error)),
    };
    match replaceable(&fs::symlink_metadata(&place).map_err(unreadable)?) {
        Ok(()) => Ok(place),
        Err(reason) => refused(format!("is a link to {}, which {}", place.display(), reason)),
    }
}

/// Checks that a file may be replaced; the error is the reason.
fn replaceable(facts: &Metadata) -> Result<(), String> {
    let kind = facts.file_type();
    if !kind.is_file() {
        return Err(format!("is {}, not a file: give another name", noun(kind)));
    }
    if facts.uid() != user() {
        return Err(format!("belongs to another user (user {}): give another name", facts.uid()));
    }
    if facts.mode() & OWNER_WRITES == 0 {
        return Err("is write-protected: give another name, or allow writing with chmod u+w".into());
    }
    Ok(())
}

fn noun(kind: FileType) -> &'static str {
    match () {
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    }
}

/// The owner of the files that this process makes.
pub(crate) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn free_names_and_own_files_serve() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert_eq!(destination(&path), Ok(path.clone()));
        fs::write(&path, "").unwrap();
        assert_eq!(destination(&path), Ok(path.clone()));
        let link = folder.path().join("link");
        symlink("a", &link).unwrap();
        assert_eq!(destination(&link), Ok(path.canonicalize().unwrap()), "a link is followed");
    }

    #[test]
    fn what_may_not_be_replaced_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let reason = |name: &str| destination(&at(name)).unwrap_err().reason;
        fs::create_dir(at("folder")).unwrap();
        assert_eq!(reason("folder"), "is a folder, not a file: give another name");
        symlink("nowhere", at("dangling")).unwrap();
        assert!(reason("dangling").starts_with("is a link to nothing"));
        fs::write(at("protected"), "").unwrap();
        fs::set_permissions(at("protected"), fs::Permissions::from_mode(0o444)).unwrap();
        assert!(reason("protected").starts_with("is write-protected"));
        symlink("protected", at("link")).unwrap();
        assert!(reason("link").contains("which is write-protected"), "{}", reason("link"));
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        assert!(reason("socket").starts_with("is a socket"));
        assert!(destination(Path::new("/dev/null")).unwrap_err().reason.starts_with("is a device"));
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        assert!(reason("pipe").starts_with("is a pipe"));
        fs::write(at("file"), "").unwrap();
        assert!(reason("file/a").starts_with("can't be written: "));
    }

    #[test]
    fn names_of_what_is_open_are_known_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        symlink("/dev/stdout", at("link")).unwrap();
        symlink("link", at("second")).unwrap();
        for path in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].map(PathBuf::from).into_iter().chain([at("second")])
        {
            assert!(is_standard_output(&path), "{}", path.display());
            let reason = destination(&path).unwrap_err().reason;
            assert_eq!(reason, "is a name of what this process has open, not a file: give another name");
        }
        // Whatever is behind it: a file that has lost its name, for one.
        let file = tempfile::tempfile().unwrap();
        let path = PathBuf::from(format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
        assert!(!is_standard_output(&path) && stream(&path).is_some());
        for path in ["/dev/fd/+1", "/dev/fd/01"].map(Path::new) {
            assert_eq!((stream(path), is_standard_output(path)), (None, false), "{}", path.display());
        }
        symlink("loop", at("loop")).unwrap();
        fs::write(at("1"), "").unwrap();
        for name in ["loop", "1", "none", "none/1"] {
            assert_eq!((stream(&at(name)), is_standard_output(&at(name))), (None, false), "{name}");
        }
        assert_eq!(stream(Path::new("/dev/full")), Some("a device"));
    }

    #[test]
    fn what_is_another_users_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "").unwrap();
        symlink("file", &link).unwrap();
        // Only root can give files away; for others, root's own files are foreign.
        if user() != 0 {
            assert!(destination(Path::new("/etc/passwd")).unwrap_err().reason.starts_with("belongs to another user"));
            return;
        }
        std::os::unix::fs::lchown(&link, Some(12_345), None).unwrap();
        assert!(destination(&link).unwrap_err().reason.starts_with("is a link of another user's (user 12345)"));
        std::os::unix::fs::chown(&file, Some(12_345), None).unwrap();
        assert!(destination(&file).unwrap_err().reason.starts_with("belongs to another user (user 12345)"));
    }
}
