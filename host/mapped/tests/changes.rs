//! Files that change while they are mapped.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{Seek as _, SeekFrom, Write as _},
    os::unix::{fs::PermissionsExt as _, process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, SystemTime},
};

use tempfile::TempDir;
use tilewright_mapped::{Fault, MappedFile};

/// Several pages of any size that systems have, and a part of one.
const BYTES: usize = 5 * 65536 + 100;

fn weights() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    fs::write(&path, vec![7; BYTES]).unwrap();
    // A time long ago: a file system's clock has ticks, and a test none to wait for.
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    (folder, path)
}

fn open(path: &Path) -> MappedFile {
    MappedFile::new(path, File::open(path).unwrap()).unwrap()
}

fn sum(bytes: &[u8]) -> usize {
    bytes.iter().map(|byte| usize::from(*byte)).sum()
}

fn cut(path: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

#[track_caller]
fn has_changed(map: &MappedFile) {
    let fault = map.check().unwrap_err();
    assert!(matches!(&fault, Fault::Changed(path) if path == map.path()), "{fault}");
    let line = fault.to_string();
    assert!(line.starts_with(&format!("{}: changed while it was in use: ", map.path().display())), "{line}");
    assert!(!map.is_current());
}

#[test]
fn a_file_that_is_cut_short_reads_as_zeros_from_there() {
    for left in [0, 1, 65536, 2 * 65536 + 1] {
        let (_folder, path) = weights();
        let map = open(&path);
        map.check().unwrap();
        assert!(map.is_current());
        cut(&path, left);
        // The kernel keeps the rest of the last page, and fills it with zeros.
        assert_eq!(sum(&map), 7 * left as usize, "{left} bytes left");
        has_changed(&map);
        // Read again, and given back to be read again: no page of it comes back.
        map.give_back(&(0..map.len()));
        map.read_ahead(&(0..map.len()));
        assert_eq!(sum(&map[left as usize..]), 0);
    }
}

#[test]
fn many_threads_read_what_is_gone() {
    let (_folder, path) = weights();
    let maps: Vec<MappedFile> = (0..20).map(|_| open(&path)).collect();
    let (_other_folder, other) = weights();
    let other = open(&other);
    cut(&path, 0);
    thread::scope(|scope| {
        for start in 0..8 {
            let (maps, other) = (&maps, &other);
            scope.spawn(move || {
                for map in maps {
                    assert_eq!(sum(&map[start * 4096..]), 0);
                    assert_eq!(sum(other), 7 * BYTES, "another map is as it was");
                }
            });
        }
    });
    maps.iter().for_each(has_changed);
    other.check().unwrap();
}

#[test]
fn a_file_that_is_written_over_is_told_by_its_time() {
    let (_folder, path) = weights();
    let map = open(&path);
    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(70_000)).unwrap();
    file.write_all(&[8]).unwrap();
    assert_eq!(sum(&map), 7 * BYTES + 1);
    has_changed(&map);
}

#[test]
fn a_file_that_was_cut_short_meanwhile_is_told_when_it_is_whole_again() {
    let (_folder, path) = weights();
    let map = open(&path);
    let dated = fs::metadata(&path).unwrap().modified().unwrap();
    cut(&path, 0);
    assert_eq!(sum(&map), 0);
    // As `cp -p` of a copy of it does.
    fs::write(&path, vec![7; BYTES]).unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(dated).unwrap();
    has_changed(&map);
    assert_eq!(sum(&open(&path)), 7 * BYTES, "opened anew");
    open(&path).check().unwrap();
}

#[test]
fn another_file_by_the_same_name_harms_nothing() {
    let (folder, path) = weights();
    let map = open(&path);
    let new = folder.path().join("new");
    fs::write(&new, "short").unwrap();
    fs::rename(&new, &path).unwrap();
    assert_eq!(sum(&map), 7 * BYTES);
    map.check().unwrap();
    assert!(!map.is_current(), "the next one to open it gets the new file");
    fs::remove_file(&path).unwrap();
    map.check().unwrap();
    assert!(map.is_current(), "there is no other");
}

#[test]
fn names_and_modes_are_no_contents() {
    let (folder, path) = weights();
    let map = open(&path);
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(&path, folder.path().join("link")).unwrap();
    map.check().unwrap();
    assert!(map.is_current());
}

#[test]
fn ranges_of_maps_that_are_gone_are_used_again() {
    let (_folder, path) = weights();
    for _ in 0..100 {
        let (one, other) = (open(&path), open(&path));
        drop(one);
        other.check().unwrap();
        drop(open(&path));
    }
    let map = open(&path);
    cut(&path, 10);
    assert_eq!(sum(&map), 70);
    has_changed(&map);
}

#[test]
fn an_empty_file_is_mapped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty");
    File::create(&path).unwrap();
    let map = open(&path);
    assert!(map.is_empty());
    map.check().unwrap();
}

/// The name of the variable by which the test below runs itself once more.
const CHILD: &str = "MAPPED_BY_SOMEBODY_ELSE";

#[test]
fn a_fault_of_somebody_elses_map_ends_the_process_as_before() {
    if std::env::var_os(CHILD).is_some() {
        let (_folder, path) = weights();
        let own = open(&path);
        let file = File::open(&path).unwrap();
        // SAFETY: a child that exists to be ended by this read.
        let other = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        cut(&path, 0);
        assert_eq!(sum(&own), 0);
        println!("own {}", own.check().is_err());
        println!("other {}", sum(&other));
        return;
    }
    let name = "a_fault_of_somebody_elses_map_ends_the_process_as_before";
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&child.stdout);
    assert!(printed.contains("own true") && !printed.contains("other"), "{printed}");
    assert_eq!(child.status.signal(), Some(libc::SIGBUS), "{printed}");
}
