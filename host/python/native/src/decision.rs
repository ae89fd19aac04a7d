//! A decision.

use pyo3::prelude::*;
use tilewright_plan::{Denoise, Record, Text, Vae};

use crate::answer::json;

/// The record of a decision, of any kind of work.
pub enum AnyRecord {
    Vae(Box<Record<Vae>>),
    Denoise(Box<Record<Denoise>>),
    Text(Box<Record<Text>>),
}

/// The same expression for the record of any kind of work.
macro_rules! of_record {
    ($any:expr, $record:ident => $value:expr) => {
        match $any {
            AnyRecord::Vae($record) => $value,
            AnyRecord::Denoise($record) => $value,
            AnyRecord::Text($record) => $value,
        }
    };
}

/// A policy's decision. Nothing is made JSON before it is asked for.
#[pyclass(frozen, module = "tilewright._native")]
pub struct Decision(pub AnyRecord);

#[pymethods]
impl Decision {
    /// The plan, as JSON.
    #[getter]
    fn plan(&self) -> PyResult<String> {
        of_record!(&self.0, record => json(&record.plan))
    }

    /// The whole record, as JSON: that of the program's `--dry-run --json`.
    fn record(&self) -> PyResult<String> {
        of_record!(&self.0, record => json(record))
    }
}

/// Makes a decision of a record.
pub trait IntoAnyRecord {
    fn into_any(self) -> AnyRecord;
}

macro_rules! into_any {
    ($($work:ident),*) => {$(
        impl IntoAnyRecord for Record<$work> {
            fn into_any(self) -> AnyRecord {
                AnyRecord::$work(Box::new(self))
            }
        }
    )*};
}

into_any!(Vae, Denoise, Text);
