//! The gate's findings, and advice on each.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Keeps the policy from passing.
    Error,
    /// Costs users time or memory.
    Warning,
    /// Information only.
    Note,
}

/// The steps of the gate, in order. If one fails, the later ones are not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The file is WebAssembly.
    Parse,
    /// It uses no feature that is off.
    Features,
    /// The file's imports are offered, and it exports what the contract requires, with the right
    /// types.
    World,
    /// It starts within the limits.
    Limits,
    /// It describes itself.
    Describe,
    /// It takes its settings.
    Configure,
    /// It answers the golden requests.
    Golden,
}

impl Step {
    /// All of them, in order, each with the property that it checks.
    pub const ALL: [(Step, &'static str, &'static str); 7] = [
        (Step::Parse, "parse", "the file is WebAssembly"),
        (Step::Features, "features", "no feature that is off is used"),
        (Step::World, "world", "imports and exports are the contract's"),
        (Step::Limits, "limits", "it starts within the limits"),
        (Step::Describe, "describe", "it says what it is"),
        (Step::Configure, "configure", "it takes its settings"),
        (Step::Golden, "golden", "it answers the golden requests"),
    ];
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = Step::ALL.iter().find(|(step, ..)| step == self);
        f.write_str(row.map_or("", |(_, name, _)| name))
    }
}

/// The function of the contract that was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// A first plan.
    Decide,
    /// Another plan after failures.
    Recover,
    /// An outcome to learn from.
    Learn,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Call::Decide => "decide",
            Call::Recover => "recover",
            Call::Learn => "learn",
        })
    }
}

macro_rules! problems {
    ($($(#[doc = $doc:literal])+ $id:ident $name:literal $advice:literal)+) => {
        /// The problem, for programs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Problem {
            $($(#[doc = $doc])+ #[serde(rename = $name)] $id,)+
        }

        impl Problem {
            /// The problem's name, as in JSON.
            pub const fn name(self) -> &'static str {
                match self { $(Problem::$id => $name,)+ }
            }

            /// The advice to the author.
            pub const fn advice(self) -> &'static str {
                match self { $(Problem::$id => $advice,)+ }
            }
        }
    };
}

problems! {
    /// It uses a feature of WebAssembly that is off here.
    Feature "feature" "build without it: for Rust, wasm32-unknown-unknown and no extra target features"
    /// Imports, exports or their types are not the contract's.
    World "world" "build it against the contract, wit/policy.wit; 'tilewright policy new' makes a project that does"
    /// It needs something that a user has to grant.
    Grant "grant" "the user who runs the policy has to grant it, here and in every run"
    /// It fails before it can be asked anything.
    Start "start" "a policy has to start within the limits that 'tilewright policy inspect' shows: less static data, no work at start"
    /// It fails while it describes itself, or its description can't be used.
    Description "description" "describe has to answer at once, with a name, a version and settings that can be written on a command line"
    /// It fails while it is configured, or refuses its own defaults.
    Settings "settings" "configure has to take the defaults that describe gives"
    /// The guest traps.
    Trap "trap" "run the request in a test of your own: indexing, arithmetic overflow and unwrap are what traps most"
    /// The guest uses up its fuel.
    OutOfFuel "out-of-fuel" "look for a loop that does not end, or search fewer plans"
    /// The guest uses up its time.
    Timeout "timeout" "look for a loop that does not end, or search fewer plans"
    /// The guest goes over its memory limit.
    OutOfMemory "out-of-memory" "look for data that grows with every call, or with the size of a request"
    /// An answer without a meaning.
    Nonsense "nonsense" "a tile, a chunk and a batch have to be at least 1"
    /// An answer that has failed before.
    Repeats "repeats" "compare with the attempts after clamping as the host does: a tile that covers the picture is the whole picture"
    /// An answer over the memory limit, although another plan would fit.
    OverLimit "over-limit" "ask what the plan costs and keep within the request's limit-bytes, or answer with an error"
    /// An error, although a plan would have fitted.
    Declines "declines" "the host's default decides instead; answer with the leanest plan if nothing better fits"
    /// An answer that the host has to change.
    Adjusted "adjusted" "keep to the offer: see the hints offer.* in the contract"
    /// A blended plan that the user does not allow, although an exact one fits.
    Blends "blends" "answer exact bands or the whole picture while they fit, unless request.allows-blended is true"
    /// An answer that the host can't price.
    Unpriced "unpriced" "answer only plans that estimate has a price for"
    /// A plan after out of memory that is not expected to hold less.
    NotLeaner "not-leaner" "after out-of-memory and over-limit, answer a plan whose peak is well below the failed one's"
    /// A plan after an overflow whose type keeps no more.
    NotWider "not-wider" "after non-finite, answer a wider type: mixed, then f32"
    /// Two fresh instances answer the same inputs differently.
    NotSame "not-same" "the same inputs have to give the same answer and the same fuel: look for what is not initialised"
    /// An instance that was used answers differently from a new one, although it learned nothing.
    Remembers "remembers" "decide and recover may not change what later ones answer; only learn may, and at work a fresh instance is asked"
    /// More than half of a limit.
    NearLimit "near-limit" "a slower machine or a larger request goes over it"
    /// The set was not run to its end.
    CutShort "cut-short" "correct the calls that use up the limits, then check again"
}

/// A finding of the gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The step of the gate.
    pub step: Step,
    /// The problem.
    pub problem: Problem,
    /// The golden request.
    pub request: Option<String>,
    /// The call.
    pub call: Option<Call>,
    /// The details, in one line.
    pub found: String,
    /// The advice, in one line.
    pub advice: String,
}

impl Finding {
    pub(crate) fn new(severity: Severity, step: Step, problem: Problem, found: impl Into<String>) -> Self {
        let (found, advice) = (found.into(), problem.advice().into());
        Self { severity, step, problem, request: None, call: None, found, advice }
    }
}
