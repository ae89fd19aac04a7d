//! Checks of a device, for people with one that nobody has tried: facts, parity with the CPU,
//! memory, time and faults. Each part runs by itself, so that the caller can give it a process of
//! its own: a hang or a crash then costs one part.

#![forbid(unsafe_code)]

mod compared;
mod parts;
mod step;
mod work;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tilewright_plan::Backend;
use tilewright_torch::device::Choice;

pub use work::Context;

/// The extent of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// The sizes that show most faults.
    Quick,
    /// All types and sizes.
    Full,
}

/// The end of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// All is as it should be.
    Pass,
    /// Something is not.
    Fail,
    /// It can't be checked here.
    Skipped,
}

/// The finding of a part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The verdict.
    pub verdict: Verdict,
    /// One line: the figure that matters, or the fault.
    pub detail: String,
    /// The figures.
    pub data: Value,
}

impl Finding {
    /// A part that passed.
    pub fn pass(detail: impl Into<String>, data: Value) -> Self {
        Self { verdict: Verdict::Pass, detail: detail.into(), data }
    }

    /// A part that failed.
    pub fn fail(detail: impl Into<String>, data: Value) -> Self {
        Self { verdict: Verdict::Fail, detail: detail.into(), data }
    }

    /// A part that does not apply.
    pub fn skipped(detail: impl Into<String>) -> Self {
        Self { verdict: Verdict::Skipped, detail: detail.into(), data: Value::Null }
    }

    /// Failed with the first of the faults, or passed.
    fn of(faults: &[String], passed: impl Into<String>, data: Value) -> Self {
        match faults {
            [] => Self::pass(passed, data),
            [fault] => Self::fail(fault.clone(), data),
            [first, rest @ ..] => Self::fail(format!("{first} (and {} more)", rest.len()), data),
        }
    }
}

/// The check that a part makes; the error is a line.
type Check = fn(&Context) -> Result<Finding, String>;

/// A part of the check.
pub struct Part {
    /// A word, unique among the parts.
    pub name: &'static str,
    /// A line that says what passes.
    pub about: &'static str,
    /// Set in its process.
    pub environment: &'static [(&'static str, &'static str)],
    /// The back end that it is for; any if none.
    pub only: Option<Backend>,
    /// The longest time of it, quick and full.
    pub patience: [Duration; 2],
    check: Check,
}

impl Part {
    /// The longest time that it may take.
    pub fn patience(&self, effort: Effort) -> Duration {
        self.patience[usize::from(effort == Effort::Full)]
    }

    /// Checks a device; a check that can't be made has failed.
    pub fn run(&self, choice: Choice, effort: Effort) -> Finding {
        let context = Context::new(choice, effort);
        (self.check)(&context).unwrap_or_else(|fault| Finding::fail(fault, Value::Null))
    }
}

const fn seconds(quick: u64, full: u64) -> [Duration; 2] {
    [Duration::from_secs(quick), Duration::from_secs(full)]
}

const fn part(name: &'static str, about: &'static str, patience: [Duration; 2], check: Check) -> Part {
    Part { name, about, environment: &[], only: None, patience, check }
}

/// The parts, in the order that they run: each rests on those before it.
pub static PARTS: [Part; 20] = [
    part(
        "facts",
        "what the runtime, the kernel and libtorch say of the device agrees",
        seconds(120, 120),
        parts::facts,
    ),
    part("order", "the device works after the CPU was used first", seconds(120, 120), parts::order),
    part("operators", "single operators agree with the CPU's in f32", seconds(120, 240), parts::operators),
    part(
        "networks",
        "decoders and encoders agree with the CPU's in f32, in every format and space",
        seconds(240, 600),
        parts::networks,
    ),
    part(
        "attention",
        "decoders whose attention goes in pieces agree with the CPU's in f32",
        seconds(120, 240),
        parts::attention_in_pieces,
    ),
    part(
        "samples",
        "steps of transformers agree with the CPU's in f32, with weights in every form",
        seconds(300, 600),
        parts::samples,
    ),
    part("loras", "steps with LoRAs agree with the CPU's in f32", seconds(240, 300), parts::loras),
    part("texts", "states of text encoders agree with the CPU's in f32", seconds(240, 300), parts::texts),
    part("estimates", "peaks are as large as estimated", seconds(120, 300), parts::estimates),
    part(
        "limit",
        "a plan over the memory limit is stopped, and the memory comes back",
        seconds(120, 180),
        parts::limit,
    ),
    part(
        "out-of-memory",
        "memory that runs out is known as such, and work goes on",
        seconds(60, 60),
        parts::out_of_memory,
    ),
    part(
        "recovery",
        "a sample after one that ran out of memory is the same as before it",
        seconds(120, 120),
        parts::recovery,
    ),
    part("offload", "tensors come back from host memory as they went", seconds(60, 180), parts::offload),
    part("speed", "the probe repeats, and warm decodes take as long as estimated", seconds(120, 240), parts::speed),
    Part {
        environment: &[("MIOPEN_FIND_MODE", "NORMAL")],
        only: Some(Backend::Rocm),
        ..part("speed-searched", "the same with MIOpen's full search", seconds(300, 600), parts::speed)
    },
    Part {
        only: Some(Backend::Rocm),
        ..part(
            "speed-without",
            "convolutions work without MIOpen; their rates",
            seconds(120, 240),
            parts::without_miopen,
        )
    },
    part(
        "large-tensors",
        "convolutions of large tensors are as fast as of small ones",
        seconds(120, 240),
        parts::large_tensors,
    ),
    part("cancellation", "a cancelled decode ends within a second", seconds(120, 300), parts::cancellation),
    part("leaks", "decodes leave no memory behind", seconds(120, 240), parts::leaks),
    // Some drivers hang at the first allocation (pytorch/pytorch#192259).
    Part {
        environment: &[("PYTORCH_ALLOC_CONF", "expandable_segments:True")],
        only: Some(Backend::Rocm),
        ..part("leaks-expandable", "the same with expandable segments", seconds(60, 240), parts::leaks)
    },
];

/// The part of a name.
pub fn find(name: &str) -> Option<&'static Part> {
    PARTS.iter().find(|part| part.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_names_of_their_own() {
        for (index, part) in PARTS.iter().enumerate() {
            assert!(PARTS[..index].iter().all(|other| other.name != part.name), "{}", part.name);
            assert!(part.patience(Effort::Quick) <= part.patience(Effort::Full), "{}", part.name);
            assert!(std::ptr::eq(find(part.name).unwrap(), part));
        }
    }

    #[test]
    fn the_first_fault_is_told_and_the_others_are_counted() {
        assert_eq!(Finding::of(&[], "fine", Value::Null).verdict, Verdict::Pass);
        let faults = ["one".to_owned(), "two".to_owned(), "three".to_owned()];
        let found = Finding::of(&faults, "fine", Value::Null);
        assert_eq!((found.verdict, found.detail.as_str()), (Verdict::Fail, "one (and 2 more)"));
    }
}
