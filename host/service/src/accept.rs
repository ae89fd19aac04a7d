//! The acceptance of a job. Its request is checked whole before anything is stored; from then on
//! the job outlives the server.

mod decode;
mod describe;
mod encode;
mod generate;
mod sample;
mod settings;

use std::{io, path::Path, time::Duration};

use cap_std::{
    ambient_authority,
    fs::{Dir, OpenOptions, OpenOptionsExt},
};
use rustix::fs::OFlags;
use tempfile::NamedTempFile;
use tilewright_config::{Case, Stage};
use tilewright_media::Rate;
use tilewright_models::Latent;
use tilewright_plan::bytes;
use tilewright_rollout::StoredAssignment;
use tilewright_service_api::{Job, JobRequest, JobSettings, JobStage, JobState, OutputFormat};

pub use self::{
    describe::describe,
    encode::{IMAGE, of_image},
    generate::{fields_of, from_latent, prompts_of},
    sample::sample_request,
    settings::body_of,
};
use crate::{
    clock,
    device::DeviceState,
    error::one_line,
    jobs::{
        StoredJob, deadline,
        idempotency::KeyedSubmission,
        inputs::{Input, Uploads},
        store::Insertion,
    },
    models::OpenModel,
    state::ServerState,
};

/// Characters of the longest path to a latent.
const LONGEST_PATH: usize = 4096;

/// The most LoRAs of a request.
const MOST_LORAS: usize = 16;

/// The result of an inspection.
struct Inspection<'a> {
    work: Work,
    /// The settings of a job that samples.
    settings: Option<JobSettings>,
    /// The latent of a decode.
    latent: Option<Latent>,
    /// The format of the output.
    format: OutputFormat,
    /// The most that the leanest plan holds at once, with the weights if the job's limit counts
    /// them.
    least_bytes: u64,
    counts_weights: bool,
    /// The shortest time that its work is expected to take; none if nothing is known of it.
    expected: Option<Duration>,
    /// Reads the values of its other inputs and keeps none: a small file may be a large picture, so
    /// this comes after the job is known to fit.
    check_values: Box<dyn FnOnce() -> Result<(), Refusal> + 'a>,
}

/// The work of a job, in pixels.
struct Work {
    stage: Stage,
    job: JobStage,
    family: String,
    quantized: bool,
    samples: u32,
    frames: u32,
    height: u32,
    width: u32,
    /// The steps of a sample.
    steps: Option<u32>,
    /// The other stages of a job from a prompt.
    around: Option<Around>,
}

/// The stages around the sample of a job from a prompt.
struct Around {
    /// True if a text encoder is quantized.
    quantized_text: bool,
    /// The vae's family, and true if it is quantized.
    family: String,
    quantized_vae: bool,
    /// True if the vae encodes a picture to begin with.
    encodes: bool,
}

/// The reason that a job is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request is wrong: a line for the caller.
    Invalid(String),
    /// The queue is full: seconds after which a slot is likely to be free.
    QueueFull(u64),
    /// The latent is larger than is taken, in bytes.
    TooLarge(u64),
    /// The server is about to end.
    ShuttingDown,
    /// The disk does not take it; true if it has no room.
    NotWritten(bool),
    /// The server fails, whatever was asked for: a line for its log.
    Internal(String),
}

impl From<crate::Error> for Refusal {
    fn from(error: crate::Error) -> Self {
        match (error.write_fault(), error.is_input()) {
            (Some(is_full), _) => Refusal::NotWritten(is_full),
            (None, true) => Refusal::Invalid(one_line(&error)),
            (None, false) => Refusal::Internal(one_line(&error)),
        }
    }
}

/// Bytes held for each byte of a file: the file itself, and its values as f32, at most four times
/// as many bytes.
const HELD: u64 = 5;

/// The most bytes that the inspection of a request holds at once.
///
/// # Errors
/// A file can't be read.
pub fn inspected_bytes(uploads: &Uploads) -> io::Result<u64> {
    let sizes = uploads.values().map(|upload| upload.as_file().metadata().map(|facts| facts.len()));
    let files = sizes.sum::<io::Result<u64>>()?.saturating_mul(HELD);
    // A picture takes far more than its file. One is read after the other, and none is kept.
    let pictures = [Input::Image, Input::Mask].into_iter().filter_map(|input| uploads.get(&input));
    let picture = pictures.filter_map(|upload| tilewright_media::picture_bytes(upload.path()).ok()).max();
    Ok(files.saturating_add(picture.unwrap_or_default()))
}

