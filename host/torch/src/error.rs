//! Errors of libtorch, separated by the caller's reaction.

use tch::TchError;
use thiserror::Error;

/// A `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of libtorch or a device.
#[derive(Debug, Error)]
pub enum Error {
    /// Memory could not be had; a smaller plan may succeed.
    #[error("out of memory: {bytes} more bytes were needed")]
    OutOfMemory {
        /// The bytes asked for when it failed; 0 if libtorch does not say.
        bytes: u64,
    },
    /// Anything else, with libtorch's first line.
    #[error("libtorch: {0}")]
    Torch(String),
    /// A library or device file could not be used.
    #[error("{what}: {reason}")]
    Device {
        /// The attempt.
        what: String,
        /// The cause.
        reason: String,
    },
}

/// The words in which libtorch's allocators report that memory is out; none has an error code that
/// passes through tch.
const OUT_OF_MEMORY: [&str; 5] =
    ["memory limit:", "out of memory", "can't allocate memory", "not enough memory", "OutOfMemory"];

impl Error {
    /// Reads the text of a C++ exception.
    pub(crate) fn from_text(text: &str) -> Self {
        let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no reason given");
        if OUT_OF_MEMORY.iter().any(|words| text.contains(words)) {
            return Error::OutOfMemory { bytes: bytes_asked_for(text).unwrap_or(0) };
        }
        Error::Torch(line.to_owned())
    }
}

/// "Tried to allocate 2.00 GiB", "tried to allocate 1234 bytes".
fn bytes_asked_for(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let (_, rest) = lower.split_once("tried to allocate ")?;
    let mut words = rest.split_whitespace();
    let number: f64 = words.next()?.parse().ok()?;
    let unit = words.next()?.trim_matches(|c: char| !c.is_ascii_alphabetic());
    let scale = [("bytes", 1.0), ("kib", 1024.0), ("mib", 1048576.0), ("gib", 1073741824.0)];
    let (_, scale) = scale.into_iter().find(|(name, _)| *name == unit)?;
    Some((number * scale) as u64)
}

impl From<TchError> for Error {
    fn from(error: TchError) -> Self {
        match error {
            TchError::Torch(text) => Error::from_text(&text),
            other => Error::Torch(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_memory_is_told_apart() {
        let cases = [
            ("memory limit: tried to allocate 4096 bytes\nException raised from", 4096),
            ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has", 2 << 30),
            (
                "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8000 bytes. Error code 12",
                8000,
            ),
            ("HIP out of memory.", 0),
        ];
        for (text, expected) in cases {
            assert!(matches!(Error::from_text(text), Error::OutOfMemory { bytes } if bytes == expected), "{text}");
        }
    }

    #[test]
    fn other_failures_keep_their_first_line() {
        let error = Error::from_text("\nExpected 3 channels\nException raised from check at /pytorch/x.cpp:1");
        assert_eq!(error.to_string(), "libtorch: Expected 3 channels");
    }
}
