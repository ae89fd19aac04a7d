//! The trial of a GPU in a process of its own, before this one loads its libraries: a driver that
//! crashes or hangs then costs a line, and not the program.

use std::{
    path::{Path, PathBuf},
    process,
    sync::{Mutex, OnceLock, PoisonError},
};

use tilewright_files::{UserFolder, digest::fnv1a};
use tilewright_plan::Backend;
use tilewright_torch::{Error, Result, backend, device::Choice};
use tilewright_wording::Setting;

use crate::{kept, libraries};

/// The end of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// The GPU works: it is not tried again with the same driver and libraries.
    Works,
    /// It ended in order, with an error that this process is to meet itself.
    Refused,
    /// It crashed or hung, as this process would; the text says how.
    Broken(String),
}

/// The work of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trying {
    /// The device's first operations.
    Operations,
    /// The whole measurement as well, since a process did not survive it.
    Measurement,
}

/// A function that tries a GPU in a process of its own.
pub type TryGpu = fn(Choice, Trying) -> Trial;

/// Set once for the process.
static TRY_GPU: OnceLock<TryGpu> = OnceLock::new();

/// Sets the function that tries GPUs; without one, none is tried. The first one stays.
pub fn try_gpus_by(try_gpu: TryGpu) {
    let _ = TRY_GPU.set(try_gpu);
}

/// Loads the back end of devices that a process is about to use, before it computes on its CPU, if
/// a trial of one of them was survived. The others are refused when they are looked for.
///
/// # Errors
/// The back end can't be loaded.
pub fn load_gpus(choices: impl IntoIterator<Item = Choice>) -> Result<()> {
    let mut gpus = choices.into_iter().filter(|choice| *choice != Choice::Cpu);
    if gpus.any(|choice| survived(choice).is_ok()) {
        backend::load()?;
    }
    Ok(())
}

/// Tries a GPU, once per process; not if it worked before with the same driver, libraries and
/// settings.
///
/// # Errors
/// The process of the trial crashed or hung.
pub(crate) fn survived(choice: Choice) -> Result<()> {
    /// The trials of this process, and the reasons of those that were not survived.
    static TRIED: Mutex<Vec<(Choice, Option<String>)>> = Mutex::new(Vec::new());
    let (Some(try_gpu), Some((backend, _))) = (TRY_GPU.get(), backend::beside()) else { return Ok(()) };
    let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
    let reason = match tried.iter().find(|(of, _)| *of == choice) {
        Some((_, reason)) => reason.clone(),
        None => {
            let reason = tried_or_kept(place(choice), &circumstances(backend), |trying| try_gpu(choice, trying));
            tried.push((choice, reason.clone()));
            reason
        }
    };
    match reason {
        None => Ok(()),
        Some(reason) => Err(Error::Device {
            what: format!("trying {} in a process of its own", name(choice)),
            reason: format!("{reason}; update the driver and its libraries, or use {} cpu", Setting::Device),
        }),
    }
}

/// The circumstances that a trial is good for: program, libtorch, driver and their settings.
fn circumstances(backend: Backend) -> String {
    let driver = libraries::driver(backend).unwrap_or_else(|| "no driver".into());
    let [version, files, settings] = [env!("CARGO_PKG_VERSION").to_owned(), libraries::files(), libraries::settings()];
    format!("tilewright {version}, libtorch {files}, {driver}{settings}")
}

/// The mark that a GPU is being measured in this process. It stays behind if the process crashes or
/// is killed: the next one tries the measurement in a process of its own.
#[derive(Debug)]
pub(crate) struct Measuring {
    place: PathBuf,
    with: String,
}

/// The last line of a trial's file while the GPU is measured, before the process's number.
const MEASURING: &str = "\nit is being measured by ";

/// Marks that a GPU is measured until the result is dropped; none of a GPU that was not tried.
pub(crate) fn measuring(choice: Choice) -> Option<Measuring> {
    let (Choice::Auto | Choice::Gpu(_), Some(_), Some((backend, _))) = (choice, TRY_GPU.get(), backend::beside())
    else {
        return None;
    };
    Measuring::begin(place(choice)?, circumstances(backend))
}

