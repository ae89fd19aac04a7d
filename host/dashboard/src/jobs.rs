//! The page at `/jobs`: every job that is still kept, searched and filtered, a page at a time, with
//! absolute times. It does not refresh itself, so that rows stay in place while they are read.

use maud::{Markup, html};
use tilewright_service_api::JobState;

use crate::address;
use crate::form::{choice, options};
use crate::frame::{page, section};
use crate::lists::{COLUMNS, cells};
use crate::table::{Column, Row, table};
use crate::units::{absolute, parse};
use crate::views::{JobQuery, JobView, JobsPage};

/// The page at `/jobs`.
pub fn jobs(view: &JobsPage) -> String {
    let rows: Vec<Row> = view.jobs.iter().map(row).collect();
    let next = view.next.as_ref().map(|next| query(&JobQuery { before: Some(next.clone()), ..view.query.clone() }));
    let body = html! {
        (search(view))
        @if rows.is_empty() {
            p.empty {
                @if next.is_some() { "None among those that were looked through so far." }
                @else { "No job is as searched for, or it is no longer kept." }
            }
        } @else { (table("Jobs, the newest first", &[&[Column::Short("Accepted")][..], &COLUMNS].concat(), &rows)) }
        p.pages {
            @if view.query.before.is_some() { a href=(query(&JobQuery { before: None, ..view.query.clone() })) { "Newest" } }
            @if let Some(next) = &next { a href=(next) rel="next" { "Older" } }
        }
    };
    let content = html! {
        h1.unseen { "Jobs" }
        (section("jobs", "Jobs", None, body))
    };
    page(&view.frame, "Jobs", "/jobs", content).into_string()
}

/// The page's address for a query.
fn query(query: &JobQuery) -> String {
    let state = query.state.map(|state| state.name().to_owned());
    let pairs = [
        ("state", &state),
        ("model", &query.model),
        ("device", &query.device),
        ("policy", &query.policy),
        ("q", &query.text),
        ("before", &query.before),
    ];
    let given =
        pairs.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", address::segment(value.as_ref()?))));
    let given: Vec<String> = given.collect();
    if given.is_empty() { "/jobs".into() } else { format!("/jobs?{}", given.join("&")) }
}

/// The search form. Its terms go into the page's address, which can be kept and passed on.
fn search(view: &JobsPage) -> Markup {
    let JobQuery { state, model, device, policy, text, .. } = &view.query;
    let any = || html! { option value="" { "any" } };
    let states = JobState::ALL.iter().map(|(_, name)| (name, name));
    let states = html! { (any()) (options(states, state.map(JobState::name))) };
    let names = |all: &[String], chosen: &Option<String>| {
        html! { (any()) (options(all.iter().map(|name| (name, name)), chosen.as_deref())) }
    };
    html! {
        form.search method="get" action="/jobs" role="search" {
            p.field {
                label for="jobs-text" { "Search" }
                input #jobs-text type="search" name="q" maxlength="64" value=[text.as_ref()] autocomplete="off" spellcheck="false";
            }
            (choice("jobs-state", "state", "State", states))
            (choice("jobs-model", "model", "Model", names(&view.models, model)))
            (choice("jobs-device", "device", "Device", names(&view.devices, device)))
            (choice("jobs-policy", "policy", "Policy", names(&view.policies, policy)))
            p.field { button.primary type="submit" { "Show" } }
        }
    }
}

fn row(made: &JobView) -> Row {
    let job = &made.job;
    let below = html! { span.below { (job.device) } };
    let cells = [vec![absolute(parse(&job.created))], cells(made, below)].concat();
    Row { id: address::id("job", &job.id), class: "", cells }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_leads_to_the_next_with_what_was_searched_for() {
        let asked = JobQuery {
            state: Some(JobState::Failed),
            text: Some("a&b=c".into()),
            before: Some("0199".into()),
            ..JobQuery::default()
        };
        assert_eq!(query(&asked), "/jobs?state=failed&q=a%26b%3Dc&before=0199");
        assert_eq!(query(&JobQuery::default()), "/jobs");
    }
}
