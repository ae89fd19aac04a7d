//! What a measurement says.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;
use tilewright_plan::Value;
use tilewright_policy::Kind;

use super::Spread;

/// A function of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Function {
    /// What the policy is.
    Describe,
    /// Its settings, to a fresh instance.
    Configure,
    /// A plan.
    Decide,
    /// Another plan, after memory ran out under the first.
    Recover,
    /// What came of a plan.
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
    /// Of the file.
    pub digest: String,
    /// All of them, defaults included.
    pub settings: BTreeMap<String, Value>,
    /// What the file holds.
    pub kind: Kind,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// Requests that were asked in turn.
    pub requests: usize,
    /// What it holds.
    pub memory: Memory,
    /// The first time.
    pub cold: Cold,
    /// Warm, one for each function.
    pub calls: Vec<Call>,
    /// Decisions per second of one thread that does nothing else.
    pub decisions_per_second: f64,
    /// What the policy asks the host for while it decides; none where it never does.
    pub estimates: Option<Estimates>,
    /// Decisions in one instance.
    pub lasting: Lasting,
}

/// What a policy holds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// Linear memory of one instance after all calls, in bytes.
    pub linear_bytes: usize,
    /// Compiled code and its tables, once for all instances, in bytes.
    pub code_bytes: usize,
}

/// What the first time costs, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cold {
    /// From the file's bytes to a policy that has described itself, compiled anew.
    pub load_ns: f64,
    /// The same with the compiled code on disk.
    pub cached_ns: f64,
    /// The first instance.
    pub instantiate_ns: f64,
    /// Its settings.
    pub configure_ns: f64,
    /// Its first decision.
    pub decide_ns: f64,
}

/// What one function costs, warm.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Call {
    /// Which.
    pub function: Function,
    /// Nanoseconds.
    #[serde(flatten)]
    pub time: Spread,
    /// Nanoseconds that a busy machine does not distort: the median of each request, on average over the requests.
    pub typical_ns: f64,
    /// Calls per second at the typical time.
    pub per_second: f64,
    /// Fuel, on average.
    pub fuel_mean: f64,
    /// Fuel, at most.
    pub fuel_most: u64,
    /// Runs that ended in an honest error of the policy, the host's own plan in its stead.
    pub declined: u32,
    /// Runs that failed otherwise, likewise.
    pub failed: u32,
}

/// What a policy asks for while it decides, on average over the requests.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Estimates {
    /// Estimates per decision.
    pub count: f64,
    /// Nanoseconds that the host spends pricing them, per decision.
    pub host_ns: f64,
    /// Nanoseconds of a decision beside that.
    pub beside_ns: f64,
}

/// The cost of a decision in an instance that answers question after question. At work each question has an instance of
/// its own, so that this is the part that the policy and its contract are to answer for.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Lasting {
    /// Nanoseconds of a decision: the median of each request, on average over the requests.
    pub typical_ns: f64,
    /// Nanoseconds of a decision beside the host's estimates.
    pub beside_ns: f64,
}
