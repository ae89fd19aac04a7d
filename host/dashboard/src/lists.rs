//! Lists of jobs: those that run, with their tiles, those that wait, and those that ended.

use std::time::Duration;

use maud::{Markup, html};
use tilewright_config::Role;
use tilewright_plan::Stage;
use tilewright_service_api::{Job, JobState};

use crate::form;
use crate::frame::section;
use crate::gallery::thumbnail;
use crate::grid::grid;
use crate::prompt::brief;
use crate::table::{Column, Row, table};
use crate::units::{NONE, between, coarse, extent, parse, percent, size, span, when};
use crate::views::{JobView, OverviewPage, PageFrame};
use crate::work::any_plan;
use crate::{address, phrases};

/// The element with the id `running`.
pub(crate) fn running(view: &OverviewPage) -> Markup {
    let body = html! {
        @if view.running.is_empty() {
            div.empty {
                p { "Nothing runs. Send a latent with the form, or from a shell:" }
                pre tabindex="0" { code { (curl(view)) } }
            }
        }
        @for running in &view.running { (card(&view.frame, running)) }
    };
    section("running", "Running", count(&view.running), body)
}

fn count(jobs: &[JobView]) -> Option<usize> {
    (!jobs.is_empty()).then_some(jobs.len())
}

/// A line to copy. A model's name that no configuration could have stays out of people's shells.
fn curl(view: &OverviewPage) -> String {
    let is_plain = |name: &&String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let model = view.models.iter().find(is_plain).map_or("MODEL", String::as_str);
    let token = if view.frame.has_token { " \\\n  -H \"Authorization: Bearer $TOKEN\"" } else { "" };
    format!(
        "curl {}/v1/jobs{token} \\\n  -F 'request={{\"model\":\"{model}\"}};type=application/json' \\\n  -F latent=@my.latent",
        view.frame.address
    )
}

fn card(frame: &PageFrame, view: &JobView) -> Markup {
    let job = &view.job;
    let elapsed = job.started.as_deref().map(|started| between(parse(started), frame.now));
    html! {
        article.job id=(address::id("run", &job.id)) {
            (grid(view))
            div.facts {
                h3 {
                    a href=(address::job(&job.id)) { (job.model) }
                    " " span.size { (extent(job.width, job.height, job.frames, job.batch)) }
                    @if let Some(tag) = &job.tag { " " span.tag { (tag) } }
                }
                (progress(job))
                p.times {
                    @if let Some(elapsed) = elapsed { (coarse(elapsed)) " so far" }
                    @if let Some(left) = left(job, elapsed, share(job)) {
                        ", about " (coarse(left)) " left"
                    }
                }
                dl {
                    dt { "Policy" }
                    dd { (decider(job)) }
                    @if let Some(plan) = &view.plan {
                        dt { "Plan" }
                        dd { (any_plan(plan)) }
                    }
                    dt { "Device" }
                    dd { (job.device) }
                }
                (cancel(frame, job, "run"))
            }
        }
    }
}

/// The time that a job took; a dash if it has not both begun and ended.
fn duration(job: &Job) -> String {
    let times = job.started.as_deref().zip(job.finished.as_deref());
    times.map_or_else(|| NONE.to_owned(), |(from, to)| span(between(parse(from), parse(to))))
}

/// A bar for the share that is done, with its words.
pub(crate) fn progress(job: &Job) -> Markup {
    let share = share(job);
    html! {
        div.progress {
            progress max="1" value=[share.map(|share| format!("{share:.3}"))] aria-label="Progress" {}
            span { (stage(job, share)) }
        }
    }
}

/// The share that is done in words, or that of the weights that is loaded before.
pub(crate) fn stage(job: &Job, share: Option<f64>) -> String {
    let floored = |share: f64| percent((share * 100.0).floor() / 100.0);
    if let Some(at) = job.at.filter(|at| *at != Stage::Denoise) {
        return match job.loading.or(share) {
            Some(share) => format!("{}, {}", at.name(), floored(share)),
            None => at.name().to_owned(),
        };
    }
    match (job.loading, &job.sampling) {
        (Some(loading), _) => format!("loading weights, {}", floored(loading)),
        (None, Some(sampling)) => {
            let pace = sampling.step_ms.map_or_else(String::new, |ms| format!(", {} a step", span(millis(ms))));
            format!("step {} of {}{pace}", sampling.step, sampling.steps)
        }
        (None, None) => share.map_or_else(|| NONE.to_owned(), floored),
    }
}

/// Milliseconds; none at all of what is no time.
fn millis(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default()
}

/// The share that is done; none if that is no number.
pub(crate) fn share(job: &Job) -> Option<f64> {
    job.progress.filter(|share| share.is_finite()).map(|share| share.clamp(0.0, 1.0))
}

