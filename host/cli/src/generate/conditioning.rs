//! The text stage: prompts become conditionings, or are found where they are kept.

use std::path::PathBuf;

use tempfile::TempDir;
use tilewright_media::STANDARD;
use tilewright_outputs::temporary_folder;
use tilewright_pipeline::{
    Conditioning, ConditioningOutput, EncoderRun, KeptConditionings, PlacedConditioning, PromptRequest, SampleModel,
    SampleRequest, TextEncoders, TextPlanning, TextRequest, TextStage, Trials,
};
use tilewright_plan::{Planner, PolicyIdentity, Recorder, Stage, Text};

use super::studio::{Studio, tell_run};
use crate::{
    args::Generate,
    embed::read_prompt,
    failure::{Failure, Outcome},
    progress::Progress,
    tell::tell,
    text_stage,
};

/// The conditionings of a sample, in files.
pub struct Conditionings {
    pub positive: PathBuf,
    pub negative: Option<PathBuf>,
    /// The runs of encoders; none if both were kept.
    pub runs: Vec<EncoderRun>,
    /// The place of conditionings that can't be kept.
    _folder: Option<TempDir>,
}

impl Studio<'_> {
    /// The text stage, with the conditionings that an earlier run has kept.
    pub fn find<'k>(&'k self, kept: Option<&'k KeptConditionings>, policy: &PolicyIdentity) -> Outcome<TextStage<'k>> {
        let request = TextRequest {
            prompts: &self.prompts,
            convention: self.arguments.way.convention.unwrap_or_default(),
            tokens: self.text_tokens,
            embeddings: self.embeddings.as_ref(),
            memory_limit: self.limit,
            objective: self.objective(),
        };
        Ok(TextStage::find(kept, &self.parts.text_encoders, request, policy)?)
    }
}

/// The prompts: the negative one comes second, if it counts.
pub fn read_prompts(arguments: &Generate, has_negative: bool) -> Outcome<Vec<String>> {
    let negative = arguments.negative.as_deref().unwrap_or_default();
    let prompt = arguments.prompt.as_deref().unwrap_or_default();
    if prompt == STANDARD && negative == STANDARD {
        return Err(Failure::input("-: standard input is one prompt: give the other one in words"));
    }
    let mut prompts = vec![read_prompt(prompt)?];
    if has_negative {
        prompts.push(read_prompt(negative)?);
    }
    Ok(prompts)
}

/// The store of conditionings; none, with a warning, if it can't be used.
pub fn store() -> Option<KeptConditionings> {
    match KeptConditionings::open() {
        Ok(kept) => kept,
        Err(error) => {
            tell!("warning: conditionings are not kept: the cache folder can't be used: {error}");
            None
        }
    }
}

impl Conditionings {
    /// Names them in a request.
    pub fn put_into(&self, request: &mut SampleRequest) {
        let prompt = |path: &PathBuf| PromptRequest { path: path.clone(), within: None };
        request.conditioning = vec![prompt(&self.positive)];
        request.negative = self.negative.iter().map(prompt).collect();
    }

    /// Finds or makes the conditionings.
    pub fn make(
        studio: &Studio<'_>,
        transformer: &SampleModel,
        trials: &mut Trials,
        planner: &mut Recorder<Text>,
    ) -> Outcome<Self> {
        let store = store();
        let mut stage = studio.find(store.as_ref(), planner.identity())?;
        let mut runs = Vec::new();
        if stage.is_kept() {
            tell!("{}: kept from an earlier run", Stage::Text);
        } else {
            let encoders = TextEncoders::open(&studio.parts.text_encoders)?;
            encoders.check(transformer)?;
            let mut progress = Progress::new();
            let recording = &studio.arguments.report.record;
            let mut planning = TextPlanning { planner, trials };
            let encoded = stage.encode(&encoders, studio.machines(), &mut planning, &mut progress);
            progress.finish();
            runs = encoded.map_err(|error| text_stage::fail(recording, trials, error))?;
            text_stage::keep_runs(recording, trials, &mut runs)?;
            runs.iter().for_each(|run| tell_run(run, "read"));
        }
        let placed = stage.complete(&mut |error| tell!("warning: a conditioning is not kept: {error}"));
        let (mut folder, mut paths) = (None, Vec::new());
        for (index, placed) in placed.into_iter().enumerate() {
            paths.push(match placed {
                PlacedConditioning::Kept(path) => path,
                PlacedConditioning::Made(conditioning) => put_aside(studio, &mut folder, index, &conditioning)?,
            });
        }
        let mut paths = paths.into_iter();
        let positive = paths.next().ok_or_else(|| Failure::work("no conditioning"))?;
        Ok(Self { positive, negative: paths.next(), runs, _folder: folder })
    }
}

/// Writes a conditioning into a folder that is removed at the end.
fn put_aside(
    studio: &Studio<'_>,
    folder: &mut Option<TempDir>,
    index: usize,
    conditioning: &Conditioning,
) -> Outcome<PathBuf> {
    let place = match folder {
        Some(folder) => folder,
        None => folder.insert(temporary_folder(&studio.folder())?),
    };
    let path = place.path().join(format!("{index}.safetensors"));
    Ok(ConditioningOutput::new(&path, false)?.write(conditioning)?)
}
