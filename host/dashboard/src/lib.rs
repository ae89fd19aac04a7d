//! The service's dashboard: data in ([`views`]), pages and fragments of HTML out. No server and no
//! I/O. Pages load nothing from other sites, and work without their script.
//!
//! A page is whole: [`overview`], [`prompt`], [`job`], [`jobs`], [`policy`], [`login`],
//! [`problem`]. All but the last two have parts that change, elements with an id:
//! [`overview_parts`], [`prompt_parts`], [`job_parts`], [`policy_parts`], [`status_parts`]. Their
//! script asks for `/live?page=PATH` with the page's own path (`/`, `/jobs/ID`, `/policies/NAME`),
//! and is sent events whose data is JSON, `{"id": …, "html": …}`. A part that did not change may be
//! sent again. Each new connection is to be sent all parts, since the page may be older than it.
//! The files that pages load are in [`ASSETS`], and pages are written for
//! [`CONTENT_SECURITY_POLICY`].

#![forbid(unsafe_code)]

mod address;
mod assets;
mod candidates;
mod chart;
mod decision_trace;
mod devices;
mod events;
#[cfg(test)]
mod fixture;
mod form;
mod frame;
mod gallery;
mod grid;
mod job;
mod jobs;
mod lists;
mod overview;
mod phrases;
mod policies;
mod policy;
mod profile;
mod prompt;
mod prompt_form;
mod routes;
mod settings;
mod standalone;
mod submit;
mod table;
#[cfg(test)]
mod tests;
mod units;
pub mod views;
mod work;

pub use assets::{ASSETS, Asset, CONTENT_SECURITY_POLICY};
pub use job::{job, job_parts};
pub use jobs::jobs;
pub use overview::{overview, overview_parts};
pub use policy::{policy, policy_parts};
pub use prompt::{prompt, prompt_parts};
pub use standalone::{login, problem};

/// The parts of a page that has none of its own: health and uptime, on every page but sign-in and
/// errors.
pub fn status_parts(frame: &views::PageFrame) -> Vec<(&'static str, String)> {
    frame::parts(frame, [])
}
