//! Names of output files: numbers in the place of `{n}`, and numbers of frames in a folder.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use tilewright_outputs::folder_of;

/// The part of a name that stands for the next free number.
pub const NUMBER: &str = "{n}";

/// The place of a number in an output's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numbering {
    /// The first place of [`NUMBER`].
    #[default]
    Found,
    /// At this byte of the last part of the path, where [`NUMBER`] stands, or nowhere: any other
    /// one is a part of the name, which came from a file's.
    At(Option<usize>),
}

impl Numbering {
    /// The byte of a name at which the number's place begins.
    pub fn of(self, name: &OsStr) -> Option<usize> {
        match self {
            Numbering::Found => find_number(name),
            Numbering::At(at) => at,
        }
    }
}

/// The byte at which [`NUMBER`] stands first.
pub fn find_number(name: &OsStr) -> Option<usize> {
    name.as_bytes().windows(NUMBER.len()).position(|part| part == NUMBER.as_bytes())
}

/// Digits of the largest number that counting goes on from.
const MOST_DIGITS: usize = 9;

/// The last part of a path.
pub fn name_of(path: &Path) -> OsString {
    path.file_name().unwrap_or_default().to_owned()
}

/// The path with a number in the place of the `{n}` at a byte of its name.
pub fn insert_number(path: &Path, at: usize, number: u64) -> PathBuf {
    let name = name_of(path);
    let (before, after) = around(&name, at);
    path.with_file_name(OsString::from_vec([before, number.to_string().as_bytes(), after].concat()))
}

/// One more than the largest number in a name of this kind, so that numbers show the order.
pub fn next_number(path: &Path, at: usize) -> u64 {
    let name = name_of(path);
    let (before, after) = around(&name, at);
    let numbers = fs::read_dir(folder_of(path)).into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name();
        let digits = name.as_bytes().strip_prefix(before)?.strip_suffix(after)?;
        let plain = (1..=MOST_DIGITS).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
        std::str::from_utf8(digits).ok()?.parse::<u64>().ok().filter(|_| plain)
    });
    numbers.max().unwrap_or(0) + 1
}

/// The parts of a name before and after the `{n}` at a byte of it: a name need not be UTF-8.
fn around(name: &OsStr, at: usize) -> (&[u8], &[u8]) {
    let bytes = name.as_bytes();
    let end = (at + NUMBER.len()).min(bytes.len());
    (&bytes[..at.min(end)], &bytes[end..])
}

/// A frame's name in a folder of frames; `index` from 0.
pub fn frame_name(index: usize) -> String {
    format!("frame-{:06}.png", index + 1)
}

/// The number in a frame's name, from 1.
pub fn frame_number(name: &OsStr) -> Option<usize> {
    name.to_str()?.strip_prefix("frame-")?.strip_suffix(".png")?.parse().ok()
}
