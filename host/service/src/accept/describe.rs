//! Errors of samples in lines for callers: settings and files are called what requests call them.

use std::path::PathBuf;

use tilewright_pipeline::Error;

use crate::{error::one_line, jobs::inputs::Input, models::OpenModel};

<<<<<<< HEAD
=======
/// Options of the command line in advice that are fields of `sample`, by their names there.
const OF_SAMPLE: [&str; 17] = [
    "frames",
    "batch",
    "seed",
    "steps",
    "sigmas",
    "sampler",
    "scheduler",
    "shift",
    "cfg",
    "guidance",
    "denoise",
    "reuse",
    "as",
    "start_step",
    "end_step",
    "no_add_noise",
    "leftover_noise",
];

/// Further ones, with what requests and configurations call them. Others go by their own names.
const OPTIONS: [(&str, &str); 7] = [
    ("size", "sample.width and sample.height"),
    ("memory-limit", "memory_limit_bytes"),
    ("text-encoder", "text-encoder, in the configuration,"),
    ("transformer", "transformer, in the configuration,"),
    ("vae", "vae, in the configuration,"),
    ("model", "model, in the configuration,"),
    ("models", "models, in the configuration,"),
];

/// The field by which a setting is given.
fn field(setting: Setting) -> &'static str {
    match setting {
        Setting::Width => "sample.width",
        Setting::Height => "sample.height",
        Setting::Frames => "sample.frames",
        Setting::Batch => "sample.batch",
        Setting::Steps => "sample.steps",
        Setting::Sigmas => "sample.sigmas",
        Setting::Span => "sample.start_step and sample.end_step",
        Setting::Sampler => "sample.sampler",
        Setting::Scheduler => "sample.scheduler",
        Setting::Shift => "sample.shift",
        Setting::Cfg => "sample.cfg",
        Setting::Guidance => "sample.guidance",
        Setting::Denoise => "sample.denoise",
        Setting::Reuse => "sample.reuse",
    }
}

>>>>>>> h38
/// An error in a line for callers.
pub fn describe(error: &Error, model: &OpenModel, path: impl Fn(Input) -> Option<PathBuf>) -> String {
    let inputs = Input::ALL.into_iter().filter_map(|(input, name)| Some((path(input)?, name)));
    let models = model.transformer_paths().iter().map(|path| (path.clone(), "model"));
    in_words(error, inputs.chain(models))
}

fn in_words(error: &Error, files: impl Iterator<Item = (PathBuf, &'static str)>) -> String {
<<<<<<< HEAD
    files.fold(one_line(error), |line, (path, name)| line.replace(&path.display().to_string(), name))
=======
    let line = match error.setting() {
        Some((setting, reason)) => format!("{}: {reason}", field(setting)),
        None => one_line(error),
    };
    let line = files.fold(line, |line, (path, name)| line.replace(&path.display().to_string(), name));
    let mut words = line.split("--");
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |line, rest| {
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-').unwrap_or(rest.len());
        let (option, behind) = rest.split_at(end);
        // Inputs are parts of a form, of the same names.
        let own = option.replace('-', "_");
        let name = match OPTIONS.iter().find(|(known, _)| *known == option) {
            Some((_, name)) => (*name).to_owned(),
            None if OF_SAMPLE.contains(&own.as_str()) => format!("sample.{own}"),
            None => own,
        };
        format!("{line}{name}{behind}")
    })
>>>>>>> h38
}

#[cfg(test)]
mod tests {
    use tilewright_wording::Setting;

    use super::*;

    #[test]
    fn settings_and_files_are_called_what_requests_call_them() {
        tilewright_wording::speak(crate::WORDS);
        let of = |error: &Error| in_words(error, [(PathBuf::from("/data/3/latent"), "latent")].into_iter());
        let setting = |setting, reason: &str| of(&Error::Setting { setting, reason: reason.into() });
        assert_eq!(setting(Setting::Width, "a size of 33×32: as 48×32"), "sample.width: a size of 33×32: as 48×32");
        let span = tilewright_sampling::Error::Span { start: 3, end: 2, steps: 4 };
        let line = of(&Error::from(span));
        assert!(
            line.starts_with("sample.start_step and sample.end_step: ")
                && line.contains("is left; sample.start_step is below sample.end_step"),
            "{line}"
        );
        assert_eq!(of(&Error::from(tilewright_sampling::Error::Shift(-1.0))).split(':').next(), Some("sample.shift"));
        let input = Error::Input {
            path: "/data/3/latent".into(),
            reason: format!("no size: give {} or {}", Setting::Size, Setting::Latent),
        };
        assert_eq!(of(&input), "latent: no size: give sample.width and sample.height or latent");
    }
}
