//! A command's failure, and its exit status.

use std::fmt;

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

impl From<tilewright_engine::Error> for Failure {
    fn from(error: tilewright_engine::Error) -> Self {
        match error.is_input() {
            true => Failure::Input(error.into()),
            false => Failure::Work(error.into()),
        }
    }
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

impl From<tilewright_config::Error> for Failure {
    fn from(error: tilewright_config::Error) -> Self {
        Failure::Input(error.into())
    }
}

impl From<tilewright_signing::Error> for Failure {
    fn from(error: tilewright_signing::Error) -> Self {
        match error {
            tilewright_signing::Error::Unable { .. } => Failure::Work(error.into()),
            _ => Failure::Input(error.into()),
        }
    }
}

impl From<tilewright_registry::Error> for Failure {
    fn from(error: tilewright_registry::Error) -> Self {
        match error.is_input() {
            true => Failure::Input(error.into()),
            false => Failure::Work(error.into()),
        }
    }
}

impl From<tilewright_torch::Error> for Failure {
    fn from(error: tilewright_torch::Error) -> Self {
        Failure::Work(error.into())
    }
}

impl From<tilewright_media::Error> for Failure {
    fn from(error: tilewright_media::Error) -> Self {
        match error.is_input() {
            true => Failure::Input(error.into()),
            false => Failure::Work(error.into()),
        }
    }
}

impl From<tilewright_plot::Error> for Failure {
    fn from(error: tilewright_plot::Error) -> Self {
        Failure::Input(error.into())
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
