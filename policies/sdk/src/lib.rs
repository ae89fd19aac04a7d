//! Write a Tilewright policy: implement [`Policy`], [`export!`] it, build for `wasm32-unknown-unknown`.
//!
//! ```
//! use tilewright_sdk::{Description, Plan, Policy, Precision, Dtype, Request, Settings, Space, Tile};
//!
//! /// Tiles wherever the picture is wider than the user likes.
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
//!         let most = u32::try_from(settings.integer("most")?).map_err(|_| "most: a width in pixels is wanted")?;
//!         Ok(Self { most })
//!     }
//!
//!     fn decide(&mut self, request: &Request) -> Result<Plan, String> {
//!         let plan = Plan::whole(Precision::Uniform(Dtype::F32));
//!         if request.width <= self.most {
//!             return Ok(plan.because("narrow enough"));
//!         }
//!         Ok(Plan { space: Space::Blended(Tile { height: 512, width: 512, overlap: 64 }), ..plan }.because("too wide"))
//!     }
//! }
//!
//! tilewright_sdk::export!(Wide);
//! # fn main() {}
//! ```
//!
//! A policy may ask the [`host`] what a plan would cost and what was measured before. It has no files, clock, randomness or network,
//! and the same inputs have to give the same answer.

// The generated export macro names this crate by its path from outside.
extern crate self as tilewright_sdk;

#[cfg(all(target_family = "wasm", not(target_feature = "atomics")))]
mod arena;
#[doc(hidden)]
pub mod bindings;
mod description;
#[doc(hidden)]
pub mod export;
pub mod host;
mod words;

pub use bindings::tilewright::policy::{
    decoding::{
        Attempt, Cost, Failure, Layout, Outcome, Overlapped, Plan, Precision, Release, Request, Space, Tile, Time,
        Trial,
    },
    host::Level,
    types::{Backend, Device, Dtype, Hint, Model, Objective},
};
pub use description::{Description, Settings, Value};
pub use words::Kind;

/// How work is run. One value of the type lives as long as the policy is at work.
pub trait Policy: Sized + 'static {
    /// Name, version, summary and settings.
    fn describe() -> Description;

    /// Takes the settings, every declared one of them.
    ///
    /// # Errors
    /// One line that names the setting and says what is allowed; it keeps the policy from being put to work.
    fn configure(settings: &Settings) -> Result<Self, String>;

    /// Says how a request is to be run.
    ///
    /// # Errors
    /// One line; the host then uses its native default.
    fn decide(&mut self, request: &Request) -> Result<Plan, String>;

    /// Says how a request is to be run after the attempts, the latest last, failed.
    ///
    /// # Errors
    /// One line; the host then uses its native default.
    fn recover(&mut self, request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
        let _ = (request, attempts);
        Err("this policy does not recover".into())
    }

    /// Hears what became of a plan. What was measured is also kept by the host: see [`host::trials`]. No request is at hand meanwhile,
    /// so the host prices nothing: [`host::estimate`] answers with an error.
    fn learn(&mut self, request: &Request, plan: &Plan, outcome: &Outcome) {
        let _ = (request, plan, outcome);
    }
}
