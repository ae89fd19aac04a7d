//! The parts of a model: encoders, transformers and a VAE, each in a file or a folder.

use std::{
    cell::LazyCell,
    path::{Path, PathBuf},
};
use tilewright_wording::{Remedy, Setting};

use serde::Serialize;
use tilewright_models::{Checkpoint, DenoiserFile, Error as ModelError, Part, Role};

use super::{Item, Keeping, Library, Need, Place, needs};
use crate::{Error, Result, sample};

/// A pipeline's folders of transformers, of the VAE, and of text encoders.
const TRANSFORMERS: [&str; 2] = ["transformer", "transformer_2"];
const VAE: &str = "vae";
const TEXT_ENCODERS: [&str; 3] = ["text_encoder", "text_encoder_2", "text_encoder_3"];
const VISION_ENCODER: &str = "image_encoder";

/// The models that ship with the program: of pictures, and of clips.
const BUNDLED: [&str; 2] = ["flux-shapes", "wan-shapes"];

/// The parts that a prompt needs on its way to a picture or clip.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Parts {
    /// Text encoders' files or folders.
    pub text_encoders: Vec<PathBuf>,
    /// One transformer, or two experts.
    pub transformers: Vec<PathBuf>,
    /// The encoder of a picture that a clip begins from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vision_encoder: Option<PathBuf>,
    /// The VAE.
    pub vae: Option<PathBuf>,
    /// The folder of the pipeline whose defaults count, if a model in one was named.
    #[serde(skip)]
    pub pipeline: Option<PathBuf>,
}

impl Parts {
    /// The name that the model goes by: the one that it was asked for by, or that of its file or
    /// folder.
    pub fn name(&self, asked: Option<&Path>) -> String {
        let of_path = |path: &Path| {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
            name.unwrap_or_default().to_string_lossy().into_owned()
        };
        match asked {
            Some(name) if !name.exists() => name.to_string_lossy().into_owned(),
            Some(path) => of_path(path),
            None => self.transformers.first().map(|path| of_path(path)).unwrap_or_default(),
        }
    }

    /// The tokens that the text encoder without positions reads, if the model's pipeline says so.
    ///
    /// # Errors
    /// The pipeline's description is damaged.
    pub fn text_tokens(&self) -> Result<Option<u32>> {
        self.pipeline.as_deref().map_or(Ok(None), sample::text_tokens)
    }

    /// Fills in the parts that are not named: from a model, and then from the files that serve its
    /// transformer. `model` is a file, a folder or a name; without it and without a transformer, a
    /// model that ships with the program is taken: of clips if `is_video`. `named` are further
    /// folders to search.
    ///
    /// Returns a line on each part that nobody named.
    ///
    /// # Errors
    /// There is no such model; a part of it is missing.
    pub fn find(self, model: Option<&Path>, named: &[PathBuf], is_video: bool) -> Result<(Self, Vec<String>)> {
        let (parts, told) = self.find_wanted(model, named, is_video, |_| true)?;
        if parts.transformers.is_empty() {
            parts.check()?;
        }
        Ok((parts, told))
    }

    /// The text encoders of a model as [`Self::find`] finds them, and no other parts.
    ///
    /// # Errors
    /// There is no such model; an encoder of it is missing.
    pub fn find_text_encoders(model: &Path, named: &[PathBuf]) -> Result<(Self, Vec<String>)> {
        let is_wanted = |need: &Need| matches!(need, Need::TextEncoder { .. });
        let (parts, mut told) = Self::default().find_wanted(Some(model), named, false, is_wanted)?;
        told.retain(|line| line.starts_with(&Setting::TextEncoder.to_string()));
        match parts.text_encoders.is_empty() {
            true => Err(NO_TEXT_ENCODER.into_error()),
            false => Ok((parts, told)),
        }
    }

