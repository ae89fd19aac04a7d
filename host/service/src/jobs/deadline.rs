//! Deadlines against what work is expected to take, and the words for those that passed before a
//! job's turn.

use std::time::Duration;

use tilewright_plan::{Stage, words};
use tilewright_service_api::JobStage;

use super::StoredJob;

/// The times that a job may take less than the fastest plan is expected to: prices are estimates,
/// and nobody is turned away for their error.
const SLACK: u32 = 2;

/// True if work can't be done in the time that is left for it.
fn is_hopeless(expected: Duration, left: Duration) -> bool {
    expected / SLACK > left
}

/// The reason not to accept a job whose work takes longer than `allowed`; none if it may be done in
/// time, or if nothing is known of it. `asked` says if the request set the time.
pub fn refusal(expected: Option<Duration>, allowed: Duration, asked: bool) -> Option<String> {
    let expected = expected.filter(|expected| is_hopeless(*expected, allowed))?;
    let (takes, allowed) = (words::time(expected), words::time(allowed));
    Some(match asked {
        true => format!(
            "deadline_s: the job is expected to take {takes} and {allowed} are allowed: allow more, or ask for a smaller size or fewer steps"
        ),
        false => format!(
            "deadline_s: the job is expected to take {takes} and the server allows {allowed}: ask for a smaller size or fewer steps"
        ),
    })
}

/// The reason not to begin a job at its turn; none if it may be done in time. What an earlier
/// server has done of it is not known to the estimate, so that only a first start is refused.
pub fn too_late(stored: &StoredJob, now_ms: u64) -> Option<String> {
    let left = Duration::from_millis(stored.deadline_ms.saturating_sub(now_ms));
    let expected = stored.expected_ms.filter(|_| stored.starts == 0).map(Duration::from_millis);
    let expected = expected.filter(|expected| is_hopeless(*expected, left))?;
    let (takes, left) = (words::time(expected), words::time(left));
    Some(format!("its deadline left {left} when its turn came, and it is expected to take {takes}"))
}

/// The words for a deadline that passed before a job's turn. `steps` are the finished ones of its
/// sample; `server_ms` is the time when this server started.
pub fn passed(stored: &StoredJob, steps: Option<u32>, server_ms: u64) -> String {
    let place = (stored.starts > 0).then(|| place(stored, steps));
    match (place, stored.deadline_ms <= server_ms) {
        (None, false) => "its deadline passed while it waited".into(),
        (None, true) => "its deadline passed while the server was down, before its turn".into(),
        (Some(place), true) => format!("its deadline passed while the server was down, {place}"),
        (Some(place), false) => {
            format!("its deadline passed while it waited to go on after a restart of the server, {place}")
        }
    }
}

/// The place in the work that an earlier server reached.
fn place(stored: &StoredJob, steps: Option<u32>) -> String {
    let job = &stored.job;
    match (job.stage, job.at) {
        (JobStage::Decode, _) => "during the decode".into(),
        (JobStage::Encode, _) => "during the encode".into(),
        (_, Some(at)) if at != Stage::Denoise => format!("during the {}", at.name()),
        (JobStage::Generate, None) => "before its first stage".into(),
        _ => match (steps, job.steps) {
            (Some(done), Some(all)) => format!("after step {done} of {all}"),
            (None, Some(all)) => format!("in step 1 of {all}"),
            _ => "during the sampling".into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(changes: serde_json::Value) -> StoredJob {
        let job = serde_json::json!({
            "id": "a", "state": "queued", "stage": "generate", "model": "m", "device": "cpu", "route": "r",
            "policy": "p", "revision": 1, "digest": "d", "canary": false, "format": "png", "batch": 1, "frames": 1,
            "height": 64, "width": 64, "steps": 20, "created": "2026-01-01T00:00:00Z", "results": [],
        });
        let mut stored = serde_json::json!({
            "job": job, "request": { "model": "m" }, "deadline_ms": 100_000, "starts": 0,
            "pinned": {
                "policy": "p", "number": 1, "route": "r", "digest": "d", "origin": "o", "since": "s", "settings": [],
                "grants": {}, "canary": false, "objective": null, "memory_limit": null, "takes_over": false,
            },
        });
        for (pointer, value) in changes.as_object().unwrap() {
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            stored.pointer_mut(parent).unwrap()[name] = value.clone();
        }
        serde_json::from_value(stored).unwrap()
    }

    #[test]
    fn only_what_can_not_be_done_in_time_is_refused_with_both_times() {
        let seconds = Duration::from_secs;
        assert_eq!(refusal(None, seconds(1), true), None, "nothing is known");
        assert_eq!(refusal(Some(seconds(120)), seconds(60), true), None, "prices err");
        let line = refusal(Some(seconds(7920)), seconds(15), true).unwrap();
        assert!(line.starts_with("deadline_s: the job is expected to take 2 h 12 min and 15 s are allowed:"), "{line}");
        let line = refusal(Some(Duration::MAX), seconds(3600), false).unwrap();
        assert!(line.contains(" and the server allows 1 h:"), "{line}");
    }

    #[test]
    fn a_turn_that_comes_too_late_begins_nothing_unless_some_is_done() {
        let expected = serde_json::json!({ "/expected_ms": 60_000 });
        assert_eq!(too_late(&stored(expected.clone()), 70_000), None);
        let line = too_late(&stored(expected), 90_000).unwrap();
        assert_eq!(line, "its deadline left 10 s when its turn came, and it is expected to take 1 min");
        assert_eq!(too_late(&stored(serde_json::json!({ "/expected_ms": 60_000, "/starts": 1 })), 90_000), None);
        assert_eq!(too_late(&stored(serde_json::json!({})), 99_999), None);
    }

    #[test]
    fn a_deadline_that_passed_after_a_kill_says_where() {
        let words = |changes: serde_json::Value, steps, server_ms| passed(&stored(changes), steps, server_ms);
        let begun = |at: &str| serde_json::json!({ "/starts": 1, "/job/at": at });
        assert_eq!(words(serde_json::json!({}), None, 99_999), "its deadline passed while it waited");
        let down = "its deadline passed while the server was down";
        assert_eq!(words(serde_json::json!({}), None, 200_000), format!("{down}, before its turn"));
        assert_eq!(words(begun("denoise"), Some(3), 100_000), format!("{down}, after step 3 of 20"));
        assert_eq!(words(begun("denoise"), None, 100_000), format!("{down}, in step 1 of 20"));
        assert_eq!(words(begun("text"), None, 100_000), format!("{down}, during the text"));
        let waited = "its deadline passed while it waited to go on after a restart of the server";
        assert_eq!(words(begun("decode"), Some(20), 99_999), format!("{waited}, during the decode"));
        let decode = serde_json::json!({ "/starts": 2, "/job/stage": "decode" });
        assert_eq!(words(decode, None, 99_999), format!("{waited}, during the decode"));
    }
}
