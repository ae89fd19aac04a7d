//! Charts of measurements as SVG, and pages of SVG or HTML that load nothing from other sites. This
//! crate does not know the meaning of the points.

#![forbid(unsafe_code)]

mod chart;
mod draw;
mod error;
mod page;

pub use chart::{Axis, Chart, Series};
pub use error::{Error, Result};
pub use page::Page;
