//! Whether a policy's file may be put to work: what the configuration asks for.

use std::path::Path;

use tilewright_config::Policies;
use tilewright_signing::{Error, Refusal, read_text, signature_path};

use crate::{
    config,
    failure::{Failure, Outcome},
};

/// With `require-signed`, these bytes have to be signed with a trusted key, in the file beside them.
pub fn signed(policies: &Policies, path: &Path, bytes: &[u8]) -> Outcome {
    if !policies.require_signed {
        return Ok(());
    }
    let signature = signature(path)?;
    let verified = policies.trusted.verify(bytes, signature.as_deref());
    verified.map(drop).map_err(|refusal| refused(&path.display().to_string(), Some(path), &refusal))
}

/// The line for a policy that is not let in; `file`: where it stands, unless it is in a registry.
pub fn refused(policy: &str, file: Option<&Path>, refusal: &Refusal) -> Failure {
    let asked = format!("{} asks for signed ones (require-signed)", config::shown_path());
    Failure::input(format!("policy {policy}: {refusal}, and {asked}{}", advice(file, refusal)))
}

/// What to do about it.
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
        // These say so themselves.
        (Refusal::Garbled { .. } | Refusal::Bad { .. }, _) => String::new(),
    }
}

/// The text of the signature beside a file, where there is one.
pub fn signature(path: &Path) -> Outcome<Option<String>> {
    match read_text(&signature_path(path)) {
        Ok(text) => Ok(Some(text)),
        Err(Error::Unreadable { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}
