//! Models on disk: what lies in the folders in which people keep them, what of it goes together,
//! and what is missing.
//!
//! | module | purpose |
//! |---|---|
//! | `places` | the folders that are searched |
//! | `items` | the files in them, by what they are |
//! | `likeness` | the model of a picture, found again |
//! | `needs` | what a transformer needs, and what serves it |
//! | `parts` | the parts of one model |

mod items;
mod likeness;
mod needs;
mod parts;
mod places;

use std::path::{Path, PathBuf};

use serde::Serialize;
use tilewright_plan::words::did_you_mean;

pub use self::{
    items::{Content, Item},
    needs::Need,
    parts::Parts,
    places::{Keeping, Place},
};
use crate::{Error, Result};

/// The words of the two experts' names.
const EXPERTS: [&str; 2] = ["high", "low"];

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
    /// The published model that its transformer is of.
    pub model: String,
    /// True if it makes clips.
    pub is_video: bool,
    /// The folder that it was found in.
    pub place: PathBuf,
    /// True if it ships with the program.
    pub is_bundled: bool,
    /// Its parts.
    pub parts: Parts,
    /// The parts that are missing.
    pub lacks: Vec<Need>,
}

impl LibraryModel {
    /// True if it goes by a name: that of its transformer's file with or without the ending, of its
    /// pipeline's folder, or of its repository.
    fn is_named(&self, name: &str) -> bool {
        let file = self.parts.transformers.first();
        self.name == name
            || self.name.rsplit('/').next() == Some(name)
            || file.and_then(|path| path.file_name()).is_some_and(|file| file == name)
    }
}

impl Library {
    /// Looks into the files of some places, of which only the descriptions of tensors are read.
    pub fn open(places: Vec<Place>) -> Self {
        let items = places.iter().enumerate().flat_map(|(index, place)| items::within(index, place)).collect();
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

    /// Every model whose transformer is there, with its parts as far as they are found.
    pub fn models(&self) -> Vec<LibraryModel> {
        let mut models: Vec<LibraryModel> = Vec::new();
        for item in &self.items {
            if item.problem.is_some() || self.is_second_expert(item) || self.is_listed(item, &models) {
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
            if parts.transformers.is_empty() {
                parts.transformers = vec![item.path.clone()];
                parts.transformers.extend(self.second_expert(item).map(|low| low.path.clone()));
            }
            let (parts, lacks) = self.fill(parts, &needs::of(config), Some(item));
            models.push(LibraryModel {
                name: item.name.clone(),
                model: model.clone(),
                is_video: config.is_video(),
                place: place.path.clone(),
                is_bundled: place.keeping == Keeping::Bundled,
                parts,
                lacks,
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
    /// pipeline's folder, or of its repository.
    ///
    /// # Errors
    /// No model has the name, or several have it.
    pub fn model(&self, name: &str) -> Result<LibraryModel> {
        let models = self.models();
        let found: Vec<&LibraryModel> = models.iter().filter(|model| model.is_named(name)).collect();
        let refused = |reason: String| Err(Error::Input { path: PathBuf::from(name), reason });
        match found[..] {
            [only] => Ok(only.clone()),
            [] => {
                let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
                let advice = did_you_mean(name, names.iter().copied());
                let known = match advice {
                    advice if !advice.is_empty() => advice,
                    _ => String::new(),
                };
                refused(format!(
                    "no such file, and no model of that name{known}: tilewright models lists what is there"
                ))
            }
            [first, second, ..] => {
                let path = |model: &LibraryModel| {
                    model.parts.transformers.first().map(|path| path.display().to_string()).unwrap_or_default()
                };
                refused(format!("several models of that name: give the path, {} or {}", path(first), path(second)))
            }
        }
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

    /// The item of a path.
    pub fn item(&self, path: &Path) -> Option<&Item> {
        self.items.iter().find(|item| item.path == path)
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
            let is_in_place = of.is_some_and(|of| of.place == item.place);
            let is_family = item.contents.iter().any(|content| need.is_surely_served_by(content));
            (is_near, is_in_place, is_family, item.bytes, std::cmp::Reverse(item.path.clone()))
        };
        self.items.iter().filter(serves).max_by_key(rank)
    }

    /// The expert for low noise that goes with that for high noise, by their names.
    fn second_expert(&self, first: &Item) -> Option<&Item> {
        let name = first.path.file_name()?.to_str()?;
        if first.pipeline.is_some() || !name.to_lowercase().contains(EXPERTS[0]) {
            return None;
        }
        let other =
            first.path.with_file_name(name.replace("high", "low").replace("High", "Low").replace("HIGH", "LOW"));
        self.item(&other).filter(|item| item.problem.is_none() && *item.path != *first.path)
    }

    fn is_second_expert(&self, item: &Item) -> bool {
        let Some(name) = item.path.file_name().and_then(|name| name.to_str()) else { return false };
        if item.pipeline.is_some() || !name.to_lowercase().contains(EXPERTS[1]) {
            return false;
        }
        let other = item.path.with_file_name(name.replace("low", "high").replace("Low", "High").replace("LOW", "HIGH"));
        self.item(&other).is_some_and(|first| first.path != item.path && first.problem.is_none())
    }
}
