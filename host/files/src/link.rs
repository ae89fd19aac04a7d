//! Links that lead nowhere. In Hugging Face's cache the files of a snapshot are links to blobs, of
//! which a download that was broken off, or a copy without them, lacks some.

use std::{
    ffi::OsStr,
    fs::{self, Metadata},
    io::{self, ErrorKind},
    path::{Component, Path},
};

/// The beginning of a repository's folder in Hugging Face's cache, and the folder of its snapshots.
const REPOSITORY: &str = "models--";
const SNAPSHOTS: &str = "snapshots";

/// The folder of blobs, which links of a snapshot lead to.
const BLOBS: &str = "blobs";

/// True for a link that leads nowhere.
pub fn is_broken(path: &Path) -> bool {
    path.is_symlink() && fs::metadata(path).is_err()
}

/// True for a file, and for a link that leads nowhere: to open that says what is missing, where to
/// pass it over would do without it.
pub fn is_there(path: &Path) -> bool {
    path.is_file() || is_broken(path)
}

/// The facts of a path, through links.
///
/// # Errors
/// The system's own; of a link that leads nowhere, with what it leads to and what to do.
pub fn facts(path: &Path) -> io::Result<Metadata> {
    fs::metadata(path).map_err(|error| explain(path, error))
}

fn explain(path: &Path, error: io::Error) -> io::Error {
    match fs::read_link(path) {
        Ok(target) if error.kind() == ErrorKind::NotFound => io::Error::new(error.kind(), words(path, &target)),
        _ => error,
    }
}

fn words(path: &Path, target: &Path) -> String {
    let parts: Vec<&OsStr> = path.components().map(Component::as_os_str).collect();
    let snapshots = parts.iter().position(|part| *part == SNAPSHOTS);
    let (Some(at), true) = (snapshots, target.components().any(|part| part.as_os_str() == BLOBS)) else {
        return format!("a link to {}, which is not there", target.display());
    };
    let incomplete = "a link to a blob that is not there: the download is incomplete";
    let repository = at.checked_sub(1).and_then(|at| parts[at].to_str()?.strip_prefix(REPOSITORY));
    let Some(repository) = repository else {
        return format!("{incomplete}: download the file again ({} is missing)", target.display());
    };
    // Behind the folder of snapshots come the revision and the file's own path.
    let file: Vec<_> = parts[at + 1..].iter().skip(1).map(|part| part.to_string_lossy()).collect();
    let cache = path.ancestors().nth(parts.len() - at + 1).filter(|cache| !cache.as_os_str().is_empty());
    let cache = cache.map_or(".".into(), |cache| cache.display().to_string());
    format!("{incomplete}: run hf download {} {} --cache-dir {cache}", repository.replace("--", "/"), file.join("/"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::open;

    #[test]
    fn a_link_to_nothing_says_where_it_leads_and_how_to_get_it() {
        let folder = tempfile::tempdir().unwrap();
        let told = |at: &str, target: &str| {
            let path = folder.path().join(at);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, &path).unwrap();
            assert!(is_broken(&path));
            let error = open(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            error.to_string()
        };
        let cache = folder.path().join("hub");
        assert_eq!(
            told("hub/models--acme--tiny-flux/snapshots/c0/vae/config.json", "../../../../blobs/d1"),
            format!(
                "a link to a blob that is not there: the download is incomplete: \
                 run hf download acme/tiny-flux vae/config.json --cache-dir {}",
                cache.display()
            )
        );
        assert_eq!(
            told("copied/snapshots/c0/config.json", "../../blobs/d1"),
            "a link to a blob that is not there: the download is incomplete: \
             download the file again (../../blobs/d1 is missing)"
        );
        assert_eq!(
            told("vae/ae.safetensors", "/gone/ae.safetensors"),
            "a link to /gone/ae.safetensors, which is not there"
        );
        // A link of links, and one to itself, which leads nowhere, too.
        symlink("ae.safetensors", folder.path().join("vae/second")).unwrap();
        assert_eq!(open(&folder.path().join("vae/second")).unwrap_err().kind(), ErrorKind::NotFound);
        symlink("self", folder.path().join("self")).unwrap();
        assert!(is_broken(&folder.path().join("self")) && open(&folder.path().join("self")).is_err());
        fs::write(folder.path().join("file"), "").unwrap();
        symlink("file", folder.path().join("sound")).unwrap();
        assert!(!is_broken(&folder.path().join("sound")) && !is_broken(&folder.path().join("file")));
        assert!(!is_broken(&folder.path().join("nothing")));
        for (name, expected) in [("file", true), ("sound", true), ("self", true), ("nothing", false), ("vae", false)] {
            assert_eq!(is_there(&folder.path().join(name)), expected, "{name}");
        }
    }
}
