//! JSON between Rust and Python.

use std::fmt::Display;

use pyo3::{PyErr, PyResult, exceptions::PyValueError};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The JSON of a value.
pub fn json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// A value of JSON; `what` names it in errors, which `refuse` makes exceptions.
pub fn read<T: DeserializeOwned>(what: impl Display, text: &str, refuse: fn(String) -> PyErr) -> PyResult<T> {
    serde_json::from_str(text).map_err(|error| refuse(format!("{what}: {error}")))
}

/// A price, or the reason why there is none.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Price<C> {
    Cost(C),
    Error(String),
}

impl<C> From<Result<C, String>> for Price<C> {
    fn from(price: Result<C, String>) -> Self {
        match price {
            Ok(cost) => Price::Cost(cost),
            Err(reason) => Price::Error(reason),
        }
    }
}

impl<C> From<Price<C>> for Result<C, String> {
    fn from(price: Price<C>) -> Self {
        match price {
            Price::Cost(cost) => Ok(cost),
            Price::Error(reason) => Err(reason),
        }
    }
}
