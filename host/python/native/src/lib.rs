//! `tilewright._native`: policies that decide, and models whose plans are priced on a measured
//! device, for the Python package. Everything goes over the border as the JSON of the records, so
//! that Python sees what the program writes, byte for byte; the package's own modules make objects
//! of it. Nothing here is linked with libtorch.
//!
//! The interpreter's lock is given back while a policy runs and while plans are priced.

mod answer;
mod compiler;
mod costs;
mod decision;
mod device;
mod errors;
mod model;
mod policy;
mod quote;

use pyo3::prelude::*;
use tilewright_wording::{Setting, Words};

/// The native part of Tilewright.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    tilewright_wording::speak(Words {
        setting: |setting| match setting {
            Setting::As => "convention".into(),
            other => other.plain().replace('-', "_").into(),
        },
        remedy: |remedy| remedy.plain().into(),
    });
    compiler::name_command(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<device::Device>()?;
    module.add_class::<policy::Policy>()?;
    module.add_class::<decision::Decision>()?;
    module.add_class::<model::Model>()?;
    module.add_class::<quote::Quote>()?;
    module.add_function(wrap_pyfunction!(compiler::serve_compilation, module)?)?;
    Ok(())
}
