//! Why a job can't be started or did not end in a picture.

use thiserror::Error;
use tilewright_plan::{Failure, words::with_noun};

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The failure of a job. Each is one line: what, where, what to do.
#[derive(Debug, Error)]
pub enum Error {
    /// A file is unsound or of the wrong kind.
    #[error(transparent)]
    Model(#[from] tilewright_models::Error),
    /// libtorch or the device failed.
    #[error(transparent)]
    Torch(tilewright_torch::Error),
    /// A capture can't be written.
    #[error(transparent)]
    Capture(#[from] tilewright_capture::Error),
    /// The request has no price, or no plan that fits.
    #[error(transparent)]
    Refused(tilewright_prices::Error),
    /// Every attempt failed.
    #[error("gave up after {}, the last: {last}; {advice}", with_noun(*attempts, "attempt"))]
    Exhausted {
        /// Attempts in all.
        attempts: usize,
        /// Why the last one failed.
        last: Failure,
        /// Advice to the user.
        advice: String,
    },
    /// Frames that were decoded could not be kept.
    #[error(transparent)]
    Sink(Box<dyn std::error::Error + Send + Sync>),
    /// Frames that were to be encoded could not be had.
    #[error(transparent)]
    Source(Box<dyn std::error::Error + Send + Sync>),
    /// The user or the caller ended it.
    #[error("interrupted")]
    Interrupted,
}

impl From<tilewright_torch::Error> for Error {
    fn from(error: tilewright_torch::Error) -> Self {
        match error {
            tilewright_torch::Error::Cancelled => Error::Interrupted,
            error => Error::Torch(error),
        }
    }
}

impl From<tilewright_prices::Error> for Error {
    fn from(error: tilewright_prices::Error) -> Self {
        match error {
            tilewright_prices::Error::Model(error) => Error::Model(error),
            error => Error::Refused(error),
        }
    }
}

impl From<tilewright_nn::Error> for Error {
    fn from(error: tilewright_nn::Error) -> Self {
        Error::Model(error.into())
    }
}

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        tilewright_torch::Error::from(error).into()
    }
}

impl Error {
    /// True if the job's record is kept: the plan failed, or the user interrupted it. Errors that
    /// would have ended any plan leave none: weights that can't be read, frames that can't be had
    /// or kept.
    pub(crate) fn leaves_record(&self) -> bool {
        match self {
            Error::Torch(tilewright_torch::Error::Device { .. }) => false,
            Error::Model(
                tilewright_models::Error::Torch(_)
                | tilewright_models::Error::Network(_)
                | tilewright_models::Error::Cancelled,
            )
            | Error::Torch(_) => true,
            // The record tells how far it came; the history leaves it out.
            Error::Exhausted { .. } | Error::Interrupted => true,
            Error::Model(_) | Error::Refused(_) | Error::Capture(_) | Error::Sink(_) | Error::Source(_) => false,
        }
    }

    /// True if the device can't be used any more by this process.
    pub fn is_lost_device(&self) -> bool {
        use tilewright_torch::Error::DeviceLost;
        matches!(self, Error::Torch(DeviceLost(_)) | Error::Model(tilewright_models::Error::Torch(DeviceLost(_))))
    }

    /// True if the arguments or files are wrong, rather than the work having failed.
    pub fn is_input(&self) -> bool {
        match self {
            Error::Sink(_) => false,
            // It was right when the work began.
            Error::Model(error) if error.is_of_changed_file() => false,
            // A device that is not there was asked for, say.
            _ => !self.leaves_record(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_plan_was_given_is_no_fault_of_it() {
        let disk = || Box::new(std::io::Error::other("the disk is full"));
        let weights = || Error::from(tilewright_models::Error::Clip { reason: "no such tensor".into() });
        for error in [Error::Sink(disk()), Error::Source(disk()), weights()] {
            assert!(!error.leaves_record(), "{error}");
        }
        let last = Failure::NonFinite { values: 1 };
        let exhausted = Error::Exhausted { attempts: 1, last, advice: "try f32".into() };
        assert!(exhausted.to_string().starts_with("gave up after 1 attempt, the last: "), "{exhausted}");
        for error in [exhausted, Error::Torch(tilewright_torch::Error::Torch("a kernel failed".into()))] {
            assert!(error.leaves_record(), "{error}");
        }
    }
}
