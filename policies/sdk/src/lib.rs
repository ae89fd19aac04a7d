//! Write a Tilewright policy: implement [`Policy`], [`export!`] it, build for
//! `wasm32-unknown-unknown`.
//!
//! ```
//! use tilewright_sdk::{
//!     Attempt, Description, Dtype, Plan, Policy, Precision, Request, Settings, Tile,
//! };
//!
//! /// Tiles pictures that are wider than the user likes.
//! struct Wide {
//!     most: u32,
//! }
//!
//! impl Policy for Wide {
//!     fn describe() -> Description {
//!         Description::new("wide", "1.0.0", "Tiles pictures that are wider than allowed.")
//!             .setting("most", "The widest picture to decode whole, in pixels.", 1024)
//!     }
//!
//!     fn configure(settings: &Settings) -> Result<Self, String> {
//!         let most = settings.integer("most")?;
//!         let most = u32::try_from(most).map_err(|_| "most: has to be a width in pixels")?;
//!         Ok(Self { most })
//!     }
//!
//!     fn decide(&mut self, request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
//!         if !attempts.is_empty() {
//!             return Err("this policy has one plan only".into());
//!         }
//!         let plan = Plan::whole(Precision::Uniform(Dtype::F32));
//!         if request.width <= self.most {
//!             return Ok(plan.because("narrow enough"));
//!         }
//!         Ok(plan.blended(request, Tile::square(512, 64)).because("too wide"))
//!     }
//! }
//!
//! tilewright_sdk::export!(Wide);
//! # fn main() {}
//! ```
//!
//! A policy may ask the [`host`] what plans would cost and what was measured before. It has no
//! files, clock, randomness or network, and the same inputs have to give the same answer.

// The generated export macro names this crate by its path from outside.
extern crate self as tilewright_sdk;

#[cfg(all(target_family = "wasm", not(target_feature = "atomics")))]
mod arena;
#[doc(hidden)]
pub mod bindings;
pub mod denoise;
mod description;
#[doc(hidden)]
pub mod export;
pub mod host;
mod options;
pub mod text;
mod vae;
mod words;

pub use bindings::tilewright::policy::{
    host::Level,
    types::{
        Backend, Device, Dtype, Failure, Hint, HostMemory, Memory, Objective, PlanOption, Precision, Release, Stage,
        StoredType, Value, Values, WeightForm, Weights,
    },
    vae::{
        Attempt, Capabilities, Cost, Direction, Layout, Model, Outcome, Overlapped, Plan, Request, Space, Tile, Time,
        Trial, UnderWay,
    },
};
pub use description::{Description, Settings};
pub use options::{OPTIONS, OptionChoice};
pub use vae::Kind;

/// Gives a macro the kinds of work, behind what else it is given: the module of a kind's types, the
/// interface, and the functions of [`Policy`] that answer it.
#[doc(hidden)]
#[macro_export]
macro_rules! kinds {
    ([$($then:tt)+] $($given:tt)*) => {
        $($then)+ {
            $($given)*
            vae: vae_policy, decide, learn;
            denoise: denoise_policy, decide_denoise, learn_denoise;
            text: text_policy, decide_text, learn_text;
        }
    };
}

/// A set of rules for the stages that its description names. One value of the type lives as long as
/// the policy is in use.
pub trait Policy: Sized + 'static {
    /// Name, version, summary, stages and settings.
    fn describe() -> Description;

    /// Takes the settings, every declared one of them.
    ///
    /// # Errors
    /// One line that names the setting and the allowed values; the policy is then not put to work.
    fn configure(settings: &Settings) -> Result<Self, String>;

    /// Decides how a decode or an encode is run. It is asked with no attempts at first, and again
    /// after each failure with all of them, the latest last. A plan that [repeats](Plan::repeats) a
    /// failed one is not run.
    ///
    /// # Errors
    /// One line; the host then uses its own default, as it does if a policy has no such function.
    fn decide(&mut self, request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
        let _ = (request, attempts);
        Err("it has no rules for decodes and encodes".into())
    }

    /// Learns from the outcome of a decode or an encode. The host keeps the measurements, too: see
    /// [`host::trials`]. There is no current request: [`host::estimate`] prices only the plan that
    /// was decided on.
    fn learn(&mut self, request: &Request, plan: &Plan, outcome: &Outcome) {
        let _ = (request, plan, outcome);
    }

    /// Decides how a sample is run, as [`Policy::decide`] does for a decode. A policy that is to be
    /// asked names [`Stage::Denoise`] among its [stages](Description::stages).
    ///
    /// # Errors
    /// One line; the host then uses its own default, as it does if a policy has no such function.
    fn decide_denoise(
        &mut self,
        request: &denoise::Request,
        attempts: &[denoise::Attempt],
    ) -> Result<denoise::Plan, String> {
        let _ = (request, attempts);
        Err("it has no rules for samples".into())
    }

    /// Learns from the outcome of a sample. During it, [`denoise::estimate`] prices only the plan
    /// that was decided on.
    fn learn_denoise(&mut self, request: &denoise::Request, plan: &denoise::Plan, outcome: &denoise::Outcome) {
        let _ = (request, plan, outcome);
    }

    /// Decides how a text encoder is run, as [`Policy::decide`] does for a decode. A policy that is
    /// to be asked names [`Stage::Text`] among its [stages](Description::stages).
    ///
    /// # Errors
    /// One line; the host then uses its own default, as it does if a policy has no such function.
    fn decide_text(&mut self, request: &text::Request, attempts: &[text::Attempt]) -> Result<text::Plan, String> {
        let _ = (request, attempts);
        Err("it has no rules for text encoders".into())
    }

    /// Learns from the outcome of a text encoder's run. During it, [`text::estimate`] prices only
    /// the plan that was decided on.
    fn learn_text(&mut self, request: &text::Request, plan: &text::Plan, outcome: &text::Outcome) {
        let _ = (request, plan, outcome);
    }
}
