//! The last finished step of a sample, kept on the disk, from which the next run goes on after an
//! interruption or a kill: `step.safetensors` in a folder `OUT.partial` beside the output. It is
//! replaced atomically, so that there is always a whole one.

use std::{
    collections::HashMap,
    fs::File,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use safetensors::{SafeTensors, tensor::Dtype};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tch::Tensor;
use tilewright_engine::{Begun, SampleState, Sampling};
use tilewright_outputs::OwnFolder;
use tilewright_plan::DenoisePlan;

use super::SampleModel;
use crate::{
    Error, Result,
    latent_output::{raw, serialize},
};

const ENDING: &str = ".partial";
const STEP: &str = "step.safetensors";
/// The step's file before it is complete.
const NEW_STEP: &str = "step.new";
const LOCK: &str = "lock";
/// The key of the description in the file's texts.
const KEYWORD: &str = "tilewright";
/// The layout of the file.
const VERSION: u32 = 1;
/// The name of the latents, and the beginning of those of the history.
const LATENTS: &str = "latents";
const HISTORY: &str = "history.";
/// The most latents that a sampler leaves to its next step.
const MOST_HISTORY: usize = 16;

/// The description of a kept step.
#[derive(Debug, Serialize, Deserialize)]
struct Description {
    version: u32,
    /// Everything that determines the latents.
    fingerprint: String,
    /// The plan in force; another one would change the latents' bits in the middle.
    plan: DenoisePlan,
    steps: u32,
    numbers: Vec<f32>,
    draws: u64,
}

/// The place of a sample's last finished step. Used by one process at a time.
#[derive(Debug)]
pub struct KeptSample {
    folder: OwnFolder,
    fingerprint: String,
    /// Held while the place is open.
    lock: File,
    is_removed: bool,
}

impl KeptSample {
    /// The folder of an output: `OUT.partial`.
    pub fn folder_of(output: &Path) -> PathBuf {
        let mut name = output.file_name().unwrap_or_default().to_owned();
        name.push(ENDING);
        output.with_file_name(name)
    }

    /// Opens the place of an output, or makes it; also returns the step that was kept there.
    ///
    /// # Errors
    /// The kept step is another run's or damaged, another process uses the place, or it can't be
    /// written. A step that is not finite counts as none.
    pub fn open(output: &Path, fingerprint: &str) -> Result<(Self, Option<Begun>)> {
        let path = Self::folder_of(output);
        let (folder, lock) = OwnFolder::locked(&path, LOCK).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => {
                refused(&path, "another process is sampling into it: wait for it, or write elsewhere")
            }
            _ => Error::KeptPlan { path: path.clone(), source: error },
        })?;
        let most = u64::MAX - 1;
        let found = match folder.read(STEP, most) {
            Ok(bytes) => {
                let (state, plan) = parse(&path.join(STEP), &bytes, fingerprint)?;
                let is_finite = is_finite(&state)?;
                if !is_finite {
                    let path = path.display();
                    tracing::warn!("{path}: the kept step is NaN or infinite in part: the sample begins again");
                }
                is_finite.then_some(Begun { state, plan })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(source) => return Err(Error::KeptPlan { path: path.join(STEP), source }),
        };
        Ok((Self { folder, fingerprint: fingerprint.to_owned(), lock, is_removed: false }, found))
    }

    /// The finished steps that are kept at the place of an output, whoever began them; none if no
    /// step is, or it can't be read.
    pub fn kept_steps(output: &Path) -> Option<u32> {
        let bytes = std::fs::read(Self::folder_of(output).join(STEP)).ok()?;
        let (_, header) = SafeTensors::read_metadata(&bytes).ok()?;
        let text = header.metadata().as_ref()?.get(KEYWORD)?;
        Some(serde_json::from_str::<Description>(text).ok()?.steps)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Keeps a finished step in place of the one before. The one before stays if the new one is not
    /// finite: nothing could go on from it.
    ///
    /// # Errors
    /// It can't be written; the one before is still there then.
    pub fn keep(&self, state: &SampleState, plan: &DenoisePlan) -> Result<()> {
        if !is_finite(state)? {
            return Ok(());
        }
        let path = || self.folder.path().join(STEP);
        let description = Description {
            version: VERSION,
            fingerprint: self.fingerprint.clone(),
            plan: plan.clone(),
            steps: state.steps,
            numbers: state.numbers.clone(),
            draws: state.draws,
        };
        let text = serde_json::to_string(&description).map_err(|error| refused(&path(), error.to_string()))?;
        let mut tensors = vec![(LATENTS.to_owned(), raw(&state.latents)?)];
        for (place, latents) in state.history.iter().enumerate() {
            tensors.push((format!("{HISTORY}{place}"), raw(latents)?));
        }
        let bytes = serialize(&tensors, Some(HashMap::from([(KEYWORD.to_owned(), text)])));
        let bytes = bytes.map_err(|error| refused(&path(), error.to_string()))?;
        self.folder.replace(STEP, NEW_STEP, &bytes).map_err(|source| Error::KeptPlan { path: path(), source })
    }

    /// Removes the place, when the sample is complete. Other files in the folder stay.
    ///
    /// # Errors
    /// It can't be removed.
    pub fn remove(mut self) -> Result<()> {
        self.is_removed = true;
        for name in [STEP, NEW_STEP, LOCK] {
            let failed = |source| Error::NotRemoved { path: self.folder.path().join(name), source };
            self.folder.remove(name).map_err(failed)?;
        }
        match std::fs::remove_dir(self.folder.path()) {
            Err(error) if ![ErrorKind::DirectoryNotEmpty, ErrorKind::NotFound].contains(&error.kind()) => {
                Err(Error::NotRemoved { path: self.folder.path().to_owned(), source: error })
            }
            _ => Ok(()),
        }
    }
}

impl Drop for KeptSample {
    fn drop(&mut self) {
        // A sample that ended before its first step has kept nothing.
        let is_kept = [STEP, NEW_STEP].iter().any(|name| self.folder.path().join(name).symlink_metadata().is_ok());
        if !self.is_removed && !is_kept && self.folder.remove(LOCK).is_ok() {
            let _ = std::fs::remove_dir(self.folder.path());
        }
        // Closing alone is not enough: a child process that is just being started shares the file
        // until its program begins.
        let _ = self.lock.unlock();
    }
}

fn refused(path: &Path, reason: impl Into<String>) -> Error {
    Error::input(path, reason)
}

/// True if a sampler can go on from a state.
fn is_finite(state: &SampleState) -> Result<bool> {
    let latents = std::iter::once(&state.latents).chain(&state.history);
    let counts = latents.map(tilewright_torch::non_finite).collect::<Result<Vec<u64>, _>>()?;
    Ok(counts.iter().all(|count| *count == 0) && state.numbers.iter().all(|number| number.is_finite()))
}

fn parse(path: &Path, bytes: &[u8], fingerprint: &str) -> Result<(SampleState, DenoisePlan)> {
    let damaged = |reason: String| refused(path, format!("{reason}: delete its folder to start over"));
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| damaged(error.to_string()))?;
    let text = header.metadata().as_ref().and_then(|texts| texts.get(KEYWORD));
    let text = text.ok_or_else(|| damaged("no kept step".into()))?;
    let Description { version, fingerprint: found, plan, steps, numbers, draws } =
        serde_json::from_str(text).map_err(|error| damaged(format!("no sound kept step ({error})")))?;
    if version != VERSION || found != fingerprint {
        return Err(refused(
            path,
            "was begun with other weights, inputs or options: delete its folder to start over, or repeat the first run",
        ));
    }
    let file = SafeTensors::deserialize(bytes).map_err(|error| damaged(error.to_string()))?;
    let latents = read(&file, LATENTS).ok_or_else(|| damaged("no latents in it".into()))?;
    let history: Vec<Tensor> = (0..MOST_HISTORY).map_while(|place| read(&file, &format!("{HISTORY}{place}"))).collect();
    // A sampler that found less than it left would go on from something else.
    if history.len() > MOST_HISTORY || numbers.len() > MOST_HISTORY {
        return Err(damaged("more than a sampler leaves".into()));
    }
    if history.iter().any(|tensor| tensor.size() != latents.size()) {
        return Err(damaged("latents of different shapes".into()));
    }
    Ok((SampleState { latents, steps, history, numbers, draws }, plan))
}

