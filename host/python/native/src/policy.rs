//! A policy, and the questions that it is asked.

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pyo3::prelude::*;
use serde::Deserialize;
use tilewright_config::{Config, ConfigSource};
use tilewright_gate::Admission;
use tilewright_plan::{
    Attempt, CostModel, Decision as Decided, Denoise, Device as Facts, FailedAttempt, Planner, Question, Record, Stage,
    Text, UnderWay, Vae, Work, records::fault_of_device,
};
use tilewright_policy::{CacheDir, Limits, LoadedPolicy, Policy as Planning, PolicyHost};

use crate::{
    answer::{json, read},
    costs::CalledCosts,
    decision::{Decision, IntoAnyRecord},
    errors::{self, detached},
    quote::{CostsOf, Quote},
};

/// A policy that decides. One serves all threads: they wait for each other.
#[pyclass(frozen, module = "tilewright._native")]
pub struct Policy {
    planning: Mutex<Planning>,
    /// The last question and what it says: the same one is often asked again, and reading it takes
    /// as long as many a decision.
    last: Mutex<Option<(String, AnyAsked)>>,
    inspection: String,
    warning: Option<String>,
}

/// The module of a policy: a shipped one, or a file that the configuration allows.
struct Module {
    host: PolicyHost,
    origin: String,
    /// None of a shipped policy.
    bytes: Option<Vec<u8>>,
    require_checked: bool,
}

impl Module {
    /// Reads and verifies a policy by its name or path, and compiles nothing.
    fn find(policy: &str, memory_bytes: Option<usize>) -> PyResult<Self> {
        let mut limits = Limits::default();
        limits.memory_bytes = memory_bytes.unwrap_or(limits.memory_bytes);
        let host = PolicyHost::new(limits, &CacheDir::User).map_err(errors::policy)?;
        let policies = Config::load(&ConfigSource::User).map_err(errors::policy)?.policies;
        let bytes = match PolicyHost::names_file(policy) {
            false => None,
            true => {
                let path = Path::new(policy);
                let bytes = host.read_file(path).map_err(errors::policy)?;
                policies.verify_file(path, &bytes).map_err(|reason| {
                    let asks = "the configuration asks for signed policies (require-signed)";
                    errors::policy(format!("policy {}: {reason}, and {asks}", path.display()))
                })?;
                Some(bytes)
            }
        };
        Ok(Self { host, origin: policy.to_owned(), bytes, require_checked: policies.require_checked })
    }

    fn load(&self) -> PyResult<LoadedPolicy> {
        let loaded = match &self.bytes {
            Some(bytes) => self.host.load(&self.origin, bytes),
            None => self.host.load_shipped(&self.origin),
        };
        loaded.map_err(errors::policy)
    }
}

/// A question, as Python asks it.
#[derive(Deserialize)]
#[serde(bound = "")]
struct Asked<W: Work> {
    stage: Stage,
    request: W::Request,
    device: Facts,
    #[serde(default)]
    capabilities: W::Capabilities,
    /// The plan of work of which a part is done.
    #[serde(default)]
    running: Option<W::Plan>,
    /// The frames or steps that are done.
    #[serde(default)]
    done: Option<u32>,
    #[serde(default)]
    attempts: Vec<FailedAttempt<W>>,
}

/// A question about any kind of work.
enum AnyAsked {
    Vae(Arc<Asked<Vae>>),
    Denoise(Arc<Asked<Denoise>>),
    Text(Arc<Asked<Text>>),
}

/// A kind of work among them.
trait AskedOf: Work {
    fn remembered(asked: Arc<Asked<Self>>) -> AnyAsked;

    fn remembered_in(any: &AnyAsked) -> Option<&Arc<Asked<Self>>>;
}

macro_rules! asked_of {
    ($($work:ident),*) => {$(
        impl AskedOf for $work {
            fn remembered(asked: Arc<Asked<Self>>) -> AnyAsked {
                AnyAsked::$work(asked)
            }

            fn remembered_in(any: &AnyAsked) -> Option<&Arc<Asked<Self>>> {
                match any {
                    AnyAsked::$work(asked) => Some(asked),
                    _ => None,
                }
            }
        }
    )*};
}

asked_of!(Vae, Denoise, Text);

/// The stage of a question, which says of what kind the rest is.
#[derive(Deserialize)]
struct AskedStage {
    stage: Stage,
}

