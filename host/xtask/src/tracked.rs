//! The rule for the repository's size: what git tracks is small enough to be carried to a machine
//! with a GPU beside what is built.

use std::{fs, path::Path, process::Command};

const MIB: u64 = 1 << 20;

/// The bytes that all tracked files may have together.
const LARGEST: u64 = 40 * MIB;

/// The number of files that a refusal names.
const NAMED: usize = 5;

/// The line that refuses files, by size and name, which together are larger than allowed.
fn find_excess(mut files: Vec<(u64, String)>, largest: u64) -> Option<String> {
    let sum: u64 = files.iter().map(|(size, _)| size).sum();
    if sum <= largest {
        return None;
    }
    let mib = |size: u64| format!("{:.1} MiB", size as f64 / MIB as f64);
    files.sort_by(|one, other| other.cmp(one));
    let named: Vec<String> = files.iter().take(NAMED).map(|(size, name)| format!("{name} ({})", mib(*size))).collect();
    Some(format!(
        "tracked files have {} together, {} are allowed; the largest: {}; pack fixtures by tests/fixtures/pack.py",
        mib(sum),
        mib(largest),
        named.join(", ")
    ))
}

#[test]
fn tracked_files_are_small_enough_to_be_carried() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(repository).output();
    // A copy without its history has nothing to list.
    let Some(listed) = listed.ok().filter(|listed| listed.status.success()) else { return };
    let names = String::from_utf8(listed.stdout).unwrap();
    let sized = |name: &str| Some((fs::symlink_metadata(repository.join(name)).ok()?.len(), name.to_owned()));
    let files: Vec<_> = names.split_terminator('\0').filter_map(sized).collect();
    assert!(files.len() > 1000, "{}: files are missing", repository.display());
    if let Some(excess) = find_excess(files, LARGEST) {
        panic!("{excess}");
    }
}

#[test]
fn an_excess_names_the_largest_files() {
    let files = || (1..=7).map(|size| (size * MIB, format!("file-{size}"))).collect::<Vec<_>>();
    assert_eq!(find_excess(files(), 28 * MIB), None);
    let line = find_excess(files(), 28 * MIB - 1).unwrap();
    assert!(
        line.starts_with("tracked files have 28.0 MiB together, 28.0 MiB are allowed; the largest: file-7 (7.0 MiB), ")
    );
    assert!(line.contains("file-3 (3.0 MiB); pack") && !line.contains("file-2"), "{line}");
}
