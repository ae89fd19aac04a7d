//! Creates a project: all of its files at once, or none.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{Language, ProjectError, templates};

/// The most characters that a policy's name may have.
const NAME: usize = 64;

/// The package that every project in Rust depends on: cargo can't distinguish two of one name and
/// version.
const SDK: &str = "tilewright-sdk";

/// A project that was created.
#[derive(Clone, Debug, Serialize)]
pub struct Created {
    /// The policy's name.
    pub name: String,
    /// The project's language.
    pub language: Language,
    /// The project's folder.
    pub path: PathBuf,
    /// The project's files, relative to the folder.
    pub files: Vec<String>,
}

/// Creates the project `into/name`.
///
/// # Errors
/// [`ProjectError::Name`], [`ProjectError::Exists`], or the error of writing a file. Nothing is
/// left behind then.
pub fn create(name: &str, language: Language, into: &Path) -> Result<Created, ProjectError> {
    check(name)?;
    let path = if into == Path::new(".") { PathBuf::from(name) } else { into.join(name) };
    if fs::symlink_metadata(&path).is_ok() {
        return Err(ProjectError::Exists { path });
    }
    let files = templates::files(language, name)?;
    fs::create_dir_all(into).map_err(ProjectError::file(into))?;
    // In the same folder, so that a rename puts it in place; removed by itself on failure.
    let aside = tempfile::Builder::new().prefix(".tilewright-new-").tempdir_in(into);
    let aside = aside.map_err(ProjectError::file(into))?;
    let unfinished = aside.path().join(name);
    for (file, text) in &files {
        let place = unfinished.join(file);
        let folder = place.parent().unwrap_or(&unfinished);
        fs::create_dir_all(folder).map_err(ProjectError::file(folder))?;
        fs::write(&place, text).map_err(ProjectError::file(&place))?;
    }
    fs::rename(&unfinished, &path).map_err(ProjectError::file(&path))?;
    let mut files: Vec<String> = files.iter().map(|(file, _)| (*file).to_owned()).collect();
    files.sort();
    Ok(Created { name: name.into(), language, path, files })
}

/// Checks a name: it serves as a folder, as a package and as the answer of `describe`.
fn check(name: &str) -> Result<(), ProjectError> {
    let refused = |why| Err(ProjectError::Name { name: name.into(), why });
    match name.as_bytes() {
        [] => refused("it is empty"),
        [first, ..] if !first.is_ascii_alphabetic() => refused("it has to begin with a letter"),
        _ if name.len() > NAME => refused("it has more than 64 characters"),
        bytes if !bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-') => {
            refused("only letters, digits and - are allowed")
        }
        _ if name.eq_ignore_ascii_case(SDK) => refused("it is the name of the SDK in the project: choose another"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["a", "my-chip", "Gfx1151", "a1-2", "tilewright-sdk-2"] {
            check(good).unwrap();
        }
        for bad in ["", "1a", "-a", "a b", "a_b", "ä", "a/b", "..", "a.wasm", "tilewright-sdk", &"a".repeat(65)] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_project_is_there_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        for language in Language::words() {
            let created = create(language, language.parse().unwrap(), &place.path().join("new/folder")).unwrap();
            assert!(created.files.iter().any(|file| file == "README.md"), "{created:?}");
            assert!(created.files.iter().all(|file| created.path.join(file).is_file()));
            assert_eq!(Language::of(&created.path).unwrap().to_string(), language);
        }
        let left = || fs::read_dir(place.path().join("new/folder")).unwrap().count();
        assert_eq!(left(), 4, "nothing but the projects");
        let again = create("rust", Language::C, &place.path().join("new/folder")).unwrap_err();
        assert!(again.to_string().ends_with("exists already; give another name"), "{again}");
        assert_eq!(left(), 4);
        // The parent is a file.
        fs::write(place.path().join("file"), "").unwrap();
        assert!(create("p", Language::Rust, &place.path().join("file")).is_err());
    }
}