fn invalid(reason: impl Into<String>) -> Refusal {
    Refusal::Invalid(reason.into())
}

fn internal(error: impl std::error::Error) -> Refusal {
    Refusal::Internal(one_line(&error))
}

fn not_written(error: &io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::FileTooLarge => invalid("latent: no file may be that large on the server: send less at once"),
        _ => Refusal::NotWritten(tilewright_rollout::is_full(error)),
    }
}

impl ServerState {
    /// Copies a file from below one of the roots: it can't be changed or cut short from then on.
    /// `field` is what the request calls its path.
    ///
    /// # Errors
    /// The path leads elsewhere, or to no file of reasonable size.
    pub fn copy_input(&self, field: &str, path: &str) -> Result<NamedTempFile, Refusal> {
        let config = self.config.in_force();
        let limits = &config.server.limits;
        let wanted = Path::new(path);
        if path.chars().count() > LONGEST_PATH {
            return Err(invalid(format!("{field}: expected at most {LONGEST_PATH} characters")));
        }
        if !wanted.is_absolute() || path.contains('\0') {
            return Err(invalid(format!("{field}: expected an absolute path")));
        }
        if config.server.roots.is_empty() {
            return Err(invalid(format!("{field}: no [server] roots are configured: upload the file instead")));
        }
        let outside = || invalid(format!("{field}: not a file below one of the configured roots"));
        // The root's path as configured, or its real path.
        let below = |root: &Path| {
            let real = root.canonicalize().ok();
            let below = wanted.strip_prefix(root).ok().or_else(|| wanted.strip_prefix(real?).ok());
            below.map(Path::to_owned)
        };
        let roots = config.server.roots.iter().filter_map(|root| Some((root, below(root)?)));
        // Opened below the root and nowhere else, whatever links and dots say and even if the path
        // changes meanwhile.
        let opened = roots.into_iter().find_map(|(root, below)| {
            // Without this, opening a pipe would wait for a writer.
            let options = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).clone();
            let folder = Dir::open_ambient_dir(root, ambient_authority()).ok()?;
            folder.open_with(&below, &options).ok()
        });
        let mut file = opened.ok_or_else(outside)?.into_std();
        let metadata = file.metadata().map_err(internal)?;
        if !metadata.is_file() {
            return Err(outside());
        }
        if metadata.len() > limits.upload_bytes {
            return Err(Refusal::TooLarge(limits.upload_bytes));
        }
        let mut copy = self.create_upload()?;
        let copied = io::copy(&mut io::Read::take(&mut file, limits.upload_bytes + 1), &mut copy);
        // `io::copy` does not tell a failed read from a failed write; both are rare.
        let copied =
            self.disk.track(self.jobs.files.incoming().as_path(), copied).map_err(|error| not_written(&error))?;
        if copied > limits.upload_bytes { Err(Refusal::TooLarge(limits.upload_bytes)) } else { Ok(copy) }
    }

    /// Copies of the picture that a job began with, and of its mask.
    ///
    /// # Errors
    /// The disk does not take them, or they are gone.
    pub fn copy_beginning(&self, id: &str) -> Result<Uploads, Refusal> {
        let kept = [Input::Image, Input::Mask].map(|input| (input, self.jobs.files.input(id, input)));
        let copies = kept.into_iter().filter(|(_, path)| path.is_file()).map(|(input, path)| {
            let mut copy = self.create_upload()?;
            let copied = std::fs::File::open(&path).and_then(|mut file| io::copy(&mut file, &mut copy));
            self.disk.track(&path, copied).map_err(|error| not_written(&error))?;
            Ok((input, copy))
        });
        copies.collect()
    }

    /// A file for an upload; removed when it is dropped without being adopted.
    ///
    /// # Errors
    /// The disk does not take it.
    pub fn create_upload(&self) -> Result<NamedTempFile, Refusal> {
        let folder = self.jobs.files.incoming();
        let made = self.disk.step().and_then(|()| NamedTempFile::new_in(&folder));
        self.disk.track(&folder, made).map_err(|error| not_written(&error))
    }

    /// Checks that the disk takes writes at present, so that no caller sends a latent in vain.
    ///
    /// # Errors
    /// [`Refusal::NotWritten`] if it does not.
    pub fn check_writable(&self) -> Result<(), Refusal> {
        self.disk.trouble().map_or(Ok(()), |trouble| Err(Refusal::NotWritten(trouble.is_full)))
    }

    /// Accepts a job. A key that was used before returns the job that it made.
    ///
    /// # Errors
    /// The refusal; nothing is kept then.
    pub fn accept(
        &self,
        request: JobRequest,
        uploads: Uploads,
        keyed: Option<&KeyedSubmission>,
    ) -> Result<Job, Refusal> {
        if self.is_draining() {
            return Err(Refusal::ShuttingDown);
        }
        let accepted = self.try_accept(request, uploads, keyed);
        if let Err(refusal) = &accepted {
            self.metrics.count_refused(match refusal {
                Refusal::Invalid(_) => "wrong",
                Refusal::QueueFull(_) => "full",
                Refusal::TooLarge(_) => "too_large",
                Refusal::ShuttingDown | Refusal::NotWritten(_) | Refusal::Internal(_) => "unable",
            });
        }
        accepted
    }

    fn try_accept(
        &self,
        request: JobRequest,
        uploads: Uploads,
        keyed: Option<&KeyedSubmission>,
    ) -> Result<Job, Refusal> {
        let model = self.model(&request.model)?;
        let device = self.choose_device(request.device.as_deref())?;
        if let Some(keyed) = keyed
            && let Some(before) = self.jobs.store.find_by_key(&keyed.key)?
        {
            return self.confirm_same(before, &request, keyed);
        }
        let slot = device.queue.reserve().map_err(Refusal::QueueFull)?;
        let longest_s = self.config.in_force().server.limits.deadline.as_secs();
        check_fields(&request, longest_s)?;
        check_loras(&request)?;
        let model = model.with_loras(&request.loras).map_err(Refusal::Invalid)?;
        let Inspection { work, settings, latent, format, least_bytes, counts_weights, expected, check_values } =
            match (&request.prompt, &request.sample, &request.encode) {
                (Some(prompt), _, None) => generate::inspect(&model, device, &request, prompt, &uploads)?,
                (None, Some(fields), None) => sample::inspect(&model, device, &request, fields, &uploads)?,
                (None, None, Some(fields)) => encode::inspect(&model, device, &request, fields, &uploads)?,
                (None, None, None) => decode::inspect(&model, device, &request, &uploads)?,
                (_, _, Some(_)) => return Err(invalid("encode: give one of encode, sample and prompt")),
            };
        let seconds = request.deadline_s.unwrap_or(longest_s);
        let refusal = deadline::refusal(expected, Duration::from_secs(seconds), request.deadline_s.is_some());
        refusal.map_or(Ok(()), |line| Err(invalid(line)))?;
        // The job's own limit comes last: another one would not help against the device's.
        let check =
            |whose: &str, limit: Option<u64>| check_memory(whose, limit, (work.job, least_bytes, counts_weights));
        check(&format!("device {}: its memory-limit", device.name), Some(device.memory_limit))?;
        check("memory_limit_bytes", request.memory_limit_bytes)?;
        let case = Case {
            stage: work.stage,
            family: &work.family,
            model: &model.name,
            arch: &device.facts.arch,
            device: &device.name,
            tag: request.tag.as_deref(),
            quantized: work.quantized,
            pixels: u64::from(work.height) * u64::from(work.width),
            frames: work.frames,
        };
        let assignment = self.rollout.admit(&case).map_err(|error| invalid(one_line(&error)))?;
        check(&format!("route {}: its memory-limit", assignment.route), assignment.memory_limit)?;
        check_values()?;
        // Text encoders are of no family: the transformer's stands for theirs.
        let admit = |case: Case<'_>| self.rollout.admit(&case).map_err(|error| invalid(one_line(&error)));
        let around = work.around.as_ref().map(|Around { quantized_text, family, quantized_vae, encodes }| {
            let text = admit(Case { stage: Stage::Text, quantized: *quantized_text, ..case })?;
            let of_vae = |stage| admit(Case { stage, family, quantized: *quantized_vae, ..case });
            let encode = encodes.then(|| of_vae(Stage::Encode)).transpose()?;
            Ok::<_, Refusal>([Some(text), encode, Some(of_vae(Stage::Decode)?)])
        });
        let around = around.transpose()?.unwrap_or_default();
        let id = clock::job_id();
        let job = Job {
            id: id.clone(),
            state: JobState::Queued,
            stage: work.job,
            at: None,
            model: model.name.clone(),
            device: device.name.clone(),
            tag: request.tag.clone(),
            route: assignment.route.clone(),
            policy: assignment.revision.policy.clone(),
            revision: assignment.revision.number,
            digest: assignment.revision.identity.digest.clone(),
            canary: assignment.canary,
            format,
            batch: work.samples,
            frames: work.frames,
            height: work.height,
            width: work.width,
            steps: work.steps,
            request: settings.map(Box::new),
            created: clock::format_ms(clock::now_ms()),
            started: None,
            finished: None,
            position: None,
            progress: None,
            loading: None,
            sampling: None,
            attempt: None,
            error: None,
            results: Vec::new(),
            profile: None,
        };
        let pinned = StoredAssignment::from(&assignment);
        let tag = request.tag.clone().unwrap_or_default();
        let deadline_ms = clock::steady_ms().saturating_add(seconds.saturating_mul(1000));
        let [pinned_text, pinned_encode, pinned_decode] = around.map(|of| of.as_ref().map(StoredAssignment::from));
        let (starts, crashes) = (0, 0);
        let expected_ms = expected.map(|expected| u64::try_from(expected.as_millis()).unwrap_or(u64::MAX));
        let stored = StoredJob {
            job,
            request,
            uploads: keyed.map(|keyed| keyed.uploads.clone()),
            pinned,
            pinned_text,
            pinned_encode,
            pinned_decode,
            deadline_ms,
            expected_ms,
            starts,
            crashes,
        };
        // Announced before it is stored, so that a caller who finds it can follow and cancel it.
        self.jobs.announce(&id, assignment);
        let accepted = self
            .jobs
            .files
            .adopt(&id, uploads)
            .and_then(|()| self.jobs.store.insert(&stored, keyed.map(|keyed| &keyed.key)));
        if !matches!(accepted, Ok(Insertion::New)) {
            self.jobs.retract(&id);
        }
        if let (Insertion::Existing(before), Some(keyed)) = (accepted?, keyed) {
            return self.confirm_same(*before, &stored.request, keyed);
        }
        if let Some(mut latent) = latent {
            latent.path = self.jobs.files.input(&id, Input::Latent);
            self.jobs.latents.hold(&id, latent);
        }
        self.jobs.schedule_deadline(&stored);
        self.metrics.count_accepted();
        slot.fill(&tag, &id);
        Ok(self.jobs.view(stored))
    }

    /// The job that a key made before, which has to have come from the same request with the same
    /// files.
    ///
    /// # Errors
    /// It was another one.
    fn confirm_same(&self, before: StoredJob, request: &JobRequest, keyed: &KeyedSubmission) -> Result<Job, Refusal> {
        if before.request != *request {
            return Err(invalid("Idempotency-Key: was used for another request: take a new one"));
        }
        // Jobs of earlier versions have no digest.
        if before.uploads.as_ref().is_some_and(|uploads| *uploads != keyed.uploads) {
            return Err(invalid("Idempotency-Key: was used for the same request with other files: take a new one"));
        }
        Ok(self.jobs.view(before))
    }

    fn model(&self, name: &str) -> Result<std::sync::Arc<OpenModel>, Refusal> {
        let models = self.models.by_name();
        let known = || models.keys().cloned().collect::<Vec<_>>().join(", ");
        let missing = || match models.is_empty() {
            true => "model: none is configured: add one to [models]".to_owned(),
            false => format!("model: no '{}' is configured: there are {}", shorten(name), known()),
        };
        self.models.of_request(name).ok_or_else(|| invalid(missing()))
    }

    /// The device asked for, or the one with the fewest jobs.
    fn choose_device(&self, name: Option<&str>) -> Result<&DeviceState, Refusal> {
        let found = match name {
            Some(name) => self.devices.get(name),
            None => self.devices.least_loaded(),
        };
        let missing = || {
            let (name, known) = (shorten(name.unwrap_or_default()), self.devices.names().join(", "));
            invalid(format!("device: no '{name}' is configured: there are {known}"))
        };
        found.map(|device| &**device).ok_or_else(missing)
    }
}

