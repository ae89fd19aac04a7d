//! Models on disk: what lies in the folders in which people keep them, what of it goes together,
//! and what is missing.
//!
//! | module | purpose |
//! |---|---|
//! | `places` | the folders that are searched |
//! | `extra_paths` | further ones, which ComfyUI is configured to search |
//! | `walk` | the way through them |
//! | `items` | the files in them, by what they are |
//! | `likeness` | the model of a picture, found again |
//! | `needs` | what a transformer needs, and what serves it |
//! | `experts` | the two transformers of one model |
//! | `parts` | the parts of one model |

mod experts;
mod extra_paths;
mod items;
mod likeness;
mod needs;
mod parts;
mod places;
mod walk;

use std::{
    cmp::Reverse,
    path::{Path, PathBuf},
};
use tilewright_wording::Remedy;

use serde::Serialize;
use tilewright_plan::words::did_you_mean;

pub use self::{
    extra_paths::ExtraFolder,
    items::{Content, Item},
    needs::Need,
    parts::Parts,
    places::{Keeping, Place},
    walk::OtherName,
};
use crate::{Error, Result};

/// The files in some places.
#[derive(Debug, Default)]
pub struct Library {
    places: Vec<Place>,
    items: Vec<Item>,
}

/// A model that a prompt can be given to, with the parts that were found for it.
#[derive(Clone, Debug, Serialize)]
pub struct LibraryModel {
    /// The name by which --model takes it.
    pub name: String,
    /// Further names of its transformer's file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<OtherName>,
    /// The published model that its transformer is of.
    pub model: String,
    /// True if it makes clips.
    pub is_video: bool,
    /// The folder that it was found in.
    pub place: PathBuf,
    /// True if it ships with the program.
    pub is_bundled: bool,
    /// The parts of the model.
    pub parts: Parts,
    /// The parts that are missing.
    pub lacks: Vec<Need>,
    /// A line on each part of its pipeline that can't be read, such as a link that leads nowhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
}

impl LibraryModel {
    /// True if it goes by a name: that of its transformer's file with or without the ending, of its
    /// pipeline's folder, or of its repository. A file with several names has all of them.
    fn is_named(&self, name: &str) -> bool {
        let also = self.also.iter().any(|other| is_called(name, &other.name, Some(&other.path)));
        also || is_called(name, &self.name, self.transformer())
    }

    /// The model's transformer, or the first of two; of a pipeline the folder.
    pub fn transformer(&self) -> Option<&Path> {
        self.parts.transformers.first().map(PathBuf::as_path)
    }
}

/// True if a file of this own name and path is meant by a name.
fn is_called(name: &str, own: &str, path: Option<&Path>) -> bool {
    own == name
        || own.rsplit('/').next() == Some(name)
        || path.and_then(Path::file_name).is_some_and(|file| file == name)
}

impl Library {
    /// Looks into the files of some places, of which only the descriptions of tensors are read.
    /// Each is one item, whatever number of names it has.
    pub fn open(places: Vec<Place>) -> Self {
        let items = items::within(&places);
        Self { places, items }
    }

    /// The places.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The files, by place.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Every model whose transformer is present, with its parts as far as they are found.
    pub fn models(&self) -> Vec<LibraryModel> {
        let mut models: Vec<LibraryModel> = Vec::new();
        for item in &self.items {
            if item.problem.is_some() || self.first_expert(item).is_some() || self.is_listed(item, &models) {
                continue;
            }
            let denoisers = item.contents.iter().filter_map(|content| match content {
                Content::Transformer { model, config } => Some((model, config)),
                _ => None,
            });
            let Some((model, config)) = denoisers.into_iter().next() else { continue };
            let place = &self.places[item.place];
            let mut parts = match &item.pipeline {
                Some(folder) => Parts::default().from_model(folder).unwrap_or_default(),
                None => Parts::default(),
            };
            let unreadable = parts.unreadable(|path| self.item(path));
            if parts.transformers.is_empty() {
                parts.transformers = vec![item.path.clone()];
                parts.transformers.extend(self.second_expert(item).map(|low| low.path.clone()));
            }
            let (parts, lacks) = self.fill(parts, &needs::of(config), Some(item));
            models.push(LibraryModel {
                name: item.name.clone(),
                also: item.also.clone(),
                model: model.clone(),
                is_video: config.facts().is_video,
                place: place.path.clone(),
                is_bundled: place.keeping == Keeping::Bundled,
                parts,
                lacks,
                unreadable,
            });
        }
        models
    }

    /// True if the item is the second transformer of a pipeline that is listed.
    fn is_listed(&self, item: &Item, models: &[LibraryModel]) -> bool {
        item.pipeline
            .as_ref()
            .is_some_and(|folder| models.iter().any(|model| model.parts.transformers.contains(folder)))
    }

