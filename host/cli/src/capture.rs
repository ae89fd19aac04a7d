//! `--capture FOLDER`: the capture that the stages of a command are added to.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock},
};

use clap::Args;
use tilewright_capture::{Capture, LayerPattern, Settings};
use tilewright_engine::Capturing;
use tilewright_plan::{bytes, words::with_noun};

use crate::{
    failure::{Failure, Outcome},
    tell::tell,
};

/// The most bytes of a capture, if nobody sets a limit.
const LIMIT: u64 = 4 << 30;

/// The capture of the command, and its folder.
static CAPTURE: OnceLock<Mutex<Option<(Arc<Capturing>, PathBuf)>>> = OnceLock::new();

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
        let Some(folder) = &self.folder else { return Ok(()) };
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
        let settings = Settings {
            folder: folder.clone(),
            layers: self.layers.clone(),
            limit: self.limit.unwrap_or(LIMIT),
            prompts: self.prompts,
        };
        let capturing = Arc::new(Capturing::new(Capture::begin(settings)?));
        let _ = CAPTURE.set(Mutex::new(Some((capturing, folder.clone()))));
        Ok(())
    }
}

/// True if the option is among the arguments.
fn is_on_command_line() -> bool {
    std::env::args_os().any(|argument| {
        let argument = argument.to_string_lossy();
        argument == "--capture" || argument.starts_with("--capture=")
    })
}

fn current() -> Option<std::sync::MutexGuard<'static, Option<(Arc<Capturing>, PathBuf)>>> {
    CAPTURE.get().map(|capture| capture.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
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
        Ok(0) => {}
        Ok(stages) => {
            let stages = with_noun(stages, "stage");
            tell!(
                "captured {stages} in {}: 'tilewright replay {}' runs them again",
                folder.display(),
                folder.display()
            );
        }
        Err(error) => tell!("warning: nothing is captured: {}", Failure::from(error)),
    }
}
