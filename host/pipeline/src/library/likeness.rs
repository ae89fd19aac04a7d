//! The model of a picture, found again: by its name, and by the digests of its parts whatever they
//! are called and wherever they lie.

use std::path::{Path, PathBuf};
use tilewright_wording::Setting;

use super::{Content, Item, Library, LibraryModel, Parts, Place};
use crate::{Error, LoraIdentity, LoraRequest, ModelIdentity, PartIdentity, Result, sample::FOLDERS};

impl Parts {
    /// Fills in the parts that are not named from the model of an identity: the one with the same
    /// transformer, under its name or another, or else the one of its name. `named` are further
    /// folders to search.
    ///
    /// Returns a line on the model.
    ///
    /// # Errors
    /// No such model exists, or it lacks a part.
    pub fn like(self, identity: &ModelIdentity, named: &[PathBuf]) -> Result<(Self, Vec<String>)> {
        let library = Library::open(Place::usual(named));
        let Some(model) = library.model_like(identity) else {
            let first = identity.transformers.first().cloned().unwrap_or_default();
            let reason = format!(
                "no model of that name or with its transformer ({}, {}) is in the folders that are searched: give {}, or its folder with {}",
                first.name,
                first.digest,
                Setting::Model,
                Setting::Models
            );
            return Err(Error::input(&identity.name, reason));
        };
        let place = model.parts.transformers.first().map(|path| path.display().to_string()).unwrap_or_default();
        let told = format!("model: {} ({place})", model.name);
        let parts = self.over(library.with_parts_of(model.parts, identity));
        let (parts, further) = parts.find(None, named, model.is_video)?;
        Ok((parts, [told].into_iter().chain(further).collect()))
    }
}

impl Library {
    /// The model of an identity.
    fn model_like(&self, identity: &ModelIdentity) -> Option<LibraryModel> {
        let models = self.models();
        let first = identity.transformers.first();
        let is_named = |model: &LibraryModel| model.is_named(&identity.name);
        let is_same = |model: &&LibraryModel| {
            let path = model.parts.transformers.first();
            path.zip(first).is_some_and(|(path, first)| {
                let of = |item: &&Item| item.path == *path || item.pipeline.as_deref() == Some(path);
                self.items.iter().filter(of).any(|item| item.bytes == first.bytes) && is_same(path, &FOLDERS, first)
            })
        };
        let mut ordered: Vec<&LibraryModel> = models.iter().collect();
        ordered.sort_by_key(|model| !is_named(model));
        let same = ordered.iter().copied().find(is_same);
        same.or_else(|| ordered.into_iter().find(|model| is_named(model))).cloned()
    }

    /// Parts of a model, and in place of those that are others than an identity's, the same ones
    /// from wherever they lie.
    fn with_parts_of(&self, mut parts: Parts, identity: &ModelIdentity) -> Parts {
        let vae = |item: &Item| item.contents.iter().any(|content| matches!(content, Content::Vae { .. }));
        let text = |item: &Item| item.contents.iter().any(|content| matches!(content, Content::TextEncoder { .. }));
        if let Some(wanted) = &identity.vae
            && !parts.vae.as_ref().is_some_and(|path| is_same(path, &["vae"], wanted))
            && let Some(found) = self.same(wanted, vae)
        {
            parts.vae = Some(found.path.clone());
        }
        let has = |wanted: &PartIdentity| parts.text_encoders.iter().any(|path| is_same(path, &[], wanted));
        if !identity.text_encoders.iter().all(has) {
            let found = identity.text_encoders.iter().map(|wanted| self.same(wanted, text));
            if let Some(found) = found.collect::<Option<Vec<_>>>() {
                parts.text_encoders = found.into_iter().map(|item| item.path.clone()).collect();
                parts.text_encoders.dedup();
            }
        }
        parts
    }

    /// The file of an identity, by its contents, with that of the same name first.
    fn same(&self, wanted: &PartIdentity, serves: impl Fn(&Item) -> bool) -> Option<&Item> {
        let mut found: Vec<&Item> =
            self.items.iter().filter(|item| item.bytes == wanted.bytes && serves(item)).collect();
        found.sort_by_key(|item| item.path.file_name().is_none_or(|name| *name != *wanted.name));
        found.into_iter().find(|item| is_same(&item.path, &[], wanted))
    }

    /// The LoRAs of a picture, from wherever they lie in the usual places and further folders.
    /// Returns those that are not there, too.
    pub fn loras_like(loras: &[LoraIdentity], named: &[PathBuf]) -> (Vec<LoraRequest>, Vec<LoraIdentity>) {
        if loras.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let library = Self::open(Place::usual(named));
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for lora in loras {
            let LoraIdentity { file, settings, strength, expert } = lora;
            let item = library.same(file, |_| true);
            let request =
                item.map(|item| LoraRequest { path: item.path.clone(), strength: *strength, expert: *expert });
            let is_same = |request: &LoraRequest| LoraIdentity::of(request).is_ok_and(|own| own.settings == *settings);
            match request.filter(is_same) {
                Some(request) => found.push(request),
                None => missing.push(lora.clone()),
            }
        }
        (found, missing)
    }
}

fn is_same(path: &Path, folders: &[&str], wanted: &PartIdentity) -> bool {
    PartIdentity::open(path, folders).is_ok_and(|found| found.is_same(wanted))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use safetensors::tensor::{Dtype, TensorView};

    use super::*;

    fn weights(path: &Path, value: u8) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let bytes = [value; 8];
        let view = TensorView::new(Dtype::U8, vec![8], &bytes).unwrap();
        fs::write(path, safetensors::serialize([("lora_A.weight", view)], None).unwrap()).unwrap();
    }

    #[test]
    fn loras_are_found_by_their_contents() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        weights(&at("a/style.safetensors"), 1);
        weights(&at("b/other.safetensors"), 2);
        let of = |name: &str| PartIdentity::open(&at(name), &[]).unwrap();
        let identity = |file| LoraIdentity { file, settings: None, strength: 0.5, expert: Some(1) };
        // It was called otherwise, and the file of its name is another.
        let renamed = PartIdentity { name: "style.safetensors".into(), ..of("b/other.safetensors") };
        let gone = PartIdentity { name: "gone.safetensors".into(), bytes: 7, digest: "sampled:00".into() };
        let all = [identity(renamed), identity(gone)];
        let (found, missing) = Library::loras_like(&all, &[folder.path().to_owned()]);
        let expected = LoraRequest { path: at("b/other.safetensors"), strength: 0.5, expert: Some(1) };
        assert_eq!((found, missing), (vec![expected], vec![all[1].clone()]));
    }
}
