//! `--like`: the settings in a picture fill in those that are not given, and what differs is said.

use std::{fmt::Display, path::Path};

use tilewright_pipeline::{Asked, Library, LoraIdentity, NoRecipe, Recipe};
use tilewright_plan::terminal::shorten;

use crate::{
    args::{Generate, Seed, Sigmas},
    failure::{Failure, Outcome},
    tell::tell,
};

/// The policy that carries out a plan as it is set.
const FIXED: &str = "fixed";

/// Characters of a prompt that a note repeats.
const SHOWN: usize = 60;

/// The settings that are asked for.
pub fn asked(arguments: &Generate) -> Asked {
    let way = &arguments.way;
    Asked {
        size: arguments.size,
        frames: arguments.frames,
        batch: arguments.batch,
        seeds: arguments.seed.iter().map(|seed| seed.number).collect(),
        steps: way.steps,
        sigmas: way.sigmas.as_ref().map(|sigmas| sigmas.0.clone()),
        sampler: way.sampler,
        scheduler: way.scheduler,
        shift: way.shift,
        guidance: way.guidance,
        cfg: arguments.cfg,
        denoise: arguments.denoise,
        reuse: arguments.reuse,
        convention: way.convention.unwrap_or_default(),
    }
}

/// The settings of the text stage among those of policies.
pub fn text_settings(set: &[(String, String)]) -> Vec<(String, String)> {
    let of_text = set.iter().filter(|(key, _)| key == "precision" || key == "text.precision");
    of_text.map(|(_, value)| ("text.precision".to_owned(), value.clone())).collect()
}

/// The filling in of settings, with notes on those that differ.
struct Filling<'a> {
    path: &'a Path,
    notes: Vec<String>,
    options: Vec<String>,
}

/// The settings and options that a picture filled in.
pub struct Filled {
    /// The picture's settings.
    pub recipe: Recipe,
    /// The options that it stands for.
    pub options: Vec<String>,
}

impl Filling<'_> {
    /// Fills in a setting that is not given, or notes that it differs.
    fn fill<T: PartialEq>(
        &mut self,
        option: &str,
        place: &mut Option<T>,
        value: Option<T>,
        words: impl Fn(&T) -> String,
    ) {
        match (&*place, value) {
            (None, Some(value)) => {
                self.options.push(option.to_owned());
                *place = Some(value);
            }
            (None, None) => {}
            (Some(given), Some(own)) if *given != own => {
                self.notes.push(format!("{option} {} in place of its {}", words(given), words(&own)));
            }
            (Some(given), None) => self.notes.push(format!("{option} {}, which it did not have", words(given))),
            (Some(_), Some(_)) => {}
        }
    }

    fn plain<T: PartialEq + Display>(&mut self, option: &str, place: &mut Option<T>, value: Option<T>) {
        self.fill(option, place, value, T::to_string);
    }

    /// A name of the recipe as the argument that it stands for.
    fn named<T: std::str::FromStr>(&self, what: &str, name: Option<&String>) -> Outcome<Option<T>> {
        let damaged = |name: &String| {
            Failure::input(format!("{}: damaged settings: there is no {what} {name}", self.path.display()))
        };
        name.map(|name| name.parse().map_err(|_| damaged(name))).transpose()
    }
}

