//! Verdicts kept beside the compiled code, so that a policy passes the gate once: under the digest of the module, its settings, the
//! limits, the host's version and the gate's own text.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::verdict::Verdict;
use crate::{cache::Cache, limits::Limits};

/// Changes with anything that may change a verdict.
const GATE: u64 = fingerprint(&[
    include_bytes!("finding.rs"),
    include_bytes!("golden.rs"),
    include_bytes!("golden/play.rs"),
    include_bytes!("golden/rows.rs"),
    include_bytes!("judge.rs"),
    include_bytes!("machines.rs"),
    include_bytes!("prices.rs"),
    include_bytes!("trial.rs"),
    include_bytes!("verdict.rs"),
    include_bytes!("../check.rs"),
    include_bytes!("../runtime.rs"),
]);

/// FNV-1a over all of the texts.
const fn fingerprint(texts: &[&[u8]]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut text = 0;
    while text < texts.len() {
        let mut at = 0;
        while at < texts[text].len() {
            hash = (hash ^ texts[text][at] as u64).wrapping_mul(0x0100_0000_01b3);
            at += 1;
        }
        text += 1;
    }
    hash
}

/// What a verdict is kept under.
pub(super) fn name(digest: &str, settings: &[(String, String)], limits: &Limits) -> String {
    let mut hasher = Sha256::new();
    hasher.update(format!("{settings:?} {limits:?} {} {GATE:016x}", env!("CARGO_PKG_VERSION")));
    let hash = hasher.finalize();
    let mut name = digest.trim_start_matches("sha256:").to_owned();
    name.push('-');
    for byte in hash.iter().take(8) {
        // Writing to a text can't fail.
        let _ = write!(name, "{byte:02x}");
    }
    name + ".verdict"
}

/// The verdict that was kept under this name, for the policy as it is called now.
pub(super) fn find(cache: Option<&Cache>, name: &str, policy: &str) -> Option<Verdict> {
    let kept: Verdict = serde_json::from_str(&cache?.text(name)?).ok()?;
    Some(Verdict { policy: policy.into(), ..kept })
}

/// Keeps a verdict.
pub(super) fn keep(cache: Option<&Cache>, name: &str, verdict: &Verdict) {
    if let (Some(cache), Ok(text)) = (cache, serde_json::to_string(verdict)) {
        cache.keep_text(name, &text);
    }
}