    fn find_wanted(
        self,
        model: Option<&Path>,
        named: &[PathBuf],
        is_video: bool,
        is_wanted: impl Fn(&Need) -> bool,
    ) -> Result<(Self, Vec<String>)> {
        let mut told = Vec::new();
        let usual = LazyCell::new(|| Place::usual(named));
        // The parts that need no word.
        let mut known = self.clone();
        let mut parts = match model {
            Some(model) if model.exists() || tilewright_files::is_broken(model) => match Self::listed_in(model)? {
                Some(listed) => self.over(listed),
                None => {
                    known = self.from_model(model)?;
                    known.clone()
                }
            },
            Some(name) => {
                let library = Library::open(usual.clone());
                self.over(library.model(&name.to_string_lossy())?.parts)
            }
            None if self.transformers.is_empty() => {
                let name = BUNDLED[usize::from(is_video)];
                let bundled = Place::bundled().map(|place| place.path.join(name)).filter(|folder| folder.is_dir());
                if let Some(folder) = &bundled {
                    told.push(format!("model: {name}, which ships with the program; {} takes another", Setting::Model));
                    known = self.from_model(folder)?;
                }
                known.clone()
            }
            None => self,
        };
        let Some(transformer) = parts.transformers.first().cloned() else { return Ok((parts, told)) };
        let is_lacking = |need: &Need| match need {
            Need::Vae { .. } => parts.vae.is_none(),
            Need::TextEncoder { .. } => parts.text_encoders.is_empty(),
            Need::VisionEncoder { .. } => parts.vision_encoder.is_none(),
        };
        let file = Checkpoint::open_part(&transformer, &sample::FOLDERS).map_err(ModelError::from)?;
        let mut needs = needs::of(&DenoiserFile::find(file)?.config);
        needs.retain(is_wanted);
        if needs.iter().any(is_lacking) {
            let around = Place::around(&transformer, &usual);
            let others = usual.iter().filter(|place| place.path != around.path).cloned();
            let library = Library::open([around.clone()].into_iter().chain(others).collect());
            let lacks;
            (parts, lacks) = library.fill(parts, &needs, library.item(&transformer));
            // A picture to begin from may be missing: its encoder is asked for when there is one.
            if let Some(need) = lacks.into_iter().find(|need| !matches!(need, Need::VisionEncoder { .. })) {
                return Err(Error::Lacks { transformer, need });
            }
        }
        for (option, found, known) in [
            (Setting::TextEncoder, &parts.text_encoders[..], &known.text_encoders[..]),
            (Setting::VisionEncoder, parts.vision_encoder.as_slice(), known.vision_encoder.as_slice()),
            (Setting::Vae, parts.vae.as_slice(), known.vae.as_slice()),
        ] {
            let new = found.iter().filter(|path| !known.contains(path));
            told.extend(new.map(|path| format!("{option} {}", path.display())));
        }
        Ok((parts, told))
    }

    /// The parts of the only model in a folder that is neither a pipeline nor a part of one.
    fn listed_in(folder: &Path) -> Result<Option<Self>> {
        let place = Place::of(folder);
        let is_pipeline = TRANSFORMERS.iter().chain([&VAE]).any(|name| folder.join(name).is_dir());
        if !folder.is_dir()
            || is_pipeline && place.keeping == Keeping::Folder
            || folder.join("model_index.json").is_file()
        {
            return Ok(None);
        }
        let library = Library::open(vec![place]);
        let models = library.models();
        let refused = |reason: String| Error::input(folder, reason);
        match &models[..] {
            [only] => Ok(Some(only.parts.clone())),
            [] => {
                // A file that can't be opened may be the transformer.
                let closed = library.items.iter().filter(|item| item.contents.is_empty());
                let fault = |item: &Item| Some(Error::input(&item.path, item.problem.clone()?));
                let none = format!("a folder without a transformer that can be run: {}", Remedy::ListModels);
                Err(closed.filter_map(fault).next().unwrap_or_else(|| refused(none)))
            }
            several => {
                let names: Vec<&str> = several.iter().take(4).map(|model| model.name.as_str()).collect();
                let names = names.join(", ");
                Err(refused(format!("a folder of {} models ({names}): give the file of one", several.len())))
            }
        }
    }

