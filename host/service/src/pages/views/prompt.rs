//! The data of the page for prompts.

use axum::http::HeaderMap;
use tilewright_dashboard::views::{FilledForm, JobView, PromptModel, PromptPage};
use tilewright_sampling::{Sampler, Scheduler};
use tilewright_service_api::{JobRequest, JobStage, JobState, LoraField, Seeds};

use super::{frame, job_view, seeds_of};
use crate::{
    api::form_request,
    app::App,
    jobs::{StoredJob, store::JobFilter},
    models::OpenModel,
    state::ServerState,
};

/// Jobs in the gallery.
const GALLERY: u32 = 24;

/// The query of the page.
#[derive(Debug, Default)]
pub struct AskedPrompt {
    /// The number of the notice with the last action's outcome.
    pub notice: Option<String>,
    /// The job whose picture comes first.
    pub job: Option<String>,
    /// The job that the form is filled in from.
    pub from: Option<String>,
}

/// The page for prompts. Without its form, which never changes while it is looked at, no folder of
/// LoRAs is read.
///
/// # Errors
/// The store can't be read.
pub fn prompt(app: &App, headers: &HeaderMap, asked: &AskedPrompt, has_form: bool) -> crate::Result<PromptPage> {
    let server = &app.server;
    let filter = JobFilter { limit: GALLERY, stage: Some(JobStage::Generate), ..JobFilter::default() };
    let (found, _) = server.jobs.store.search(&filter)?;
    let gallery: Vec<JobView> = found.into_iter().map(|stored| job_view(server, stored, None)).collect();
    let named = of_prompt(server, asked.job.as_deref())?.map(|stored| job_view(server, stored, None));
    let is_named = named.is_some();
    let newest = || gallery.iter().find(|made| made.job.state == JobState::Done).cloned();
    let notice = asked.notice.as_deref();
    let models = server.models.by_name();
    Ok(PromptPage {
        frame: frame(app, headers, notice),
        models: models.values().filter(|_| has_form).filter_map(|model| model_of(model)).collect(),
        samplers: Sampler::names().map(str::to_owned).collect(),
        schedulers: Scheduler::names().map(str::to_owned).collect(),
        filled: match notice.and_then(|number| app.notices.refused(number)) {
            Some(refused) => Some((refused, Vec::new())),
            None => filled(server, asked)?,
        }
        .map(|(request, files)| FilledForm {
            files,
            loras: request.loras.iter().map(|lora| (form_request::lora_text(lora), lora.strength)).collect(),
            rest: form_request::rest_of(&request),
            request,
        }),
        shown: named.or_else(newest),
        is_named,
        gallery,
    })
}

fn of_prompt(server: &ServerState, id: Option<&str>) -> crate::Result<Option<StoredJob>> {
    let found = id.map(|id| server.jobs.store.get(id)).transpose()?.flatten();
    Ok(found.filter(|stored| stored.job.stage == JobStage::Generate))
}

/// A request, and the names of its files.
type Filled = (JobRequest, Vec<&'static str>);

/// The request in the form: a job's to vary with its seed, that of the one sent just now without.
/// And the files that it had.
fn filled(server: &ServerState, asked: &AskedPrompt) -> crate::Result<Option<Filled>> {
    if let Some(stored) = of_prompt(server, asked.from.as_deref())? {
        let (seeds, files) = (seeds_of(&stored), files_of(&stored));
        let mut request = stored.request;
        request.sample.get_or_insert_default().seed = match seeds[..] {
            [] => request.sample.get_or_insert_default().seed.clone(),
            [seed] => Some(Seeds::Whole(seed)),
            _ => Some(Seeds::Each(seeds)),
        };
        return Ok(Some((request, files)));
    }
    Ok(of_prompt(server, asked.job.as_deref())?.map(|stored| {
        let files = files_of(&stored);
        let mut request = stored.request;
        request.sample.get_or_insert_default().seed = None;
        (request, files)
    }))
}

fn files_of(stored: &StoredJob) -> Vec<&'static str> {
    let settings = stored.job.request.as_deref();
    let has = [("picture", settings.is_some_and(|of| of.image)), ("mask", settings.is_some_and(|of| of.mask))];
    has.into_iter().filter(|(_, has)| *has).map(|(file, _)| file).collect()
}

/// A model that reads prompts, with its own settings.
fn model_of(model: &OpenModel) -> Option<PromptModel> {
    // As the form has them: a name may end as if it said an expert.
    let lora = |name| form_request::lora_text(&LoraField { name, strength: 1.0, expert: None });
    let loras = model.lora_names().into_iter().map(lora).collect();
    Some(PromptModel { name: model.name.clone(), usual: model.usual_settings()?, loras })
}
