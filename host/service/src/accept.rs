//! How a job is accepted: what it asks for is looked at whole before anything is kept, and from then on it outlives the server.

use std::{io, path::Path};

use cap_std::{
    ambient_authority,
    fs::{Dir, OpenOptions, OpenOptionsExt},
};
use rustix::fs::OFlags;
use tempfile::NamedTempFile;
use tilewright_config::{Case, Stage};
use tilewright_decode::Size;
use tilewright_media::{Kind, Output, Rate, Shape};
use tilewright_models::Latent;
use tilewright_rollout::Pinned;
use uuid::Uuid;

use crate::{
    clock,
    device::Device,
    error::one_line,
    house::House,
    jobs::{Job, JobRequest, Kept, OutputFormat, State, store::Accepted},
    models::Opened,
};

/// Characters of the longest path to a latent.
const LONGEST_PATH: usize = 4096;

/// Why a job is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// What it asks for is wrong: a line.
    Wrong(String),
    /// The queue is full: seconds after which a place is likely to be free.
    Full(u64),
    /// The latent is larger than is taken, in bytes.
    TooLarge(u64),
    /// The server is about to end.
    Ending,
    /// The disk does not take it; true if it has no room.
    Unwritten(bool),
    /// The server is not able to, whatever was asked for: a line for its log.
    Unable(String),
}

impl From<crate::Error> for Refusal {
    fn from(error: crate::Error) -> Self {
        match (error.unwritten(), error.is_input()) {
            (Some(is_full), _) => Refusal::Unwritten(is_full),
            (None, true) => Refusal::Wrong(one_line(&error)),
            (None, false) => Refusal::Unable(one_line(&error)),
        }
    }
}

fn wrong(reason: impl Into<String>) -> Refusal {
    Refusal::Wrong(reason.into())
}

fn unable(error: impl std::error::Error) -> Refusal {
    Refusal::Unable(one_line(&error))
}

fn unwritten(error: &io::Error) -> Refusal {
    Refusal::Unwritten(tilewright_rollout::is_full(error))
}

impl House {
    /// Whether no device has a place, so that nobody need send a latent; then the seconds after which one may be free.
    pub fn is_full(&self) -> Option<u64> {
        let mut least = None;
        for device in &self.devices {
            match device.queue.place() {
                Ok(_) => return None,
                Err(seconds) => least = Some(least.map_or(seconds, |known: u64| known.min(seconds))),
            }
        }
        least
    }

