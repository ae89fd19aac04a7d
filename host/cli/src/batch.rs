//! Work on several files in order: a failed file does not stop those after it.

use tilewright_outputs::OutputRefused;

use crate::{
    failure::{Failure, Outcome},
    inputs::Input,
    signals,
    tell::tell,
};

/// Work on one file at a time.
pub trait Work {
    /// Works on a file.
    fn work(&mut self, input: &Input) -> Outcome;
}

/// Works through the files. The failure of a single file is the command's; of several files, each
/// failure is printed at once and the command fails with their number. Only an output that is
/// another file of the same command ends the command there. `done` is the word for the work, such
/// as `decoded`.
pub fn work_through(work: &mut dyn Work, inputs: &[Input], several: bool, done: &str) -> Outcome {
    if !several {
        return inputs.iter().try_for_each(|input| work.work(input).map_err(|failure| input.rename(failure)));
    }
    let (mut failed, count) = (Vec::new(), inputs.len());
    for (index, input) in inputs.iter().enumerate() {
        tell!("{} of {count}: {}", index + 1, input.shown);
        let outcome = work.work(input);
        let is_clash = matches!(&outcome, Err(Failure::Input(error)) if error.is::<OutputRefused>());
        match outcome.map_err(|failure| input.rename(failure)) {
            Ok(()) => {}
            Err(failure) if is_clash => {
                let before = index - failed.len();
                return Err(failure.and(format!("{} is left; {before} of {count} were {done}", input.shown)));
            }
            Err(Failure::ClosedPipe) => return Err(Failure::ClosedPipe),
            Err(failure) if signals::is_received() => {
                return Err(failure.and(format!("{} of {count} were {done}", index - failed.len())));
            }
            Err(failure) => {
                tell!("failed: {failure}");
                failed.push(input.shown.clone());
            }
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::work(format!("{} of {count} could not be {done}: {}", failed.len(), failed.join(", "))))
}
