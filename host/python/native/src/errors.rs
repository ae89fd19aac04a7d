//! The package's exceptions.

use std::{
    error::Error,
    panic::{AssertUnwindSafe, catch_unwind},
};

use pyo3::{PyErr, PyResult, Python, import_exception};
use tilewright_wording::with_causes;

import_exception!(tilewright.errors, TilewrightError);
import_exception!(tilewright.errors, PolicyError);
import_exception!(tilewright.errors, ModelError);

/// A [`PolicyError`] of an error with its causes, or of a line.
pub fn policy<'e>(error: impl Into<Box<dyn Error + 'e>>) -> PyErr {
    PolicyError::new_err(with_causes(&*error.into()))
}

/// A [`ModelError`] of an error with its causes, or of a line.
pub fn model<'e>(error: impl Into<Box<dyn Error + 'e>>) -> PyErr {
    ModelError::new_err(with_causes(&*error.into()))
}

/// Does work without the interpreter's lock. A panic, which is a fault of this package's own,
/// becomes an exception that callers can catch.
pub fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> PyResult<T> + Send) -> PyResult<T> {
    py.detach(|| {
        let done = catch_unwind(AssertUnwindSafe(work));
        done.unwrap_or_else(|_| {
            Err(TilewrightError::new_err("a fault in tilewright itself: report it with what standard error says"))
        })
    })
}
