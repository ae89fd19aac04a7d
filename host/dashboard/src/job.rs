//! The page at `/jobs/{id}`: the job, its results, and the trace of its decision.

use maud::{Markup, html};
use tilewright_service_api::JobState;

use crate::decision_trace::any_trace;
use crate::frame::{page, panel, parts};
use crate::gallery::{next, results};
use crate::grid::grid;
use crate::lists::{cancel, decider, progress};
use crate::profile::profile;
use crate::routes::policy;
use crate::settings::settings;
use crate::units::{between, coarse, extent, moment, parse, size, span, when};
use crate::views::{JobPage, JobView, PageFrame};
use crate::work::any_plan;
use crate::{address, phrases};

/// The page at `/jobs/{id}`.
pub fn job(view: &JobPage) -> String {
    let job = &view.job.job;
    let title = format!("{} {}", job.model, extent(job.width, job.height, job.frames, job.batch));
    page(&view.frame, &title, &address::job(&job.id), part(view)).into_string()
}

/// The parts of the job's page that change, each an element with its id.
pub fn job_parts(view: &JobPage) -> Vec<(&'static str, String)> {
    parts(&view.frame, [("job", part(view))])
}

fn part(view: &JobPage) -> Markup {
    let job = &view.job.job;
    html! {
        div #job {
            header.title {
                p.crumb { a href="/" { "Overview" } " / " a href="/jobs" { "jobs" } " / " code { (job.id) } }
                h1 { (job.model) " " span.size { (extent(job.width, job.height, job.frames, job.batch)) } " " (phrases::state(job.state)) }
                @if let Some(error) = &job.error { p.fault { (error) } }
            }
            @let title = if job.state == JobState::Done { "Result" } else { "Progress" };
            (panel("result", "result", title, result(&view.frame, &view.job)))
            (panel("about", "about", "Job", about(view)))
            @if let Some(of) = &job.request { (settings(of)) }
            (profile(view))
            @for (stage, trace) in view.traces.iter().enumerate() { (any_trace(job, stage, trace)) }
            @match job.state {
                JobState::Queued if view.traces.is_empty() => (untold("Not decided yet: a policy is asked when the job’s turn comes.")),
                JobState::Running => (under_way(&view.job)),
                state if state.is_end() && view.traces.is_empty() => {
                    (untold("It ended before it was decided, or its decision is no longer kept."))
                }
                _ => {}
            }
        }
    }
}

/// The section of a job whose decision can't be shown.
fn untold(words: &str) -> Markup {
    panel("story", "untold", "How it is decided", html! { p.empty { (words) } })
}

/// The section of the stage at work, whose trace exists only when it has ended.
fn under_way(JobView { job, plan, decided_by, .. }: &JobView) -> Markup {
    let title = html! { "Under way" @if let Some(at) = job.at { ": " (at.name()) } };
    let content = html! {
        @match plan {
            Some(plan) => {
                p {
                    "The plan is " span.plan { (any_plan(plan)) }
                    @if let Some((name, revision)) = decided_by { ", decided by " (policy(name, Some(*revision))) }
                    "."
                }
                p.quiet { "What was weighed and measured is told here when " @if job.at.is_some() { "the stage" } @else { "the work" } " has ended." }
            },
            None => p.empty { "Its policy has not answered yet." },
        }
    };
    panel("story", "under-way", title, content)
}

fn result(frame: &PageFrame, view: &JobView) -> Markup {
    let job = &view.job;
    html! {
        (results(view))
        @if !job.results.is_empty() {
            ul.files {
                @for file in &job.results {
                    li {
                        a href=(address::result(&job.id, file.sample)) download { "Save result " (file.sample + 1) }
                        " " span.quiet { (file.content_type) ", " (size(file.bytes)) }
                    }
                }
            }
        } @else if job.state == JobState::Done {
            p.empty { "The result is no longer kept." }
        }
        @if job.state == JobState::Queued {
            p.empty {
                "It waits for " (job.device)
                @if let Some(position) = job.position { ", at place " (position + 1) " in the queue" }
                "."
            }
        } @else { (grid(view)) }
        @if let Some(sampling) = job.sampling.filter(|sampling| sampling.preview) {
            img.preview src=(address::preview(&job.id, sampling.step)) alt="The sample so far";
        }
        @if view.prompt.is_some() { div.buttons { (next(frame, view)) } }
        @if job.state == JobState::Running { (progress(job)) }
    }
}

fn about(view: &JobPage) -> Markup {
    let (JobView { job, plan, .. }, now) = (&view.job, view.frame.now);
    let created = parse(&job.created);
    let (started, finished) = (job.started.as_deref().map(parse), job.finished.as_deref().map(parse));
    html! {
        dl {
            dt { "Accepted" } dd { (when(now, created)) }
            @if let Some(started) = started {
                dt { "Started" } dd { (moment(started, &format!("after {}", span(between(created, started))))) }
            }
            @match (started, finished) {
                (Some(started), Some(finished)) => {
                    dt { "Ended" } dd { (when(now, finished)) }
                    dt { "Took" } dd { (span(between(started, finished))) }
                },
                (None, Some(finished)) => { dt { "Ended" } dd { (when(now, finished)) } },
                (Some(started), None) => { dt { "Runs for" } dd { (coarse(between(started, now))) } },
                (None, None) => {},
            }
            dt { "Device" } dd { (job.device) }
            dt { "Decided by" } dd { (decider(job)) }
            @if let Some(plan) = plan { dt { "Plan" } dd { (any_plan(plan)) } }
            @if let Some(steps) = job.steps { dt { "Steps" } dd { (steps) } }
            dt { "Format" } dd { (job.format.ending()) }
            dt { "Tag" } dd { @match &job.tag { Some(tag) => span.tag { (tag) }, None => span.quiet { "none" } } }
        }
        (cancel(&view.frame, job, "job"))
    }
}