    /// These parts, and where they are not named, another model's.
    pub(super) fn over(self, found: Self) -> Self {
        let or = |own: Vec<PathBuf>, other| if own.is_empty() { other } else { own };
        Self {
            text_encoders: or(self.text_encoders, found.text_encoders),
            transformers: or(self.transformers, found.transformers),
            vision_encoder: self.vision_encoder.or(found.vision_encoder),
            vae: self.vae.or(found.vae),
            pipeline: self.pipeline.or(found.pipeline),
        }
    }

    /// Fills in the parts that are not named from a model: a pipeline's folder, or a checkpoint of
    /// several networks.
    ///
    /// # Errors
    /// The model is no such folder or checkpoint.
    pub fn from_model(self, model: &Path) -> Result<Self> {
        Ok(self.over(if model.is_dir() { in_folder(model)? } else { in_file(model)? }))
    }

    /// A line on each part beside the transformer that can't be read. Those that are items have
    /// been read; others may be links that lead nowhere.
    pub(super) fn unreadable<'a>(&self, item: impl Fn(&Path) -> Option<&'a Item>) -> Vec<String> {
        let fault = |path: &PathBuf| match item(path) {
            Some(item) => item.problem.as_ref().map(|problem| format!("{}: {problem}", path.display())),
            None => Checkpoint::open_part(path, &[]).err().map(|error| error.to_string()),
        };
        self.text_encoders.iter().chain(&self.vision_encoder).chain(&self.vae).filter_map(fault).collect()
    }

    /// Checks that all parts are there.
    ///
    /// # Errors
    /// [`Error::Part`] names the first that is missing.
    pub fn check(&self) -> Result<&Path> {
        if self.transformers.is_empty() {
            return Err(NO_TRANSFORMER.into_error());
        }
        if self.text_encoders.is_empty() {
            return Err(NO_TEXT_ENCODER.into_error());
        }
        self.vae.as_deref().ok_or_else(|| NO_VAE.into_error())
    }
}

/// A part that is missing: its name, the option that names it, and files that it comes in.
struct Missing(&'static str, Setting, &'static str);

const NO_TRANSFORMER: Missing =
    Missing("transformer", Setting::Transformer, "flux1-dev.safetensors or wan2.1_t2v_1.3B_fp16.safetensors");
const NO_TEXT_ENCODER: Missing = Missing(
    "text encoder",
    Setting::TextEncoder,
    "clip_l.safetensors and t5xxl_fp16.safetensors for Flux, umt5_xxl_fp16.safetensors for WAN",
);
const NO_VAE: Missing = Missing("VAE", Setting::Vae, "ae.safetensors for Flux, wan_2.1_vae.safetensors for WAN");

impl Missing {
    fn into_error(self) -> Error {
        let Self(part, option, files) = self;
        Error::Part { part, option, files }
    }
}

fn in_folder(model: &Path) -> Result<Parts> {
    let there = |name: &&str| Some(model.join(name)).filter(|path| path.is_dir());
    let parts = Parts {
        text_encoders: TEXT_ENCODERS.iter().filter_map(there).collect(),
        transformers: TRANSFORMERS.iter().filter_map(there).take(1).map(|_| model.to_owned()).collect(),
        vision_encoder: there(&VISION_ENCODER),
        vae: there(&VAE),
        pipeline: None,
    };
    if parts == Parts::default() {
        return Err(Error::input(model, "no folder of a pipeline: it has none of transformer, text_encoder and vae"));
    }
    Ok(Parts { pipeline: Some(model.to_owned()), ..parts })
}

fn in_file(model: &Path) -> Result<Parts> {
    let file = Checkpoint::open(model).map_err(ModelError::from)?;
    let roles: Vec<Role> = Part::of(&file).iter().map(|part| part.role).collect();
    let of = |role| if roles.contains(&role) { vec![model.to_owned()] } else { Vec::new() };
    let is_vae = tilewright_models::Identity::of_decoder(&file).is_ok();
    let parts = Parts {
        text_encoders: of(Role::TextEncoder),
        transformers: of(Role::Denoiser),
        vision_encoder: of(Role::VisionEncoder).pop(),
        vae: is_vae.then(|| model.to_owned()),
        pipeline: None,
    };
    match parts == Parts::default() {
        true => Err(Error::input(model, "no part of a model that can be run")),
        false => Ok(parts),
    }
}
