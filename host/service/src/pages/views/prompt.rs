//! The data of the page for prompts.

use axum::http::HeaderMap;
use tilewright_dashboard::views::{FilledForm, JobView, PromptModel, PromptPage};
use tilewright_sampling::{Sampler, Scheduler};
use tilewright_service_api::{JobRequest, JobStage, JobState, Seeds};

use super::{frame, job_view, seeds_of};
use crate::{
    api::form_request,
    app::App,
    jobs::{
        StoredJob,
        store::{JobFilter, JobSearch},
    },
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
    let filter = JobFilter { limit: GALLERY, ..JobFilter::default() };
    let search = JobSearch { stage: Some(JobStage::Generate), ..JobSearch::default() };
    let (found, _) = server.jobs.store.search(&filter, &search)?;
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
            Some(refused) => Some(refused),
            None => filled(server, asked)?,
        }
        .map(|request| FilledForm {
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

/// The request in the form: a job's to vary with its seed, that of the one sent just now without.
fn filled(server: &ServerState, asked: &AskedPrompt) -> crate::Result<Option<JobRequest>> {
    if let Some(stored) = of_prompt(server, asked.from.as_deref())? {
        let seeds = seeds_of(&stored);
        let mut request = form_of(stored);
        request.sample.get_or_insert_default().seed = match seeds[..] {
            [] => request.sample.get_or_insert_default().seed.clone(),
            [seed] => Some(Seeds::Whole(seed)),
            _ => Some(Seeds::Each(seeds)),
        };
        return Ok(Some(request));
    }
    Ok(of_prompt(server, asked.job.as_deref())?.map(|stored| {
        let mut request = form_of(stored);
        request.sample.get_or_insert_default().seed = None;
        request
    }))
}

/// The request of a job as a form can have it. No form has a file in it, so that what is said of a
/// picture to begin with waits for the picture.
fn form_of(stored: StoredJob) -> JobRequest {
    let mut request = stored.request;
    if stored.pinned_encode.is_some()
        && let Some(sample) = &mut request.sample
    {
        sample.denoise = None;
    }
    request
}

/// A model that reads prompts, with its own settings.
fn model_of(model: &OpenModel) -> Option<PromptModel> {
    Some(PromptModel { name: model.name.clone(), usual: model.usual_settings()?, loras: model.lora_names() })
}
