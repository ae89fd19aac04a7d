//! `tilewright models`: what lies in the folders in which people keep models, what goes together,
//! and what is missing.

use std::{io::Write, iter, path::Path};

use serde::Serialize;
use tilewright_pipeline::{Content, Item, Library, LibraryModel, Need, Place};
use tilewright_plan::{bytes, words::with_noun};

use crate::{
    args::Models,
    failure::{Failure, Outcome},
    printer, table,
};

/// Lists models.
pub fn run(arguments: &Models) -> Outcome {
    for folder in &arguments.folders {
        if !folder.is_dir() {
            return Err(Failure::input(format!("{}: no such folder", folder.display())));
        }
    }
    let places = match &arguments.folders[..] {
        [] => Place::usual(&[]),
        folders => folders.iter().map(|folder| Place::of(folder)).collect(),
    };
    let library = Library::open(places);
    let models = library.models();
    if arguments.json {
        #[derive(Serialize)]
        struct Printed<'a> {
            places: &'a [Place],
            models: &'a [LibraryModel],
            files: &'a [Item],
        }
        return printer::json(&Printed { places: library.places(), models: &models, files: library.items() });
    }
    let mut out = printer::stdout();
    let searched = library.places().iter().flat_map(|place| {
        let extra = place.extra.iter().map(|extra| ("extra_model_paths.yaml", &extra.path));
        iter::once((place.keeping.name(), &place.path)).chain(extra)
    });
    writeln!(out, "{}", table::facts(searched.map(|(name, path)| (name, path.display().to_string()))))?;
    match models.is_empty() {
        true => writeln!(out, "\nno transformer that can be run: Flux.1's and WAN's can")?,
        false => {
            let rows = models.iter().map(|model| row(&library, model));
            writeln!(out, "\n{}", table::wrap(&["model", "of", "transformer", "parts", "lacks"], &[], rows))?;
        }
    }
    if arguments.files {
        let rows = library.items().iter().map(|item| file_row(&library, item));
        writeln!(out, "\n{}", table::wrap(&["file", "is", "type", "size"], &["size"], rows))?;
    } else {
        let idle: Vec<&Item> = library.items().iter().filter(|item| !serves(&models, item)).collect();
        let broken = match idle.iter().filter(|item| item.problem.is_some()).count() {
            0 => String::new(),
            broken => format!(", {broken} of which can't be used"),
        };
        if !idle.is_empty() {
            let (files, why) = (with_noun(idle.len(), "file"), if broken.is_empty() { "" } else { " and says why" });
            writeln!(out, "\n{files} beside them{broken}: --files lists all{why}")?;
        }
    }
    Ok(())
}

fn row(library: &Library, model: &LibraryModel) -> Vec<String> {
    let transformer = model.parts.transformers.first();
    let stored = transformer
        .and_then(|path| library.item(path))
        .map(|item| format!("{}, {}", item.stored, bytes::display(item.bytes)));
    let parts = model.parts.text_encoders.iter().chain(&model.parts.vision_encoder).chain(&model.parts.vae);
    let mut names: Vec<String> =
        parts.filter(|path| Some(*path) != transformer).map(|path| short(&model.place, path)).collect();
    names.dedup();
    let lacks: Vec<String> = model.lacks.iter().map(Need::to_string).chain(model.unreadable.iter().cloned()).collect();
    let made = if model.is_video { "clips" } else { "pictures" };
    vec![
        model.name.clone(),
        format!("{made}: {}", model.model),
        stored.unwrap_or_default(),
        names.join(", "),
        lacks.join("; "),
    ]
}

/// A path within a place.
fn short(place: &Path, path: &Path) -> String {
    path.strip_prefix(place).unwrap_or(path).display().to_string()
}

fn file_row(library: &Library, item: &Item) -> Vec<String> {
    let place = library.places().get(item.place).map_or(Path::new(""), |place| &place.path);
    let is = match &item.problem {
        Some(problem) => format!("can't be used: {problem}"),
        None if item.contents.is_empty() => "nothing that is known".into(),
        None => item.contents.iter().map(Content::in_words).collect::<Vec<_>>().join("; "),
    };
    let also: Vec<String> = item.also.iter().map(|other| short(place, &other.path)).collect();
    let is = if also.is_empty() { is } else { format!("{is}; also {}", also.join(", ")) };
    vec![short(place, &item.path), is, item.stored.clone(), bytes::display(item.bytes)]
}

/// True if a model is made of the file.
fn serves(models: &[LibraryModel], item: &Item) -> bool {
    let is_part = |model: &LibraryModel| {
        let parts = &model.parts;
        let mut own =
            parts.transformers.iter().chain(&parts.text_encoders).chain(&parts.vision_encoder).chain(&parts.vae);
        own.any(|path| item.paths().any(|own| own == path) || Some(path) == item.pipeline.as_ref())
    };
    models.iter().any(is_part)
}