/// The time left: a sample's by its steps, since loading is no measure of them.
fn left(job: &Job, elapsed: Option<Duration>, share: Option<f64>) -> Option<Duration> {
    match &job.sampling {
        Some(sampling) => sampling.left_ms.map(millis).filter(|left| left.as_secs() >= 1),
        None => elapsed.zip(share).and_then(|(elapsed, share)| time_left(elapsed, share)),
    }
}

/// The time left at the present pace; none for a job that has only just begun.
fn time_left(elapsed: Duration, share: f64) -> Option<Duration> {
    let left = elapsed.as_secs_f64() * (1.0 - share) / share;
    (share > 0.04 && share < 1.0 && left >= 1.0).then(|| Duration::try_from_secs_f64(left).ok()).flatten()
}

/// The policy that decided, and the route.
pub(crate) fn decider(job: &Job) -> Markup {
    html! {
        a href=(address::policy(&job.policy)) { (job.policy) }
        " r" (job.revision)
        @if job.canary { " " (phrases::badge("warn", "canary")) }
        span.quiet { " on " (job.route) }
    }
}

/// The button that cancels a job, if that is possible.
pub(crate) fn cancel(frame: &PageFrame, job: &Job, place: &str) -> Markup {
    html! {
        @if !job.state.is_end() && frame.role >= Role::Submit {
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
pub(crate) fn queue(view: &OverviewPage) -> Markup {
    const COLUMNS: [Column; 6] = [
        Column::Number("#"),
        Column::Text("Model"),
        Column::Short("Size"),
        Column::Text("Tag"),
        Column::Number("Waits"),
        Column::Actions,
    ];
    let row = |JobView { job, .. }: &JobView| Row {
        id: address::id("queue", &job.id),
        class: "",
        cells: vec![
            html! { (job.position.map_or_else(|| NONE.to_owned(), |position| (position + 1).to_string())) },
            html! { a href=(address::job(&job.id)) { (job.model) } },
            html! { (extent(job.width, job.height, job.frames, job.batch)) },
            html! { @if let Some(tag) = &job.tag { span.tag { (tag) } } },
            html! { (coarse(between(parse(&job.created), view.frame.now))) },
            cancel(&view.frame, job, "queue"),
        ],
    };
    let body = html! {
        @if view.queue.is_empty() {
            p.empty { "Nobody waits: the next job starts at once." }
        } @else {
            (table("Jobs that wait, the next first", &COLUMNS, &view.queue.iter().map(row).collect::<Vec<_>>()))
        }
    };
    section("queue", "Queue", count(&view.queue), body)
}

/// The columns of a job in a table.
pub(crate) const COLUMNS: [Column; 6] = [
    Column::Text("Job"),
    Column::Text("State"),
    Column::Short("Size"),
    Column::Number("Took"),
    Column::Text("Policy"),
    Column::Text("Result"),
];

/// The cells of a job in a table, with what stands below its name.
pub(crate) fn cells(made: &JobView, below: Markup) -> Vec<Markup> {
    let job = &made.job;
    vec![
        html! {
            a href=(address::job(&job.id)) { (job.model) }
            @if let Some(tag) = &job.tag { " " span.tag { (tag) } }
            @if let Some(prompt) = &made.prompt { span.below.words { (brief(prompt)) } }
            (below)
        },
        html! {
            (phrases::state(job.state))
            @if let Some(error) = &job.error { span.below.fault { (error) } }
        },
        html! { (extent(job.width, job.height, job.frames, job.batch)) },
        html! { (duration(job)) },
        decider(job),
        html! {
            @match job.results.first() {
                Some(file) => a.result href=(address::result(&job.id, file.sample)) { (thumbnail(made)) (job.format.ending()) " " span.quiet { (size(file.bytes)) } },
                None if job.state == JobState::Done => span.quiet { "no longer kept" },
                None => span.quiet { (NONE) },
            }
        },
    ]
}

/// The element with the id `recent`.
pub(crate) fn recent(view: &OverviewPage) -> Markup {
    let row = |made: &JobView| {
        let finished = made.job.finished.as_deref().map(|finished| when(view.frame.now, parse(finished)));
        let below = html! { @if let Some(finished) = finished { span.below { (finished) } } };
        Row { id: address::id("recent", &made.job.id), class: "", cells: cells(made, below) }
    };
    let body = html! {
        @if view.recent.is_empty() {
            p.empty { "No job has ended yet. What comes out of them can be looked at and fetched here." }
        } @else {
            (table("Jobs that ended, the newest first", &COLUMNS, &view.recent.iter().map(row).collect::<Vec<_>>()))
            p.pages { a href="/jobs" { "All jobs" } }
        }
    };
    section("recent", "Recent", None, body)
}