    /// The model of a name: that of its transformer's file with or without the ending, of its
    /// pipeline's folder, or of its repository. A file with several names has all of them. Of
    /// several files of ComfyUI's, the one in the folder that it searches first is taken.
    ///
    /// # Errors
    /// No model has the name, or several have it.
    pub fn model(&self, name: &str) -> Result<LibraryModel> {
        let models = self.models();
        let found = self.searched_first(models.iter().filter(|model| model.is_named(name)).collect());
        let refused = |reason: String| Err(Error::input(name, reason));
        match found[..] {
            [only] => Ok(only.clone()),
            [] => {
                let of_name = |item: &&Item| item.paths().any(|path| is_called(name, &item.name, Some(path)));
                let broken = self.items.iter().filter(of_name).find_map(|item| Some((item, item.problem.clone()?)));
                if let Some((item, reason)) = broken {
                    return Err(Error::input(&item.path, reason));
                }
                let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
                let advice = did_you_mean(name, names.iter().copied());
                refused(format!("no such file, and no model of that name{advice}: {}", Remedy::ListModels))
            }
            [first, second, ..] => {
                let path = |model: &LibraryModel| {
                    model.transformer().map(|path| path.display().to_string()).unwrap_or_default()
                };
                refused(format!("several models of that name: give the path, {} or {}", path(first), path(second)))
            }
        }
    }

    /// The models in the first folder, of models of one name in several folders of ComfyUI's.
    fn searched_first<'a>(&self, found: Vec<&'a LibraryModel>) -> Vec<&'a LibraryModel> {
        let item = |model: &LibraryModel| model.transformer().and_then(|path| self.item(path));
        let Some(of) = found.iter().map(|model| item(model)).collect::<Option<Vec<&Item>>>() else { return found };
        let first = of.iter().map(|item| item.folder).min();
        if of.iter().any(|item| item.place != of[0].place) {
            return found;
        }
        found.into_iter().zip(of).filter(|(_, item)| Some(item.folder) == first).map(|(model, _)| model).collect()
    }

    /// Fills in the parts that are missing by what a transformer needs, from the files that serve
    /// it. `of` is the transformer's own item: files beside it go first.
    ///
    /// Returns the needs that nothing serves.
    pub fn fill(&self, mut parts: Parts, needs: &[Need], of: Option<&Item>) -> (Parts, Vec<Need>) {
        let mut lacks = Vec::new();
        let encoders_are_given = !parts.text_encoders.is_empty();
        for need in needs {
            match need {
                Need::Vae { .. } if parts.vae.is_some() => continue,
                Need::TextEncoder { .. } if encoders_are_given => continue,
                Need::VisionEncoder { .. } if parts.vision_encoder.is_some() => continue,
                _ => {}
            }
            let Some(item) = self.best(need, of) else {
                lacks.push(need.clone());
                continue;
            };
            match need {
                Need::Vae { .. } => parts.vae = Some(item.path.clone()),
                Need::VisionEncoder { .. } => parts.vision_encoder = Some(item.path.clone()),
                Need::TextEncoder { .. } if parts.text_encoders.contains(&item.path) => {}
                Need::TextEncoder { .. } => parts.text_encoders.push(item.path.clone()),
            }
        }
        (parts, lacks)
    }

    /// The item of a path, whatever it is called there.
    pub fn item(&self, path: &Path) -> Option<&Item> {
        let is_called = |item: &&Item| item.paths().any(|own| own == path);
        self.items.iter().find(is_called).or_else(|| self.items.iter().find(|item| item.is_at(path)))
    }

    /// The file that serves a need best: beside the transformer, then in its place, then with the
    /// VAE that is surely its family's, and then the most precise one. What ships with the program
    /// serves only what does, too.
    fn best(&self, need: &Need, of: Option<&Item>) -> Option<&Item> {
        let is_bundled = |item: &Item| self.places[item.place].keeping == Keeping::Bundled;
        let serves = |item: &&Item| {
            item.problem.is_none()
                && of.map_or(!is_bundled(item), |of| is_bundled(of) == is_bundled(item))
                && item.contents.iter().any(|content| need.is_served_by(content))
        };
        let rank = |item: &&Item| {
            let is_near =
                of.is_some_and(|of| of.path == item.path || item.pipeline.is_some() && of.pipeline == item.pipeline);
            let is_in_place = of.is_some_and(|of| {
                of.place == item.place || item.also.iter().any(|other| self.places[of.place].holds(&other.path))
            });
            let is_family = item.contents.iter().any(|content| need.is_surely_served_by(content));
            let in_order = (Reverse(item.folder), Reverse(item.path.clone()));
            (is_near, is_in_place, is_family, item.bytes, in_order)
        };
        self.items.iter().filter(serves).max_by_key(rank)
    }
}
