//! Prices that Python gives.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use tilewright_plan::{CostModel, Work};

use crate::{
    answer::{Price, json, read},
    errors,
};

/// A function of Python that gives prices: it is called with a JSON list of plans, and gives a JSON
/// list of `{"cost": …}` or `{"error": …}`, one for each.
pub struct CalledCosts {
    function: Option<Py<PyAny>>,
    /// The first exception, which is raised when the policy is done.
    raised: Mutex<Option<PyErr>>,
}

impl CalledCosts {
    pub fn new(function: Option<Py<PyAny>>) -> Self {
        Self { function, raised: Mutex::default() }
    }

    /// The exception that the function ended with, if it did.
    pub fn raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn call<W: Work>(&self, plans: &[W::Plan]) -> Result<Vec<Result<W::Cost, String>>, String> {
        let Some(function) = &self.function else { return Err("no plan has a price here".into()) };
        let called = Python::attach(|py| -> PyResult<Vec<Price<W::Cost>>> {
            let answer: String = function.call1(py, (json(&plans)?,))?.extract(py)?;
            read("the prices of plans", &answer, errors::policy)
        });
        match called {
            Ok(prices) if prices.len() == plans.len() => Ok(prices.into_iter().map(Into::into).collect()),
            Ok(prices) => Err(format!("{} prices for {} plans", prices.len(), plans.len())),
            Err(error) => {
                let words = error.to_string();
                self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                Err(words)
            }
        }
    }
}

impl<W: Work> CostModel<W> for CalledCosts {
    fn estimate(&self, plans: &[W::Plan]) -> Vec<Result<W::Cost, String>> {
        self.call::<W>(plans).unwrap_or_else(|reason| plans.iter().map(|_| Err(reason.clone())).collect())
    }

    fn estimate_one(&self, plan: &W::Plan) -> Result<W::Cost, String> {
        self.call::<W>(std::slice::from_ref(plan))?.pop().unwrap_or_else(|| Err("no price".into()))
    }
}