    /// Copies a latent from below one of the roots: it can't be changed or cut short from then on.
    ///
    /// # Errors
    /// The path leads elsewhere, or to no file of reasonable size.
    pub fn copied(&self, path: &str) -> Result<NamedTempFile, Refusal> {
        let config = self.config.load();
        let limits = &config.server.limits;
        let wanted = Path::new(path);
        if path.chars().count() > LONGEST_PATH {
            return Err(wrong(format!("latent_path: expected at most {LONGEST_PATH} characters")));
        }
        if !wanted.is_absolute() || path.contains('\0') {
            return Err(wrong("latent_path: expected an absolute path"));
        }
        if config.server.roots.is_empty() {
            return Err(wrong("latent_path: no [server] roots are configured: upload the latent instead"));
        }
        let outside = || wrong("latent_path: not a file below one of the configured roots");
        // As it is written, or as it really is called.
        let below = |root: &Path| {
            let real = root.canonicalize().ok();
            let below = wanted.strip_prefix(root).ok().or_else(|| wanted.strip_prefix(real?).ok());
            below.map(Path::to_owned)
        };
        let roots = config.server.roots.iter().filter_map(|root| Some((root, below(root)?)));
        // Opened below the root and nowhere else, whatever links and dots say and whoever changes them meanwhile.
        let opened = roots.into_iter().find_map(|(root, below)| {
            // Opening a pipe would wait for somebody to write.
            let options = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).clone();
            let folder = Dir::open_ambient_dir(root, ambient_authority()).ok()?;
            folder.open_with(&below, &options).ok()
        });
        let mut file = opened.ok_or_else(outside)?.into_std();
        let metadata = file.metadata().map_err(unable)?;
        if !metadata.is_file() {
            return Err(outside());
        }
        if metadata.len() > limits.upload_bytes {
            return Err(Refusal::TooLarge(limits.upload_bytes));
        }
        let mut copy = self.upload()?;
        let copied = io::copy(&mut io::Read::take(&mut file, limits.upload_bytes + 1), &mut copy);
        // `io::copy` does not tell a failed read from a failed write; both are rare.
        let copied = self.disk.noted(self.files.incoming().as_path(), copied).map_err(|error| unwritten(&error))?;
        if copied > limits.upload_bytes { Err(Refusal::TooLarge(limits.upload_bytes)) } else { Ok(copy) }
    }

    /// A file for a latent that comes in; gone where it is not adopted.
    ///
    /// # Errors
    /// The disk does not take it.
    pub fn upload(&self) -> Result<NamedTempFile, Refusal> {
        let folder = self.files.incoming();
        let made = self.disk.step().and_then(|()| NamedTempFile::new_in(&folder));
        self.disk.noted(&folder, made).map_err(|error| unwritten(&error))
    }

    /// Checks that the disk takes writes at present, so that nobody sends a latent in vain.
    ///
    /// # Errors
    /// [`Refusal::Unwritten`] if it does not.
    pub fn can_write(&self) -> Result<(), Refusal> {
        self.disk.trouble().map_or(Ok(()), |trouble| Err(Refusal::Unwritten(trouble.is_full)))
    }

    /// Accepts a job. The same key gives the job that it gave before.
    ///
    /// # Errors
    /// Why not; nothing is kept then.
    pub fn accept(&self, request: JobRequest, latent: NamedTempFile, key: Option<&str>) -> Result<Job, Refusal> {
        if self.is_draining() {
            return Err(Refusal::Ending);
        }
        let accepted = self.accepted(request, latent, key);
        if let Err(refusal) = &accepted {
            self.metrics.refused(match refusal {
                Refusal::Wrong(_) => "wrong",
                Refusal::Full(_) => "full",
                Refusal::TooLarge(_) => "too_large",
                Refusal::Ending | Refusal::Unwritten(_) | Refusal::Unable(_) => "unable",
            });
        }
        accepted
    }

    fn accepted(&self, request: JobRequest, latent: NamedTempFile, key: Option<&str>) -> Result<Job, Refusal> {
        let model = self.model(&request.model)?;
        let device = self.chosen(request.device.as_deref())?;
        if let Some(before) = key.map(|key| self.store.with_key(key)).transpose()?.flatten() {
            return self.same(before, &request);
        }
        let place = device.queue.place().map_err(Refusal::Full)?;
        check_words(&request)?;
        let (size, format) = looked_at(&model, &request, latent.path(), &self.files.incoming())?;
        let facts = model.model.facts();
        let case = Case {
            stage: Stage::Decode,
            family: &facts.family,
            model: &model.name,
            arch: &device.facts.arch,
            device: &device.name,
            tag: request.tag.as_deref(),
            quantized: facts.quantized,
            pixels: u64::from(size.height) * u64::from(size.width),
            frames: size.frames,
        };
        let assignment = self.rollout.admit(&case).map_err(|error| wrong(one_line(&error)))?;
        let id = Uuid::now_v7().to_string();
        let now = clock::now_ms();
        let most = self.config.load().server.limits.deadline.as_secs();
        let seconds = request.deadline_s.map_or(most, |seconds| seconds.min(most));
        let job = Job {
            id: id.clone(),
            state: State::Queued,
            model: model.name.clone(),
            device: device.name.clone(),
            tag: request.tag.clone(),
            route: assignment.route.clone(),
            policy: assignment.revision.policy.clone(),
            revision: assignment.revision.number,
            digest: assignment.revision.identity.digest.clone(),
            canary: assignment.canary,
            format,
            batch: size.samples,
            frames: size.frames,
            height: size.height,
            width: size.width,
            created: clock::text(now),
            started: None,
            finished: None,
            position: None,
            progress: None,
            error: None,
            results: Vec::new(),
        };
        let pinned = Pinned::from(&assignment);
        let tag = request.tag.clone().unwrap_or_default();
        let deadline_ms = now.saturating_add(seconds.saturating_mul(1000));
        let kept = Kept { job, request, pinned, deadline_ms, starts: 0, crashes: 0 };
        // Known before it is there for all: whoever finds it can follow and cancel it.
        self.assignments().insert(id.clone(), assignment);
        self.live.add(&id);
        let accepted = self.files.adopt(&id, latent).and_then(|()| self.store.accept(&kept, key));
        if !matches!(accepted, Ok(Accepted::New)) {
            self.assignments().remove(&id);
            self.live.forget(&id);
            self.files.forget(&id);
        }
        if let Accepted::Before(before) = accepted? {
            return self.same(*before, &kept.request);
        }
        self.deadlines().insert((deadline_ms, id.clone()));
        self.metrics.accepted();
        place.fill(&tag, &id);
        Ok(self.told(kept))
    }

    /// The job that a key was used for before, which has to have been the same request.
    ///
    /// # Errors
    /// It was another one.
    pub fn same(&self, before: Kept, request: &JobRequest) -> Result<Job, Refusal> {
        match before.request == *request {
            true => Ok(self.told(before)),
            false => Err(wrong("Idempotency-Key: was used for another request: take a new one")),
        }
    }

    fn model(&self, name: &str) -> Result<std::sync::Arc<Opened>, Refusal> {
        let models = self.models.load();
        let known = || models.keys().cloned().collect::<Vec<_>>().join(", ");
        let missing = || match models.is_empty() {
            true => "model: none is configured: add one to [models]".to_owned(),
            false => format!("model: no '{}' is configured: there are {}", shown(name), known()),
        };
        models.get(name).cloned().ok_or_else(|| wrong(missing()))
    }

    /// The device asked for, or the one with the least waiting.
    fn chosen(&self, name: Option<&str>) -> Result<&Device, Refusal> {
        let load = |device: &&std::sync::Arc<Device>| {
            let (waiting, running) = device.queue.load();
            waiting + usize::from(running)
        };
        let found = match name {
            Some(name) => self.device(name),
            None => self.devices.iter().min_by_key(load),
        };
        let known = || self.devices.iter().map(|device| device.name.clone()).collect::<Vec<_>>().join(", ");
        let missing =
            || wrong(format!("device: no '{}' is configured: there are {}", shown(name.unwrap_or_default()), known()));
        found.map(|device| &**device).ok_or_else(missing)
    }

    /// A job as it is now, with its place in the queue or its progress.
    pub fn told(&self, mut kept: Kept) -> Job {
        let job = &mut kept.job;
        match job.state {
            State::Queued => {
                let order = self.device(&job.device).map(|device| device.queue.order()).unwrap_or_default();
                job.position = order.iter().position(|id| *id == job.id).map(|place| place as u32);
            }
            State::Running => {
                let progress = self.live.get(&job.id).and_then(|seen| seen.now().progress);
                job.progress = progress.map(|progress| progress.share).or(Some(0.0));
            }
            _ => {}
        }
        kept.job
    }

    /// Ends a job because somebody asked; none where there is no such job, false where it has ended already.
    ///
    /// # Errors
    /// It can't be written.
    pub fn cancel(&self, id: &str) -> crate::Result<Option<(Job, bool)>> {
        let Some(mut kept) = self.store.get(id)? else { return Ok(None) };
        if kept.job.state.is_end() {
            return Ok(Some((kept.job, false)));
        }
        let waits = self.device(&kept.job.device).is_some_and(|device| device.queue.remove(id));
        if waits {
            let tag = kept.job.tag.clone().unwrap_or_default();
            if let Err(error) = self.end(&mut kept, State::Cancelled, None, None) {
                // It has not ended: it waits on.
                self.device(&kept.job.device).inspect(|device| device.queue.restore(&tag, id));
                return Err(error);
            }
        } else if let Some(seen) = self.live.get(id) {
            // Stored, so that the next start knows of it if this server ends before the job does.
            self.store.cancel(id)?;
            // Whoever works on it ends it.
            seen.cancel();
        }
        Ok(Some((self.told(kept), true)))
    }
}

