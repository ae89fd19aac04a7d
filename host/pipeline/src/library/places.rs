//! The folders in which people keep models.

use std::{
    env,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::extra_paths::{self, ExtraFolder};

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
    /// Models that ship with the program.
    Bundled,
    /// Any folder.
    Folder,
}

impl Keeping {
    /// The name of such a place, for people.
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
    /// Further folders that ComfyUI is configured to search.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra: Vec<ExtraFolder>,
}

impl Place {
    fn new(keeping: Keeping, path: &Path) -> Self {
        Self { keeping, path: path.to_owned(), extra: Vec::new() }
    }

    /// ComfyUI's `models` folder, with the folders that the configuration beside it names.
    fn comfyui(models: &Path) -> Self {
        let root = models.join("..").canonicalize().ok();
        // A link that is called `models` may lead to another disk: ComfyUI is where the link is.
        let roots = models.parent().map(Path::to_owned).into_iter().chain(root);
        let file = roots.map(|root| root.join(extra_paths::FILE)).find(|file| file.is_file());
        let extra = file.map(|file| extra_paths::folders(&file, models)).unwrap_or_default();
        Self { extra, ..Self::new(Keeping::ComfyUi, models) }
    }

    /// The place that a folder is: ComfyUI's `models` or what holds that, Hugging Face's cache, or
    /// a folder of files.
    pub fn of(folder: &Path) -> Self {
        let models = folder.join("models");
        if is_comfyui(folder) {
            return Self::comfyui(folder);
        }
        if is_comfyui(&models) || folder.join(extra_paths::FILE).is_file() {
            return Self::comfyui(&models);
        }
        let hub = folder.join("hub");
        for folder in [folder, &hub] {
            let mut entries = folder.read_dir().into_iter().flatten().flatten();
            if entries.any(|entry| entry.file_name().to_string_lossy().starts_with(REPOSITORY)) {
                return Self::new(Keeping::HuggingFace, folder);
            }
        }
        Self::new(Keeping::Folder, folder)
    }

    /// The place that a file is in: one of these places of ComfyUI's, or else ComfyUI's `models`
    /// above it, or its folder.
    pub fn around(file: &Path, usual: &[Self]) -> Self {
        let path = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        let is_within = |place: &&Self| place.keeping == Keeping::ComfyUi && place.holds(&path);
        if let Some(place) = usual.iter().find(is_within) {
            return place.clone();
        }
        match path.ancestors().skip(1).take(4).find(|folder| is_comfyui(folder)) {
            Some(folder) => Self::comfyui(folder),
            None => Self::new(Keeping::Folder, path.parent().unwrap_or(&path)),
        }
    }

    /// The place's folders, in the order in which they are searched.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        let extra = |is_default| {
            let of = self.extra.iter().filter(move |extra| extra.is_default == is_default);
            of.map(|extra| extra.path.as_path())
        };
        extra(true).chain([self.path.as_path()]).chain(extra(false))
    }

    /// True if a path is below one of its folders, as they are written or as their links lead.
    pub fn holds(&self, path: &Path) -> bool {
        let below = |folder: &Path| path.starts_with(folder);
        self.folders().any(|folder| below(folder) || folder.canonicalize().is_ok_and(|folder| below(&folder)))
    }

    /// The models that ship with the program: beside it as it is packed, or in the checkout that it
    /// was built in.
    pub fn bundled() -> Option<Self> {
        let program = env::current_exe().ok()?.canonicalize().ok()?;
        let folder = program.parent()?;
        let beside = [folder.join("models"), folder.join("../share/tilewright/models")];
        let above = program.ancestors().skip(1).take(5).map(|folder| folder.join("examples/models"));
        let path = beside.into_iter().chain(above).find(|path| path.join("flux-tiny").is_dir())?;
        Some(Self::new(Keeping::Bundled, &path.canonicalize().ok()?))
    }

    /// All places that are searched: those that the user names, ComfyUI's folder in the home
    /// folder, Hugging Face's cache, and what ships with the program.
    pub fn usual(named: &[PathBuf]) -> Vec<Self> {
        let home = || env::var_os("HOME").map(PathBuf::from);
        let variable = env::var_os(VARIABLE).unwrap_or_default();
        let named =
            named.iter().cloned().chain(env::split_paths(&variable).filter(|path| !path.as_os_str().is_empty()));
        let mut places: Vec<Self> = named.map(|folder| Self::of(&folder)).collect();
        let comfyui = home().map(|home| Self::of(&home.join("ComfyUI")));
        places.extend(comfyui.filter(|place| place.keeping == Keeping::ComfyUi));
        let hub = hub().filter(|folder| folder.is_dir());
        places.extend(hub.map(|path| Self::new(Keeping::HuggingFace, &path)));
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
