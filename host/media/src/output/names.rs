//! Names of output files: numbers in the place of `{n}`, and numbers of frames in a folder.

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
};

use tilewright_outputs::folder_of;

/// The part of a name that stands for the next free number.
pub const NUMBER: &str = "{n}";

/// Digits of the largest number in a name that counting goes on from.
const MOST_DIGITS: usize = 9;

/// The last part of a path.
pub fn name_of(path: &Path) -> OsString {
    path.file_name().unwrap_or_default().to_owned()
}

/// The path with a number in the place of `{n}`.
pub fn numbered(path: &Path, number: u64) -> PathBuf {
    let name = name_of(path);
    let (before, after) = around(&name);
    path.with_file_name(format!("{before}{number}{after}"))
}

/// One more than the largest number in a name of this kind, so that numbers show the order.
pub fn next_number(path: &Path) -> u64 {
    let name = name_of(path);
    let (before, after) = around(&name);
    let numbers = fs::read_dir(folder_of(path)).into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name();
        let digits = name.to_str()?.strip_prefix(&*before)?.strip_suffix(&*after)?;
        let plain = (1..=MOST_DIGITS).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit());
        digits.parse::<u64>().ok().filter(|_| plain)
    });
    numbers.max().unwrap_or(0) + 1
}

/// The parts of a name before and after `{n}`.
fn around(name: &OsStr) -> (String, String) {
    let name = name.to_string_lossy();
    let (before, after) = name.split_once(NUMBER).unwrap_or((&name, ""));
    (before.to_owned(), after.to_owned())
}

/// A frame's name in a folder of frames; `index` from 0.
pub fn frame_name(index: usize) -> String {
    format!("frame-{:06}.png", index + 1)
}

/// The number in a frame's name, from 1.
pub fn frame_number(name: &OsStr) -> Option<usize> {
    name.to_str()?.strip_prefix("frame-")?.strip_suffix(".png")?.parse().ok()
}
