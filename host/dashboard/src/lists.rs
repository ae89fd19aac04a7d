//! Jobs in lists: those that run, with their tiles, those that wait, those that ended.

use std::time::Duration;

use maud::{Markup, html};

use crate::facts::{Frame, Job, Overview, Role, State};
use crate::form;
use crate::frame::section;
use crate::grid::grid;
use crate::table::{Column, Row, table};
use crate::units::{NONE, between, coarse, extent, percent, size, span, when};
use crate::{address, words};

/// The element with the id `running`.
pub(crate) fn running(facts: &Overview) -> Markup {
    let body = html! {
        @if facts.running.is_empty() {
            div.empty {
                p { "Nothing runs. Send a latent with the form, or from a shell:" }
                pre tabindex="0" { code { (curl(facts)) } }
            }
        }
        @for job in &facts.running { (card(&facts.frame, job)) }
    };
    section("running", "Running", count(&facts.running), body)
}

fn count(jobs: &[Job]) -> Option<usize> {
    (!jobs.is_empty()).then_some(jobs.len())
}

/// A line to copy. A name that is none in a configuration stays out of people's shells.
fn curl(facts: &Overview) -> String {
    let is_plain = |name: &&String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let model = facts.models.iter().find(is_plain).map_or("MODEL", String::as_str);
    let token = if facts.frame.has_token { " \\\n  -H \"Authorization: Bearer $TOKEN\"" } else { "" };
    format!(
        "curl {}/v1/jobs{token} \\\n  -F 'request={{\"model\":\"{model}\"}};type=application/json' \\\n  -F latent=@my.latent",
        facts.frame.address
    )
}

fn card(frame: &Frame, job: &Job) -> Markup {
    let elapsed = job.started.map(|started| between(started, frame.now));
    html! {
        article.job id=(address::id("run", &job.id)) {
            (grid(job))
            div.facts {
                h3 {
                    a href=(address::job(&job.id)) { (job.model) }
                    " " span.size { (extent(job.width, job.height, job.frames, job.batch)) }
                    @if let Some(tag) = &job.tag { " " span.tag { (tag) } }
                }
                @let share = share(job);
                div.progress {
                    progress max="1" value=[share.map(|share| format!("{share:.3}"))] aria-label="Progress" {}
                    span { (share.map_or_else(|| NONE.to_owned(), |share| percent((share * 100.0).floor() / 100.0))) }
                }
                p.times {
                    @if let Some(elapsed) = elapsed { (coarse(elapsed)) " so far" }
                    @if let Some(left) = elapsed.zip(share).and_then(|(elapsed, share)| left(elapsed, share)) {
                        ", about " (coarse(left)) " left"
                    }
                }
                dl {
                    dt { "Policy" }
                    dd { (decider(job)) }
                    @if let Some(plan) = &job.plan {
                        dt { "Plan" }
                        dd { (words::plan(plan)) }
                    }
                    dt { "Device" }
                    dd { (job.device) }
                }
                (cancel(frame, job, "run"))
            }
        }
    }
}

/// How much of it is done, as a share; none where that is no number.
pub(crate) fn share(job: &Job) -> Option<f64> {
    job.progress.filter(|share| share.is_finite()).map(|share| share.clamp(0.0, 1.0))
}

/// What is left, if it goes on like this; nothing is said of a job that has only just begun.
fn left(elapsed: Duration, share: f64) -> Option<Duration> {
    let left = elapsed.as_secs_f64() * (1.0 - share) / share;
    (share > 0.04 && share < 1.0 && left >= 1.0).then(|| Duration::try_from_secs_f64(left).ok()).flatten()
}

/// Who decided, and on which route.
pub(crate) fn decider(job: &Job) -> Markup {
    html! {
        @match &job.policy {
            Some(policy) => {
                a href=(address::policy(policy)) { (policy) }
                @if let Some(revision) = job.revision { " r" (revision) }
                @if job.canary { " " (words::badge("warn", "canary")) }
                @if let Some(route) = &job.route { span.quiet { " on " (route) } }
            }
            None => span.quiet { "not decided yet" },
        }
    }
}

/// The button that cancels a job, where that can be.
pub(crate) fn cancel(frame: &Frame, job: &Job, place: &str) -> Markup {
    html! {
        @if job.state.is_open() && frame.role >= Role::Submit {
            (form::confirm(
                frame,
                &address::id(&format!("{place}-cancel"), &job.id),
                &format!("/actions{}/cancel", address::job(&job.id)),
                "Cancel",
                &format!("cancel the job on {}, {}", job.model, extent(job.width, job.height, job.frames, job.batch)),
            ))
        }
    }
}

/// The element with the id `queue`.
pub(crate) fn queue(facts: &Overview) -> Markup {
    const COLUMNS: [Column; 6] = [
        Column::Number("#"),
        Column::Text("Model"),
        Column::Short("Size"),
        Column::Text("Tag"),
        Column::Number("Waits"),
        Column::Actions,
    ];
    let row = |job: &Job| Row {
        id: address::id("queue", &job.id),
        class: "",
        cells: vec![
            html! { (job.position.map_or_else(|| NONE.to_owned(), |position| position.to_string())) },
            html! { a href=(address::job(&job.id)) { (job.model) } },
            html! { (extent(job.width, job.height, job.frames, job.batch)) },
            html! { @if let Some(tag) = &job.tag { span.tag { (tag) } } },
            html! { (coarse(between(job.created, facts.frame.now))) },
            cancel(&facts.frame, job, "queue"),
        ],
    };
    let body = html! {
        @if facts.queue.is_empty() {
            p.empty { "Nobody waits: the next job starts at once." }
        } @else {
            (table("Jobs that wait, the next first", &COLUMNS, &facts.queue.iter().map(row).collect::<Vec<_>>()))
        }
    };
    section("queue", "Queue", count(&facts.queue), body)
}

/// The element with the id `recent`.
pub(crate) fn recent(facts: &Overview) -> Markup {
    const COLUMNS: [Column; 6] = [
        Column::Text("Job"),
        Column::Text("State"),
        Column::Short("Size"),
        Column::Number("Took"),
        Column::Text("Policy"),
        Column::Text("Result"),
    ];
    let row = |job: &Job| Row {
        id: address::id("recent", &job.id),
        class: "",
        cells: vec![
            html! {
                a href=(address::job(&job.id)) { (job.model) }
                @if let Some(tag) = &job.tag { " " span.tag { (tag) } }
                @if let Some(finished) = job.finished { span.below { (when(facts.frame.now, finished)) } }
            },
            html! {
                (words::state(job.state))
                @if let Some(error) = &job.error { span.below.fault { (error) } }
            },
            html! { (extent(job.width, job.height, job.frames, job.batch)) },
            html! { (job.started.zip(job.finished).map_or_else(|| NONE.to_owned(), |(from, to)| span(between(from, to)))) },
            decider(job),
            html! {
                @match job.results.first() {
                    Some(file) => a href=(address::result(&job.id, file.sample)) { (job.format) " " span.quiet { (size(file.bytes)) } },
                    None if job.state == State::Done => span.quiet { "no longer kept" },
                    None => span.quiet { (NONE) },
                }
            },
        ],
    };
    let body = html! {
        @if facts.recent.is_empty() {
            p.empty { "No job has ended yet. What comes out of them can be looked at and fetched here." }
        } @else {
            (table("Jobs that ended, the newest first", &COLUMNS, &facts.recent.iter().map(row).collect::<Vec<_>>()))
            p.pages { a href="/jobs" { "All jobs" } }
        }
    };
    section("recent", "Recent", None, body)
}
