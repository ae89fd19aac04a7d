//! What kept a policy from being put to work, as the step of the gate that it failed at.

use tilewright_policy::{Fault, PolicyError};

use crate::finding::{Finding, Problem, Severity, Step};

/// The finding that a refusal is; the refusal itself where there is no policy to speak of, or where the user asked for the wrong thing.
pub(crate) fn finding(error: PolicyError, has_settings: bool) -> Result<Finding, PolicyError> {
    let (step, problem) = match &error {
        PolicyError::Invalid { fault: Fault::Broken, .. } => return Err(error),
        PolicyError::Invalid { fault: Fault::Features(used), .. } => {
            let found = format!("uses {}, which is off here", used.join(" and "));
            return Ok(Finding::new(Severity::Error, Step::Features, Problem::Feature, found));
        }
        PolicyError::Invalid { fault: Fault::Other, .. } => (Step::World, Problem::World),
        PolicyError::Ungranted { grant, .. } => {
            (if *grant == PolicyError::RUNTIME { Step::Limits } else { Step::World }, Problem::Grant)
        }
        PolicyError::Failed { during: PolicyError::START, .. } => (Step::Limits, Problem::Start),
        PolicyError::Failed { during: "describe", .. } | PolicyError::Description { .. } => {
            (Step::Describe, Problem::Description)
        }
        PolicyError::Failed { .. } => (Step::Configure, Problem::Settings),
        // What it refuses of what it declared itself is its own fault.
        PolicyError::Refused { .. } if !has_settings => (Step::Configure, Problem::Settings),
        PolicyError::Unknown { .. }
        | PolicyError::Unreadable { .. }
        | PolicyError::TooLarge { .. }
        | PolicyError::NotWebAssembly { .. }
        | PolicyError::UnknownSetting { .. }
        | PolicyError::SettingType { .. }
        | PolicyError::SettingForm { .. }
        | PolicyError::Refused { .. }
        | PolicyError::NotAdmitted { .. }
        | PolicyError::Sandbox { .. } => return Err(error),
        // Imports and exports, of whatever version of the contract.
        _ => (Step::World, Problem::World),
    };
    Ok(Finding::new(Severity::Error, step, problem, error.bare()))
}
