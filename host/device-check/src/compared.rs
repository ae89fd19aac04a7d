//! Results that are compared with the CPU's in f32, and the finding of them all.

use std::fmt::Display;

use serde_json::Value;
use tch::{Device, Tensor};
use tilewright_plan::Dtype;
use tilewright_torch::{Error, device::synchronize};

use crate::{Finding, work::relative_error};

/// Runs on a device that were compared with the CPU's.
pub struct Compared {
    device: Device,
    faults: Vec<String>,
    rows: Vec<Value>,
    /// The largest relative error, as a part of the most that is allowed.
    worst: f64,
}

impl Compared {
    /// No runs yet.
    pub fn on(device: Device) -> Self {
        Self { device, faults: Vec::new(), rows: Vec::new(), worst: 0.0 }
    }

    /// Adds a run, whose result may differ from the expected one by `most`, relatively. A run that
    /// failed or differs by more is a fault. `row` has what is known of the run.
    ///
    /// # Errors
    /// The results can't be compared, or the device is lost.
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
                let error = match relative_error(&found, expected) {
                    Ok(error) => error,
                    Err(failure) => return self.fail(&of, failure, row),
                };
                row["error"] = error.into();
                self.worst = self.worst.max(error / most);
                let is_fault = error.is_nan() || error > most;
                self.faults.extend(is_fault.then(|| format!("{of}: differs from the CPU's by {error:.1e}")));
            }
            Err(failure) => return self.fail(&of, failure, row),
        }
        self.rows.push(row);
        Ok(())
    }

    /// Adds a run that failed.
    ///
    /// # Errors
    /// The device is lost: no other run can be compared.
    pub fn fail(&mut self, of: &str, failure: String, mut row: Value) -> Result<(), String> {
        if let Err(error @ Error::DeviceLost(_)) = synchronize(self.device) {
            return Err(format!("{of}: {error}"));
        }
        self.faults.push(format!("{of}: {failure}"));
        row["failure"] = failure.into();
        self.rows.push(row);
        Ok(())
    }

    /// The finding; `rest` ends its line.
    pub fn finding(self, rest: impl Display) -> Finding {
        let Self { faults, rows, worst, .. } = self;
        if rows.is_empty() {
            return Finding::skipped(format!("no runs{rest}"));
        }
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
