//! The bytes of a tensor in a file, and the check that a file can be written.

use std::path::Path;

use tch::{Kind, Tensor};
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
        Failure::input(format!("{folder}: can't be written: {error}: choose another folder with -o"))
    })
}

/// A tensor's shape, and its values as bytes of f32.
pub fn raw(tensor: &Tensor) -> anyhow::Result<(Vec<usize>, Vec<u8>)> {
    let tensor = tensor.f_to_kind(Kind::Float)?.f_contiguous()?;
    let mut values = vec![0_u8; tensor.numel() * 4];
    tensor.f_copy_data_u8(&mut values, tensor.numel())?;
    Ok((tensor.size().iter().map(|&extent| extent as usize).collect(), values))
}
