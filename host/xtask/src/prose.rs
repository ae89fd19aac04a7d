//! The rules for comments, checked over the sources of the crates that keep to them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Words that no comment begins with: the noun comes first.
const BEGINNINGS: [&str; 11] =
    ["What", "Who", "Whoever", "Whose", "Where", "Whether", "How", "Once", "Its", "Those", "Of"];

/// Words that no doc comment has, and the ones to say in their place.
const PHRASES: [(&str, &str); 5] = [
    ("so many", "name the number"),
    ("anew", "again"),
    ("is there", "exists, or is present"),
    ("told", "is given"),
    ("tells", "specifies, says or shows"),
];

/// The columns of the longest comment line, indentation included.
const COLUMNS: usize = 100;

/// Folders of the repository that hold sources.
const FOLDERS: [&str; 4] = ["fuzz/fuzz_targets", "host", "policies", "tests"];

/// The marker of a comment line, and its text; none for a line of code.
fn comment(line: &str) -> Option<(&'static str, &str)> {
    let line = line.trim_start();
    ["//!", "///", "//"].into_iter().find_map(|marker| Some((marker, line.strip_prefix(marker)?.trim())))
}

/// The faults of a file's comments, a line each: number and reason.
fn find_faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut before: Option<(&str, &str)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let found = comment(line);
        if let Some((marker, words)) = found {
            let goes_on = before.is_some_and(|(other, words)| other == marker && !words.is_empty());
            let first = words.split(|letter: char| !letter.is_alphabetic()).next().unwrap_or_default();
            if !goes_on && BEGINNINGS.contains(&first) {
                faults.push(format!("{number}: begins with '{first}': begin with the noun"));
            }
            let padded = format!(" {} ", words.replace(|letter: char| !letter.is_alphabetic(), " "));
            for (phrase, better) in PHRASES.iter().filter(|_| marker != "//") {
                if padded.contains(&format!(" {phrase} ")) {
                    faults.push(format!("{number}: has '{phrase}': {better}"));
                }
            }
            let columns = line.chars().count();
            if columns > COLUMNS {
                faults.push(format!("{number}: has {columns} columns: wrap at {COLUMNS}"));
            }
        }
        before = found;
    }
    faults
}

/// Every source file below a folder.
fn list_sources(folder: &Path, sources: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            list_sources(&path, sources);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            sources.push(path);
        }
    }
}

#[test]
fn comments_begin_with_the_noun_and_fit_into_100_columns() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut sources = Vec::new();
    FOLDERS.iter().for_each(|folder| list_sources(&repository.join(folder), &mut sources));
    sources.sort();
    assert!(sources.len() > 500, "{}: sources are missing", repository.display());
    let faults = sources.iter().flat_map(|path| {
        let found = find_faults(&fs::read_to_string(path).unwrap());
        found.into_iter().map(|fault| format!("{}:{fault}", path.display()))
    });
    let faults: Vec<String> = faults.collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_paragraph_is_judged_by_its_first_word() {
    let text =
        "//! Whether it is so.\n//! What follows goes on.\n//!\n//! Once more.\nlet a = 1; // Where\n/// However.\n";
    let lines: Vec<_> = find_faults(text).iter().map(|fault| fault.split(':').next().unwrap().to_owned()).collect();
    assert_eq!(lines, ["1", "4"]);
    let phrases = "/// The layers, so many.\n/// Read anew; retold.\n// Told by so many.\n/// `is_there` is there.\n";
    assert_eq!(find_faults(phrases).len(), 3);
    assert_eq!(find_faults(&format!("    // {}", "é".repeat(94))).len(), 1);
    assert!(find_faults(&format!("    // {}", "é".repeat(93))).is_empty());
}
