//! The questions that a policy may ask while it decides.

use crate::{Attempt, Cost, Kind, Level, Plan, Request, Space, Time, Trial};

/// Heights of exact bands to try below a tile's, in pixels.
const BANDS: [u32; 3] = [256, 128, 64];

/// After this many failures for memory no expectation is relied on.
const PATIENCE: usize = 3;

/// Chunks below a latent frame, in output frames.
const SHORT: [u32; 2] = [2, 1];

/// Makes the questions of a stage, which go to the host, or in unit tests, which run natively, to a
/// stub.
macro_rules! questions {
    ($host:ident, during $decide:literal) => {
        /// The expected costs of plans for the current request, in the order of the list.
        #[doc = concat!("There is a current request during [`", $decide, "`](crate::Policy::", $decide, ") only.")]
        ///
        /// One question for several plans takes less time than a question for each.
        ///
        /// # Errors
        /// The host's message in place of a cost, if the plan makes no sense or can't be run.
        pub fn estimate(plans: &[Plan]) -> Vec<Result<Cost, String>> {
            #[cfg(target_family = "wasm")]
            return $crate::bindings::tilewright::policy::$host::estimate(plans);
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
            return $crate::bindings::tilewright::policy::$host::trials(most);
            #[cfg(not(target_family = "wasm"))]
            return stub::with(|stub| stub.trials.iter().take(most as usize).cloned().collect());
        }

        #[cfg(not(target_family = "wasm"))]
        pub use stub::{Estimate, Stub};

        /// A host for unit tests, which run natively.
        #[cfg(not(target_family = "wasm"))]
        mod stub {
            use std::cell::RefCell;

            use super::{Cost, Plan, Trial};

            /// A stub's answer to a question for a price.
            pub type Estimate = Box<dyn FnMut(&Plan) -> Result<Cost, String>>;

            /// A stand-in for the host in unit tests.
            pub struct Stub {
                /// Answers [`super::estimate`], plan by plan.
                pub estimate: Estimate,
                /// Answers [`super::trials`].
                pub trials: Vec<Trial>,
            }

            thread_local! {
                static STUB: RefCell<Stub> =
                    RefCell::new(Stub { estimate: Box::new(|_| Err("no host".into())), trials: Vec::new() });
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
    };
}

pub(crate) use questions;

questions!(vae_host, during "decide");

/// The plan as the user allows it. A blended one that is not [allowed](Request::allows_blended)
/// becomes the first exact plan in its types that fits: bands of the tile's height, lower ones, and
/// of a clip shorter chunks. It stays as it is if none does, or if a clip is under way in it: then
/// blending is the last resort. The host changes an answer likewise.
pub fn allowed(plan: Plan, request: &Request, attempts: &[Attempt]) -> Plan {
    let covers = plan.tile().is_some_and(|tile| tile.height >= request.height && tile.width >= request.width);
    let is_whole = plan.kind() != Kind::Blended || covers;
    let is_exact = is_whole && !matches!(plan.time, Time::Blended(_));
    if request.allows_blended || is_exact || request.begun().is_some_and(Plan::is_blended) {
        return plan;
    }
    let mut plans = exact_plans(&plan, request);
    plans.retain(|exact| !attempts.iter().any(|attempt| exact.repeats(attempt)));
    // A plan that failed for memory took more than was expected.
    let failed = attempts.iter().filter(|attempt| !attempt.overflowed());
    let failed: Vec<Plan> = failed.map(|attempt| attempt.plan.clone()).collect();
    if failed.len() >= PATIENCE {
        return plan;
    }
    let below = estimate(&failed).into_iter().flatten().map(|cost| cost.held() / 10 * 7);
    let most = below.fold(request.limit_bytes, u64::min);
    let costs = estimate(&plans);
    let mut fitting =
        plans.into_iter().zip(costs).filter(|(_, cost)| cost.as_ref().is_ok_and(|cost| cost.held() <= most));
    match fitting.next() {
        Some((exact, _)) => {
            let reason = [plan.reason.as_str(), "; exact, since blending is not allowed"].concat();
            exact.because(reason.trim_start_matches("; "))
        }
        None => plan,
    }
}

/// Exact plans in a blended one's types, most memory first.
fn exact_plans(plan: &Plan, request: &Request) -> Vec<Plan> {
    let time = match plan.time {
        Time::Carried(frames) => Time::Carried(frames),
        _ if request.offers_carried() => Time::Carried(request.temporal_scale.max(1)),
        _ => Time::Whole,
    };
    let plain = Plan { space: Space::Whole, time, batch: 1, offload: false, ..plan.clone() };
    let height = plan.tile().map_or(request.height, |tile| tile.height);
    let mut plans = Vec::with_capacity(6);
    if height >= request.height || !request.capabilities.exact {
        plans.push(plain.clone());
    }
    if request.capabilities.exact {
        let (unit, least) = (request.tile_unit(), request.tile_least());
        let heights = [height].into_iter().chain(BANDS.into_iter().filter(|band| *band < height));
        let heights = heights.map(|height| height.max(least).next_multiple_of(unit));
        plans.extend(
            heights.filter(|height| *height < request.height).map(|height| plain.clone().exact(request, height)),
        );
    }
    if let (Time::Carried(frames), Some(leanest)) = (time, plans.last().cloned()) {
        let short = SHORT.into_iter().filter(|short| *short < frames.min(request.temporal_scale));
        plans.extend(short.map(|short| Plan { time: Time::Carried(short), ..leanest.clone() }));
    }
    plans
}

/// A line in the host's log; in unit tests, on standard error.
pub fn log(level: Level, message: &str) {
    #[cfg(target_family = "wasm")]
    crate::bindings::tilewright::policy::host::log(level, message);
    #[cfg(not(target_family = "wasm"))]
    eprintln!("{level:?}: {message}");
}
