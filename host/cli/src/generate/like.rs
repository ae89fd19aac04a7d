//! The settings of a picture, in the picture: `--like` makes it again with them.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tilewright_bench::Spelling;
use tilewright_media::read_texts;
use tilewright_pipeline::{RECORD_KEYWORD, SampleRequest, Steps};
use tilewright_plan::{DenoiseRecord, Record};

use crate::{
    args::{Generate, Sigmas},
    failure::{Failure, Outcome},
};

/// The keyword of the settings among a picture's texts.
pub const KEYWORD: &str = "tilewright-generate";

/// The policy that carries out a plan as it is set.
const FIXED: &str = "fixed";

/// All settings that a picture follows from beside its model, without names of files.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Recipe {
    prompt: String,
    negative: Option<String>,
    width: u32,
    height: u32,
    frames: u32,
    seeds: Vec<u64>,
    batch: Option<u32>,
    steps: Option<u32>,
    sigmas: Option<Vec<f64>>,
    sampler: Option<String>,
    scheduler: Option<String>,
    shift: Option<f64>,
    guidance: Option<f64>,
    cfg: f64,
    #[serde(rename = "as")]
    convention: String,
    /// It began with a picture.
    image: bool,
    mask: bool,
    denoise: Option<f64>,
    text_tokens: Option<u32>,
    reuse: Option<f64>,
    boundary: Option<f64>,
    /// Settings of the text stage, and those of `fixed` that make the plan of the sample.
    settings: Vec<(String, String)>,
}

impl Recipe {
    /// The settings of a sample.
    pub fn new(
        arguments: &Generate,
        (prompts, text_tokens): (&[String], Option<u32>),
        request: &SampleRequest,
        [width, height]: [u32; 2],
        record: &DenoiseRecord,
    ) -> Self {
        let of_text = arguments.set.iter().filter(|(key, _)| key == "precision" || key == "text.precision");
        let of_text = of_text.map(|(_, value)| ("text.precision".to_owned(), value.clone()));
        let of_sample = Spelling::fixed_sample(&record.plan).settings.into_iter();
        let of_sample = of_sample.map(|(key, value)| (format!("denoise.{key}"), value));
        let (steps, sigmas) = match &request.steps {
            Steps::Sigmas(sigmas) => (None, Some(sigmas.clone())),
            Steps::Count { .. } => (arguments.way.steps.or(Some(record.request.steps)), None),
        };
        Self {
            prompt: prompts.first().cloned().unwrap_or_default(),
            negative: prompts.get(1).cloned(),
            width,
            height,
            frames: request.size.map_or(0, |size| size.frames),
            seeds: request.seeds.clone(),
            batch: request.batch,
            steps,
            sigmas,
            sampler: request.sampler.map(|sampler| sampler.to_string()),
            scheduler: arguments.way.scheduler.map(|scheduler| scheduler.to_string()),
            shift: request.shift,
            guidance: request.guidance,
            cfg: request.cfg,
            convention: request.convention.to_string(),
            image: arguments.image.is_some(),
            mask: arguments.mask.is_some(),
            denoise: arguments.denoise,
            text_tokens,
            reuse: request.reuse,
            boundary: arguments.boundary,
            settings: of_text.chain(of_sample).collect(),
        }
    }

    /// The recipe as a picture's text.
    pub fn text(&self) -> Outcome<(String, String)> {
        Ok((KEYWORD.to_owned(), serde_json::to_string(self).map_err(Failure::work)?))
    }

    /// Fills in the arguments that are not given from the settings in a picture.
    ///
    /// # Errors
    /// The picture has none, or began with another that is not given.
    pub fn fill(arguments: &mut Generate, path: &Path) -> Outcome {
        let refused = |reason: &str| Failure::input(format!("{}: {reason}", path.display()));
        if !path.is_file() {
            return Err(refused("can't be read: no such file"));
        }
        let texts = read_texts(path);
        let of = |keyword: &str| texts.iter().find(|(name, _)| name == keyword).map(|(_, text)| text.as_str());
        let text = of(KEYWORD).ok_or_else(|| {
            refused("not made by tilewright generate, or its texts are gone: --like reads a .png of it")
        })?;
        let recipe: Self =
            serde_json::from_str(text).map_err(|error| refused(&format!("damaged settings: {error}")))?;
        let word = |name: &str, text: &str| refused(&format!("damaged settings: {name} {text}"));
        if recipe.image && arguments.image.is_none() {
            return Err(refused("it began with a picture: give that one with --image"));
        }
        if recipe.mask && arguments.mask.is_none() {
            return Err(refused("it was made anew behind a mask: give that one with --mask"));
        }
        let way = &mut arguments.way;
        arguments.prompt.get_or_insert(recipe.prompt);
        fill(&mut arguments.negative, recipe.negative);
        if arguments.image.is_none() || recipe.frames > 1 {
            fill(&mut arguments.size, Some([recipe.width, recipe.height]));
        }
        fill(&mut arguments.frames, (recipe.frames > 0).then_some(recipe.frames));
        if arguments.seed.is_empty() {
            arguments.seed = recipe.seeds;
        }
        fill(&mut arguments.batch, recipe.batch);
        if way.steps.is_none() && way.sigmas.is_none() {
            way.steps = recipe.steps;
            way.sigmas = recipe.sigmas.map(Sigmas);
        }
        if let (None, Some(name)) = (way.sampler, &recipe.sampler) {
            way.sampler = Some(name.parse().map_err(|_| word("sampler", name))?);
        }
        if let (None, Some(name)) = (way.scheduler, &recipe.scheduler) {
            way.scheduler = Some(name.parse().map_err(|_| word("scheduler", name))?);
        }
        fill(&mut way.shift, recipe.shift);
        fill(&mut way.guidance, recipe.guidance);
        fill(&mut arguments.cfg, Some(recipe.cfg));
        if way.convention.is_none() {
            way.convention = Some(recipe.convention.parse().map_err(|_| word("as", &recipe.convention))?);
        }
        fill(&mut arguments.denoise, recipe.denoise);
        fill(&mut arguments.text_tokens, recipe.text_tokens);
        fill(&mut arguments.reuse, recipe.reuse);
        fill(&mut arguments.boundary, recipe.boundary);
        // Another plan's bits may be others: the same one is carried out, unless the user wants
        // another.
        if arguments.policy.is_empty() {
            arguments.policy.push(format!("denoise={FIXED}"));
            let mut settings = recipe.settings;
            let record = of(RECORD_KEYWORD).and_then(|text| serde_json::from_str::<Record>(text).ok());
            if let Some(record) = record {
                arguments.policy.push(format!("decode={FIXED}"));
                let own = Spelling::fixed(&record.plan).settings;
                settings.extend(own.into_iter().map(|(key, value)| (format!("decode.{key}"), value)));
            }
            // The user's own settings come last, and count.
            settings.append(&mut arguments.set);
            arguments.set = settings;
        }
        Ok(())
    }
}

fn fill<T>(place: &mut Option<T>, value: Option<T>) {
    if place.is_none() {
        *place = value;
    }
}
