//! The page at `/prompt`: the form, and the pictures and clips that came of prompts.

use tilewright_service_api::{JobRequest, JobSettings};

use super::{JobView, PageFrame};

/// The page at `/prompt`.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptPage {
    /// The data that every page shows.
    pub frame: PageFrame,
    /// The models that read prompts.
    pub models: Vec<PromptModel>,
    /// Names of samplers to choose from.
    pub samplers: Vec<String>,
    /// Names of schedulers to choose from.
    pub schedulers: Vec<String>,
    /// The request that the form is filled in with: that of a job to vary, or one that was sent
    /// just now; else the form is empty.
    pub filled: Option<FilledForm>,
    /// The job whose picture comes first: one that was sent just now, or the last that ended well.
    pub shown: Option<JobView>,
    /// The page's address names the job whose picture comes first.
    pub is_named: bool,
    /// Jobs of prompts, the newest first.
    pub gallery: Vec<JobView>,
}

/// The contents of a form that is filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct FilledForm {
    /// The request.
    pub request: JobRequest,
    /// The request's LoRAs, as the form has them: each with its strength.
    pub loras: Vec<(String, f64)>,
    /// The rest of it, beyond the form's fields.
    pub rest: Option<FormRest>,
    /// The job's files that a form can't have in it.
    pub files: Vec<&'static str>,
}

/// The rest of a request, beyond the fields of the form for prompts: the form sends it along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormRest {
    /// The same as JSON.
    pub json: String,
    /// The names of its fields.
    pub names: Vec<String>,
}

/// A model that reads prompts, with what it takes where nothing is said.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptModel {
    /// The model's name in the configuration.
    pub name: String,
    /// The settings of a prompt that asks for nothing: frames are 1 of a model of pictures.
    pub usual: JobSettings,
    /// The LoRAs that it offers, by name.
    pub loras: Vec<String>,
}
