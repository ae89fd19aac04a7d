//! The policies of the stages: one for all, or one for each.

use tilewright_plan::{Planner, Recorder, Stage, Work};
use tilewright_policy::Policy;

use crate::{args::Generate, failure::Outcome, policy};

/// The policy of a stage for which none is named.
const POLICY: &str = "adaptive";

/// The stage that an argument names before a mark, if it names one, and the rest.
fn split(argument: &str, mark: char) -> (Option<Stage>, &str) {
    match argument.split_once(mark).map(|(name, rest)| (name.parse().ok(), rest)) {
        Some((Some(stage), rest)) => (Some(stage), rest),
        _ => (None, argument),
    }
}

/// The name of a policy without that of its stage.
pub fn name(argument: &str) -> &str {
    split(argument, '=').1
}

/// The policy of a stage with its settings: those that name the stage, and those that name none.
pub fn configure<W: Work>(arguments: &Generate, stage: Stage) -> Outcome<Recorder<W>>
where
    Policy: Planner<W>,
{
    let mut policy = POLICY;
    for argument in &arguments.policy {
        match split(argument, '=') {
            (Some(named), _) if named != stage => {}
            (_, name) => policy = name,
        }
    }
    let own = |(key, value): &(String, String)| match split(key, '.') {
        (Some(named), _) if named != stage => None,
        (_, key) => Some((key.to_owned(), value.clone())),
    };
    let settings: Vec<(String, String)> = arguments.set.iter().filter_map(own).collect();
    policy::configure(stage, policy, &settings, arguments.grants, &arguments.report.record)
}
