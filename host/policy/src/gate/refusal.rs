//! What kept a policy from being put to work, as the step of the gate that it failed at.

use wasmparser::{Validator, WasmFeatures};

use super::finding::{Finding, Problem, Severity, Step};
use crate::{PolicyError, load::grants};

/// Features that are off in the sandbox, as a policy's author knows them.
const OFF: [(WasmFeatures, &str); 12] = [
    (WasmFeatures::THREADS, "threads"),
    (WasmFeatures::SHARED_EVERYTHING_THREADS, "shared-everything threads"),
    (WasmFeatures::GC, "garbage collection"),
    (WasmFeatures::EXCEPTIONS, "exceptions"),
    (WasmFeatures::LEGACY_EXCEPTIONS, "exceptions of the older kind"),
    (WasmFeatures::MEMORY64, "64-bit memory"),
    (WasmFeatures::MULTI_MEMORY, "several memories in one module"),
    (WasmFeatures::RELAXED_SIMD, "relaxed SIMD"),
    (WasmFeatures::CUSTOM_PAGE_SIZES, "pages of other sizes"),
    (WasmFeatures::WIDE_ARITHMETIC, "wide arithmetic"),
    (WasmFeatures::STACK_SWITCHING, "stack switching"),
    (WasmFeatures::CM_ASYNC, "asynchronous components"),
];

/// The finding that a refusal is; the refusal itself where there is no policy to speak of, or where the user asked for the wrong thing.
pub(super) fn finding(error: PolicyError, bytes: &[u8], has_settings: bool) -> Result<Finding, PolicyError> {
    let (step, problem) = match &error {
        PolicyError::Invalid { .. } => match invalid(bytes) {
            Some(found) => return found.ok_or(error),
            None => (Step::World, Problem::World),
        },
        PolicyError::Ungranted { grant, .. } => {
            (if *grant == grants::RUNTIME { Step::Limits } else { Step::World }, Problem::Grant)
        }
        PolicyError::Failed { during: "its start", .. } => (Step::Limits, Problem::Start),
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
    Ok(Finding::new(Severity::Error, step, problem, bare(&error)))
}

/// What a validator says of a module that the sandbox refuses: an inner none where it is broken, none where nothing is wrong with it by
/// itself.
fn invalid(bytes: &[u8]) -> Option<Option<Finding>> {
    let valid = |features: WasmFeatures| Validator::new_with_features(features).validate_all(bytes).map(|_| ());
    if valid(WasmFeatures::all()).is_err() {
        return Some(None);
    }
    let used: Vec<&str> = OFF
        .iter()
        .filter(|(feature, _)| valid(WasmFeatures::all() - *feature).is_err())
        .map(|(_, name)| *name)
        .collect();
    if used.is_empty() {
        return None;
    }
    let found = format!("uses {}, which is off here", used.join(" and "));
    Some(Some(Finding::new(Severity::Error, Step::Features, Problem::Feature, found)))
}

/// The error without the policy's name, which stands above every finding.
fn bare(error: &PolicyError) -> String {
    let text = error.to_string();
    let after = text.strip_prefix("policy ").and_then(|text| text.split_once(": "));
    after.map_or(text.clone(), |(_, words)| words.to_owned())
}