impl<W: Work> Asked<W> {
    /// A question of which no part is senseless.
    fn read(question: &str) -> PyResult<Self> {
        let asked: Self = read("the question", question, errors::policy)?;
        let fault = W::fault_of_request(&asked.request)
            .or_else(|| fault_of_device(&asked.device))
            .or_else(|| W::fault_of_capabilities(&asked.capabilities));
        fault.map_or(Ok(asked), |fault| Err(errors::policy(format!("the question makes no sense: {fault}"))))
    }

    fn under_way(&self) -> Option<UnderWay<W>> {
        let plan = self.running.clone()?;
        Some(UnderWay { done: self.done.unwrap_or(0), plan })
    }

    fn question<'a>(&'a self, attempts: &'a [Attempt<W>], under_way: Option<&'a UnderWay<W>>) -> Question<'a, W> {
        let first = Question::first(self.stage, &self.request, &self.device, &self.capabilities);
        first.after(attempts).going_on(under_way)
    }
}

impl Policy {
    pub fn lock(&self) -> MutexGuard<'_, Planning> {
        self.planning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stage of a question.
    fn stage_of(&self, question: &str) -> PyResult<Stage> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match last.as_ref().filter(|(text, _)| text == question) {
            Some((_, AnyAsked::Vae(asked))) => Ok(asked.stage),
            Some((_, AnyAsked::Denoise(asked))) => Ok(asked.stage),
            Some((_, AnyAsked::Text(asked))) => Ok(asked.stage),
            None => Ok(read::<AskedStage>("the question", question, errors::policy)?.stage),
        }
    }

    /// The contents of a question, read now or the last time.
    fn read<W: AskedOf>(&self, question: &str) -> PyResult<Arc<Asked<W>>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last.as_ref().filter(|(text, _)| text == question).and_then(|(_, asked)| W::remembered_in(asked));
        if let Some(asked) = known {
            return Ok(asked.clone());
        }
        let asked = Arc::new(Asked::<W>::read(question)?);
        *last = Some((question.to_owned(), W::remembered(asked.clone())));
        Ok(asked)
    }

    fn decide_on<W: AskedOf>(
        &self,
        py: Python<'_>,
        question: &str,
        costs: Option<Bound<'_, PyAny>>,
        last_resort: bool,
    ) -> PyResult<Decision>
    where
        Planning: Planner<W>,
        Record<W>: IntoAnyRecord,
        Quote: CostsOf<W>,
    {
        let asked = self.read::<W>(question)?;
        let quote = costs.as_ref().and_then(|costs| costs.cast::<Quote>().ok());
        if let Some(quote) = quote {
            let of_another = || errors::policy(format!("the prices are no {}'s", asked.stage));
            let costs = quote.get().costs_of().ok_or_else(of_another)?;
            return detached(py, || self.record(&asked, costs, last_resort));
        }
        let called = Arc::new(CalledCosts::new(costs.map(Bound::unbind)));
        let decision = detached(py, || self.record(&asked, called.clone(), last_resort));
        called.raised().map_or(decision, Err)
    }

    fn record<W: Work>(&self, asked: &Asked<W>, costs: Arc<dyn CostModel<W>>, last_resort: bool) -> PyResult<Decision>
    where
        Planning: Planner<W>,
        Record<W>: IntoAnyRecord,
    {
        let attempts: Vec<Attempt<W>> = asked.attempts.iter().map(FailedAttempt::attempt).collect();
        let under_way = asked.under_way();
        let question = asked.question(&attempts, under_way.as_ref());
        let mut planning = self.lock();
        let decision = decided(&mut planning, &question, costs.clone(), last_resort)?;
        let made = Record::of(&question, Planner::<W>::identity(&*planning), &decision, &*costs);
        Ok(Decision(Record { attempts: asked.attempts.clone(), ..made }.into_any()))
    }

    fn learn_of<W: AskedOf>(
        &self,
        py: Python<'_>,
        question: &str,
        plan: &str,
        outcome: &str,
    ) -> PyResult<Option<String>>
    where
        Planning: Planner<W>,
    {
        let asked = self.read::<W>(question)?;
        let plan = read("the plan", plan, errors::policy)?;
        let outcome = read("the outcome", outcome, errors::policy)?;
        let report = detached(py, || Ok(self.lock().learn(&asked.question(&[], None), &plan, &outcome)))?;
        Ok(report.failure.map(|failure| failure.to_string()))
    }
}