/// Checks the fields of a request, since their texts end up in logs, metrics and tables.
fn check_fields(request: &JobRequest, longest_s: u64) -> Result<(), Refusal> {
    let sound = |tag: &String| (1..=64).contains(&tag.len()) && tag.bytes().all(|byte| byte.is_ascii_graphic());
    if !request.tag.as_ref().is_none_or(sound) {
        return Err(invalid("tag: expected 1 to 64 printable ASCII characters without blanks"));
    }
    // The limits that the API's description gives.
    for (name, text, most) in [("tensor", &request.tensor, 256), ("fps", &request.fps, 32)] {
        if text.as_ref().is_some_and(|text| text.chars().count() > most) {
            return Err(invalid(format!("{name}: expected at most {most} characters")));
        }
    }
    for (name, number) in [("memory_limit_bytes", request.memory_limit_bytes), ("deadline_s", request.deadline_s)] {
        if number == Some(0) {
            return Err(invalid(format!("{name}: expected at least 1")));
        }
    }
    if request.deadline_s.is_some_and(|seconds| seconds > longest_s) {
        return Err(invalid(format!(
            "deadline_s: expected at most {longest_s}, the server's limit, or nothing for that"
        )));
    }
    Ok(())
}

/// Checks the LoRAs of a request before their files are looked for.
fn check_loras(request: &JobRequest) -> Result<(), Refusal> {
    if !request.loras.is_empty() && request.prompt.is_none() && request.sample.is_none() {
        return Err(invalid("loras: expected a prompt or a sample with them"));
    }
    if request.loras.len() > MOST_LORAS {
        return Err(invalid(format!("loras: expected at most {MOST_LORAS}")));
    }
    if request.loras.iter().any(|lora| lora.name.is_empty() || lora.name.len() > LONGEST_PATH) {
        return Err(invalid(format!("loras: expected names of 1 to {LONGEST_PATH} bytes")));
    }
    Ok(())
}

