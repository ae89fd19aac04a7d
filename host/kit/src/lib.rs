//! What a policy's author works with, beyond what putting one to work needs: new projects and their builds, measurements,
//! comparisons, replays of recorded decisions, and devices that are only a table. Knows nothing of libtorch.

#![forbid(unsafe_code)]

pub mod project;
