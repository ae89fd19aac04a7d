//! Errors of loading and configuring a policy, as the step of the gate that failed.

use tilewright_policy::{Fault, PolicyError};

use crate::finding::{Finding, Problem, Severity, Step};

/// The finding for a refusal. The error itself if there is no policy at all, or if the user's
/// settings are wrong.
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
        // A policy that refuses its own defaults is at fault.
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
        // Imports and exports, of any version of the contract.
        _ => (Step::World, Problem::World),
    };
    Ok(Finding::new(Severity::Error, step, problem, error.bare()))
}
