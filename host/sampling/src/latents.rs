//! The arithmetic that samplers do with latents.

use std::fmt::Debug;

use num_traits::Float;

/// A type of the numbers that latents are multiplied by: that of the latents' values, since
/// ComfyUI's sigmas have it and its formulas round to it.
pub trait Real: Float + Debug + 'static {
    /// The nearest value.
    fn of(value: f64) -> Self;
    /// The same value.
    fn wide(self) -> f64;
}

impl Real for f32 {
    fn of(value: f64) -> Self {
        value as f32
    }

    fn wide(self) -> f64 {
        f64::from(self)
    }
}

impl Real for f64 {
    fn of(value: f64) -> Self {
        value
    }

    fn wide(self) -> f64 {
        self
    }
}

/// Latents, as far as samplers know them: they are added up, and compared by `dpm_adaptive`.
pub trait Latents: Sized {
    /// The type of numbers.
    type Scalar: Real;
    /// The error of an operation.
    type Error;

    /// The sum of latents of one shape, each times a number, from left to right. There is at least
    /// one.
    ///
    /// # Errors
    /// Memory is out.
    fn combine(terms: &[(Self::Scalar, &Self)]) -> Result<Self, Self::Error>;

    /// The same latents.
    fn share(&self) -> Self;

    /// The root of the mean square of (low − high) / max(absolute, relative · max(|low|,
    /// |previous|)).
    ///
    /// # Errors
    /// Memory is out.
    fn deviation(
        low: &Self,
        high: &Self,
        previous: &Self,
        absolute: Self::Scalar,
        relative: Self::Scalar,
    ) -> Result<Self::Scalar, Self::Error>;
}
