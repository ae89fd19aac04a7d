//! Charts of measurements as SVG, for the service's pages and for reports: SVG or HTML that loads
//! nothing from other sites. This crate does not know the meaning of the points.

#![forbid(unsafe_code)]

mod chart;
mod draw;
mod error;
mod labels;
mod page;
mod scale;

pub use chart::{Axis, Chart, Form, Lines, Series};
pub use draw::swatch;
pub use error::{Error, Result};
pub use page::{CHART_STYLE, Page};
