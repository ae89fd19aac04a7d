//! Profiles of recordings that are made by hand, with the figures that they should give.

mod advice;
mod difference;
mod gpu;
mod host;
mod made;
mod page;
mod size;
mod summary;
mod trace;
