//! MIOpen, which computes convolutions on ROCm: left out where it fails or is slow. libtorch then
//! computes them by products of its own.
//!
//! Some versions fail at convolutions that others do (ROCm/rocm-libraries issue 4070, ROCm/MIOpen
//! issue 3964), and on some chips libtorch's own products are several times as fast, on others as
//! slow.

use std::sync::atomic::{AtomicBool, Ordering};

use tch::Cuda;
use tilewright_plan::Backend;

use crate::{Error, Result, backend};

/// The name of the fact that convolutions go on without it, of which the value is "false".
pub const FACT: &str = "miopen-used";

/// True once MIOpen has failed in this process: it is not tried again.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// True if this process has it: others have cuDNN, or neither.
pub fn is_there() -> bool {
    backend::loaded().is_some_and(|(backend, _)| backend == Backend::Rocm)
}

/// True if convolutions go through it.
pub fn is_used() -> bool {
    // libtorch has one switch for both libraries.
    is_there() && Cuda::user_enabled_cudnn()
}

/// True if it has failed in this process.
pub fn has_failed() -> bool {
    HAS_FAILED.load(Ordering::Relaxed)
}

/// Uses it from now on, or leaves it out, in the whole process. Nothing changes where there is
/// none, and once it has failed.
pub fn set_used(used: bool) {
    if is_there() && !has_failed() {
        Cuda::set_user_enabled_cudnn(used);
    }
}

/// Leaves it out for good, as if it had failed in this process: it has in an earlier one.
pub fn leave_out() {
    if is_there() {
        HAS_FAILED.store(true, Ordering::Relaxed);
        Cuda::set_user_enabled_cudnn(false);
    }
}

/// Runs work, and once more without MIOpen if that fails in it: then it is left out for good.
pub(crate) fn or_without<T>(work: impl Fn() -> Result<T>) -> Result<T> {
    match work() {
        Err(error @ Error::Miopen(_)) if is_there() => {
            // Another thread may have found it at the same time: this one tries again, too.
            if !HAS_FAILED.swap(true, Ordering::Relaxed) {
                tracing::warn!(%error, "convolutions go on without MIOpen, which fails here");
            }
            Cuda::set_user_enabled_cudnn(false);
            work()
        }
        done => done,
    }
}