fn read(file: &SafeTensors<'_>, name: &str) -> Option<Tensor> {
    let view = file.tensor(name).ok().filter(|view| view.dtype() == Dtype::F32)?;
    let values: Vec<f32> = view.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let shape: Vec<i64> = view.shape().iter().map(|extent| *extent as i64).collect();
    Tensor::f_from_slice(&values).and_then(|tensor| tensor.f_reshape(shape)).ok()
}

/// A digest by which a later run is recognised as the same: of the files of weights by their
/// identity, and of everything else by its values.
///
/// # Errors
/// Memory is out.
pub(super) fn fingerprint(model: &SampleModel, sampling: &Sampling, chosen: &[(&str, &str)]) -> Result<String> {
    let mut digest = Sha256::new();
    for file in model.denoiser.files() {
        digest.update(format!("{:?}", file.file().file().id()));
        for lora in file.file().loras() {
            digest.update(lora.id());
        }
    }
    let Sampling { positive, negative, sigmas, sampler, cfg, guidance, seeds, .. } = sampling;
    digest.update(format!(
        "{sigmas:?} {sampler} {cfg} {guidance:?} {seeds:?} {:?}",
        (
            sampling.model.sigma_at(1e-4),
            sampling.model.sigma_at(0.5),
            sampling.whole_timesteps,
            sampler,
            model.denoiser.boundary()
        )
    ));
    digest.update(format!("{chosen:?}"));
    let kept = sampling.kept.as_ref();
    digest.update(format!("{:?}", kept.map(|kept| kept.clean)));
    let mut tensors = vec![Some(&sampling.latents), sampling.noise.as_ref(), sampling.condition.as_ref()];
    tensors.extend([kept.map(|kept| &kept.latents), kept.map(|kept| &kept.mask)]);
    for (place, prompt) in positive.iter().chain(negative).enumerate() {
        let of = &prompt.tensors;
        digest.update(format!("{} {:?}", place < positive.len(), prompt.within));
        tensors.extend([Some(&of.text), of.pooled.as_ref(), of.image.as_ref()]);
    }
    for tensor in tensors {
        let Some(tensor) = tensor else {
            digest.update("none");
            continue;
        };
        let (shape, bytes) = raw(tensor)?;
        digest.update(format!("{shape:?}"));
        digest.update(&bytes);
    }
    Ok(format!("sha256:{:x}", digest.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finite_is_neither_kept_nor_gone_on_from() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("out.latent");
        let plan = DenoisePlan::plain();
        let state = |steps: u32, latents: f32, history: f32, number: f32| SampleState {
            latents: Tensor::from_slice(&[latents]),
            steps,
            history: vec![Tensor::from_slice(&[history])],
            numbers: vec![number],
            draws: 0,
        };
        let steps = || {
            let (_, found) = KeptSample::open(&output, "a").unwrap();
            found.map(|begun| begun.state.steps)
        };
        {
            let (kept, none) = KeptSample::open(&output, "a").unwrap();
            assert!(none.is_none());
            kept.keep(&state(1, 1.0, 2.0, 3.0), &plan).unwrap();
            for [latents, history, number] in [[f32::NAN, 2.0, 3.0], [1.0, f32::INFINITY, 3.0], [1.0, 2.0, f32::NAN]] {
                kept.keep(&state(2, latents, history, number), &plan).unwrap();
            }
        }
        assert_eq!(steps(), Some(1), "the last whole one stays");
        // As another version may have left it.
        let path = KeptSample::folder_of(&output).join(STEP);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.len() - 4;
        bytes[at..].copy_from_slice(&f32::NAN.to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(steps(), None);
    }
}
