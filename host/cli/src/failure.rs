//! A command's failure, and its exit status.

use std::fmt;

use tilewright_kit::project::ProjectError;
use tilewright_policy::PolicyError;

use crate::tell::tell;

/// The reason why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The arguments or files are wrong: exit status 2.
    Input(anyhow::Error),
    /// The work failed: exit status 1.
    Work(anyhow::Error),
    /// The reader of standard output has gone, which is not a failure.
    ClosedPipe,
}

/// A command's result.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// Wrong arguments or files, in one line.
    pub fn input(message: impl fmt::Display) -> Self {
        Failure::Input(anyhow::anyhow!("{message}"))
    }

    /// Work that failed, in one line.
    pub fn work(message: impl fmt::Display) -> Self {
        Failure::Work(anyhow::anyhow!("{message}"))
    }

    /// The option that wrong arguments are about, of some: the line begins with it.
    pub fn option_of<'a>(&self, options: &'a [String]) -> Option<&'a String> {
        let Failure::Input(error) = self else { return None };
        let text = format!("{error:#}");
        let ends = |rest: &str| !rest.starts_with(|next: char| next == '-' || next.is_ascii_alphanumeric());
        options.iter().find(|option| text.strip_prefix(option.as_str()).is_some_and(ends))
    }

    /// The same failure with a further message.
    #[must_use]
    pub fn and(self, more: impl fmt::Display) -> Self {
        match self {
            Failure::Input(error) => Failure::Input(anyhow::anyhow!("{error:#}; {more}")),
            Failure::Work(error) => Failure::Work(anyhow::anyhow!("{error:#}; {more}")),
            Failure::ClosedPipe => Failure::ClosedPipe,
        }
    }

    /// The same failure with another name for a file.
    #[must_use]
    pub fn rename(self, from: &str, to: &str) -> Self {
        match self {
            Failure::Input(error) => Failure::input(format!("{error:#}").replace(from, to)),
            Failure::Work(error) => Failure::work(format!("{error:#}").replace(from, to)),
            Failure::ClosedPipe => Failure::ClosedPipe,
        }
    }

    /// Prints the failure in one line and returns the exit status.
    pub fn report(&self) -> u8 {
        match self {
            Failure::Input(error) => {
                tell!("error: {}", one_line(error));
                2
            }
            Failure::Work(error) => {
                tell!("error: {}", one_line(error));
                1
            }
            Failure::ClosedPipe => 0,
        }
    }
}

/// The error and its causes in one line, whatever they contain.
fn one_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join(": ")
}

/// Errors of the crates as failures: each with the question whether the arguments are to blame, and
/// the option that is a way out, as the end of the line.
macro_rules! failures {
    ($($error:ty: $is_input:expr $(, or $($case:pat => $option:literal),+)?;)*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                let is_input: fn(&$error) -> bool = $is_input;
                let kind = if is_input(&error) { Failure::Input } else { Failure::Work };
                match error {
                    $($($case => kind(anyhow::anyhow!("{error}{}", $option)),)+)?
                    error => kind(error.into()),
                }
            }
        }
    )*};
}

failures! {
    tilewright_bench::Error: |error| error.is_input(), or
        tilewright_bench::Error::NoCache => ", or give --vae FILE",
        tilewright_bench::Error::NoWeights => ": give --vae and --video-vae";
    tilewright_capture::Error: |error| !matches!(
        error,
        tilewright_capture::Error::NoRoom { .. } | tilewright_capture::Error::Ended | tilewright_capture::Error::Unfinished { .. }
    );
    tilewright_config::Error: |_| true;
    tilewright_engine::Error: |error| error.is_input();
    ProjectError: |error| error.is_input(), or ProjectError::Exists { .. } => ", or another folder with --into";
    tilewright_media::Error: |error| error.is_input();
    tilewright_outputs::OutputRefused: |_| true;
    tilewright_plot::Error: |_| true;
    tilewright_policy::PolicyError: |error| !matches!(error, PolicyError::Sandbox { .. });
    tilewright_registry::Error: |error| error.is_input();
    tilewright_service::Error: |error| error.is_input();
    tilewright_signing::Error: |error| !matches!(error, tilewright_signing::Error::Unable { .. }), or
        tilewright_signing::Error::Stands { .. } => ", or give --force";
    tilewright_torch::Error: |_| false;
}

impl From<tilewright_models::Error> for Failure {
    fn from(error: tilewright_models::Error) -> Self {
        tilewright_engine::Error::from(error).into()
    }
}

impl From<tilewright_pipeline::Error> for Failure {
    fn from(error: tilewright_pipeline::Error) -> Self {
        use tilewright_pipeline::Error;
        match error {
            Error::Engine(error) => error.into(),
            Error::Media(error) => error.into(),
            error if error.is_input() => Failure::Input(error.into()),
            error => Failure::Work(error.into()),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Input(error) | Failure::Work(error) => f.write_str(&one_line(error)),
            Failure::ClosedPipe => f.write_str("whoever read standard output has gone"),
        }
    }
}

/// Errors of printing on standard output.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => Failure::Work(anyhow::Error::new(error).context("writing to standard output")),
        }
    }
}
