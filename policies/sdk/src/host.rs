//! What a policy may ask while it decides.

use crate::{Cost, Level, Plan, Trial};

/// What the host expects a plan to cost for the request at hand; there is one during [`decide`](crate::Policy::decide) and
/// [`recover`](crate::Policy::recover) only.
///
/// # Errors
/// The host's words, where the plan makes no sense or can't be run.
pub fn estimate(plan: &Plan) -> Result<Cost, String> {
    #[cfg(target_family = "wasm")]
    return crate::bindings::tilewright::policy::decoding_host::estimate(plan);
    #[cfg(not(target_family = "wasm"))]
    return stub::with(|stub| (stub.estimate)(plan));
}

/// What was measured on this device for this model at about this size, newest first, at most `most`.
pub fn trials(most: u32) -> Vec<Trial> {
    #[cfg(target_family = "wasm")]
    return crate::bindings::tilewright::policy::decoding_host::trials(most);
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

    /// What a stub answers to a question for a price.
    pub type Estimate = Box<dyn FnMut(&Plan) -> Result<Cost, String>>;

    /// What stands in for the host in unit tests.
    pub struct Stub {
        /// Answers [`super::estimate`].
        pub estimate: Estimate,
        /// Answers [`super::trials`].
        pub trials: Vec<Trial>,
        /// What was logged.
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
        /// Stands in from now on, on this thread.
        pub fn install(self) {
            STUB.set(self);
        }
    }

    pub fn with<R>(ask: impl FnOnce(&mut Stub) -> R) -> R {
        STUB.with_borrow_mut(ask)
    }
}
