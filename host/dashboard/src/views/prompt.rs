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
    pub filled: Option<JobRequest>,
    /// The job whose picture comes first: one that was sent just now, or the last that ended well.
    pub shown: Option<JobView>,
    /// The page's address names the job whose picture comes first.
    pub is_named: bool,
    /// Jobs of prompts, the newest first.
    pub gallery: Vec<JobView>,
}

/// A model that reads prompts, with what it takes where nothing is said.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptModel {
    /// The model's name in the configuration.
    pub name: String,
    /// The settings of a prompt that asks for nothing: frames are 1 of a model of pictures.
    pub usual: JobSettings,
}
