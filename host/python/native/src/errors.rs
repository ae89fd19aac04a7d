//! The package's exceptions.

use std::fmt::Display;

use pyo3::{PyErr, import_exception};

import_exception!(tilewright.errors, PolicyError);
import_exception!(tilewright.errors, ModelError);

/// A [`PolicyError`] of one line.
pub fn policy<E: Display>(error: E) -> PyErr {
    PolicyError::new_err(error.to_string())
}

/// A [`ModelError`] of one line.
pub fn model<E: Display>(error: E) -> PyErr {
    ModelError::new_err(error.to_string())
}
