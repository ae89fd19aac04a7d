//! Results that are compared with the CPU's in f32, and the finding of them all.

use std::fmt::Display;

use serde_json::Value;
use tch::Tensor;
use tilewright_plan::Dtype;

use crate::{Finding, work::relative_error};

/// Runs that were compared with the CPU's.
#[derive(Default)]
pub struct Compared {
    faults: Vec<String>,
    rows: Vec<Value>,
    worst: f64,
}

impl Compared {
    /// Adds a run by the part that its relative error is of the most that is allowed. A run that
    /// failed, or has too large an error, is a fault. `row` has what is known of the run.
    ///
    /// # Errors
    /// The results can't be compared.
    pub fn add(
        &mut self,
        of: String,
        found: Result<Tensor, String>,
        expected: &Tensor,
        most: f64,
        mut row: Value,
    ) -> Result<(), String> {
        match found {
            Ok(found) => {
                let error = relative_error(&found, expected)?;
                row["error"] = error.into();
                self.worst = self.worst.max(error / most);
                let is_fault = error.is_nan() || error > most;
                self.faults.extend(is_fault.then(|| format!("{of}: differs from the CPU's by {error:.1e}")));
            }
            Err(failure) => {
                self.fail(of, failure, row);
                return Ok(());
            }
        }
        self.rows.push(row);
        Ok(())
    }

    /// Adds a run that failed.
    pub fn fail(&mut self, of: String, failure: String, mut row: Value) {
        self.faults.push(format!("{of}: {failure}"));
        row["failure"] = failure.into();
        self.rows.push(row);
    }

    /// The finding; `rest` ends its line.
    pub fn finding(self, rest: impl Display) -> Finding {
        let Self { faults, rows, worst } = self;
        let detail = format!("{} runs, the worst at {:.0} % of what is allowed{rest}", rows.len(), 100.0 * worst);
        Finding::of(&faults, detail, Value::from(rows))
    }
}

/// The relative error that a network's output may have in a type, against the CPU's in f32.
pub fn network_tolerance(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => 5e-4,
        Dtype::F16 | Dtype::Tf32 => 2e-2,
        _ => 4e-2,
    }
}
