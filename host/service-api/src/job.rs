//! A job: its request, its state and its results.

use serde::{Deserialize, Serialize};
use tilewright_plan::{Loss, Objective, Stage};
use tilewright_profile::Profile;
use utoipa::ToSchema;

use crate::{JobSettings, SampleFields};

/// A request for a decode; with `encode`, for a latent of a picture or clip; with `sample`, for a
/// sample; with `prompt`, for a picture or clip of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// The model, by its name in the configuration.
    #[schema(max_length = 64)]
    pub model: String,
    /// A latent's file on the server, absolute, below one of the configured roots; left out if the
    /// latent is uploaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub latent_path: Option<String>,
    /// The device, by its name in the configuration; otherwise the one with the least waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 64)]
    pub device: Option<String>,
    /// The owner or kind of work: tags take turns, and routes can ask for them. Printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 64, pattern = "^[!-~]+$")]
    pub tag: Option<String>,
    /// The format of the output; if left out, png for pictures, mp4 for clips, safetensors for
    /// samples and latent for encodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<OutputFormat>,
    /// The objective; the route's if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ObjectiveName>)]
    pub objective: Option<Objective>,
    /// Losses that plans may make, beside those that the route allows: `blended`, tiles and chunks
    /// that are cross-faded, where the whole or exact bands fit, too; `reuse=0.2`, as
    /// `sample.reuse`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>, max_items = 8)]
    pub allow: Vec<Loss>,
    /// The most to hold at once, in bytes: of decodes weights aside if `count_weights` does not say
    /// otherwise, of samples with the weights. No more than the route's or the device's. A limit
    /// below the leanest plan for the latent is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub memory_limit_bytes: Option<u64>,
    /// The memory limit, be it the job's, the route's or the device's, counts the weights, too; so
    /// do estimates and measured peaks then. Always so if the device's configuration says it. For
    /// decodes: of samples the weights always count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub count_weights: bool,
    /// The work is profiled: the job's `profile` says where its time went. It is rehearsed first,
    /// so that the job takes longer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub profile: bool,
    /// The latent carries the model's scaling, as diffusers saves it: that of a decode, or the
    /// result of an encode in safetensors.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scaled: bool,
    /// The tensor to decode, if the file holds several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    pub tensor: Option<String>,
    /// Seconds from being accepted within which the job has to end; the server's limit if left out.
    /// More than that limit, `deadline` in its configuration and 3600 by default, is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub deadline_s: Option<u64>,
    /// Frames per second of a clip, as 24, 23.976 or 30000/1001; the model's own if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 32)]
    pub fps: Option<String>,
    /// The prompt of a picture or clip, with weights as ComfyUI has them: the model's text encoders
    /// read it, its transformer samples as `sample` says, and its vae decodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 100000)]
    pub prompt: Option<String>,
    /// The prompt to lead away from; it counts if `sample.cfg` is not 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 100000)]
    pub negative_prompt: Option<String>,
    /// The tokens that T5 reads at least, and as diffusers at most, for a prompt; the model's own
    /// if left out, or 256 as ComfyUI and 512 as diffusers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 3, maximum = 512)]
    pub text_tokens: Option<u32>,
    /// LoRAs on the model's transformer, of those that its configuration offers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 16)]
    pub loras: Vec<LoraField>,
    /// Sampling, by the model's transformer: without a prompt, the result is a latent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<Box<SampleFields>>,
    /// Encoding, by the model's vae: the result is the latent of a picture or, of a video VAE, of a
    /// clip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encode: Option<EncodeFields>,
}

/// A request for the latent of a picture or clip.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EncodeFields {
    /// The picture's or clip's file on the server, absolute, below one of the configured roots;
    /// left out if it is uploaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub image_path: Option<String>,
    /// The most frames of a clip that are taken, from its beginning; all of them if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub frames: Option<u32>,
}

/// A LoRA that a request asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoraField {
    /// The LoRA's name: that of its file below the configured folder, without the ending.
    #[schema(min_length = 1, max_length = 4096)]
    pub name: String,
    /// The factor of its changes; 1 if left out.
    #[serde(default = "one")]
    #[schema(default = 1.0)]
    pub strength: f64,
    /// The expert that it is for, by its number: 0 for high noise, 1 for low noise. All of them if
    /// left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 1)]
    pub expert: Option<u32>,
}

fn one() -> f64 {
    1.0
}

/// The kind of work that a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobStage {
    /// From a latent to a picture or clip.
    #[default]
    Decode,
    /// From a picture or clip to a latent.
    Encode,
    /// From noise to a latent.
    Denoise,
    /// From a prompt to a picture or clip.
    Generate,
}

/// The stage at work of a job that has several.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code, reason = "the description of tilewright_plan::Stage, which knows nothing of OpenAPI")]
pub enum StageAtWork {
    /// Text encoders read the prompt.
    Text,
    /// The vae encodes the picture that the job begins with.
    Encode,
    /// The transformer samples.
    Denoise,
    /// The vae decodes.
    Decode,
}

/// The objective of a plan.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code, reason = "the description of tilewright_plan::Objective, which knows nothing of OpenAPI")]
pub enum ObjectiveName {
    /// The shortest time within the memory limit.
    Fastest,
    /// Memory is worth some time.
    Balanced,
    /// The least memory.
    Leanest,
}

