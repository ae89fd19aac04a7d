//! diffusers' config.json beside a file: facts that the tensors don't tell.

use std::{fs, io::ErrorKind, path::PathBuf};

use serde::{Deserialize, de::DeserializeOwned};
use tilewright_checkpoint::Error as FileError;
use tilewright_files::json_fault;

use crate::{Checkpoint, FileLayout, Identity, Result};

/// Longest file that is read.
const LONGEST: u64 = 1 << 20;

#[derive(Deserialize)]
struct Written<T> {
    #[serde(rename = "_class_name")]
    class: Option<String>,
    #[serde(flatten)]
    rest: T,
}

/// The values of config.json beside a file of diffusers' layout, and its path; none if there is no
/// such file or it is of none of these classes.
///
/// # Errors
/// [`Error::File`] if it is broken.
pub(crate) fn read<T: DeserializeOwned>(
    file: &Checkpoint,
    identity: &Identity,
    classes: &[&str],
) -> Result<Option<(PathBuf, T)>> {
    if identity.layout != FileLayout::Diffusers {
        return Ok(None);
    }
    written(file, classes)
}

/// The values of config.json beside a file of any layout; the default ones if there is no such file
/// or it is of none of these classes.
///
/// # Errors
/// As [`read`].
pub(crate) fn beside<T: DeserializeOwned + Default>(file: &Checkpoint, classes: &[&str]) -> Result<T> {
    Ok(written(file, classes)?.map_or_else(T::default, |(_, values)| values))
}

fn written<T: DeserializeOwned>(file: &Checkpoint, classes: &[&str]) -> Result<Option<(PathBuf, T)>> {
    let path = file.config_path();
    // A link that leads nowhere is no configuration that is left out.
    if fs::symlink_metadata(&path).is_err() {
        return Ok(None);
    }
    let broken = |reason: String| FileError::Format { path: path.clone(), reason };
    let text = tilewright_files::read(&path, LONGEST).map_err(|source| match source.kind() {
        ErrorKind::FileTooLarge | ErrorKind::IsADirectory | ErrorKind::InvalidInput => {
            broken("no configuration: not a file of under 1 MiB".into())
        }
        _ => FileError::Read { path: path.clone(), source },
    })?;
    let written: Written<T> = serde_json::from_slice(&text)
        .map_err(|error| broken(format!("no valid configuration: {}", json_fault(&error))))?;
    if let Some(class) = written.class.filter(|class| !classes.contains(&class.as_str())) {
        tracing::warn!(path = %path.display(), class, "config.json is of another class and not used");
        return Ok(None);
    }
    Ok(Some((path, written.rest)))
}
