//! A device, as the program measured it.

use pyo3::prelude::*;
use tilewright_prices::Basis;

use crate::{answer::json, errors::model};

/// A device that plans are priced on, as `tilewright device --json` describes it.
#[pyclass(frozen, module = "tilewright._native")]
pub struct Device {
    pub basis: Basis,
    /// The processor beside a GPU.
    pub host: Option<Basis>,
    /// Everything about the device that changes how fast it is: a history's records are of one.
    #[pyo3(get)]
    pub fingerprint: String,
}

#[pymethods]
impl Device {
    /// A device by the JSON of `tilewright device --json`; `host` is that of the CPU beside a GPU.
    #[staticmethod]
    #[pyo3(signature = (text, host=None))]
    fn of_json(text: &str, host: Option<&str>) -> PyResult<Self> {
        let (basis, fingerprint) = Basis::of_json(text).map_err(model)?;
        let host = host.map(Basis::of_json).transpose().map_err(model)?.map(|(host, _)| host);
        if host.as_ref().is_some_and(|host| !host.kernels.on_cpu) {
            return Err(model("host: describes a GPU: give what `tilewright device --device cpu --json` writes"));
        }
        Ok(Self { basis, host, fingerprint })
    }

    /// The same device with other memory that is free, and other memory of the machine around it,
    /// in bytes.
    #[pyo3(signature = (free_bytes=None, host_total_bytes=None, host_free_bytes=None))]
    fn with_memory(
        &self,
        free_bytes: Option<u64>,
        host_total_bytes: Option<u64>,
        host_free_bytes: Option<u64>,
    ) -> Self {
        let basis = self.basis.clone().with_memory(free_bytes, host_total_bytes, host_free_bytes);
        Self { basis, host: self.host.clone(), fingerprint: self.fingerprint.clone() }
    }

    /// The facts that policies receive, as JSON.
    fn facts(&self) -> PyResult<String> {
        json(&self.basis.facts)
    }
}
