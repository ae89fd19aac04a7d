//! The inputs and outputs of a command in one list: no file is both, and none is written twice.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs::{self, File},
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use crate::{OutputRefused, destination, folder_of};

/// The most files of an input folder that are compared with the outputs.
const MOST_ENTRIES: usize = 100_000;

/// The inputs and outputs of one command, each with the name that the user knows it by.
#[derive(Clone, Debug, Default)]
pub struct Roles {
    inputs: Vec<(String, PathBuf)>,
    /// Inputs that are open, by device and inode.
    open: Vec<(String, (u64, u64))>,
    outputs: Vec<OutputEntry>,
}

/// An output.
#[derive(Clone, Debug)]
struct OutputEntry {
    option: String,
    path: PathBuf,
    /// True if it is checked that an existing file may be replaced.
    is_file: bool,
    /// Device and inode of an output that is open; its path is only a name for messages.
    open: Option<(u64, u64)>,
}

/// The file behind a path, the same for all its paths.
#[derive(PartialEq, Eq, Hash)]
enum Identity {
    /// Device and inode of an existing file: the same through hard and symbolic links.
    There(u64, u64),
    /// The nearest folder that exists, and a missing file's path in it.
    Free((u64, u64), OsString),
}

impl Roles {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an input; for a folder, the files in it, too.
    #[must_use]
    pub fn reads(mut self, what: impl Into<String>, path: &Path) -> Self {
        let what = what.into();
        if path.is_dir() {
            let entries = fs::read_dir(path).into_iter().flatten().flatten().take(MOST_ENTRIES);
            self.inputs.extend(entries.map(|entry| (format!("in {what}"), entry.path())));
        }
        self.inputs.push((what, path.to_owned()));
        self
    }

    /// Adds inputs of one kind, as [`Self::reads`].
    #[must_use]
    pub fn reads_all(self, what: &str, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Self {
        paths.into_iter().fold(self, |roles, path| roles.reads(what, path.as_ref()))
    }

    /// Adds an input that is open, such as standard input. Only a plain file is compared: no output
    /// replaces a pipe, and standard input and output may be one socket.
    #[must_use]
    pub fn reads_open(mut self, what: impl Into<String>, input: impl AsFd) -> Self {
        self.open.extend(plain(input).map(|file| (what.into(), file)));
        self
    }

    /// Adds an output by its final name.
    #[must_use]
    pub fn writes(mut self, option: impl Into<String>, path: &Path) -> Self {
        self.outputs.push(OutputEntry { option: option.into(), path: path.to_owned(), is_file: true, open: None });
        self
    }

    /// Adds an output that is only compared: it may be a folder, or its replacement is checked
    /// elsewhere.
    #[must_use]
    pub fn occupies(mut self, option: impl Into<String>, path: &Path) -> Self {
        self.outputs.push(OutputEntry { option: option.into(), path: path.to_owned(), is_file: false, open: None });
        self
    }

    /// Adds an output that is open, such as standard output, with the name for messages. As for
    /// [`Roles::reads_open`], only a plain file is compared.
    #[must_use]
    pub fn occupies_open(mut self, option: impl Into<String>, name: &str, output: impl AsFd) -> Self {
        self.outputs.extend(plain(output).map(|file| OutputEntry {
            option: option.into(),
            path: name.into(),
            is_file: false,
            open: Some(file),
        }));
        self
    }

    /// Compares every output with every input and every other output, by the files behind the
    /// paths, and checks that it may be replaced. Call it before anything is written.
    ///
    /// # Errors
    /// [`OutputRefused`], for the first output that fails.
    pub fn check(&self) -> Result<(), OutputRefused> {
        let found = |(what, path): &(String, PathBuf)| Some((identity(path)?, what.clone()));
        let open = self.open.iter().map(|(what, (device, inode))| (Identity::There(*device, *inode), what.clone()));
        let inputs: HashMap<Identity, String> = open.chain(self.inputs.iter().rev().filter_map(found)).collect();
        let mut earlier: HashMap<Identity, &str> = HashMap::new();
        for OutputEntry { option, path, open, .. } in &self.outputs {
            let open = open.map(|(device, inode)| Identity::There(device, inode));
            let Some(found) = open.or_else(|| identity(path)) else { continue };
            if let Some(what) = inputs.get(&found) {
                return Err(OutputRefused::new(path, format!("is {what}, which is read: give {option} another name")));
            }
            if let Some(other) = earlier.insert(found, option) {
                let reason = match other == option {
                    true => format!("is written twice by {option}: give names that differ"),
                    false => format!("is given as {other} and as {option}: one file can't be both"),
                };
                return Err(OutputRefused::new(path, reason));
            }
        }
        self.outputs.iter().filter(|output| output.is_file).try_for_each(|output| destination(&output.path).map(drop))
    }
}

/// Device and inode of what is open, if it is a plain file.
fn plain(open: impl AsFd) -> Option<(u64, u64)> {
    let facts = File::from(open.as_fd().try_clone_to_owned().ok()?).metadata().ok()?;
    facts.is_file().then(|| (facts.dev(), facts.ino()))
}

/// The identity of the file at a path; none if it has no name.
fn identity(path: &Path) -> Option<Identity> {
    if let Ok(facts) = fs::metadata(path) {
        return Some(Identity::There(facts.dev(), facts.ino()));
    }
    let (mut folder, mut rest) = (folder_of(path), PathBuf::from(path.file_name()?));
    loop {
        if let Ok(facts) = fs::metadata(folder) {
            return Some(Identity::Free((facts.dev(), facts.ino()), rest.into_os_string()));
        }
        // An output's folder may be made later.
        rest = Path::new(folder.file_name()?).join(rest);
        folder = folder_of(folder);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn an_input_is_known_through_every_kind_of_link() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("sub")).unwrap();
        fs::write(at("vae"), "weights").unwrap();
        fs::hard_link(at("vae"), at("hard")).unwrap();
        symlink("vae", at("soft")).unwrap();
        symlink(".", at("here")).unwrap();
        for name in ["vae", "hard", "soft", "sub/../vae", "here/vae"] {
            let refused = Roles::new().reads("the VAE", &at("vae")).writes("-o", &at(name)).check().unwrap_err();
            assert_eq!(refused.reason, "is the VAE, which is read: give -o another name", "{name}");
        }
        assert_eq!(Roles::new().reads("the VAE", &at("vae")).writes("-o", &at("other")).check(), Ok(()));
        let inside = Roles::new().reads("the folder", folder.path()).writes("-o", &at("hard")).check().unwrap_err();
        assert!(inside.reason.starts_with("is in the folder, which is read"), "{inside}");
    }

