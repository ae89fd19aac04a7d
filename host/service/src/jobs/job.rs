//! A job as it is asked for, told of, and kept.

use serde::{Deserialize, Serialize};
use tilewright_plan::Objective;
use tilewright_rollout::Pinned;
use utoipa::ToSchema;

/// What a decode is asked with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// The model, by its name in the configuration.
    #[schema(max_length = 64)]
    pub model: String,
    /// A latent's file on the server, absolute, below one of the configured roots; left out where the latent is uploaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub latent_path: Option<String>,
    /// The device, by its name in the configuration; otherwise the one with the least waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 64)]
    pub device: Option<String>,
    /// Whose or what kind of work it is: tags take turns, and routes tell by them. Printable ASCII.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 64, pattern = "^[!-~]+$")]
    pub tag: Option<String>,
    /// What comes out; png for pictures and mp4 for clips where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<OutputFormat>,
    /// What matters most; the route's where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ObjectiveName>)]
    pub objective: Option<Objective>,
    /// The most to hold at once, in bytes, weights aside; no more than the route's or the device's.
    /// A limit below the leanest plan for the latent is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub memory_limit_bytes: Option<u64>,
    /// The latent carries the model's scaling, as diffusers saves it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub scaled: bool,
    /// The tensor to decode, where the file holds several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    pub tensor: Option<String>,
    /// Seconds from being accepted within which the job has to end; the server's limit where it is
    /// left out. More than that limit, `deadline` in its configuration and 3600 by default, is
    /// refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub deadline_s: Option<u64>,
    /// Frames per second of a clip, as 24, 23.976 or 30000/1001; the model's own where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 32)]
    pub fps: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// What matters most.
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

/// What comes out of a decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutputFormat {
    /// Portable network graphics, with the decision record among its texts.
    Png,
    /// JPEG of quality 95.
    Jpg,
    /// Lossless WebP; animated for clips.
    Webp,
    /// The raw output, f32, as tensor `sample`.
    Safetensors,
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
    const ALL: [(Self, &'static str, &'static str); 8] = [
        (Self::Png, "png", "image/png"),
        (Self::Jpg, "jpg", "image/jpeg"),
        (Self::Webp, "webp", "image/webp"),
        (Self::Safetensors, "safetensors", "application/octet-stream"),
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

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Accepted, waiting for its device.
    Queued,
    /// At work.
    Running,
    /// Ended well: the result is there.
    Done,
    /// Ended without a result.
    Failed,
    /// Somebody asked for that.
    Cancelled,
    /// Past its deadline.
    Expired,
}

impl State {
    /// Every state with its name.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Queued, "queued"),
        (Self::Running, "running"),
        (Self::Done, "done"),
        (Self::Failed, "failed"),
        (Self::Cancelled, "cancelled"),
        (Self::Expired, "expired"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(state, _)| *state == self).map_or("", |(_, name)| name)
    }

    /// Nothing more happens to it.
    pub fn is_end(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

/// A file that a job came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobResult {
    /// Which of the batch, from 0.
    pub sample: u32,
    /// Of the file.
    pub bytes: u64,
    /// Its media type.
    pub content_type: String,
}

/// A job, for everybody. Times are RFC 3339 in UTC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Sorts by when it was accepted.
    pub id: String,
    /// How far it is.
    pub state: State,
    /// The model's name.
    pub model: String,
    /// The device's name.
    pub device: String,
    /// Its tag.
    pub tag: Option<String>,
    /// The route that took it.
    pub route: String,
    /// The policy that decides for it.
    pub policy: String,
    /// The policy's revision, in force when the job was accepted.
    pub revision: u64,
    /// The module that the revision is made from.
    pub digest: String,
    /// Whether the policy decides on trial.
    pub canary: bool,
    /// What comes out.
    pub format: OutputFormat,
    /// Pictures or clips.
    pub batch: u32,
    /// Of each.
    pub frames: u32,
    /// Pixels.
    pub height: u32,
    /// Pixels.
    pub width: u32,
    /// When it was accepted.
    pub created: String,
    /// When work on it began, the last time.
    pub started: Option<String>,
    /// When it ended.
    pub finished: Option<String>,
    /// Jobs before it on its device, while it waits.
    pub position: Option<u32>,
    /// The share that is done, 0 to 1, while it runs: it begins anew with each attempt, and goes
    /// back within none.
    pub progress: Option<f64>,
    /// The attempt that `progress` is of, counted from 1 since `started`, while it runs; null
    /// before the first.
    pub attempt: Option<u32>,
    /// Why there is no result, in a line.
    pub error: Option<String>,
    /// What came out; empty again once it is no longer kept.
    pub results: Vec<JobResult>,
}

/// What is kept of a job beside what is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// What everybody sees.
    pub job: Job,
    /// What was asked for.
    pub request: JobRequest,
    /// Who decides.
    pub pinned: Pinned,
    /// By when it has to end, in milliseconds since 1970.
    pub deadline_ms: u64,
    /// How often work on it has begun.
    pub starts: u32,
    /// The server's crashes in the middle of it; kills and power failures don't count.
    #[serde(default)]
    pub crashes: u32,
}