/// The policy's decision; or, as the last resort, the host's own, for which the policy is not
/// asked.
///
/// # Errors
/// No plan is left for the last resort.
pub fn decided<W: Work>(
    planning: &mut Planning,
    question: &Question<'_, W>,
    costs: Arc<dyn CostModel<W>>,
    last_resort: bool,
) -> PyResult<Decided<W>>
where
    Planning: Planner<W>,
{
    if !last_resort {
        return Ok(planning.decide(question, costs));
    }
    let attempts = question.attempts.len();
    let none_left = || errors::policy(format!("after {attempts} failed attempts, no plan is left that has not failed"));
    let mut own = planning.fallback(question, &*costs).ok_or_else(none_left)?;
    if attempts == 0
        && let Some(fallback) = &mut own.fallback
    {
        fallback.detail = "the host's own plan was asked for".into();
    }
    Ok(own)
}

/// The same expression for the kind of work of a question's stage.
macro_rules! of_stage {
    ($policy:expr, $question:expr, $work:ident => $value:expr) => {
        match $policy.stage_of($question)? {
            Stage::Decode | Stage::Encode => {
                type $work = Vae;
                $value
            }
            Stage::Denoise => {
                type $work = Denoise;
                $value
            }
            Stage::Text => {
                type $work = Text;
                $value
            }
        }
    };
}

#[pymethods]
impl Policy {
    /// A shipped policy by its name, or the policy in a `.wasm` file, with its settings.
    #[new]
    #[pyo3(signature = (policy, settings, memory_bytes=None))]
    fn new(
        py: Python<'_>,
        policy: &str,
        settings: Vec<(String, String)>,
        memory_bytes: Option<usize>,
    ) -> PyResult<Self> {
        detached(py, || {
            let module = Module::find(policy, memory_bytes)?;
            let loaded = module.load()?;
            let admission = Admission { require_checked: module.require_checked };
            let admitted =
                tilewright_gate::admit(&module.host, &loaded, &settings, admission).map_err(errors::policy)?;
            let warning = admitted.warning();
            let inspection = json(loaded.inspection())?;
            Ok(Self { planning: Mutex::new(admitted.policy), last: Mutex::default(), inspection, warning })
        })
    }

    /// A line for the user if the policy is a file that does not pass the gate.
    #[getter]
    fn warning(&self) -> Option<String> {
        self.warning.clone()
    }

    /// The policy, identified to the byte, as JSON.
    fn identity(&self, py: Python<'_>) -> PyResult<String> {
        // Another thread may hold the policy and wait for the interpreter: prices may be Python's.
        detached(py, || json(self.lock().identity()))
    }

    /// The policy's description of itself and its properties, as JSON.
    fn inspect(&self) -> String {
        self.inspection.clone()
    }

    /// The gate's verdict on a policy, as JSON.
    #[staticmethod]
    #[pyo3(signature = (policy, settings, seed=None))]
    fn check(py: Python<'_>, policy: &str, settings: Vec<(String, String)>, seed: Option<u32>) -> PyResult<String> {
        detached(py, || {
            let module = Module::find(policy, None)?;
            let verdict = match &module.bytes {
                Some(bytes) => tilewright_gate::check_module(&module.host, policy, bytes, &settings, seed),
                None => tilewright_gate::check(&module.host, policy, &settings, seed),
            };
            json(&verdict.map_err(errors::policy)?)
        })
    }

    /// Decides on a question. `costs` is a quote, which has prices, a function of prices, or none.
    /// As the last resort, the policy is not asked.
    #[pyo3(signature = (question, costs=None, last_resort=false))]
    fn decide(
        &self,
        py: Python<'_>,
        question: &str,
        costs: Option<Bound<'_, PyAny>>,
        last_resort: bool,
    ) -> PyResult<Decision> {
        of_stage!(self, question, W => self.decide_on::<W>(py, question, costs, last_resort))
    }

    /// Tells the policy of a plan's outcome. Returns a line if it failed to learn.
    fn learn(&self, py: Python<'_>, question: &str, plan: &str, outcome: &str) -> PyResult<Option<String>> {
        of_stage!(self, question, W => self.learn_of::<W>(py, question, plan, outcome))
    }
}
