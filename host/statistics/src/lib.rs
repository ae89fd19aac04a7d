//! Statistics of few measurements: order statistics ([`median`], [`quantile`]), a [`Summary`] with
//! its confidence interval, a [`Ratio`] of medians, and [`binomial`] tails.

#![forbid(unsafe_code)]

pub mod binomial;
mod quantile;
mod summary;

pub use quantile::{lower_median, median, quantile, sorted};
pub use summary::{Ratio, Summary};
