//! The file of a LoRA in a folder, as peft and diffusers save it.

use std::path::{Path, PathBuf};

use super::settings::{self, PEFT_FILE};
use crate::{Lora, Result};

/// Names of files in a folder: peft's, and diffusers'. Pickles come last.
const FILES: [&str; 4] =
    [PEFT_FILE, "pytorch_lora_weights.safetensors", "adapter_model.bin", "pytorch_lora_weights.bin"];

impl Lora {
    /// The file of a LoRA's tensors: the path itself, or the file in the folder that it is.
    ///
    /// # Errors
    /// The folder holds no such file, or several that might be it.
    pub fn file_of(path: &Path) -> Result<PathBuf> {
        if !path.is_dir() {
            return Ok(path.to_owned());
        }
        let usual = FILES.iter().map(|name| path.join(name)).find(|file| file.is_file());
        Ok(usual.map_or_else(|| tilewright_checkpoint::find_part(path, &[]), Ok)?)
    }

    /// The settings beside a LoRA's file that are read with it, if there are any.
    pub fn settings_of(file: &Path) -> Option<PathBuf> {
        settings::path_beside(file)
    }
}
