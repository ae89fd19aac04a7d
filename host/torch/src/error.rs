//! Errors of libtorch, separated by the caller's reaction.

use tch::TchError;
use thiserror::Error;
use tilewright_wording::Setting;

use crate::device;

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
    /// The device can't be used any more by this process: each later call to it fails.
    #[error("the device is lost: {0}; start the program anew")]
    DeviceLost(String),
    /// The libraries have no kernel for the device's architecture.
    #[error(
        "no kernel for this device: {}; use a PyTorch that is built for its architecture, or {} cpu",
        .0,
        Setting::Device
    )]
    NoKernel(String),
    /// MIOpen failed at something that libtorch has another way for.
    #[error("MIOpen: {}; use another version of ROCm, or {} cpu", .0, Setting::Device)]
    Miopen(String),
    /// The caller has cancelled the work.
    #[error("interrupted")]
    Cancelled,
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

/// A kind of failure that the caller reacts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    OutOfMemory,
    DeviceLost,
    /// The device is lost if it says so when it is waited for: the same words stand for a product
    /// that was refused and for a fault of earlier work.
    MaybeLost,
    NoKernel,
    Miopen,
}

/// The words in which libtorch and the libraries below it report what the caller reacts to; none
/// has an error code that passes through tch. The first that is found counts. They are those of
/// pytorch v2.11.0 (c10/core/impl/alloc_cpu.cpp, c10/cuda/CUDACachingAllocator.cpp,
/// c10/cuda/CUDAException.cpp, aten/src/ATen/cuda/Exceptions.h), CUDA's and HIP's runtimes
/// (cudaGetErrorString, hipGetErrorString), cuDNN, cuBLAS, MIOpen and oneDNN.
const KINDS: [(&str, Kind); 39] = [
    ("memory limit:", Kind::OutOfMemory),
    ("out of memory", Kind::OutOfMemory),
    ("can't allocate memory", Kind::OutOfMemory),
    ("not enough memory", Kind::OutOfMemory),
    ("OutOfMemory", Kind::OutOfMemory),
    ("OUT_OF_MEMORY", Kind::OutOfMemory),
    ("MemoryAllocation", Kind::OutOfMemory),
    ("could not create a memory object", Kind::OutOfMemory),
    // cuDNN, cuBLAS, hipBLAS and MIOpen.
    ("ALLOC_FAILED", Kind::OutOfMemory),
    ("ALLOCATION_FAILED", Kind::OutOfMemory),
    ("AllocFailed", Kind::OutOfMemory),
    // A handle is made at the first product, and needs memory for its workspace.
    ("CUBLAS_STATUS_NOT_INITIALIZED", Kind::OutOfMemory),
    ("hipErrorLaunchOutOfResources", Kind::OutOfMemory),
    // cuDNN's engines are refused if their workspaces can't be had.
    ("unable to find an engine to execute this computation", Kind::OutOfMemory),
    // The allocator asks NVML for the report of memory that ran out, and fails there where NVML
    // does not answer.
    ("NVML_SUCCESS ==", Kind::OutOfMemory),
    ("no kernel image is available", Kind::NoKernel),
    ("invalid device function", Kind::NoKernel),
    ("hipErrorNoBinaryForGpu", Kind::NoKernel),
    ("CUDNN_STATUS_ARCH_MISMATCH", Kind::NoKernel),
    ("CUBLAS_STATUS_ARCH_MISMATCH", Kind::NoKernel),
    ("illegal memory access", Kind::DeviceLost),
    ("IllegalAddress", Kind::DeviceLost),
    ("misaligned address", Kind::DeviceLost),
    ("unspecified launch failure", Kind::DeviceLost),
    ("illegal instruction", Kind::DeviceLost),
    ("hipErrorLaunchFailure", Kind::DeviceLost),
    ("device-side assert", Kind::DeviceLost),
    ("uncorrectable ECC error", Kind::DeviceLost),
    ("GPU is lost", Kind::DeviceLost),
    ("fallen off the bus", Kind::DeviceLost),
    ("launch timed out", Kind::DeviceLost),
    ("context is destroyed", Kind::DeviceLost),
    ("Memory access fault by GPU", Kind::DeviceLost),
    ("hipErrorUnknown", Kind::DeviceLost),
    ("CUDA error: unknown error", Kind::DeviceLost),
    ("HIP error: unknown error", Kind::DeviceLost),
    ("CUBLAS_STATUS_EXECUTION_FAILED", Kind::MaybeLost),
    ("CUDNN_STATUS_EXECUTION_FAILED", Kind::MaybeLost),
    ("miopenStatus", Kind::Miopen),
];

