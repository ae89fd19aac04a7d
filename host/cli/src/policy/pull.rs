//! `tilewright policy pull`: downloads a policy from a registry.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::Serialize;
use tilewright_outputs::stage;
use tilewright_registry::{Binding, Pulled, Statement};
use tilewright_signing::{KeyId, Refusal, Signed, signature_path};

use super::{admission, build, push, sign};
use crate::{
    args::Pull,
    config,
    failure::{Failure, Outcome},
    files, output, printer,
    tell::tell,
};

#[derive(Serialize)]
struct Report {
    file: String,
    /// The name with the digest.
    reference: String,
    digest: String,
    name: String,
    version: String,
    /// The digest of the file, which records carry.
    policy: String,
    /// The signature, if a trusted key made it.
    signed: Option<Signed>,
    /// The missing part, if no signed statement says that this is the policy asked for.
    unbound: Option<String>,
    /// The key that the signature claims otherwise.
    untrusted_key: Option<KeyId>,
}

/// Downloads a policy and its signature.
pub fn run(arguments: &Pull) -> Outcome {
    let default = || PathBuf::from(format!("{}.wasm", arguments.reference.name()));
    let path = arguments.output.clone().unwrap_or_else(default);
    output::writable(&path)?;
    files::roles().writes("-o", &path).writes("the signature", &signature_path(&path)).check()?;
    build::replaces_a_policy_only(&path)?;
    let policies = config::load()?.policies;
    let client = push::client(&arguments.reference, &arguments.connection)?;
    let pulled = client.pull(&arguments.reference)?;
    let shown = arguments.reference.to_string();
    let verified = policies.trusted.verify(&pulled.wasm, pulled.signature.as_deref());
    let (signed, untrusted_key) = match verified {
        Ok(signed) => (Some(signed), None),
        Err(refusal) if policies.require_signed => return Err(admission::refusal_failure(&shown, None, &refusal)),
        Err(Refusal::Unsigned) => (None, None),
        Err(Refusal::Untrusted { key, .. }) => (None, Some(key)),
        // A file with an invalid signature of a trusted key is never kept.
        Err(refusal) => return Err(Failure::work(format!("policy {shown}: {refusal}"))),
    };
    // The signed name is compared, too: a registry may hand out any file that was ever signed.
    let binding = signed.as_ref().map(|signed| arguments.reference.binding(&Statement::read(&signed.comment)));
    let unbound = match binding {
        Some(Binding::Other(mismatch)) => {
            let advice = "ask for what was signed, or for a digest";
            return Err(Failure::work(format!("policy {shown}: {mismatch}: {advice}")));
        }
        Some(Binding::Loose(lack)) => Some(lack),
        Some(Binding::Bound) | None => None,
    };
    let policy = sign::inspect(&super::host(arguments.connection.loaded.grants)?, Path::new(&shown), &pulled.wasm)?;
    keep(&path, &pulled)?;
    let report = Report {
        file: path.display().to_string(),
        reference: pulled.reference,
        digest: pulled.digest,
        name: policy.description.name,
        version: policy.description.version,
        policy: policy.digest,
        signed,
        unbound,
        untrusted_key,
    };
    if arguments.connection.loaded.json { printer::json(&report) } else { print_report(&report) }
}

/// Writes both files atomically; existing ones are replaced only after both are complete. The
/// existing signature goes first: it would speak of another file.
fn keep(path: &Path, pulled: &Pulled) -> Outcome {
    let beside = signature_path(path);
    let kept = stage(path, &pulled.wasm, 0o666).and_then(|policy| {
        let signature = pulled.signature.as_ref().map(|text| stage(&beside, text.as_bytes(), 0o666)).transpose()?;
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        tilewright_outputs::place(policy, path)?;
        signature.map_or(Ok(()), |signature| tilewright_outputs::place(signature, &beside))
    });
    kept.map_err(files::unwritten(path))
}

fn print_report(report: &Report) -> Outcome {
    let Report { file, name, version, reference, signed, unbound, untrusted_key, .. } = report;
    if let Some(lack) = unbound {
        tell!("note: policy {reference}: {lack}");
    }
    let signed = match (signed, untrusted_key) {
        (Some(signed), _) => format!("signed by {} (key {})", signed.by, signed.key),
        (None, Some(key)) => format!("signed with key {key}, which is not among the trusted ones"),
        (None, None) => "without a signature".to_owned(),
    };
    Ok(writeln!(printer::summary(), "pulled {name} {version}, {signed}: {file}\nfrom {reference}")?)
}
