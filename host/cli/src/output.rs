//! The check that a file can be written.

use std::path::Path;

use tilewright_outputs::{destination, folder_of, temporary};

use crate::failure::{Failure, Outcome};

/// Checks before any work is done that a file can be written there.
pub fn writable(path: &Path) -> Outcome {
    if path.is_dir() {
        return Err(Failure::input(format!("{}: a folder stands there already: give a file's name", path.display())));
    }
    destination(path)?;
    temporary(path, ".tmp").map(drop).map_err(|error| {
        let folder = folder_of(path).display();
        Failure::input(format!("{folder}: can't be written: {error}: choose another folder"))
    })
}