impl Error {
    /// Reads the text of a C++ exception.
    pub(crate) fn from_text(text: &str) -> Self {
        Self::classified(text, device::is_any_lost)
    }

    /// The same, by an answer to the question if a device is lost.
    fn classified(text: &str, is_lost: impl FnOnce() -> bool) -> Self {
        let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no reason given").to_owned();
        match KINDS.iter().find(|(words, _)| text.contains(words)).map(|(_, kind)| *kind) {
            Some(Kind::OutOfMemory) => Error::OutOfMemory { bytes: bytes_asked_for(text).unwrap_or(0) },
            Some(Kind::NoKernel) => Error::NoKernel(line),
            Some(Kind::DeviceLost) => Error::DeviceLost(line),
            Some(Kind::MaybeLost) if is_lost() => Error::DeviceLost(line),
            Some(Kind::Miopen) => Error::Miopen(line),
            Some(Kind::MaybeLost) | None => Error::Torch(line),
        }
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

impl From<tilewright_kernels::InvalidMatrix> for Error {
    fn from(error: tilewright_kernels::InvalidMatrix) -> Self {
        Error::Torch(error.to_string())
    }
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
            ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", 0),
            ("GET was unable to find an engine to execute this computation", 0),
            ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", 0),
            ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", 0),
            ("miopenStatusAllocFailed", 0),
            ("HIP error: hipErrorOutOfMemory", 0),
            ("CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY", 0),
            ("NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"/pytorch/c10/cuda/CUDACachingAllocator.cpp\":1131", 0),
        ];
        for (text, expected) in cases {
            assert!(matches!(Error::from_text(text), Error::OutOfMemory { bytes } if bytes == expected), "{text}");
        }
    }

    #[test]
    fn lost_devices_and_missing_kernels_are_told_apart() {
        for text in [
            "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be",
            "HIP error: unspecified launch failure",
            "HIP error: hipErrorIllegalAddress",
            "CUDA error: device-side assert triggered",
            "CUDA error: unknown error",
            "HIP error: unknown error",
            "HIP error: hipErrorUnknown",
            "Memory access fault by GPU node-1 (Agent handle: 0x55) on address 0x7f. Reason: Unknown.",
        ] {
            assert!(matches!(Error::from_text(text), Error::DeviceLost(_)), "{text}");
        }
        for text in [
            "CUDA error: no kernel image is available for execution on the device",
            "HIP error: invalid device function",
        ] {
            assert!(matches!(Error::from_text(text), Error::NoKernel(_)), "{text}");
        }
    }

    #[test]
    fn a_product_that_failed_means_a_lost_device_only_if_the_device_says_so() {
        for text in [
            "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle)`",
            "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        ] {
            assert!(matches!(Error::classified(text, || true), Error::DeviceLost(_)), "{text}");
            assert!(matches!(Error::classified(text, || false), Error::Torch(_)), "{text}");
            // No device was used.
            assert!(matches!(Error::from_text(text), Error::Torch(_)), "{text}");
        }
        // Others are not asked about.
        Error::classified("Expected 3 channels", || unreachable!());
    }

    #[test]
    fn a_failure_of_miopen_is_known_as_such() {
        for text in ["miopenStatusUnknownError", "MIOpen error: miopenStatusInternalError\nException raised from"] {
            let error = Error::from_text(text);
            assert!(matches!(error, Error::Miopen(_)), "{error}");
            assert!(!error.to_string().contains("Exception"), "{error}");
        }
    }

    #[test]
    fn other_failures_keep_their_first_line() {
        let error = Error::from_text("\nExpected 3 channels\nException raised from check at /pytorch/x.cpp:1");
        assert_eq!(error.to_string(), "libtorch: Expected 3 channels");
    }
}