/// Refuses a job whose leanest plan exceeds a limit, instead of letting it fail when its turn
/// comes. The least says if it counts the weights.
fn check_memory(
    whose: &str,
    limit: Option<u64>,
    (stage, least_bytes, counts_weights): (JobStage, u64, bool),
) -> Result<(), Refusal> {
    let Some(limit) = limit.filter(|limit| *limit < least_bytes) else { return Ok(()) };
    let (limit, least) = (bytes::display(limit), bytes::display(least_bytes));
    let weights = if counts_weights { "weights included" } else { "weights aside" };
    let what = match stage {
        JobStage::Decode => "latent",
        JobStage::Encode => "picture or clip",
        JobStage::Denoise => "sample",
        JobStage::Generate => "picture or clip of a prompt",
    };
    Err(invalid(format!(
        "{whose}: {limit} is too little for this {what}: the least is {least_bytes} bytes (about {least}), {weights}"
    )))
}

/// Frames per second: those asked for, or the family's own.
///
/// # Errors
/// One line.
pub fn rate(asked: Option<&str>, family: &str) -> Result<Rate, String> {
    let published = Rate::new(tilewright_pipeline::published_rate(family), 1);
    match asked {
        Some(text) => text.parse().map_err(|error: tilewright_media::Error| format!("fps: {}", one_line(&error))),
        None => published.ok_or_else(|| "fps: none is known for this model: give one".to_owned()),
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(checked: Result<(), Refusal>) -> Option<String> {
        match checked {
            Ok(()) => None,
            Err(Refusal::Invalid(line)) => Some(line),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn numbers_that_can_not_be_kept_to_are_refused_with_what_can() {
        let of = |fields: &str| {
            let request: JobRequest = serde_json::from_str(&format!("{{\"model\":\"a\"{fields}}}")).unwrap();
            line(check_fields(&request, 3600))
        };
        assert_eq!((of(""), of(r#","deadline_s":3600"#), of(r#","memory_limit_bytes":1"#)), (None, None, None));
        let most = "deadline_s: expected at most 3600, the server's limit, or nothing for that";
        assert_eq!(of(r#","deadline_s":3601"#).unwrap(), most);
        assert_eq!(of(r#","memory_limit_bytes":0"#).unwrap(), "memory_limit_bytes: expected at least 1");
        let little = line(check_memory("memory_limit_bytes", Some(1), (JobStage::Decode, 3 << 20, false))).unwrap();
        let least = "memory_limit_bytes: 1 B is too little for this latent: the least is 3145728 bytes (about 3.00 MiB), weights aside";
        assert_eq!(little, least);
        let little = line(check_memory("a", Some(1), (JobStage::Decode, 3 << 20, true))).unwrap();
        assert!(little.ends_with("(about 3.00 MiB), weights included"), "{little}");
        assert_eq!(line(check_memory("a", Some(3 << 20), (JobStage::Decode, 3 << 20, false))), None);
        assert_eq!(line(check_memory("a", None, (JobStage::Decode, 3 << 20, false))), None);
    }
}
