//! A request with the prices of its plans.

use std::{path::PathBuf, sync::Arc};

use pyo3::prelude::*;
use tilewright_pipeline::{HistoryFault, Kept, Trials};
use tilewright_plan::{Attempt, CostModel, Denoise, FailedAttempt, Planner, Record, Text, Vae, Work};
use tilewright_policy::Policy as Planning;
use tilewright_prices::{Priced, Quote as PricedQuote};

use crate::{
    answer::{Price, json, read},
    decision::{Decision, IntoAnyRecord},
    errors::{self, detached},
    policy::{Policy, decided},
};

/// A quote of any kind of work.
#[derive(Clone)]
pub enum AnyQuote {
    Vae(PricedQuote<Vae>),
    Denoise(PricedQuote<Denoise>),
    Text(PricedQuote<Text>),
}

/// The same expression for the quote of any kind of work.
macro_rules! of_quote {
    ($any:expr, $quote:ident => $value:expr) => {
        match $any {
            AnyQuote::Vae($quote) => $value,
            AnyQuote::Denoise($quote) => $value,
            AnyQuote::Text($quote) => $value,
        }
    };
}

/// A request of a model on a device, with the prices of its plans.
#[pyclass(frozen, module = "tilewright._native")]
pub struct Quote {
    of: AnyQuote,
    /// The device that it is for, as histories know it.
    fingerprint: String,
}

/// The prices of a quote, if it is of one kind of work.
pub trait CostsOf<W: Work> {
    fn costs_of(&self) -> Option<Arc<dyn CostModel<W>>>;
}

macro_rules! costs_of {
    ($($work:ident),*) => {$(
        impl CostsOf<$work> for Quote {
            fn costs_of(&self) -> Option<Arc<dyn CostModel<$work>>> {
                match &self.of {
                    AnyQuote::$work(quote) => Some(quote.costs()),
                    _ => None,
                }
            }
        }
    )*};
}

costs_of!(Vae, Denoise, Text);

impl Quote {
    pub fn new(of: AnyQuote, fingerprint: &str) -> Self {
        Self { of, fingerprint: fingerprint.to_owned() }
    }
}

fn estimate<W: Priced>(quote: &PricedQuote<W>, plans: &str) -> PyResult<String> {
    let plans: Vec<W::Plan> = read("the plans", plans, errors::model)?;
    let prices: Vec<Price<W::Cost>> = plans.iter().map(|plan| quote.estimate(plan).into()).collect();
    json(&prices)
}

fn layers<W: Priced>(quote: &PricedQuote<W>, plan: &str) -> PyResult<String> {
    let layers = quote.layers(&read("the plan", plan, errors::model)?);
    let rows = layers.into_iter().map(|layer| {
        serde_json::json!({
            "name": layer.name, "is_block": layer.is_block, "runs": layer.runs, "seconds": layer.seconds,
        })
    });
    json(&rows.collect::<Vec<_>>())
}

fn decide<W: Priced>(
    quote: &PricedQuote<W>,
    planning: &mut Planning,
    attempts: Option<&str>,
    last_resort: bool,
) -> PyResult<Decision>
where
    Planning: Planner<W>,
    Record<W>: IntoAnyRecord,
{
    let failed =
        attempts.map(|text| read::<Vec<FailedAttempt<W>>>("the attempts", text, errors::policy)).transpose()?;
    let failed = failed.unwrap_or_default();
    let attempts: Vec<Attempt<W>> = failed.iter().map(FailedAttempt::attempt).collect();
    let decision = decided(planning, &quote.question().after(&attempts), quote.costs(), last_resort)?;
    Ok(Decision(quote.record(planning, &decision, failed, None).into_any()))
}

fn remember<W: Priced + Kept>(
    quote: &PricedQuote<W>,
    path: &std::path::Path,
    device: &str,
) -> PyResult<PricedQuote<W>> {
    if !path.is_file() {
        return Err(errors::model(format!(
            "{}: no history: `tilewright history path` prints where it is",
            path.display()
        )));
    }
    let fault = std::rc::Rc::new(std::cell::RefCell::new(None));
    let first = fault.clone();
    let mut trials = Trials::open(path, device, false, move |fault| {
        first.borrow_mut().get_or_insert(match fault {
            HistoryFault::Unusable(error) | HistoryFault::NotAdded(error) => error.to_string(),
            HistoryFault::Quarantined(path) => format!("{}: the history was damaged", path.display()),
        });
    });
    let quote = trials.remind_quote(quote.clone());
    match fault.take() {
        Some(line) => Err(errors::model(line)),
        None => Ok(quote),
    }
}

#[pymethods]
impl Quote {
    /// The stage.
    #[getter]
    fn stage(&self) -> &'static str {
        of_quote!(&self.of, quote => quote.stage().name())
    }

    /// The request, as JSON.
    fn request(&self) -> PyResult<String> {
        of_quote!(&self.of, quote => json(quote.request()))
    }

    /// The plans that can be carried out, as JSON.
    fn capabilities(&self) -> PyResult<String> {
        of_quote!(&self.of, quote => json(quote.capabilities()))
    }

    /// The device's facts, as JSON.
    fn device(&self) -> PyResult<String> {
        of_quote!(&self.of, quote => json(quote.device()))
    }

    /// The prices of a JSON list of plans, as a JSON list of `{"cost": …}` or `{"error": …}`.
    fn estimate(&self, py: Python<'_>, plans: &str) -> PyResult<String> {
        detached(py, || of_quote!(&self.of, quote => estimate(quote, plans)))
    }

    /// The time of each layer by a plan, of a sample that of a step, as JSON.
    fn layers(&self, py: Python<'_>, plan: &str) -> PyResult<String> {
        detached(py, || of_quote!(&self.of, quote => layers(quote, plan)))
    }

    /// The same request with what a history's file has of its like.
    fn with_history(&self, py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        detached(py, || {
            let of = match &self.of {
                AnyQuote::Vae(quote) => AnyQuote::Vae(remember(quote, &path, &self.fingerprint)?),
                AnyQuote::Denoise(quote) => AnyQuote::Denoise(remember(quote, &path, &self.fingerprint)?),
                AnyQuote::Text(quote) => AnyQuote::Text(remember(quote, &path, &self.fingerprint)?),
            };
            Ok(Self::new(of, &self.fingerprint))
        })
    }

    /// Decides; `attempts` are a JSON list of plans that failed, and why. As the last resort, the
    /// policy is not asked.
    #[pyo3(signature = (policy, attempts=None, last_resort=false))]
    pub fn decide(
        &self,
        py: Python<'_>,
        policy: &Policy,
        attempts: Option<&str>,
        last_resort: bool,
    ) -> PyResult<Decision> {
        detached(py, || of_quote!(&self.of, quote => decide(quote, &mut policy.lock(), attempts, last_resort)))
    }
}
