//! The expansion of [`export!`](crate::export): it connects the contract's functions with the
//! trait's.

use std::cell::RefCell;

use crate::{Policy, Settings, Value, bindings::exports::tilewright::policy::lifecycle};

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

/// Answers `decide` of a stage.
///
/// # Errors
/// The policy's.
pub fn decide<P: Policy, Q, A, R>(
    slot: &Slot<P>,
    request: Q,
    attempts: Vec<A>,
    decide: impl FnOnce(&mut P, &Q, &[A]) -> Result<R, String>,
) -> Result<R, String> {
    call((request, attempts), |(request, attempts)| with(slot, |policy| decide(policy, request, attempts))?)
}

/// Answers `learn` of a stage.
pub fn learn<P: Policy, Q, R, O>(
    slot: &Slot<P>,
    request: Q,
    plan: R,
    outcome: O,
    learn: impl FnOnce(&mut P, &Q, &R, &O),
) {
    // Before it is configured there is no policy that could learn.
    let _ = call((request, plan, outcome), |(request, plan, outcome)| {
        with(slot, |policy| learn(policy, request, plan, outcome))
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
            use $crate::bindings::exports::tilewright::policy::lifecycle;

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

            $crate::kinds!([$crate::export!] @kinds $policy;);

            $crate::bindings::export!(Module with_types_in $crate::bindings);
        };
        #[cfg(not(target_family = "wasm"))]
        const _: () = {
            const fn is_policy<P: $crate::Policy>() {}
            is_policy::<$policy>();
        };
    };
    (@kinds $policy:ty; $($stage:ident: $interface:ident, $decide:ident, $learn:ident;)+) => {
        $($crate::export!(@kind $policy, $interface, $decide, $learn);)+
    };
    (@kind $policy:ty, $interface:ident, $decide:ident, $learn:ident) => {
        use $crate::bindings::exports::tilewright::policy::$interface;

        impl $interface::Guest for Module {
            fn decide(
                request: $interface::Request,
                attempts: ::std::vec::Vec<$interface::Attempt>,
            ) -> Result<$interface::Plan, ::std::string::String> {
                SLOT.with(|slot| $crate::export::decide(slot, request, attempts, <$policy as $crate::Policy>::$decide))
            }

            fn learn(request: $interface::Request, plan: $interface::Plan, outcome: $interface::Outcome) {
                SLOT.with(|slot| {
                    $crate::export::learn(slot, request, plan, outcome, <$policy as $crate::Policy>::$learn)
                })
            }
        }
    };
}
