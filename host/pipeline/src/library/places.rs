//! The folders in which people keep models.

use std::{
    env,
    path::{Path, PathBuf},
};

use serde::Serialize;

/// The variable that names further folders, with colons between them.
pub const VARIABLE: &str = "TILEWRIGHT_MODELS";

/// Folders within ComfyUI's `models` that tell it from others.
const COMFYUI: [&str; 6] = ["diffusion_models", "unet", "checkpoints", "text_encoders", "clip", "vae"];

/// The fewest of them that are there.
const FEWEST: usize = 2;

/// The beginning of a repository's folder in Hugging Face's cache.
pub(super) const REPOSITORY: &str = "models--";

/// The way in which a place keeps its models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Keeping {
    /// ComfyUI's `models` folder.
    #[serde(rename = "comfyui")]
    ComfyUi,
    /// Hugging Face's cache.
    HuggingFace,
    /// What ships with the program.
    Bundled,
    /// Any folder.
    Folder,
}

impl Keeping {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Keeping::ComfyUi => "ComfyUI's models",
            Keeping::HuggingFace => "Hugging Face's cache",
            Keeping::Bundled => "bundled",
            Keeping::Folder => "a folder",
        }
    }
}

/// A folder with models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The way in which it keeps them.
    pub keeping: Keeping,
    /// The folder.
    pub path: PathBuf,
}

impl Place {
    /// The place that a folder is: ComfyUI's `models` or what holds that, Hugging Face's cache, or
    /// a folder of files.
    pub fn of(folder: &Path) -> Self {
        let models = folder.join("models");
        let new = |keeping, path: &Path| Self { keeping, path: path.to_owned() };
        if is_comfyui(folder) {
            return new(Keeping::ComfyUi, folder);
        }
        if is_comfyui(&models) {
            return new(Keeping::ComfyUi, &models);
        }
        let hub = folder.join("hub");
        for folder in [folder, &hub] {
            let mut entries = folder.read_dir().into_iter().flatten().flatten();
            if entries.any(|entry| entry.file_name().to_string_lossy().starts_with(REPOSITORY)) {
                return new(Keeping::HuggingFace, folder);
            }
        }
        new(Keeping::Folder, folder)
    }

    /// The place that a file is in: ComfyUI's `models` above it, or else its folder.
    pub fn around(file: &Path) -> Self {
        let path = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        match path.ancestors().skip(1).take(4).find(|folder| is_comfyui(folder)) {
            Some(folder) => Self { keeping: Keeping::ComfyUi, path: folder.to_owned() },
            None => Self { keeping: Keeping::Folder, path: path.parent().unwrap_or(&path).to_owned() },
        }
    }

    /// The models that ship with the program: beside it as it is packed, or in the checkout that it
    /// was built in.
    pub fn bundled() -> Option<Self> {
        let program = env::current_exe().ok()?.canonicalize().ok()?;
        let folder = program.parent()?;
        let beside = [folder.join("models"), folder.join("../share/tilewright/models")];
        let above = program.ancestors().skip(1).take(5).map(|folder| folder.join("examples/models"));
        let path = beside.into_iter().chain(above).find(|path| path.join("flux-tiny").is_dir())?;
        Some(Self { keeping: Keeping::Bundled, path: path.canonicalize().ok()? })
    }

    /// All places that are searched: those that the user names, ComfyUI's folder in the home
    /// folder, Hugging Face's cache, and what ships with the program.
    pub fn usual(named: &[PathBuf]) -> Vec<Self> {
        let home = || env::var_os("HOME").map(PathBuf::from);
        let variable = env::var_os(VARIABLE).unwrap_or_default();
        let named =
            named.iter().cloned().chain(env::split_paths(&variable).filter(|path| !path.as_os_str().is_empty()));
        let mut places: Vec<Self> = named.map(|folder| Self::of(&folder)).collect();
        let comfyui = home().map(|home| home.join("ComfyUI/models")).filter(|folder| is_comfyui(folder));
        places.extend(comfyui.map(|path| Self { keeping: Keeping::ComfyUi, path }));
        let hub = hub().filter(|folder| folder.is_dir());
        places.extend(hub.map(|path| Self { keeping: Keeping::HuggingFace, path }));
        places.extend(Self::bundled());
        let mut seen = Vec::new();
        places.retain(|place| {
            let path = place.path.canonicalize().unwrap_or_else(|_| place.path.clone());
            let is_new = !seen.contains(&path);
            seen.push(path);
            is_new
        });
        places
    }
}

fn is_comfyui(folder: &Path) -> bool {
    COMFYUI.iter().filter(|name| folder.join(name).is_dir()).count() >= FEWEST
}

/// Hugging Face's cache, by its own rules
/// (huggingface.co/docs/huggingface_hub/package_reference/environment_variables).
fn hub() -> Option<PathBuf> {
    let of = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    of("HF_HUB_CACHE")
        .or_else(|| of("HUGGINGFACE_HUB_CACHE"))
        .or_else(|| of("HF_HOME").map(|home| home.join("hub")))
        .or_else(|| {
            let cache = of("XDG_CACHE_HOME").or_else(|| of("HOME").map(|home| home.join(".cache")))?;
            Some(cache.join("huggingface/hub"))
        })
}
