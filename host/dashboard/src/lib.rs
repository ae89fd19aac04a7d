//! The service's dashboard: facts in ([`facts`]), pages and fragments of HTML out. No server and no I/O; nothing in a page comes from
//! elsewhere, and pages work without their script.
//!
//! A page is whole: [`overview`], [`job`], [`jobs`], [`policy`], [`login`], [`problem`]. All but `jobs` and the last
//! two have parts that change while one looks,
//! elements with an id: [`Part`], [`job_part`], [`policy_part`], [`status_part`]. Their script asks for `/live?page=PATH`, where `PATH` is
//! the page's own (`/`, `/jobs/ID`, `/policies/NAME`), and is sent events whose data is JSON, `{"id": …, "html": …}`; a part that did not
//! change may be sent again, and each new connection is to be sent all of them, since the page may be older than it. What pages load is in
//! [`ASSETS`], and they are written for [`CONTENT_SECURITY_POLICY`].

#![forbid(unsafe_code)]

mod address;
mod alone;
mod assets;
mod candidates;
mod chart;
mod devices;
mod events;
pub mod facts;
#[cfg(test)]
mod fixture;
mod form;
mod frame;
mod grid;
mod job;
mod jobs;
mod lists;
mod overview;
mod policies;
mod policy;
mod routes;
mod story;
mod submit;
mod table;
#[cfg(test)]
mod tests;
mod units;
mod words;

pub use alone::{login, problem};
pub use assets::{ASSETS, Asset, CONTENT_SECURITY_POLICY};
pub use job::{job, job_part};
pub use jobs::jobs;
pub use overview::{Part, overview};
pub use policy::{policy, policy_part};

/// Health and uptime, on every page but sign-in and errors: the element with the id `status`.
pub fn status_part(frame: &facts::Frame) -> String {
    frame::status(frame).into_string()
}
