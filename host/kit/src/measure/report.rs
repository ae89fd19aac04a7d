//! The report of a measurement.

use std::{collections::BTreeMap, fmt};

use serde::{Serialize, Serializer};
use tilewright_plan::Value;
use tilewright_policy::ModuleKind;

use super::Spread;

/// A function of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Function {
    /// The description.
    Describe,
    /// The settings of a new instance.
    Configure,
    /// A plan.
    Decide,
    /// Another plan, after memory ran out under the first.
    Recover,
    /// The outcome of a plan.
    Learn,
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Function::Describe => "describe",
            Function::Configure => "configure",
            Function::Decide => "decide",
            Function::Recover => "recover",
            Function::Learn => "learn",
        })
    }
}

/// A policy's costs.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// As the policy describes itself.
    pub policy: String,
    /// As the policy describes itself.
    pub version: String,
    /// The digest of the file.
    pub digest: String,
    /// All settings, defaults included.
    pub settings: BTreeMap<String, Value>,
    /// The kind of file.
    pub kind: ModuleKind,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// Requests that were asked in turn.
    pub requests: usize,
    /// Memory use.
    pub memory: Memory,
    /// Costs of the first time.
    pub cold: Cold,
    /// Warm costs, one entry for each function.
    pub calls: Vec<Call>,
    /// Decisions per second of one thread that does nothing else.
    pub decisions_per_second: f64,
    /// Prices that the policy asks for while it decides; none if it never does.
    pub estimates: Option<Estimates>,
    /// Decisions in one instance.
    pub lasting: Lasting,
    /// The same of the kinds of work that may stand beside others.
    #[serde(flatten, serialize_with = "by_key")]
    pub beside: Vec<Beside>,
}

/// The cost of a policy's decisions about one kind of work, beside those about another.
#[derive(Clone, Debug)]
pub struct Beside {
    /// The kind's [key](crate::simulate::Simulated::KEY), also of this measurement in JSON.
    pub key: &'static str,
    /// The kind's heading.
    pub heading: &'static str,
    /// The cost; none of a policy that does not answer this kind, or no other.
    pub decisions: Option<Decisions>,
}

fn by_key<S: Serializer>(beside: &[Beside], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(beside.iter().map(|kind| (kind.key, &kind.decisions)))
}

/// The cost of a policy's decisions about one kind of work.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Decisions {
    /// Requests that were asked in turn.
    pub requests: usize,
    /// Decisions per second of one thread that does nothing else.
    pub decisions_per_second: f64,
    /// Prices that the policy asks for while it decides; none if it never does.
    pub estimates: Option<Estimates>,
    /// Decisions in one instance.
    pub lasting: Lasting,
    /// Warm costs of `decide`, `recover` and `learn`.
    pub calls: Vec<Call>,
}

/// A policy's memory use.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// Linear memory of one instance after all calls, in bytes.
    pub linear_bytes: usize,
    /// Compiled code and its tables, shared by all instances, in bytes.
    pub code_bytes: usize,
}

/// Costs of the first time, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cold {
    /// From the file's bytes to a policy that has described itself, compiled from scratch.
    pub load_ns: f64,
    /// The same with the compiled code on disk.
    pub cached_ns: f64,
    /// The first instance.
    pub instantiate_ns: f64,
    /// The settings of the first instance.
    pub configure_ns: f64,
    /// The first decision of the first instance.
    pub decide_ns: f64,
}

/// The cost of one function, warm.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Call {
    /// The function.
    pub function: Function,
    /// Nanoseconds.
    #[serde(flatten)]
    pub time: Spread,
    /// Nanoseconds that a busy machine does not distort: the median of each request, on average
    /// over the requests.
    pub typical_ns: f64,
    /// Calls per second at the typical time.
    pub per_second: f64,
    /// Fuel, on average.
    pub fuel_mean: f64,
    /// Fuel, at most.
    pub fuel_most: u64,
    /// Runs that ended in an honest error of the policy, with the host's own plan in its place.
    pub declined: u32,
    /// Runs that failed otherwise, also with the host's own plan.
    pub failed: u32,
}

/// Prices that a policy asks for while it decides, on average over the requests.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Estimates {
    /// Estimates per decision.
    pub count: f64,
    /// Nanoseconds that the host spends pricing them, per decision.
    pub host_ns: f64,
    /// Nanoseconds of the rest of a decision.
    pub beside_ns: f64,
}

/// The cost of a decision in an instance that answers question after question. In normal use each
/// question has an instance of its own, so this is the part that depends on the policy and its
/// contract.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Lasting {
    /// Nanoseconds of a decision: the median of each request, on average over the requests.
    pub typical_ns: f64,
    /// Nanoseconds of a decision without the host's estimates.
    pub beside_ns: f64,
}
