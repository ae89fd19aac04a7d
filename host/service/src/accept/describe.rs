//! Errors of samples in lines for callers: settings and files are called what requests call them.

use std::path::PathBuf;

use tilewright_pipeline::Error;

use crate::{error::one_line, jobs::inputs::Input, models::OpenModel};

/// An error in a line for callers.
pub fn describe(error: &Error, model: &OpenModel, path: impl Fn(Input) -> Option<PathBuf>) -> String {
    let inputs = Input::ALL.into_iter().filter_map(|(input, name)| Some((path(input)?, name)));
    let models = model.transformer_paths().iter().map(|path| (path.clone(), "model"));
    in_words(error, inputs.chain(models))
}

fn in_words(error: &Error, files: impl Iterator<Item = (PathBuf, &'static str)>) -> String {
    files.fold(one_line(error), |line, (path, name)| line.replace(&path.display().to_string(), name))
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