/// The format of a decode's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutputFormat {
    /// Portable network graphics, with the decision record among its texts.
    Png,
    /// JPEG of quality 95.
    Jpg,
    /// Lossless WebP; animated for clips.
    Webp,
    /// The raw output, f32, as tensor `sample`; of a sample or encode, as tensor `latent`.
    Safetensors,
    /// ComfyUI's latent, f32; of samples and encodes.
    Latent,
    /// H.264.
    Mp4,
    /// VP9.
    Webm,
    /// H.264.
    Mkv,
    /// 256 colours a frame.
    Gif,
}

impl OutputFormat {
    /// Each with its ending and its media type.
    const ALL: [(Self, &'static str, &'static str); 9] = [
        (Self::Png, "png", "image/png"),
        (Self::Jpg, "jpg", "image/jpeg"),
        (Self::Webp, "webp", "image/webp"),
        (Self::Safetensors, "safetensors", "application/octet-stream"),
        (Self::Latent, "latent", "application/octet-stream"),
        (Self::Mp4, "mp4", "video/mp4"),
        (Self::Webm, "webm", "video/webm"),
        (Self::Mkv, "mkv", "video/x-matroska"),
        (Self::Gif, "gif", "image/gif"),
    ];

    /// A file's ending.
    pub fn ending(self) -> &'static str {
        Self::ALL.iter().find(|(format, ..)| *format == self).map_or("bin", |(_, ending, _)| ending)
    }

    /// A media type.
    pub fn content_type(self) -> &'static str {
        Self::ALL.iter().find(|(format, ..)| *format == self).map_or("application/octet-stream", |(.., media)| media)
    }
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = State)]
pub enum JobState {
    /// Accepted, waiting for its device.
    Queued,
    /// At work.
    Running,
    /// Ended well, with a result.
    Done,
    /// Ended without a result.
    Failed,
    /// Ended because a caller asked for that.
    Cancelled,
    /// Ended because its deadline passed.
    Expired,
}

impl JobState {
    /// Each state with its name.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Queued, "queued"),
        (Self::Running, "running"),
        (Self::Done, "done"),
        (Self::Failed, "failed"),
        (Self::Cancelled, "cancelled"),
        (Self::Expired, "expired"),
    ];

    /// The state's name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(state, _)| *state == self).map_or("", |(_, name)| name)
    }

    /// True if nothing more happens to the job.
    pub fn is_end(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

/// The steps of a sample while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SamplingProgress {
    /// Steps that are done.
    pub step: u32,
    /// All steps.
    pub steps: u32,
    /// The mean time of a step so far, in milliseconds; before the first, the expected one. Null if
    /// neither is known.
    pub step_ms: Option<f64>,
    /// The time left at that pace, in milliseconds.
    pub left_ms: Option<f64>,
    /// There is a preview of the sample after this step.
    #[serde(default)]
    pub preview: bool,
}

/// A file that a job has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobResult {
    /// The sample's place in the batch, from 0.
    pub sample: u32,
    /// The file's size.
    pub bytes: u64,
    /// The file's media type.
    pub content_type: String,
}

/// A job, as callers see it. Times are RFC 3339 in UTC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// The id; ids sort by the time of acceptance.
    pub id: String,
    /// The job's state.
    pub state: JobState,
    /// The kind of work.
    #[serde(default)]
    pub stage: JobStage,
    /// The stage at work, of a job from a prompt; null before and after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<StageAtWork>)]
    pub at: Option<Stage>,
    /// The model's name.
    pub model: String,
    /// The device's name.
    pub device: String,
    /// The tag of the request.
    pub tag: Option<String>,
    /// The route that took it.
    pub route: String,
    /// The policy that decides for it.
    pub policy: String,
    /// The policy's revision, in force when the job was accepted.
    pub revision: u64,
    /// The module that the revision is made from.
    pub digest: String,
    /// True if the policy decides on trial.
    pub canary: bool,
    /// The format of the output.
    pub format: OutputFormat,
    /// Pictures or clips in the batch.
    pub batch: u32,
    /// Frames of each.
    pub frames: u32,
    /// Height in pixels.
    pub height: u32,
    /// Width in pixels.
    pub width: u32,
    /// Steps of a sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// The prompt and the settings of a job from a prompt, or the settings of a sample, as they are
    /// carried out; null of decodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Box<JobSettings>>,
    /// The time of acceptance.
    pub created: String,
    /// The time when work on it last began.
    pub started: Option<String>,
    /// The time of its end.
    pub finished: Option<String>,
    /// Jobs before it on its device, while it waits.
    pub position: Option<u32>,
    /// The share that is done, 0 to 1, while it runs. It starts again with each attempt and never
    /// goes back within one.
    pub progress: Option<f64>,
    /// The share of the weights that is loaded, 0 to 1, while they load; null before and after.
    #[serde(default)]
    pub loading: Option<f64>,
    /// The steps of a sample while it runs; null before the first has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<SamplingProgress>,
    /// The attempt that `progress` belongs to, counted from 1 since `started`, while it runs; null
    /// before the first.
    pub attempt: Option<u32>,
    /// The reason that there is no result, in a line.
    pub error: Option<String>,
    /// The files written; empty again when they are no longer kept.
    pub results: Vec<JobResult>,
    /// The profiles of the stages that have ended, in order, if the job was to be profiled: facts,
    /// times, categories, operators, kernels, layers, parts and advice. Of the lists of names, the
    /// 50 rows with the most time. Lists of jobs and events leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub profile: Option<Vec<Profile>>,
}
