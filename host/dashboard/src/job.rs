//! The page at `/jobs/{id}`: the job, what came out, and how it was decided.

use maud::{Markup, html};

use crate::facts::{File, Job, JobPage, State};
use crate::frame::page;
use crate::grid::grid;
use crate::lists::{cancel, decider, share};
use crate::story::story;
use crate::units::{NONE, between, coarse, extent, moment, percent, size, span, when};
use crate::{address, words};

/// Media types of results that a page shows as pictures, animations among them.
const PICTURES: [&str; 4] = ["image/png", "image/jpeg", "image/webp", "image/gif"];

/// Media types of clips that browsers play; other results get a link.
const CLIPS: [&str; 2] = ["video/mp4", "video/webm"];

/// Results of a batch that are shown; the rest are links.
const SHOWN_MOST: usize = 16;

/// The page at `/jobs/{id}`.
pub fn job(facts: &JobPage) -> String {
    let title =
        format!("{} {}", facts.job.model, extent(facts.job.width, facts.job.height, facts.job.frames, facts.job.batch));
    page(&facts.frame, &title, &address::job(&facts.job.id), part(facts)).into_string()
}

/// The part of the job's page that changes: the element with the id `job`.
pub fn job_part(facts: &JobPage) -> String {
    part(facts).into_string()
}

fn part(facts: &JobPage) -> Markup {
    let job = &facts.job;
    html! {
        div #job {
            header.title {
                p.crumb { a href="/" { "Overview" } " / " a href="/jobs" { "jobs" } " / " code { (job.id) } }
                h1 { (job.model) " " span.size { (extent(job.width, job.height, job.frames, job.batch)) } " " (words::state(job.state)) }
                @if let Some(error) = &job.error { p.fault { (error) } }
            }
            section.panel.result aria-labelledby="result-title" {
                h2 #result-title { @if job.state == State::Done { "Result" } @else { "Progress" } }
                (result(job))
            }
            section.panel.about aria-labelledby="about-title" {
                h2 #about-title { "Job" }
                (about(facts))
            }
            @match &facts.story {
                Some(held) => (story(job, held)),
                None => section.panel.story aria-labelledby="story-title" {
                    h2 #story-title { "How it was decided" }
                    p.empty {
                        @if job.state.is_open() { "Not decided yet: a policy is asked when the job’s turn comes." }
                        @else { "It ended before it was decided, or its decision is no longer kept." }
                    }
                },
            }
        }
    }
}

fn result(job: &Job) -> Markup {
    let is_picture = |file: &File| PICTURES.contains(&file.content_type.as_str());
    let is_clip = |file: &File| CLIPS.contains(&file.content_type.as_str());
    let (width, height) = ((job.width > 0).then_some(job.width), (job.height > 0).then_some(job.height));
    html! {
        @for file in job.results.iter().filter(|file| is_picture(file) || is_clip(file)).take(SHOWN_MOST) {
            @let (source, words) = (address::result(&job.id, file.sample), format!("Result {} of {}", file.sample + 1, job.results.len()));
            @if is_clip(file) {
                // The browser fetches only what is played, by ranges; its own controls need no script.
                video.clip src=(source) controls loop muted playsinline preload="metadata" aria-label=(words) width=[width] height=[height] {}
            } @else {
                a.picture href=(source) { img src=(source) alt=(words) width=[width] height=[height]; }
            }
        }
        @if !job.results.is_empty() {
            ul.files {
                @for file in &job.results {
                    li {
                        a href=(address::result(&job.id, file.sample)) download { "Save result " (file.sample + 1) }
                        " " span.quiet { (file.content_type) ", " (size(file.bytes)) }
                    }
                }
            }
        } @else if job.state == State::Done {
            p.empty { "The result is no longer kept." }
        }
        @if job.state == State::Queued {
            p.empty {
                "It waits for " (job.device)
                @if let Some(position) = job.position { ", at place " (position) " in the queue" }
                "."
            }
        } @else { (grid(job)) }
        @if job.state == State::Running {
            @let share = share(job);
            div.progress {
                progress max="1" value=[share.map(|share| format!("{share:.3}"))] aria-label="Progress" {}
                span { (share.map_or_else(|| NONE.to_owned(), |share| percent((share * 100.0).floor() / 100.0))) }
            }
        }
    }
}

fn about(facts: &JobPage) -> Markup {
    let (job, now) = (&facts.job, facts.frame.now);
    html! {
        dl {
            dt { "Accepted" } dd { (when(now, job.created)) }
            @if let Some(started) = job.started {
                dt { "Started" } dd { (moment(started, &format!("after {}", span(between(job.created, started))))) }
            }
            @match (job.started, job.finished) {
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
            @if let Some(plan) = &job.plan { dt { "Plan" } dd { (words::plan(plan)) } }
            dt { "Format" } dd { (job.format) }
            dt { "Tag" } dd { @match &job.tag { Some(tag) => span.tag { (tag) }, None => span.quiet { "none" } } }
        }
        (cancel(&facts.frame, job, "job"))
    }
}