impl Measuring {
    fn begin(place: PathBuf, with: String) -> Option<Self> {
        let has_worked = tilewright_files::read(&place, MOST_KEPT).is_ok_and(|kept| kept == with.as_bytes());
        has_worked
            .then(|| kept::write(&place, format!("{with}{MEASURING}{}", process::id()).as_bytes(), true))
            .flatten()?;
        Some(Self { place, with })
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        if kept::write(&self.place, self.with.as_bytes(), true).is_none() {
            tracing::debug!("the measurement of the GPU is tried again in a process of its own");
        }
    }
}

fn name(choice: Choice) -> String {
    match choice {
        Choice::Auto => "the GPU".into(),
        other => other.to_string(),
    }
}

/// The file that says what a GPU of this user's has worked with.
fn place(choice: Choice) -> Option<PathBuf> {
    let name = format!("trial-{:016x}.txt", fnv1a(choice.to_string().as_bytes()));
    Some(UserFolder::Cache.path()?.join(name))
}

/// The longest file that is read, in bytes.
const MOST_KEPT: u64 = 1 << 16;

/// The reason that a trial was not survived. One that was survived is kept with what it was done
/// `with`, and not done again; one that was not is done again in the next process, so that a
/// machine that was mended has its GPU.
fn tried_or_kept(place: Option<PathBuf>, with: &str, trial: impl FnOnce(Trying) -> Trial) -> Option<String> {
    let kept = place.as_ref().and_then(|place| tilewright_files::read(place, MOST_KEPT).ok()).unwrap_or_default();
    let kept = String::from_utf8_lossy(&kept);
    let rest = kept.strip_prefix(with);
    let measuring = rest.and_then(|rest| rest.strip_prefix(MEASURING));
    // One that measures now is not dead.
    let is_under_way = measuring.is_some_and(|number| Path::new("/proc").join(number).exists());
    if rest == Some("") || is_under_way {
        return None;
    }
    match trial(if measuring.is_some() { Trying::Measurement } else { Trying::Operations }) {
        Trial::Works => {
            if place.and_then(|place| kept::write(&place, with.as_bytes(), true)).is_none() {
                tracing::debug!("the trial of the GPU can't be kept");
            }
            None
        }
        Trial::Refused => None,
        Trial::Broken(reason) => Some(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_is_made_once_with_the_same_libraries() {
        let folder = tempfile::tempdir().unwrap();
        let mut count = 0;
        let mut run = |with: &str, end: Trial| {
            let place = Some(folder.path().join("new/trial.txt"));
            let reason = tried_or_kept(place, with, |trying| {
                assert_eq!(trying, Trying::Operations);
                count += 1;
                end
            });
            (reason, count)
        };
        let broken = || Trial::Broken("it crashed".into());
        assert_eq!(run("one", broken()), (Some("it crashed".into()), 1));
        assert_eq!(run("one", broken()), (Some("it crashed".into()), 2), "a failure is not kept");
        assert_eq!(run("one", Trial::Refused), (None, 3), "nor what another process may do better");
        assert_eq!(run("one", Trial::Works), (None, 4));
        assert_eq!(run("one", broken()), (None, 4), "it worked");
        assert_eq!(run("two", broken()), (Some("it crashed".into()), 5), "with another driver");
    }

    #[test]
    fn a_measurement_that_was_not_survived_is_tried() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("trial.txt");
        let run = |end: Trial| {
            let mut tried = None;
            let reason = tried_or_kept(Some(place.clone()), "one", |trying| {
                tried = Some(trying);
                end
            });
            (reason, tried)
        };
        let mark = || Measuring::begin(place.clone(), "one".into());
        assert!(mark().is_none(), "it was not tried");
        assert_eq!(run(Trial::Works), (None, Some(Trying::Operations)));
        drop(mark().unwrap());
        assert_eq!(run(Trial::Works), (None, None));
        // A crash drops nothing, and while the process lives it has not crashed.
        std::mem::forget(mark().unwrap());
        assert_eq!(run(Trial::Works), (None, None));
        std::fs::write(&place, format!("one{MEASURING}4294967295")).unwrap();
        let broken = Trial::Broken("it crashed".into());
        assert_eq!(run(broken), (Some("it crashed".into()), Some(Trying::Measurement)));
        assert_eq!(run(Trial::Works), (None, Some(Trying::Measurement)));
        assert_eq!(run(Trial::Works), (None, None));
    }

    #[test]
    fn without_a_function_no_gpu_is_tried() {
        assert!(survived(Choice::Gpu(0)).is_ok() && survived(Choice::Auto).is_ok());
    }
}
