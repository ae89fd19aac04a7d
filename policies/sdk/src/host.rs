//! The questions that a policy may ask while it decides.

use crate::{Cost, Level, Plan, Trial};

/// The expected costs of plans for the current request, in the order of the list. There is a
/// current request during [`decide`](crate::Policy::decide) only.
///
/// One question for several plans takes less time than a question for each.
///
/// # Errors
/// The host's message in place of a cost, if the plan makes no sense or can't be run.
pub fn estimate(plans: &[Plan]) -> Vec<Result<Cost, String>> {
    #[cfg(target_family = "wasm")]
    return crate::bindings::tilewright::policy::vae_host::estimate(plans);
    #[cfg(not(target_family = "wasm"))]
    return stub::with(|stub| plans.iter().map(|plan| (stub.estimate)(plan)).collect());
}

/// [`estimate`] for one plan.
///
/// # Errors
/// The host's message, if the plan makes no sense or can't be run.
pub fn estimate_one(plan: &Plan) -> Result<Cost, String> {
    estimate(std::slice::from_ref(plan)).pop().unwrap_or_else(|| Err("the host gave no price".into()))
}

/// The measurements on this device for this model at about this size, newest first, at most
/// `most`.
pub fn trials(most: u32) -> Vec<Trial> {
    #[cfg(target_family = "wasm")]
    return crate::bindings::tilewright::policy::vae_host::trials(most);
    #[cfg(not(target_family = "wasm"))]
    return stub::with(|stub| stub.trials.iter().take(most as usize).cloned().collect());
}

/// A line in the host's log.
pub fn log(level: Level, message: &str) {
    #[cfg(target_family = "wasm")]
    crate::bindings::tilewright::policy::host::log(level, message);
    #[cfg(not(target_family = "wasm"))]
    stub::with(|stub| stub.log.push((level, message.to_owned())));
}

#[cfg(not(target_family = "wasm"))]
pub use stub::{Estimate, Stub};

/// A host for unit tests, which run natively.
#[cfg(not(target_family = "wasm"))]
mod stub {
    use std::cell::RefCell;

    use crate::{Cost, Level, Plan, Trial};

    /// A stub's answer to a question for a price.
    pub type Estimate = Box<dyn FnMut(&Plan) -> Result<Cost, String>>;

    /// A stand-in for the host in unit tests.
    pub struct Stub {
        /// Answers [`super::estimate`], plan by plan.
        pub estimate: Estimate,
        /// Answers [`super::trials`].
        pub trials: Vec<Trial>,
        /// The lines that were logged.
        pub log: Vec<(Level, String)>,
    }

    thread_local! {
        static STUB: RefCell<Stub> = RefCell::new(Stub {
            estimate: Box::new(|_| Err("no host".into())),
            trials: Vec::new(),
            log: Vec::new(),
        });
    }

    impl Stub {
        /// Replaces the host from now on, on this thread.
        pub fn install(self) {
            STUB.set(self);
        }
    }

    pub fn with<R>(ask: impl FnOnce(&mut Stub) -> R) -> R {
        STUB.with_borrow_mut(ask)
    }
}
