//! `--capture FOLDER`: the capture that the stages of a command are added to.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use clap::Args;
use tilewright_capture::{Capture, LayerPattern, Manifest, Settings};
use tilewright_engine::Capturing;
use tilewright_plan::{bytes, words::with_noun};

use crate::{
    failure::{Failure, Outcome},
    tell::tell,
};

/// The most bytes of a capture, if nobody sets a limit.
const LIMIT: u64 = 4 << 30;

/// The capture of the command, and its folder.
static CAPTURE: OnceLock<Mutex<Option<Begun>>> = OnceLock::new();

/// A capture under way, and its folder.
type Begun = (Arc<Capturing>, PathBuf);

/// The capture of a command.
#[derive(Args, Debug)]
pub struct CaptureOptions {
    /// Capture the inputs, the outputs and the record of each stage in this folder, which nobody
    /// else can read: 'tilewright replay FOLDER' runs the stages again and compares
    #[arg(id = "capture", long = "capture", value_name = "FOLDER", env = "TILEWRIGHT_CAPTURE", hide_env_values = true)]
    folder: Option<PathBuf>,
    /// Capture what goes into these layers and comes out of them, too, by the names of their
    /// weights: 'double_blocks.*.img_attn.qkv', 'decoder.**'; several are separated by commas
    #[arg(id = "capture_layers", long = "capture-layers", value_name = "PATTERN", requires = "capture")]
    layers: Option<LayerPattern>,
    /// The most that the capture may take on the disk; layers beyond it are left out [default: 4
    /// GiB]
    #[arg(id = "capture_limit", long = "capture-limit", value_name = "SIZE", value_parser = bytes::parse, requires = "capture")]
    limit: Option<u64>,
    /// Put prompts and their tokens into the capture, too; without them, text stages can't be
    /// replayed
    #[arg(id = "capture_prompts", long = "capture-prompts", requires = "capture")]
    prompts: bool,
}

impl CaptureOptions {
    /// Begins the capture, if one is wanted.
    ///
    /// # Errors
    /// The option was given where nothing is to be captured, or the folder can't be made.
    pub fn begin(&self, dry_run: bool, profiled: bool) -> Outcome {
        let Some(folder) = self.folder.as_ref().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
        for (other, is_given) in [("--dry-run", dry_run), ("--profile", profiled)] {
            if is_given {
                // A setting for all commands gives way to an option of this one.
                if !is_on_command_line() {
                    return Ok(());
                }
                let reason = if dry_run { "nothing runs" } else { "a capture would be in the profile" };
                return Err(Failure::input(format!("--capture and {other}: {reason}: leave one out")));
            }
        }
        // One setting serves several commands: each has a folder of its own.
        let folder = if is_on_command_line() { folder.clone() } else { free(folder) };
        let settings = Settings {
            folder: folder.clone(),
            layers: self.layers.clone(),
            limit: self.limit.unwrap_or(LIMIT),
            prompts: self.prompts,
        };
        let capturing = Arc::new(Capturing::new(Capture::begin(settings)?));
        let _ = CAPTURE.set(Mutex::new(Some((capturing, folder))));
        Ok(())
    }
}

/// The folder, or the first of `FOLDER-2`, `FOLDER-3` and so on that is not there.
fn free(folder: &Path) -> PathBuf {
    let numbered = |number: u32| {
        let mut name = folder.as_os_str().to_owned();
        name.push(format!("-{number}"));
        PathBuf::from(name)
    };
    let mut others = (2..=9999).map(numbered);
    let is_free = |path: &Path| path.symlink_metadata().is_err();
    if is_free(folder) {
        folder.to_owned()
    } else {
        others.find(|path| is_free(path)).unwrap_or_else(|| folder.to_owned())
    }
}

/// True if the option is among the arguments.
fn is_on_command_line() -> bool {
    std::env::args_os().any(|argument| {
        let argument = argument.to_string_lossy();
        argument == "--capture" || argument.starts_with("--capture=")
    })
}

/// Says which layers are not in a capture.
fn note_layers(contents: &Manifest) {
    let Some(pattern) = &contents.layers else { return };
    let withheld = contents.stages.iter().any(|stage| stage.withheld > 0);
    match (contents.layer_tensors(), contents.left_out) {
        (0, 0) if !withheld => tell!(
            "warning: no layer is named '{pattern}': 'tilewright bench estimates' lists the names, and '**' captures all"
        ),
        (_, 0) => {}
        (_, left_out) => tell!(
            "warning: {} of layers are left out: a larger --capture-limit holds them",
            with_noun(u32::try_from(left_out).unwrap_or(u32::MAX), "tensor")
        ),
    }
}

fn current() -> Option<MutexGuard<'static, Option<Begun>>> {
    CAPTURE.get().map(|capture| capture.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The capture that stages are added to.
pub fn capturing() -> Option<Arc<Capturing>> {
    current()?.as_ref().map(|(capturing, _)| Arc::clone(capturing))
}

/// Finishes the capture of a command that has ended, well or not. A capture that failed is a
/// warning: the work is done.
pub fn finish() {
    let Some((capturing, folder)) = current().and_then(|mut capture| capture.take()) else { return };
    let Ok(capturing) = Arc::try_unwrap(capturing) else {
        tell!("warning: nothing is captured in {}: a stage is still at work", folder.display());
        return;
    };
    match capturing.finish() {
        Ok(None) => {}
        Ok(Some(contents)) => {
            let stages = with_noun(contents.stages.len() as u32, "stage");
            tell!(
                "captured {stages} in {}: 'tilewright replay {}' runs them again",
                folder.display(),
                folder.display()
            );
            note_layers(&contents);
        }
        Err(error) => tell!("warning: nothing is captured: {}", Failure::from(error)),
    }
}
