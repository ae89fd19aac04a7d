//! Charts of the dashboard: the drawings of `tilewright-plot` with their titles and legends.

use std::time::{Duration, SystemTime};

use maud::{Markup, html};
use tilewright_plot::{Axis, Chart, Form, Lines, Series, swatch};

use crate::units::{between, coarse, milliseconds, percent};
use crate::views::{LatencySamples, TimeSeries};

/// The drawing's size in its own units. Narrow, so that its letters can be read on a telephone.
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 176.0;

/// Points of a line that are drawn, the newest.
const POINTS: usize = 240;

/// Letters of the longest name in a legend.
const LETTERS: usize = 32;

/// The seconds that ticks across may be apart.
const APART: [u64; 15] = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 259_200, 604_800];

/// The largest over the smallest value of a linear axis that may be logarithmic.
const FAR: f64 = 20.0;

/// The title of a chart, and the text in its place if it is empty.
#[derive(Clone, Copy)]
pub(crate) struct Title<'a> {
    pub(crate) name: &'a str,
    pub(crate) unit: &'static str,
    /// The text shown if there are no points.
    pub(crate) empty: &'static str,
}

/// The scale of values: their words, and their ticks if they differ by more than [`FAR`].
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    /// A value with its unit.
    words: fn(f64) -> String,
    /// The ticks of a logarithmic axis; if there are none, the axis is always linear.
    logarithmic: &'static [f64],
}

/// Milliseconds, in the unit that fits.
pub(crate) const DURATIONS: Scale = Scale {
    words: milliseconds,
    logarithmic: &[1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 6e4, 6e5, 3.6e6, 3.6e7, 8.64e7, 8.64e8, 8.64e9],
};

/// Shares of one.
pub(crate) const SHARES: Scale = Scale { words: percent, logarithmic: &[] };

/// The times of decisions: a histogram per revision.
pub(crate) fn latency(rows: &[LatencySamples]) -> Markup {
    const TITLE: Title<'_> = Title { name: "Decision latency", unit: "log scale", empty: "No policy has decided yet." };
    let axis = Axis { words: |microseconds| milliseconds(microseconds / 1e3), ..Axis::logarithmic("") };
    let rows = rows.iter().map(|row| (format!("{} r{}", row.policy, row.revision), row.samples_us.clone()));
    let chart = Chart::Rows { title: String::new(), axis, rows: rows.collect(), form: Form::Histogram };
    figure(TITLE, chart.svg(WIDTH, HEIGHT))
}

/// Points over time, a line per series, with the newest at the right.
pub(crate) fn over_time(title: Title<'_>, now: SystemTime, series: &[TimeSeries], scale: Scale) -> Markup {
    let linear = Axis { words: scale.words, ..Axis::linear("") };
    let lines: Vec<Series> = series
        .iter()
        .map(|series| {
            let skipped = series.points.len().saturating_sub(POINTS);
            let newest = series.points[skipped..].iter().filter(|(_, value)| linear.has_place(*value));
            Series {
                name: series.name.clone(),
                points: newest.map(|(time, value)| (-between(*time, now).as_secs_f64(), *value)).collect(),
            }
        })
        .filter(|line| !line.points.is_empty())
        .collect();
    let points = || lines.iter().flat_map(|line| &line.points);
    let least = points().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
    let is_far = least > 0.0 && points().any(|(_, value)| value / least > FAR) && !scale.logarithmic.is_empty();
    let y = if is_far { Axis { logarithmic: true, ticks: scale.logarithmic.into(), ..linear } } else { linear };
    let oldest = points().map(|(time, _)| -time).fold(10.0, f64::max);
    let apart = APART.into_iter().map(|apart| apart as f64).find(|apart| oldest / apart <= 4.5).unwrap_or(oldest / 4.0);
    let ticks = (0..=4).rev().map(|tick| f64::from(tick) * -apart).filter(|tick| -tick <= oldest).collect();
    let x = Axis { ticks, words: age, ..Axis::linear("") };
    let newest = |line: &Series| line.points.last().map_or_else(String::new, |(_, value)| (scale.words)(*value));
    let legend = html! {
        ul.legend {
            @for (look, line) in lines.iter().enumerate() {
                li {
                    svg viewBox="0 0 24 10" aria-hidden="true" { (swatch(Some(look))) }
                    span title=(line.name) {
                        @match line.name.char_indices().nth(LETTERS) {
                            Some((end, _)) => { (line.name[..end]) "…" },
                            None => (line.name),
                        }
                    }
                    span.quiet { (newest(line)) }
                }
            }
        }
    };
    let chart = Chart::Plane { title: String::new(), x, y, series: lines.clone(), lines: Lines::Series };
    figure(title, chart.svg(WIDTH, HEIGHT).map(|svg| html! { (svg) (legend) }))
}

/// The words for a time in seconds from now.
fn age(time: f64) -> String {
    if time > -1.0 { "now".into() } else { format!("−{}", coarse(Duration::from_secs_f64(-time))) }
}

/// A chart with its title.
fn figure(title: Title<'_>, body: Option<Markup>) -> Markup {
    html! {
        figure.chart {
            figcaption { (title.name) " " span.quiet { (title.unit) } }
            @match body {
                Some(body) => (body),
                None => p.empty { (title.empty) },
            }
        }
    }
}
