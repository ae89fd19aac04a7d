//! `tilewright models`, declared.

use std::path::PathBuf;

use clap::Args;

/// `tilewright models`
#[derive(Args, Debug)]
pub struct Models {
    /// Folders to search, and no others: ComfyUI's models folder, Hugging Face's cache, or any
    /// folder with files [default: those of --models and TILEWRIGHT_MODELS, ComfyUI/models in the
    /// home folder, Hugging Face's cache, and what ships with the program]
    #[arg(value_name = "FOLDER")]
    pub folders: Vec<PathBuf>,
    /// List every file, those that no model is made of included
    #[arg(long)]
    pub files: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Further folders with models.
#[derive(Args, Debug, Default)]
pub struct ModelFolders {
    /// A further folder in which --model and missing parts are looked for, repeatable: ComfyUI's
    /// models, or any other; TILEWRIGHT_MODELS names more, with colons
    #[arg(long, value_name = "FOLDER", num_args = 1)]
    pub models: Vec<PathBuf>,
}
