//! The page at `/`, and its parts that change.

use std::time::SystemTime;

use maud::{Markup, html};
use tilewright_plan::Stage;

use crate::chart::{DURATIONS, SHARES, Title, latency, over_time};
use crate::frame::{page, parts, section};
use crate::views::{Charts, OverviewPage, TimeSeries};
use crate::{devices, events, lists, policies, routes, submit};

/// The page at `/`.
pub fn overview(view: &OverviewPage) -> String {
    let content = html! {
        h1.unseen { "Overview" }
        div.overview {
            // The form comes first for phones; wider screens have a place of its own for it.
            (submit::submit(view))
            (devices::devices(&view.devices))
            (lists::running(view))
            div.jobs {
                (lists::queue(view))
                (lists::recent(view))
            }
            (routes::routes(view))
            (policies::policies(view))
            (charts(&view.charts, view.frame.now))
            (events::events(view))
        }
    };
    page(&view.frame, "Overview", "/", content).into_string()
}

/// The parts of the overview that change, each an element with its id, in the page's order.
pub fn overview_parts(view: &OverviewPage) -> Vec<(&'static str, String)> {
    let own = [
        ("devices", devices::devices(&view.devices)),
        ("running", lists::running(view)),
        ("queue", lists::queue(view)),
        ("recent", lists::recent(view)),
        ("routes", routes::routes(view)),
        ("policies", policies::policies(view)),
        ("charts", charts(&view.charts, view.frame.now)),
        ("events", events::events(view)),
    ];
    parts(&view.frame, own)
}

/// The times of a stage's work.
fn work_time(stage: Stage, now: SystemTime, series: &[TimeSeries]) -> Markup {
    let name = format!("{} time", stage.title());
    let title = Title { name: &name, unit: "per route", empty: "No job has been carried out yet." };
    over_time(title, now, series, DURATIONS)
}

const REGRET: Title<'_> = Title {
    name: "Shadow regret",
    unit: "predicted, against the best plan",
    empty: "No shadow has been compared yet.",
};

fn charts(charts: &Charts, now: SystemTime) -> Markup {
    let body = html! {
        div.charts {
            (latency(&charts.latency))
            @if charts.work.is_empty() { (work_time(Stage::Decode, now, &[])) }
            @for (stage, series) in &charts.work { (work_time(*stage, now, series)) }
            (over_time(REGRET, now, &charts.regret, SHARES))
        }
    };
    section("charts", "Charts", None, body)
}