/// Fills in the arguments that are not given from the settings in a picture, and returns those.
///
/// # Errors
/// The picture has none, or began with another that is not given.
pub fn fill(arguments: &mut Generate, path: &Path) -> Outcome<Filled> {
    let refused = |reason: String| Failure::input(format!("{}: {reason}", path.display()));
    if !path.exists() {
        return Err(refused("can't be read: no such file".into()));
    }
    let (recipe, record) = Recipe::read(path).map_err(|error| match error {
        NoRecipe::Missing => refused(format!("{error}: --like reads a picture or clip of it")),
        NoRecipe::Damaged(_) => refused(error.to_string()),
    })?;
    for (is_needed, is_given, words) in [
        (recipe.image, arguments.image.is_some(), "it began with a picture: give that one with --image"),
        (recipe.mask, arguments.mask.is_some(), "it was made anew behind a mask: give that one with --mask"),
        (
            recipe.embeddings,
            arguments.embeddings.is_some(),
            "its prompt had embeddings: give their folder with --embeddings",
        ),
    ] {
        if is_needed && !is_given {
            return Err(refused(words.into()));
        }
    }
    let mut filling = Filling { path, notes: Vec::new(), options: Vec::new() };
    let short = |text: &String| format!("'{}'", shorten(text, SHOWN));
    filling.fill("the prompt", &mut arguments.prompt, Some(recipe.prompt.clone()), short);
    filling.fill("--negative", &mut arguments.negative, recipe.negative.clone(), short);
    if arguments.image.is_none() || recipe.frames > 1 {
        let size = |[width, height]: &[u32; 2]| format!("{width}x{height}");
        filling.fill("--size", &mut arguments.size, Some([recipe.width, recipe.height]), size);
    }
    filling.plain("--frames", &mut arguments.frames, (recipe.frames > 0).then_some(recipe.frames));
    let rate = filling.named("frame rate", recipe.fps.as_ref())?;
    filling.plain("--fps", &mut arguments.fps, rate);
    let seeds: Vec<Seed> = recipe.seeds.iter().map(|number| Seed { number: *number, is_drawn: false }).collect();
    let mut given = (!arguments.seed.is_empty()).then(|| arguments.seed.clone());
    let words = |seeds: &Vec<Seed>| seeds.iter().map(Seed::to_string).collect::<Vec<_>>().join(",");
    filling.fill("--seed", &mut given, Some(seeds), words);
    arguments.seed = given.unwrap_or_default();
    filling.plain("--batch", &mut arguments.batch, recipe.batch);
    let way = &mut arguments.way;
    let sigmas = |sigmas: &Sigmas| format!("of {} sigmas", sigmas.0.len());
    // Steps and sigmas by hand stand for each other.
    match (way.steps, &way.sigmas) {
        (None, Some(_)) => filling.fill("--sigmas", &mut way.sigmas, recipe.sigmas.clone().map(Sigmas), sigmas),
        (Some(_), None) => filling.plain("--steps", &mut way.steps, recipe.steps),
        _ => {
            filling.fill("--steps", &mut way.steps, recipe.steps, u32::to_string);
            filling.fill("--sigmas", &mut way.sigmas, recipe.sigmas.clone().map(Sigmas), sigmas);
        }
    }
    let sampler = filling.named("sampler", recipe.sampler.as_ref())?;
    filling.plain("--sampler", &mut way.sampler, sampler);
    let scheduler = filling.named("scheduler", recipe.scheduler.as_ref())?;
    filling.plain("--scheduler", &mut way.scheduler, scheduler);
    filling.plain("--shift", &mut way.shift, recipe.shift);
    filling.plain("--guidance", &mut way.guidance, recipe.guidance);
    filling.plain("--cfg", &mut arguments.cfg, Some(recipe.cfg));
    let convention = filling.named("convention", Some(&recipe.convention))?;
    filling.plain("--as", &mut way.convention, convention);
    if arguments.image.is_some() {
        filling.plain("--denoise", &mut arguments.denoise, recipe.denoise);
    }
    filling.plain("--text-tokens", &mut arguments.text_tokens, recipe.text_tokens);
    filling.plain("--reuse", &mut arguments.reuse, recipe.reuse);
    filling.plain("--boundary", &mut arguments.boundary, recipe.boundary);
    // Another plan's bits may be others: the same one is carried out, unless the user wants
    // another.
    if arguments.policy.is_empty() {
        arguments.policy.push(format!("denoise={FIXED}"));
        let mut settings = recipe.settings.clone();
        if let Some(record) = record {
            arguments.policy.push(format!("decode={FIXED}"));
            let own = record.plan.settings();
            settings.extend(own.into_iter().map(|(key, value)| (format!("decode.{key}"), value)));
        }
        // The user's own settings come last, and count.
        settings.append(&mut arguments.set);
        arguments.set = settings;
    }
    fill_loras(arguments, &recipe, &mut filling);
    if recipe.model.is_none() && arguments.model.is_none() && arguments.transformer.is_empty() {
        filling.notes.push("it does not tell its model, and the usual one is taken: --model names another".into());
    }
    for note in &filling.notes {
        tell!("note: {}: {note}", path.display());
    }
    Ok(Filled { recipe, options: filling.options })
}

/// Takes a picture's LoRAs from where they are found, if none is given.
fn fill_loras(arguments: &mut Generate, recipe: &Recipe, filling: &mut Filling<'_>) {
    if !arguments.lora.is_empty() {
        let given = arguments.lora.iter().map(|lora| LoraIdentity::of(lora).unwrap_or_default());
        let is_same = |(given, own): (LoraIdentity, &LoraIdentity)| {
            given.file.is_same(&own.file) && (given.strength, given.expert) == (own.strength, own.expert)
        };
        if arguments.lora.len() != recipe.loras.len() || !given.zip(&recipe.loras).all(is_same) {
            filling.notes.push(match recipe.loras.len() {
                0 => "--lora, which it did not have".into(),
                _ => format!("--lora in place of its {}", names(&recipe.loras)),
            });
        }
        return;
    }
    let (found, missing) = Library::loras_like(&recipe.loras, &arguments.folders.models);
    arguments.lora = found;
    if !missing.is_empty() {
        let (path, names) = (filling.path.display(), names(&missing));
        tell!("warning: {path}: made without its LoRA {names}, which is in none of the folders: --lora gives it");
    }
}

/// LoRAs with their strengths.
fn names(loras: &[LoraIdentity]) -> String {
    let names = loras.iter().map(|lora| format!("{}:{} ({})", lora.file.name, lora.strength, lora.file.digest));
    names.collect::<Vec<_>>().join(", ")
}
