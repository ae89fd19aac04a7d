//! The notices of what others have made and is linked into the wheels: the texts of the crates'
//! licences, each once, with the crates that come under it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::crates::{Crate, Graph, Key};

/// The beginnings of the names of such files.
const NAMES: [&str; 6] = ["license", "licence", "copying", "copyright", "notice", "unlicense"];

/// The folder of the vocabularies in the program, each with the licence of those who made it.
const VOCABULARIES: &str = "host/tokenizer/vocabularies";

/// The notices of all crates that are linked and not the workspace's own, and of the vocabularies.
///
/// # Errors
/// A crate's folder or text can't be read.
pub fn of(root: &Path, graph: &Graph) -> Result<String> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut without = Vec::new();
    for folder in entries(&root.join(VOCABULARIES))?.iter().filter(|path| path.is_dir()) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let row = format!("the vocabulary {name}");
        texts_in(folder)?.into_iter().for_each(|text| texts.entry(text).or_default().push(row.clone()));
    }
    for (key, part) in graph.crates.iter().filter(|(_, part)| part.is_linked && part.checksum.is_some()) {
        let own = texts_in(&part.folder)?;
        if own.is_empty() {
            without.push(row(key, part));
        }
        own.into_iter().for_each(|text| texts.entry(text).or_default().push(row(key, part)));
    }
    let mut whole = String::from("Software of others in Tilewright's wheels, and the licences that it comes under.\n");
    for (text, rows) in texts {
        section(&mut whole, &rows, &text);
    }
    if !without.is_empty() {
        section(&mut whole, &without, "The archives of these have no text of a licence.");
    }
    Ok(whole)
}

/// A crate's name, version and licence.
fn row((name, version): &Key, part: &Crate) -> String {
    format!("{name} {version} ({})", part.license.as_deref().unwrap_or("see below"))
}

fn section(whole: &mut String, rows: &[String], text: &str) {
    whole.push_str(&format!("\n{}\n{}\n\n{text}\n", "=".repeat(80), rows.join("\n")));
}

/// The texts in a crate's folder, in the order of their names, with line ends of one kind.
fn texts_in(folder: &Path) -> Result<Vec<String>> {
    let is_notice = |path: &&PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        path.is_file() && NAMES.iter().any(|begin| name.starts_with(begin)) && !name.ends_with(".rs")
    };
    let read = |path: &PathBuf| {
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        Ok(String::from_utf8_lossy(&bytes).replace("\r\n", "\n").trim().to_owned())
    };
    entries(folder)?.iter().filter(is_notice).map(read).collect()
}

/// The paths of all that is in a folder, in order.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let listed = fs::read_dir(folder).and_then(|found| found.map(|entry| Ok(entry?.path())).collect());
    let mut paths: Vec<PathBuf> = listed.with_context(|| folder.display().to_string())?;
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stands_once_with_all_crates_that_come_under_it() {
        let place = tempfile::tempdir().unwrap();
        let mut graph = Graph::default();
        let mut add = |name: &str, files: &[(&str, &str)], is_linked: bool| {
            let folder = place.path().join(name);
            fs::create_dir(&folder).unwrap();
            files.iter().for_each(|(file, text)| fs::write(folder.join(file), text).unwrap());
            let (license, checksum) = (Some("MIT".to_owned()), Some("ab".to_owned()));
            let part = Crate { license, checksum, is_linked, folder, ..Crate::default() };
            graph.crates.insert((name.to_owned(), "1.0.0".to_owned()), part);
        };
        add("one", &[("LICENSE-MIT", "the text\r\n"), ("lib.rs", "code")], true);
        add("other", &[("COPYING", "the text\n"), ("license.rs", "code")], true);
        add("bare", &[], true);
        add("macro", &[("LICENSE", "another text")], false);
        let vocabulary = place.path().join(VOCABULARIES).join("words");
        fs::create_dir_all(&vocabulary).unwrap();
        fs::write(vocabulary.join("LICENSE"), "the text").unwrap();
        let found = of(place.path(), &graph).unwrap();
        assert_eq!(found.matches("the text").count(), 1);
        assert!(found.contains("\nthe vocabulary words\none 1.0.0 (MIT)\nother 1.0.0 (MIT)\n\nthe text\n"), "{found}");
        assert!(found.contains("\nbare 1.0.0 (MIT)\n\nThe archives of these have no text"), "{found}");
        assert!(!found.contains("code") && !found.contains("another text"));
    }
}
