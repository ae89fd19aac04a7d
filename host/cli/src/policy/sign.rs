//! `tilewright policy sign`: signs a policy's file and its description.

use std::{io::Write, path::Path, time::UNIX_EPOCH};

use serde::Serialize;
use tilewright_policy::{Inspection, PolicyHost};
use tilewright_registry::Reference;
use tilewright_signing::{KeyId, LockedKey, others_can_read, signature_path, write_signature};

use crate::{args::Sign, failure::Outcome, files, policy::keygen, printer};

#[derive(Serialize)]
struct Report {
    file: String,
    signature: String,
    key: KeyId,
    name: String,
    version: String,
    digest: String,
    comment: String,
}

/// Signs a policy's file.
pub fn run(arguments: &Sign) -> Outcome {
    let path = signature_path(&arguments.file);
    let mut roles = files::roles().reads("the policy", &arguments.file).reads("the secret key", &arguments.key);
    if let Some(password) = &arguments.password.password_file {
        roles = roles.reads("the password", password);
    }
    roles.writes("the signature", &path).check()?;
    let host = super::host(arguments.loaded.grants)?;
    let bytes = host.read_file(&arguments.file)?;
    let policy = inspect(&host, &arguments.file, &bytes)?;
    if others_can_read(&arguments.key) {
        tracing::warn!("{}: others can read this secret key: chmod 600 it", arguments.key.display());
    }
    let key = LockedKey::read(&arguments.key)?;
    let password = if key.is_encrypted() { keygen::password(&arguments.password, false, "")? } else { String::new() };
    let key = key.open(password)?;
    let comment = comment(&policy, arguments.reference.as_ref(), arguments.comment.as_deref());
    let signature = key.sign(&bytes, &comment, None)?;
    write_signature(&path, &signature)?;
    let report = Report {
        file: arguments.file.display().to_string(),
        signature: path.display().to_string(),
        key: key.public()?.id(),
        name: policy.description.name,
        version: policy.description.version,
        digest: policy.digest,
        comment,
    };
    if arguments.loaded.json {
        return printer::json(&report);
    }
    let Report { signature, key, name, version, digest, .. } = report;
    Ok(writeln!(printer::summary(), "signed {name} {version} ({digest}) with key {key}: {signature}")?)
}

/// Inspects a policy: a file that is not one is neither signed nor pushed, nor kept when it is
/// pulled.
pub fn inspect(host: &PolicyHost, file: &Path, bytes: &[u8]) -> Outcome<Inspection> {
    Ok(host.load(&file.display().to_string(), bytes)?.inspection().clone())
}

/// The trusted comment, in minisign's own form: parts separated by tabs.
fn comment(policy: &Inspection, reference: Option<&Reference>, more: Option<&str>) -> String {
    let seconds = UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs());
    let (name, version) = (&policy.description.name, &policy.description.version);
    let parts = format!("timestamp:{seconds}\tpolicy:{name}\tversion:{version}\tdigest:{}", policy.digest);
    // The tag is left out if none was given: the signature is then good for every tag.
    let reference = reference.map(|reference| {
        let tag = reference.tag().map_or_else(String::new, |tag| format!(":{tag}"));
        format!("reference:{}/{}{tag}", reference.registry(), reference.repository())
    });
    [Some(parts), reference, more.map(str::to_owned)].into_iter().flatten().collect::<Vec<_>>().join("\t")
}
