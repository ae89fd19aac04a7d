//! How a job is accepted: what it asks for is looked at whole before anything is kept, and from then on it outlives the server.

mod look;

use std::{io, path::Path};

use cap_std::{
    ambient_authority,
    fs::{Dir, OpenOptions, OpenOptionsExt},
};
use rustix::fs::OFlags;
use tempfile::NamedTempFile;
use tilewright_config::{Case, Stage};
use tilewright_decode::Size;
use tilewright_media::{Rate, Shape};
use tilewright_plan::bytes;
use tilewright_rollout::Pinned;
use uuid::Uuid;

use self::look::{Look, looked_at};
use crate::{
    clock,
    device::Device,
    error::one_line,
    house::House,
    jobs::{Job, JobRequest, Kept, State, store::Accepted},
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
    match error.kind() {
        io::ErrorKind::FileTooLarge => wrong("latent: no file may be that large on the server: send less at once"),
        _ => Refusal::Unwritten(tilewright_rollout::is_full(error)),
    }
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
        let copied = self.disk.track(self.files.incoming().as_path(), copied).map_err(|error| unwritten(&error))?;
        if copied > limits.upload_bytes { Err(Refusal::TooLarge(limits.upload_bytes)) } else { Ok(copy) }
    }

    /// A file for a latent that comes in; gone where it is not adopted.
    ///
    /// # Errors
    /// The disk does not take it.
    pub fn upload(&self) -> Result<NamedTempFile, Refusal> {
        let folder = self.files.incoming();
        let made = self.disk.step().and_then(|()| NamedTempFile::new_in(&folder));
        self.disk.track(&folder, made).map_err(|error| unwritten(&error))
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
        let longest_s = self.config.load().server.limits.deadline.as_secs();
        check_words(&request, longest_s)?;
        let Look { size, format, least_bytes } =
            looked_at(&model, &device.machine, &request, latent.path(), &self.files.incoming())?;
        // The job's own limit comes last: another one would not help against the device's.
        check_memory(&format!("device {}: its memory-limit", device.name), Some(device.memory_limit), least_bytes)?;
        check_memory("memory_limit_bytes", request.memory_limit_bytes, least_bytes)?;
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
        let of_route = format!("route {}: its memory-limit", assignment.route);
        check_memory(&of_route, assignment.memory_limit, least_bytes)?;
        let id = Uuid::now_v7().to_string();
        let now = clock::now_ms();
        let seconds = request.deadline_s.unwrap_or(longest_s);
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
            attempt: None,
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
                let now = self.live.get(&job.id).map(|seen| seen.now()).unwrap_or_default();
                job.progress = Some(now.progress.map_or(0.0, |progress| progress.share));
                job.attempt = (now.attempt > 0).then_some(now.attempt);
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

/// Checks what a request says by itself: its texts end up in logs, metrics and tables.
fn check_words(request: &JobRequest, longest_s: u64) -> Result<(), Refusal> {
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
    if request.deadline_s.is_some_and(|seconds| seconds > longest_s) {
        return Err(wrong(format!(
            "deadline_s: expected at most {longest_s}, the server's limit, or nothing for that"
        )));
    }
    Ok(())
}

/// Refuses a job that could hold nothing but more than it may, instead of letting it fail when its
/// turn comes.
fn check_memory(whose: &str, limit: Option<u64>, least_bytes: u64) -> Result<(), Refusal> {
    let Some(limit) = limit.filter(|limit| *limit < least_bytes) else { return Ok(()) };
    let (limit, least) = (bytes::display(limit), bytes::display(least_bytes));
    Err(wrong(format!(
        "{whose}: {limit} is too little for this latent: the least is {least_bytes} bytes (about {least}), weights aside"
    )))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn line(checked: Result<(), Refusal>) -> Option<String> {
        match checked {
            Ok(()) => None,
            Err(Refusal::Wrong(line)) => Some(line),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn numbers_that_can_not_be_kept_to_are_refused_with_what_can() {
        let of = |fields: &str| {
            let request: JobRequest = serde_json::from_str(&format!("{{\"model\":\"a\"{fields}}}")).unwrap();
            line(check_words(&request, 3600))
        };
        assert_eq!((of(""), of(r#","deadline_s":3600"#), of(r#","memory_limit_bytes":1"#)), (None, None, None));
        let most = "deadline_s: expected at most 3600, the server's limit, or nothing for that";
        assert_eq!(of(r#","deadline_s":3601"#).unwrap(), most);
        assert_eq!(of(r#","memory_limit_bytes":0"#).unwrap(), "memory_limit_bytes: expected at least 1");
        let little = line(check_memory("memory_limit_bytes", Some(1), 3 << 20)).unwrap();
        let least = "memory_limit_bytes: 1 B is too little for this latent: the least is 3145728 bytes (about 3.00 MiB), weights aside";
        assert_eq!(little, least);
        assert_eq!(line(check_memory("a", Some(3 << 20), 3 << 20)), None);
        assert_eq!(line(check_memory("a", None, 3 << 20)), None);
    }
}
