//! Admission of a policy's file by the configuration.

use std::path::Path;

use tilewright_config::{NotAdmitted, Policies};
use tilewright_signing::{Refusal, signature_path};

use crate::{
    config,
    failure::{Failure, Outcome},
};

/// Verifies that, with `require-signed`, a trusted key has signed these bytes, in the file beside
/// them.
pub fn verify(policies: &Policies, path: &Path, bytes: &[u8]) -> Outcome {
    policies.verify_file(path, bytes).map_err(|reason| match reason {
        NotAdmitted::Unreadable(error) => error.into(),
        NotAdmitted::Refused(refusal) => refusal_failure(&path.display().to_string(), Some(path), &refusal),
    })
}

/// The failure of a policy that is refused; `file`: its path, unless it is in a registry.
pub fn refusal_failure(policy: &str, file: Option<&Path>, refusal: &Refusal) -> Failure {
    let asked = format!("{} asks for signed ones (require-signed)", config::shown_path());
    Failure::input(format!("policy {policy}: {refusal}, and {asked}{}", advice(file, refusal)))
}

/// The remedy.
pub fn advice(file: Option<&Path>, refusal: &Refusal) -> String {
    match (refusal, file) {
        (Refusal::Unsigned, Some(file)) => {
            let signature = signature_path(file);
            format!(": get {} from whoever made it, or sign it with 'tilewright policy sign'", signature.display())
        }
        (Refusal::Unsigned, None) => ": ask whoever made it to push it with its signature".into(),
        (Refusal::Untrusted { .. }, _) => {
            ": if you know whose key it is, add it to [[policies.trusted]] with a name".into()
        }
        // These name the remedy themselves.
        (Refusal::Garbled { .. } | Refusal::Bad { .. }, _) => String::new(),
    }
}

/// The text of the signature beside a file, if there is one.
pub fn signature(path: &Path) -> Outcome<Option<String>> {
    Ok(tilewright_config::signature_of(path)?)
}