/// Texts that end up in logs, metrics and tables.
fn check_words(request: &JobRequest) -> Result<(), Refusal> {
    let sound = |tag: &String| (1..=64).contains(&tag.len()) && tag.bytes().all(|byte| byte.is_ascii_graphic());
    if !request.tag.as_ref().is_none_or(sound) {
        return Err(wrong("tag: expected 1 to 64 printable ASCII characters without blanks"));
    }
    // The limits that the API's description gives.
    for (name, text, most) in [("tensor", &request.tensor, 256), ("fps", &request.fps, 32)] {
        if text.as_ref().is_some_and(|text| text.chars().count() > most) {
            return Err(wrong(format!("{name}: expected at most {most} characters")));
        }
    }
    for (name, number) in [("memory_limit_bytes", request.memory_limit_bytes), ("deadline_s", request.deadline_s)] {
        if number == Some(0) {
            return Err(wrong(format!("{name}: expected at least 1")));
        }
    }
    Ok(())
}

/// Reads the latent and says what comes of it.
fn looked_at(
    model: &Opened,
    request: &JobRequest,
    latent: &Path,
    folder: &Path,
) -> Result<(Size, OutputFormat), Refusal> {
    let named = |error: &dyn std::error::Error| {
        // The file's name is ours and says nothing to anybody.
        wrong(
            one_line(error)
                .replace(&format!("{}: ", latent.display()), "latent: ")
                .replace(&latent.display().to_string(), "latent"),
        )
    };
    let latent = Latent::read(latent, request.tensor.as_deref()).map_err(|error| named(&error))?;
    model.model.check(&latent).map_err(|error| named(&error))?;
    if request.scaled {
        model.model.can_unscale(&latent, &model.path).map_err(|error| named(&error))?;
    }
    let size = model.model.size(&latent);
    let is_clip = size.frames > 1;
    let format = request.format.unwrap_or(if is_clip { OutputFormat::Mp4 } else { OutputFormat::Png });
    rate(request.fps.as_deref(), &model.model.facts().family).map_err(Refusal::Wrong)?;
    let kind = if matches!(model.model, tilewright_decode::Model::Clip(_)) { Kind::Clip } else { Kind::Picture };
    // A name in a folder that can be written: what counts is the ending.
    let probe = folder.join(format!("result.{}", format.ending()));
    let checked = Output::new(&probe, kind).and_then(|output| output.check(&shape(&size)));
    checked.map_err(|error| match error {
        tilewright_media::Error::Folder { cause, .. } => unwritten(&cause),
        error => wrong(format!("format: {}", one_line(&error).replace(&format!("{}: ", probe.display()), ""))),
    })?;
    Ok((size, format))
}

/// A size as outputs are checked with.
pub fn shape(size: &Size) -> Shape {
    Shape {
        samples: size.samples as usize,
        frames: size.frames as usize,
        width: size.width,
        height: size.height,
        channels: size.channels,
    }
}

/// Frames per second: asked for, or the family's.
///
/// # Errors
/// One line.
pub fn rate(asked: Option<&str>, family: &str) -> Result<Rate, String> {
    let published = Rate::new(tilewright_decode::published_rate(family), 1);
    match asked {
        Some(text) => text.parse().map_err(|error: tilewright_media::Error| format!("fps: {}", one_line(&error))),
        None => published.ok_or_else(|| "fps: none is known for this model: give one".to_owned()),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}
