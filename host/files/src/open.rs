//! Plain files, opened without ever waiting: a named pipe waits for a writer, and a device may do
//! anything when opened.

use std::{
    fs::{self, File, FileType, Metadata, OpenOptions},
    io::{self, ErrorKind, Read},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

use rustix::fs::OFlags;

use crate::facts;

/// A test of a file's type.
type Is = fn(&FileType) -> bool;

/// The types of paths that are not files, and their names.
const OTHERS: [(Is, &str); 4] = [
    (FileTypeExt::is_fifo, "a named pipe"),
    (FileTypeExt::is_socket, "a socket"),
    (FileTypeExt::is_char_device, "a device"),
    (FileTypeExt::is_block_device, "a device"),
];

/// Opens a plain file for reading, through links. Anything else is refused at once, even if it
/// takes the file's place between two checks.
///
/// # Errors
/// [`ErrorKind::IsADirectory`] for a folder, [`ErrorKind::InvalidInput`] for pipes, sockets,
/// devices and what is below `/proc`; the system's own, where a link that leads nowhere says so.
pub fn open(path: &Path) -> io::Result<File> {
    // Checked before opening: to open a device may rewind a tape or start a watchdog.
    regular(&facts(path)?)?;
    let file = OpenOptions::new().read(true).custom_flags(at_once()).open(path)?;
    // Checked again after opening: the path may lead elsewhere by now.
    regular(&file.metadata()?)?;
    check_stored(&file)?;
    Ok(file)
}

/// Reads a whole plain file of at most `most` bytes.
///
/// # Errors
/// As [`open`], and [`ErrorKind::FileTooLarge`].
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    if length > most {
        return Err(too_large(most));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    // The file may grow meanwhile.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_large(most)) } else { Ok(bytes) }
}

/// Reads a whole plain file of UTF-8 of at most `most` bytes.
///
/// # Errors
/// As [`read`], and [`ErrorKind::InvalidData`].
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is no text in UTF-8"))
}

/// Opens a file for appending, and makes it if it is missing. A terminal or `/dev/null` is
/// accepted; a pipe or socket, which may wait for ever, is not.
///
/// # Errors
/// As [`open`].
pub fn append(path: &Path) -> io::Result<File> {
    let sound = |facts: &Metadata| if facts.file_type().is_char_device() { Ok(()) } else { regular(facts) };
    match fs::metadata(path) {
        Ok(facts) => sound(&facts)?,
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Err(_) => {}
    }
    let file = OpenOptions::new().create(true).append(true).custom_flags(at_once()).open(path)?;
    sound(&file.metadata()?)?;
    Ok(file)
}

/// Refuses everything but a plain file.
///
/// # Errors
/// As [`open`].
pub fn regular(facts: &Metadata) -> io::Result<()> {
    let kind = facts.file_type();
    if kind.is_file() {
        return Ok(());
    }
    if kind.is_dir() {
        return Err(io::Error::new(ErrorKind::IsADirectory, "a folder, not a file"));
    }
    let name = OTHERS.iter().find(|(is, _)| is(&kind)).map_or("no file", |(_, name)| name);
    Err(io::Error::new(ErrorKind::InvalidInput, format!("{name}, not a file")))
}

/// Refuses what the kernel shows as files below `/proc`. They pass for plain ones, and reading them
/// may wait for ever or take away what is read, as with `/proc/kmsg`.
#[cfg(target_os = "linux")]
fn check_stored(file: &File) -> io::Result<()> {
    // A file system that does not say what it is holds files.
    match rustix::fs::fstatfs(file).map(|facts| facts.f_type) {
        Ok(rustix::fs::PROC_SUPER_MAGIC) => {
            Err(io::Error::new(ErrorKind::InvalidInput, "a view into the system, not a file"))
        }
        _ => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn check_stored(_: &File) -> io::Result<()> {
    Ok(())
}

fn at_once() -> i32 {
    (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32
}

fn too_large(most: u64) -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, format!("larger than the {most} bytes that are read of such a file"))
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixListener, process::Command};

    use super::*;

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        std::os::unix::fs::symlink(at("pipe"), at("link")).unwrap();
        let _listens = UnixListener::bind(at("socket")).unwrap();
        let cases = [
            (at("pipe"), "a named pipe, not a file"),
            (at("link"), "a named pipe, not a file"),
            (at("socket"), "a socket, not a file"),
            ("/dev/zero".into(), "a device, not a file"),
            ("/proc/self/status".into(), "a view into the system, not a file"),
            (folder.path().to_owned(), "a folder, not a file"),
        ];
        for (path, words) in cases {
            assert_eq!(open(&path).unwrap_err().to_string(), words, "{}", path.display());
            assert_eq!(read(&path, 9).unwrap_err().to_string(), words);
        }
        assert_eq!(append(&at("pipe")).unwrap_err().to_string(), "a named pipe, not a file");
        assert_eq!(append(&at("socket")).unwrap_err().to_string(), "a socket, not a file");
        assert_eq!(open(&at("nowhere")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_pipe_in_the_place_of_a_file_is_found_after_it_was_opened() {
        // As if the path changed between the two checks: the second one is enough.
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let opened = OpenOptions::new().read(true).custom_flags(at_once()).open(&pipe).unwrap();
        assert!(regular(&opened.metadata().unwrap()).is_err());
    }

    #[test]
    fn files_are_read_up_to_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        append(&path).unwrap().write_all(b"four").unwrap();
        append(&path).unwrap().write_all(&[0xff]).unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"four\xff");
        assert_eq!(read(&path, 4).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(read_text(&path, 5).unwrap_err().kind(), ErrorKind::InvalidData);
        // A sparse file: it is never read, and no memory is allocated.
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read(&path, 1 << 20).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }
}
