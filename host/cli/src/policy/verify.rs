//! `tilewright policy verify`: the signer of a file.

use std::{io::Write, path::Path};

use serde::Serialize;
use tilewright_policy::{CacheDir, Limits, PolicyHost};
use tilewright_signing::{PublicKey, Refusal, Signed, TrustList, Trusted};

use super::admission;
use tilewright_plan::terminal::shorten;

use crate::{
    args::Verify,
    config,
    failure::{Failure, Outcome},
    printer, table,
};

/// Characters of a comment that are shown.
const COMMENT: usize = 400;

#[derive(Serialize)]
struct Report {
    file: String,
    /// good, unsigned, garbled, untrusted or bad
    #[serde(flatten)]
    verdict: Verdict,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Verdict {
    Good {
        verdict: &'static str,
        #[serde(flatten)]
        signed: Signed,
    },
    Refused(Refusal),
}

/// Verifies a policy's file against the trusted keys.
pub fn run(arguments: &Verify) -> Outcome {
    let trusted = match arguments.key.as_slice() {
        [] => config::load()?.policies.trusted,
        keys => TrustList::new(keys.iter().map(|key| parse_key(key)).collect::<Outcome<_>>()?),
    };
    // Nothing is compiled, so that a file of a language's runtime needs no grant here.
    let limits = Limits { file_bytes: Limits::MOST_FILE_BYTES, ..Limits::default() };
    let bytes = PolicyHost::new(limits, &CacheDir::Off)?.read_file(&arguments.file)?;
    let signature = admission::signature(&arguments.file)?;
    let verified = trusted.verify(&bytes, signature.as_deref());
    let file = arguments.file.display().to_string();
    if arguments.json {
        let verdict = match verified.clone() {
            Ok(signed) => Verdict::Good { verdict: "good", signed },
            Err(refusal) => Verdict::Refused(refusal),
        };
        printer::json(&Report { file: file.clone(), verdict })?;
    }
    match verified {
        Ok(_) if arguments.json => Ok(()),
        Ok(signed) => {
            let said = shorten(&signed.comment.split('\t').collect::<Vec<_>>().join(", "), COMMENT);
            let rows =
                vec![("policy", file), ("signed by", format!("{} (key {})", signed.by, signed.key)), ("saying", said)];
            Ok(writeln!(printer::stdout(), "{}", table::facts(rows))?)
        }
        Err(refusal) => {
            let advice = admission::advice(Some(&arguments.file), &refusal);
            let instead = match (&refusal, arguments.key.is_empty()) {
                (Refusal::Untrusted { .. }, true) => format!("{advice} in {}", config::shown_path()),
                _ => advice,
            };
            Err(Failure::work(format!("policy {file}: {refusal}{instead}")))
        }
    }
}

/// A key on the command line: itself, or its file. A text that is a key is never taken for a file's
/// name: another key could have been placed there under it.
fn parse_key(text: &str) -> Outcome<Trusted> {
    let path = Path::new(text);
    let (key, name) = match text.parse::<PublicKey>() {
        Ok(key) => (key, None),
        Err(_) if path.exists() || text.ends_with(".pub") => (PublicKey::read(path)?, path.file_stem()),
        Err(error) => return Err(error.into()),
    };
    let name = name.map(|stem| stem.to_string_lossy().into_owned());
    Ok(Trusted { key, name: name.unwrap_or_else(|| "the given key".into()) })
}
