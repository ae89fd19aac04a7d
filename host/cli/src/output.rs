//! Files of tensors. Each is written under another name in its own folder and renamed when it is whole, so that a half-written file
//! never stands under the final name. Pictures and clips are tilewright-media's.

use std::{fs, io, os::unix::fs::PermissionsExt, path::Path};

use tch::{Kind, Tensor};
use tempfile::NamedTempFile;

use crate::failure::{Failure, Outcome};

/// Checks before any work is done that a file can be written there.
pub fn writable(path: &Path) -> Outcome {
    if path.is_dir() {
        return Err(Failure::input(format!("{}: a folder stands there already: give a file's name", path.display())));
    }
    temporary(path).map(drop).map_err(|error| {
        Failure::input(format!("{}: can't be written: {error}: choose another folder with -o", folder(path).display()))
    })
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file in the folder of this one, to be renamed to it when it is whole.
pub fn temporary(path: &Path) -> io::Result<NamedTempFile> {
    // The umask takes away what the user does not want, as for every file.
    let mode = fs::Permissions::from_mode(0o666);
    tempfile::Builder::new().prefix(".tilewright-").permissions(mode).tempfile_in(folder(path))
}

/// A tensor's shape, and its values as bytes of f32.
pub fn raw(tensor: &Tensor) -> anyhow::Result<(Vec<usize>, Vec<u8>)> {
    let tensor = tensor.f_to_kind(Kind::Float)?.f_contiguous()?;
    let mut values = vec![0_u8; tensor.numel() * 4];
    tensor.f_copy_data_u8(&mut values, tensor.numel())?;
    Ok((tensor.size().iter().map(|&extent| extent as usize).collect(), values))
}
