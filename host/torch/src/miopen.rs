//! MIOpen, which computes convolutions on ROCm: left out where it fails or is slow. libtorch then
//! computes them by products of its own.
//!
//! Some versions fail at convolutions that others do (ROCm/rocm-libraries issue 4070, ROCm/MIOpen
//! issue 3964), and on some chips libtorch's own products are several times as fast, on others as
//! slow.

use std::sync::atomic::{AtomicBool, Ordering};

use tch::Cuda;
use tilewright_plan::{Backend, Hint};

use crate::{Error, Result, backend, device::library_versions};

/// The name of the fact that convolutions go on without it, of which the value is "false".
pub const FACT: &str = "miopen-used";

/// The first release, of ROCm or by the version of its HIP (the policy gfx1151 has the same), with
/// quick kernels for inputs of any size: with this one, Flux.1's decoder takes 4.26 s for
/// 2048×2048 whole, whose largest convolution has 18 GiB of products' operands (TheNoise,
/// docs/CONTINUE.md at 92dd575c).
const LARGE_INPUTS: [(&str, [u32; 2]); 2] = [("rocm", [10, 1]), ("hip", [7, 16])];

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

/// True if this release has quick kernels for inputs of any size. A release that does not say its
/// version counts as older.
pub fn takes_large_inputs() -> bool {
    is_there() && takes_large_inputs_by(&library_versions())
}

fn takes_large_inputs_by(versions: &[Hint]) -> bool {
    let version = |name: &str| {
        let text = &versions.iter().find(|hint| hint.name == name)?.value;
        let mut numbers = text.split('.').map_while(|number| number.parse::<u32>().ok());
        Some([numbers.next()?, numbers.next()?])
    };
    LARGE_INPUTS.iter().find_map(|(name, least)| Some(version(name)? >= *least)).unwrap_or(false)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_inputs_are_quick_from_a_release_on() {
        let is_quick = |versions: &[(&str, &str)]| {
            let hint = |(name, value): &(&str, &str)| Hint { name: (*name).into(), value: (*value).into() };
            takes_large_inputs_by(&versions.iter().map(hint).collect::<Vec<_>>())
        };
        assert!(is_quick(&[("hip", "7.16.4"), ("rocm", "10.1.0")]) && is_quick(&[("hip", "7.16.4")]));
        assert!(is_quick(&[("hip", "7.2.53211"), ("rocm", "11.0")]));
        assert!(!is_quick(&[("hip", "7.16.4"), ("rocm", "10.0")]) && !is_quick(&[("rocm", "7.2")]));
        assert!(!is_quick(&[]) && !is_quick(&[("rocm", "unknown")]));
    }
}
