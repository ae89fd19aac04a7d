//! Draws what was measured: charts as SVG, and pages of SVG or HTML that need nothing from elsewhere. Knows nothing of what the
//! points mean.

#![forbid(unsafe_code)]

mod chart;
mod draw;
mod error;
mod page;

pub use chart::{Axis, Chart, Series};
pub use error::{Error, Result};
pub use page::Page;