    #[test]
    fn what_is_open_is_compared_if_it_is_a_plain_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("latent"), "values").unwrap();
        fs::hard_link(at("latent"), at("hard")).unwrap();
        let open = File::open(at("latent")).unwrap();
        for name in ["latent", "hard"] {
            let refused = Roles::new().reads_open("the latent", &open).occupies("-o", &at(name)).check().unwrap_err();
            assert_eq!(refused.reason, "is the latent, which is read: give -o another name", "{name}");
            let named = Roles::new().reads("the latent", &at(name));
            let refused = named.occupies_open("-o", "standard output", &open).check().unwrap_err();
            assert!(refused.to_string().starts_with("standard output: is the latent, which is read"), "{refused}");
        }
        assert_eq!(Roles::new().reads_open("the latent", &open).occupies("-o", &at("other")).check(), Ok(()));
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let connected = Roles::new().reads_open("the latent", &one).occupies_open("-o", "standard output", &one);
        assert_eq!(connected.check(), Ok(()), "a socket is both ends");
    }

    #[test]
    fn two_outputs_are_two_files() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        symlink(".", at("here")).unwrap();
        for (one, other) in [("a", "a"), ("a", "here/a"), ("a", "./a")] {
            let refused = Roles::new().writes("-o", &at(one)).writes("--record", &at(other)).check().unwrap_err();
            assert_eq!(refused.reason, "is given as -o and as --record: one file can't be both", "{other}");
        }
        assert_eq!(Roles::new().writes("-o", &at("a")).writes("--record", &at("b")).check(), Ok(()));
        let later = |one: &str, other: &str| Roles::new().occupies("-o", &at(one)).occupies("-o", &at(other)).check();
        assert!(later("new/a", "here/new/a").is_err(), "their folder is to be made");
        assert_eq!((later("new/a", "new/b"), later("new/a", "other/a")), (Ok(()), Ok(())));
        // As in a folder that does not tell upper case from lower case: two names, and one file
        // once it is written.
        fs::write(at("written"), "").unwrap();
        fs::hard_link(at("written"), at("other-name")).unwrap();
        assert!(later("written", "other-name").unwrap_err().reason.starts_with("is written twice by -o"));
        let twice = Roles::new().writes("-o", &at("a")).writes("-o", &at("a")).check().unwrap_err();
        assert!(twice.reason.starts_with("is written twice by -o"), "{twice}");
        assert!(Roles::new().writes("-o", folder.path()).check().is_err(), "a folder is no file");
    }
}
