//! Pictures and clips that came of prompts: one of them large, and all of them as tiles, each with
//! its prompt and seed and the way to the next one.

use maud::{Markup, html};
use tilewright_config::Role;
use tilewright_service_api::{JobResult, JobState};

use crate::form;
use crate::frame::section;
use crate::lists::{cancel, progress, share, stage};
use crate::prompt::brief;
use crate::units::{extent, parse, since, size};
use crate::views::{JobView, PageFrame, PromptPage};
use crate::{address, phrases};

/// Media types of results that a page shows as pictures, animations among them.
const PICTURES: [&str; 4] = ["image/png", "image/jpeg", "image/webp", "image/gif"];

/// Media types of clips that browsers play; other results get a link.
const CLIPS: [&str; 2] = ["video/mp4", "video/webm"];

/// Results of a batch that are shown; the rest are links.
const SHOWN_MOST: usize = 16;

/// True of a result that a page shows as a picture.
pub(crate) fn is_picture(file: &JobResult) -> bool {
    PICTURES.contains(&file.content_type.as_str())
}

fn is_clip(file: &JobResult) -> bool {
    CLIPS.contains(&file.content_type.as_str())
}

/// The results of a job, large.
pub(crate) fn results(view: &JobView) -> Markup {
    let job = &view.job;
    let (width, height) = ((job.width > 0).then_some(job.width), (job.height > 0).then_some(job.height));
    html! {
        @for file in job.results.iter().filter(|file| is_picture(file) || is_clip(file)).take(SHOWN_MOST) {
            @let (source, words) = (address::result(&job.id, file.sample), words(view, file.sample));
            @if is_clip(file) {
                // The browser fetches only the ranges that are played; its own controls need no
                // script.
                video.clip src=(source) controls loop muted playsinline preload="metadata" aria-label=(words) width=[width] height=[height] {}
            } @else {
                a.picture href=(source) { img src=(source) alt=(words) width=[width] height=[height]; }
            }
        }
    }
}

/// The words for a result, for those who can't see it.
fn words(view: &JobView, sample: u32) -> Markup {
    let count = view.job.results.len();
    html! {
        @match &view.prompt {
            Some(prompt) if !prompt.trim().is_empty() => { @if count > 1 { (sample + 1) " of " (count) ": " } (brief(prompt)) },
            _ => { "Result " (sample + 1) " of " (count) },
        }
    }
}

/// A small picture of a job's first result, if it is one.
pub(crate) fn thumbnail(view: &JobView) -> Markup {
    html! {
        @if let Some(file) = view.job.results.first().filter(|file| is_picture(file)) {
            img.thumb src=(address::thumbnail(&view.job.id)) alt=(words(view, file.sample)) loading="lazy" decoding="async";
        }
    }
}

/// The element with the id `shown`: the picture that comes first.
pub(crate) fn shown(view: &PromptPage) -> Markup {
    html! {
        section.panel #shown aria-labelledby="shown-title" tabindex="-1" {
            h2.unseen #shown-title { "Picture" }
            @match &view.shown {
                Some(shown) => (large(&view.frame, shown)),
                None => p.empty.blank { "What you make appears here." },
            }
        }
    }
}

fn large(frame: &PageFrame, view: &JobView) -> Markup {
    let job = &view.job;
    html! {
        (results(view))
        @match job.state {
            JobState::Queued => {
                p.empty.blank { "It waits for " (job.device) @if let Some(place) = job.position { ", at place " (place + 1) } "." }
            },
            JobState::Running => {
                @if let Some(sampling) = job.sampling.filter(|sampling| sampling.preview) {
                    img.preview src=(address::preview(&job.id, sampling.step)) alt="The picture so far";
                } @else { p.empty.blank { "It is being made." } }
                (progress(job))
            },
            JobState::Done if job.results.is_empty() => p.empty.blank { "The result is no longer kept." },
            JobState::Done => {},
            _ => p.blank { (phrases::state(job.state)) @if let Some(error) = &job.error { " " span.fault { (error) } } },
        }
        (caption(view))
        div.buttons {
            (next(frame, view))
            @for file in job.results.iter().take(1) {
                a.button href=(address::result(&job.id, file.sample)) download { "Save" span.unseen { " the result" } " " span.quiet { (size(file.bytes)) } }
            }
            a.button href=(address::job(&job.id)) { "How it was made" }
            (cancel(frame, job, "shown"))
        }
    }
}

/// The prompt, and what it was made with, in a line.
fn caption(view: &JobView) -> Markup {
    let job = &view.job;
    html! {
        @if let Some(prompt) = &view.prompt { p.words { (brief(prompt)) } }
        p.quiet {
            @if !view.seeds.is_empty() { "seed " (seeds(&view.seeds)) " · " }
            (job.model) " · " (extent(job.width, job.height, job.frames, job.batch))
            @if let Some(steps) = job.steps { " · " (steps) " steps" }
        }
    }
}

/// Seeds in words.
fn seeds(seeds: &[u64]) -> String {
    seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

/// The ways to the next picture: the same with another seed, and the form filled in as it was.
pub(crate) fn next(frame: &PageFrame, view: &JobView) -> Markup {
    let (id, prompt) = (&view.job.id, view.prompt.as_deref().unwrap_or_default());
    html! {
        @if frame.role >= Role::Submit && view.prompt.is_some() {
            (form::act(frame, &format!("/actions{}/again", address::job(id)), "Again", &format!("again with another seed: {}", brief(prompt))))
            a.button href={ (address::prompt_of("from", id)) "#prompt" } aria-label={ "vary: " (brief(prompt)) } { "Vary" }
        }
    }
}

/// The element with the id `gallery`.
pub(crate) fn gallery(view: &PromptPage) -> Markup {
    let body = html! {
        @if view.gallery.is_empty() {
            p.empty { "Nothing was made of a prompt yet." }
        } @else {
            ul.gallery { @for made in &view.gallery { (tile(&view.frame, made)) } }
            p.pages { a href="/jobs" { "All jobs" } }
        }
    };
    section("gallery", "Gallery", None, body)
}

fn tile(frame: &PageFrame, view: &JobView) -> Markup {
    let job = &view.job;
    html! {
        li id=(address::id("made", &job.id)) {
            a.face href=(address::prompt_of("job", &job.id)) {
                @match job.results.first() {
                    Some(file) if is_picture(file) => (thumbnail(view)),
                    Some(file) if is_clip(file) => {
                        video.thumb src=(address::result(&job.id, file.sample)) muted playsinline preload="metadata" aria-label=(words(view, file.sample)) {}
                    },
                    Some(file) => span.blank { (file.content_type) },
                    None => span.blank { (phrases::state(job.state)) @if job.state == JobState::Running { " " (stage(job, share(job))) } },
                }
            }
            (caption(view))
            @if let Some(finished) = &job.finished { p.quiet { (since(frame.now, parse(finished))) } }
            div.buttons { (next(frame, view)) }
        }
    }
}
