//! Routes: the policy that decides, its shadow and its canary.

use maud::{Markup, html};
use tilewright_config::Role;

use crate::form;
use crate::frame::section;
use crate::table::{Column, Row, table};
use crate::units::{count, count_of, decibels, percent};
use crate::views::{CanaryView, OverviewPage, PageFrame, RouteView, ShadowView};
use crate::{address, phrases};

const COLUMNS: [Column; 4] =
    [Column::Text("Route"), Column::Text("Decides"), Column::Text("Shadow"), Column::Text("Canary")];

/// The element with the id `routes`.
pub(crate) fn routes(view: &OverviewPage) -> Markup {
    let row = |(place, route): (usize, &RouteView)| Row {
        id: address::id("route", &route.name),
        class: "",
        cells: vec![
            html! {
                span.order title="Routes are tried in this order" { (place + 1) ". " } strong { (route.name) }
                ul.conditions { @for phrase in phrases::conditions(&route.conditions) { li { (phrase) } } }
            },
            html! {
                (policy(&route.policy, route.revision))
                @if route.paused { " " (phrases::badge("warn", "paused")) span.below { "The native default decides." } }
                span.below { (count_of(route.jobs, "job", "jobs")) }
                @if route.at_chunks { span.below { "clips change over at the next chunk" } }
            },
            html! { @match &route.shadow { Some(held) => (shadow(held)), None => span.quiet { "none" } } },
            html! { @match &route.canary { Some(held) => (canary(&view.frame, route, held)), None => span.quiet { "none" } } },
        ],
    };
    let body = html! {
        @if view.routes.is_empty() {
            p.empty {
                "No route is set up, so " code { "adaptive" } " decides for every job. Name one in the configuration, under "
                code { "[[routes]]" } "."
            }
        } @else {
            @let rows: Vec<Row> = view.routes.iter().enumerate().map(row).collect();
            (table("Routes, the first that matches a job takes it", &COLUMNS, &rows))
        }
    };
    section("routes", "Routes", None, body)
}

/// A policy with its revision.
pub(crate) fn policy(name: &str, revision: Option<u64>) -> Markup {
    html! {
        a href=(address::policy(name)) { (name) }
        @if let Some(revision) = revision { " r" (revision) } @else { " " (phrases::badge("bad", "not loaded")) }
    }
}

fn shadow(shadow: &ShadowView) -> Markup {
    html! {
        (policy(&shadow.policy, shadow.revision)) " " (phrases::standing(shadow.standing))
        span.below {
            (count_of(shadow.decisions, "decision", "decisions"))
            @if shadow.decisions > 0 { ", " (count(shadow.same)) " alike" }
            @if shadow.failures > 0 { ", " (count_of(shadow.failures, "failure", "failures")) }
        }
        @if let Some(regret) = shadow.regret { span.below { "regret " (percent(regret)) } }
        @if !shadow.why.is_empty() { span.below { (shadow.why) } }
    }
}

fn canary(frame: &PageFrame, route: &RouteView, canary: &CanaryView) -> Markup {
    let action = |what: &str| format!("/actions/routes/{}/{what}", address::segment(&route.name));
    let about = |what: &str| format!("{what} the canary {} on route {}", canary.policy, route.name);
    html! {
        (policy(&canary.policy, canary.revision)) " " (phrases::standing(canary.standing))
        span.below {
            (percent(canary.share)) " of jobs, " (count(canary.jobs)) " so far"
            @if canary.failures > 0 { ", " (count_of(canary.failures, "failure", "failures")) }
        }
        span.below {
            @match canary.psnr {
                Some(psnr) => { "least PSNR " (decibels(psnr)) " in " (count_of(canary.compared, "comparison", "comparisons")) },
                None => "not compared yet",
            }
            @if let Some(least) = canary.psnr_least { ", " (decibels(least)) " allowed" }
        }
        @if !canary.why.is_empty() { span.below { (canary.why) } }
        @if canary.standing.is_live() && frame.role >= Role::Operate {
            div.buttons {
                (form::confirm(frame, &address::id("promote", &route.name), &action("promote"), "Promote", &about("promote")))
                (form::confirm(frame, &address::id("stop", &route.name), &action("stop"), "Stop", &about("stop")))
            }
        }
    }
}
