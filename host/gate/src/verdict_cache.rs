//! Verdicts cached beside the compiled code, so that a policy passes the gate once a week. The key
//! is made of the module's digest, its settings, the limits, the compiler and the host's own text.
//! A verdict expires because some of the requests are drawn: a module that was lucky once gets
//! others later.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tilewright_files::digest::sha256;

use tilewright_policy::{LoadedPolicy, PolicyHost};

use crate::{finding::Problem, verdict::Verdict};

/// A digest of everything that may change a verdict: the host's own text, as `build.rs` reads it.
const HOST: &str = env!("TILEWRIGHT_GATE_SOURCES");

/// The time for which a verdict is valid.
const HOLDS: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A verdict, and the time at which it was reached.
#[derive(Serialize, Deserialize)]
struct CachedVerdict {
    /// Seconds since 1970.
    since_s: u64,
    verdict: Verdict,
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The key of the verdict on a policy.
pub(crate) fn name(host: &PolicyHost, policy: &LoadedPolicy, settings: &[(String, String)]) -> String {
    let inspection = policy.inspection();
    let (limits, compiler) = (inspection.limits, host.compiler());
    let hash = sha256(format!("{settings:?} {limits:?} {HOST} {compiler:016x}").as_bytes());
    let [module, hash] = [&inspection.digest, &hash].map(|digest| digest.trim_start_matches("sha256:"));
    format!("{module}-{}", &hash[..16])
}

/// The cached verdict under this key, with the policy's current name.
pub(crate) fn find(host: &PolicyHost, name: &str, policy: &str) -> Option<Verdict> {
    let CachedVerdict { since_s, verdict } = serde_json::from_str(&host.cached_text(name)?).ok()?;
    // A verdict from the future is from a wrong clock.
    let age_s = now_s().checked_sub(since_s)?;
    (age_s < HOLDS.as_secs()).then(|| Verdict { policy: policy.into(), ..verdict })
}

/// Caches a verdict, unless a call of it timed out: that may be the machine's fault, and may not
/// happen again.
pub(crate) fn keep(host: &PolicyHost, name: &str, verdict: &Verdict) {
    if verdict.findings.iter().any(|finding| finding.problem == Problem::Timeout) {
        return;
    }
    let kept = CachedVerdict { since_s: now_s(), verdict: verdict.clone() };
    if let Ok(text) = serde_json::to_string(&kept) {
        host.cache_text(name, &text);
    }
}
