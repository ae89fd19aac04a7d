//! Tools for a policy's author: projects and their builds, measurements, comparisons, replays of
//! recorded decisions, and devices that are only a table. Knows nothing of libtorch.

#![forbid(unsafe_code)]

pub mod compare;
pub mod measure;
pub mod project;
pub mod replay;
pub mod simulate;
mod work;
