//! The section of a profiled job, and the boxes that ask for one.

use tilewright_service_api::JobState;

use super::{PLAIN, tags};
use crate::views::JobPage;
use crate::{job, job_parts, overview, prompt};

fn plain(html: &str) -> String {
    html.replace(['\u{a0}', '\u{202f}'], " ")
}

#[test]
fn a_profiled_job_shows_where_each_stage_spent_its_time() {
    let view = PLAIN.profiled_page();
    let html = plain(&job(&view));
    for words in [
        "Where the time went",
        "decode: 1.83 s",
        "1.9 s under the profiler, 1.83 s without it: of the stage, its overhead is 3.95 %.",
        "The estimate was 1.71 s.",
        "Convolutions",
        "1.1 s",
        "58 %",
        "61 %",
        "larger tiles give the GPU more to do at once",
        "times are the host's",
    ] {
        assert!(html.contains(words), "{words}: {html}");
    }
    let addresses: Vec<_> = tags(&html).iter().filter_map(|tag| tag.attribute("href")).map(str::to_owned).collect();
    for format in ["html", "json"] {
        assert!(addresses.contains(&format!("/v1/jobs/0199a2f0-job/profile?format={format}")), "{addresses:?}");
    }
    let parts = job_parts(&view);
    assert!(parts.iter().any(|(id, part)| *id == "job" && part.contains("Where the time went")));
}

#[test]
fn a_job_without_a_profile_says_why_or_nothing() {
    assert!(!job(&PLAIN.job_page()).contains("Where the time went"));
    let mut view = JobPage { job: PLAIN.job("one", JobState::Running, 0.4), ..PLAIN.job_page() };
    view.job.job.profile = Some(Vec::new());
    let html = job(&view);
    assert!(html.contains("when a stage has ended") && !html.contains("/profile?format"), "{html}");
    view.job = PLAIN.job("one", JobState::Failed, 0.4);
    view.job.job.profile = Some(Vec::new());
    assert!(job(&view).contains("ended before a stage of it did"));
}

#[test]
fn forms_offer_a_profile_and_show_that_one_was_asked_for() {
    let ticked = |html: &str, id: &str| {
        let tags = tags(html);
        let found = tags.iter().find(|tag| tag.attribute("id") == Some(id)).expect("a box");
        assert_eq!((found.attribute("type"), found.attribute("value")), (Some("checkbox"), Some("true")));
        found.attribute("checked").is_some()
    };
    assert!(!ticked(&overview(&PLAIN.overview()), "submit-profile"));
    assert!(!ticked(&prompt(&PLAIN.prompt_page()), "prompt-profile"));
    assert!(ticked(&prompt(&PLAIN.prompt_under_way()), "prompt-profile"));
}
