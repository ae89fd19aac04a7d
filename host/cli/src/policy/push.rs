//! `tilewright policy push`: uploads a policy to a registry.

use std::io::Write;

use serde::Serialize;
use tilewright_policy::{Inspection, ModuleKind};
use tilewright_registry::{ArtifactInfo, Binding, Client, Credentials, Limits, Pushed, Reach, Reference, Statement};
use tilewright_signing::{KeyId, Refusal, comment_of, key_of};

use super::{admission, sign};
use crate::{
    args::{Connection, Push},
    config,
    failure::{Failure, Outcome},
    printer,
};

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    pushed: Pushed,
    name: String,
    version: String,
    /// The digest of the file, which records carry.
    policy: String,
    key: Option<KeyId>,
}

/// Uploads a policy and its signature.
pub fn run(arguments: &Push) -> Outcome {
    let host = super::host(arguments.connection.loaded.grants)?;
    let bytes = host.read_file(&arguments.file)?;
    let policy = sign::inspect(&host, &arguments.file, &bytes)?;
    let signature = admission::signature(&arguments.file)?;
    let file = arguments.file.display();
    let key = signature.as_deref().map(key_of).transpose();
    let key = key.map_err(|refusal| Failure::input(format!("policy {file}: {refusal}")))?;
    // The owner can mend it before others see it.
    if let Err(bad @ Refusal::Bad { .. }) = config::load()?.policies.trusted.verify(&bytes, signature.as_deref()) {
        return Err(Failure::input(format!("policy {file}: {bad}, or sign it again")));
    }
    // No pull would accept it under this name.
    let comment = signature.as_deref().and_then(|signature| comment_of(signature).ok());
    let binding = comment.map(|comment| arguments.reference.binding(&Statement::read(&comment)));
    if let Some(Binding::Other(mismatch)) = binding {
        return Err(Failure::input(format!("policy {file}: {mismatch}: push it as what was signed, or sign it again")));
    }
    let client = client(&arguments.reference, &arguments.connection)?;
    let pushed = client.push(&arguments.reference, &bytes, &about(&policy), signature.as_deref())?;
    let Inspection { description, digest, .. } = policy;
    let report = Report { pushed, name: description.name, version: description.version, policy: digest, key };
    if arguments.connection.loaded.json {
        return printer::json(&report);
    }
    let signed = report.key.map_or("without a signature".to_owned(), |key| format!("signed with key {key}"));
    let Report { pushed, name, version, .. } = report;
    Ok(writeln!(printer::summary(), "pushed {name} {version}, {signed}: {}", pushed.reference)?)
}

/// A client with the user's credentials, under the sandbox's limit for files.
pub fn client(reference: &Reference, connection: &Connection) -> Outcome<Client> {
    let limits = Limits { policy_bytes: connection.loaded.grants.limits().file_bytes as u64, ..Limits::default() };
    let credentials = Credentials::of_user(reference.registry())?;
    Ok(Client::new(reference, credentials, connection.plain_http, Reach::User, limits)?)
}

fn about(policy: &Inspection) -> ArtifactInfo {
    ArtifactInfo {
        name: policy.description.name.clone(),
        version: policy.description.version.clone(),
        summary: policy.description.summary.clone(),
        is_component: policy.kind == ModuleKind::Component,
        imports: policy.imports.clone(),
        exports: policy.exports.clone(),
    }
}
