//! Outputs that are no files: standard output, and those that are refused.

use std::{
    fs::File,
    io::{self, Seek, Write},
    path::Path,
};

use tilewright_outputs::stream;

use crate::error::{Error, Result};

/// The path that stands for standard output.
pub const STANDARD: &str = "-";

/// Refuses a pipe, a device and the like, whatever the ending: no file replaces them, and a pipe
/// without a reader would be waited for.
///
/// # Errors
/// [`Error::Output`]
pub fn check_no_stream(path: &Path) -> Result<()> {
    match stream(path).filter(|_| path.as_os_str() != STANDARD) {
        None => Ok(()),
        Some(noun) => {
            let reason = format!("is {noun}, not a file: give another name, or - and send standard output there");
            Err(Error::output(path, reason))
        }
    }
}

/// Copies the whole file to standard output.
pub(super) fn copy_out(file: &mut File) -> io::Result<()> {
    file.rewind()?;
    let mut stdout = io::stdout().lock();
    io::copy(file, &mut stdout)?;
    stdout.flush()
}
