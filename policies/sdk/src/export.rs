//! The expansion of [`export!`](crate::export): it connects the contract's functions with the
//! trait's.

use std::cell::RefCell;

use crate::{
    Attempt, Outcome, Plan, Policy, Request, Settings, Value, bindings::exports::tilewright::policy::lifecycle,
    denoise, text,
};

/// The slot of the configured policy.
pub type Slot<P> = RefCell<Option<P>>;

/// Answers `describe`.
pub fn describe<P: Policy>() -> lifecycle::Description {
    call((), |()| P::describe().into())
}

/// Answers `configure`.
///
/// # Errors
/// The policy's.
pub fn configure<P: Policy>(slot: &Slot<P>, settings: Vec<(String, Value)>) -> Result<(), String> {
    call((), |()| {
        slot.replace(Some(P::configure(&Settings::from(settings))?));
        Ok(())
    })
}

/// Answers `decide`.
///
/// # Errors
/// The policy's.
pub fn decide<P: Policy>(slot: &Slot<P>, request: Request, attempts: Vec<Attempt>) -> Result<Plan, String> {
    call((request, attempts), |(request, attempts)| with(slot, |policy| policy.decide(request, attempts))?)
}

/// Answers `learn`.
pub fn learn<P: Policy>(slot: &Slot<P>, request: Request, plan: Plan, outcome: Outcome) {
    // Before it is configured there is no policy that could learn.
    let _ = call((request, plan, outcome), |(request, plan, outcome)| {
        with(slot, |policy| policy.learn(request, plan, outcome))
    });
}

/// Answers `decide` of samples.
///
/// # Errors
/// The policy's.
pub fn decide_denoise<P: Policy>(
    slot: &Slot<P>,
    request: denoise::Request,
    attempts: Vec<denoise::Attempt>,
) -> Result<denoise::Plan, String> {
    call((request, attempts), |(request, attempts)| with(slot, |policy| policy.decide_denoise(request, attempts))?)
}

/// Answers `learn` of samples.
pub fn learn_denoise<P: Policy>(
    slot: &Slot<P>,
    request: denoise::Request,
    plan: denoise::Plan,
    outcome: denoise::Outcome,
) {
    let _ = call((request, plan, outcome), |(request, plan, outcome)| {
        with(slot, |policy| policy.learn_denoise(request, plan, outcome))
    });
}

/// Answers `decide` of text encoders.
///
/// # Errors
/// The policy's.
pub fn decide_text<P: Policy>(
    slot: &Slot<P>,
    request: text::Request,
    attempts: Vec<text::Attempt>,
) -> Result<text::Plan, String> {
    call((request, attempts), |(request, attempts)| with(slot, |policy| policy.decide_text(request, attempts))?)
}

/// Answers `learn` of text encoders.
pub fn learn_text<P: Policy>(slot: &Slot<P>, request: text::Request, plan: text::Plan, outcome: text::Outcome) {
    let _ = call((request, plan, outcome), |(request, plan, outcome)| {
        with(slot, |policy| policy.learn_text(request, plan, outcome))
    });
}

#[cfg(all(target_family = "wasm", not(target_feature = "atomics")))]
use crate::arena::call;

/// Arguments are passed by value, so that they can be freed when the call is over: see `arena`.
#[cfg(not(all(target_family = "wasm", not(target_feature = "atomics"))))]
fn call<A, R>(arguments: A, answer: impl FnOnce(&A) -> R) -> R {
    answer(&arguments)
}

fn with<P: Policy, R>(slot: &Slot<P>, ask: impl FnOnce(&mut P) -> R) -> Result<R, String> {
    slot.borrow_mut().as_mut().map(ask).ok_or_else(|| "not configured".into())
}

/// Makes a type that implements [`Policy`](crate::Policy) the module's policy. Natively it does
/// nothing.
#[macro_export]
macro_rules! export {
    ($policy:ty) => {
        #[cfg(target_family = "wasm")]
        const _: () = {
            use $crate::bindings::exports::tilewright::policy::{denoise_policy, lifecycle, text_policy, vae_policy};

            ::std::thread_local! {
                static SLOT: $crate::export::Slot<$policy> = const { ::std::cell::RefCell::new(None) };
            }

            struct Module;

            impl lifecycle::Guest for Module {
                fn describe() -> lifecycle::Description {
                    $crate::export::describe::<$policy>()
                }

                fn configure(
                    settings: ::std::vec::Vec<(::std::string::String, lifecycle::Value)>,
                ) -> Result<(), ::std::string::String> {
                    SLOT.with(|slot| $crate::export::configure(slot, settings))
                }
            }

            impl vae_policy::Guest for Module {
                fn decide(
                    request: $crate::Request,
                    attempts: ::std::vec::Vec<$crate::Attempt>,
                ) -> Result<$crate::Plan, ::std::string::String> {
                    SLOT.with(|slot| $crate::export::decide(slot, request, attempts))
                }

                fn learn(request: $crate::Request, plan: $crate::Plan, outcome: $crate::Outcome) {
                    SLOT.with(|slot| $crate::export::learn(slot, request, plan, outcome))
                }
            }

            impl denoise_policy::Guest for Module {
                fn decide(
                    request: $crate::denoise::Request,
                    attempts: ::std::vec::Vec<$crate::denoise::Attempt>,
                ) -> Result<$crate::denoise::Plan, ::std::string::String> {
                    SLOT.with(|slot| $crate::export::decide_denoise(slot, request, attempts))
                }

                fn learn(
                    request: $crate::denoise::Request,
                    plan: $crate::denoise::Plan,
                    outcome: $crate::denoise::Outcome,
                ) {
                    SLOT.with(|slot| $crate::export::learn_denoise(slot, request, plan, outcome))
                }
            }

            impl text_policy::Guest for Module {
                fn decide(
                    request: $crate::text::Request,
                    attempts: ::std::vec::Vec<$crate::text::Attempt>,
                ) -> Result<$crate::text::Plan, ::std::string::String> {
                    SLOT.with(|slot| $crate::export::decide_text(slot, request, attempts))
                }

                fn learn(request: $crate::text::Request, plan: $crate::text::Plan, outcome: $crate::text::Outcome) {
                    SLOT.with(|slot| $crate::export::learn_text(slot, request, plan, outcome))
                }
            }

    $crate::bindings::export!(Module with_types_in $crate::bindings);
        };
        #[cfg(not(target_family = "wasm"))]
        const _: () = {
            const fn is_policy<P: $crate::Policy>() {}
            is_policy::<$policy>();
        };
    };
}
