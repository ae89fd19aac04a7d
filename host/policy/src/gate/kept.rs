//! Verdicts kept beside the compiled code, so that a policy passes the gate once: under the digest of the module, its settings, the
//! limits, the compiler and the host's own text.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::{finding::Problem, verdict::Verdict};
use crate::{cache::Cache, limits::Limits};

/// Changes with everything that may change a verdict: the host's own text, as `build.rs` reads it.
const HOST: &str = env!("TILEWRIGHT_POLICY_SOURCES");

/// What a verdict is kept under; `compiler` tells versions and configurations of wasmtime apart.
pub(super) fn name(digest: &str, settings: &[(String, String)], limits: &Limits, compiler: u64) -> String {
    let mut hasher = Sha256::new();
    hasher.update(format!("{settings:?} {limits:?} {HOST} {compiler:016x}"));
    let hash = hasher.finalize();
    let mut name = digest.trim_start_matches("sha256:").to_owned();
    name.push('-');
    for byte in hash.iter().take(8) {
        // Writing to a text can't fail.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// The verdict that was kept under this name, for the policy as it is called now.
pub(super) fn find(cache: Option<&Cache>, name: &str, policy: &str) -> Option<Verdict> {
    let kept: Verdict = serde_json::from_str(&cache?.text(name)?).ok()?;
    Some(Verdict { policy: policy.into(), ..kept })
}

/// Keeps a verdict, unless a call of it ran into the clock: that may be the machine's fault, and another day's verdict another.
pub(super) fn keep(cache: Option<&Cache>, name: &str, verdict: &Verdict) {
    if verdict.findings.iter().any(|finding| finding.problem == Problem::Timeout) {
        return;
    }
    if let (Some(cache), Ok(text)) = (cache, serde_json::to_string(verdict)) {
        cache.keep_text(name, &text);
    }
}
