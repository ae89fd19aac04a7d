//! Charts as SVG. Colours, dashes and letters come from the page's style, by class.

use maud::{Markup, html};
use tilewright_statistics::{quantile, sorted};

use crate::{Axis, Chart, Form, Lines, Series, labels, scale::Scale};

/// The looks of series; further ones look like the first again.
const LOOKS: usize = 6;

/// Pixels between ticks, at least.
const ACROSS: f64 = 58.0;
const UPWARDS: f64 = 32.0;

/// Pixels from the plane of points to the ends of the drawing, besides labels of axes.
const LEFT: f64 = 48.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 22.0;

/// Pixels of an axis' label and of the title.
const LABEL: f64 = 20.0;
const TITLE: f64 = 30.0;

/// Pixels of a row of samples: its name, its box or bars, the gap below.
const NAME: f64 = 16.0;
const BODY: f64 = 34.0;
const GAP: f64 = 12.0;

/// Pixels beside the ends of the axis of samples, for the labels of its ticks.
const EDGE: f64 = 20.0;

/// Bars of a histogram per power of ten.
const BARS: f64 = 8.0;

/// Pixels of a mark in a line; denser lines have a mark at the last point alone.
const MARK: f64 = 7.5;

/// Pixels of a letter, about, and of a line of the legend.
pub const LETTER: f64 = 7.0;
const LINE: f64 = 20.0;

/// A chart's drawing, which is as wide as was asked for.
pub struct Drawing {
    pub height: f64,
    pub body: Markup,
    /// The words for those who can't see it.
    words: String,
}

impl Chart {
    /// The drawing for a page that has the title and the legend beside it; none without a point. A
    /// chart of rows is as high as they need.
    pub fn svg(&self, width: f64, height: f64) -> Option<Markup> {
        self.has_points().then(|| svg(draw(self, width, height), width))
    }

    pub(crate) fn has_points(&self) -> bool {
        match self {
            Chart::Rows { axis, rows, .. } => {
                rows.iter().flat_map(|(_, samples)| samples).any(|sample| axis.has_place(*sample))
            }
            Chart::Plane { x, y, series, .. } => series.iter().any(|series| !place(series, x, y).is_empty()),
        }
    }
}

/// A drawing as an element.
pub fn svg(Drawing { height, body, words }: Drawing, width: f64) -> Markup {
    html! {
        svg.plot width=(width) height=(height) viewBox={ "0 0 " (width) " " (height) }
            role="img" aria-label=(words) { (body) }
    }
}

/// A chart with its title and its legend.
pub fn draw_with_legend(chart: &Chart, width: f64, height: f64) -> Drawing {
    let (title, entries) = match chart {
        Chart::Rows { title, .. } => (title, Vec::new()),
        Chart::Plane { title, x, y, series, lines } => {
            let diagonal = (*lines == Lines::Diagonal).then_some((None, "estimate = measurement"));
            let series = series.iter().enumerate().filter(|(_, series)| !place(series, x, y).is_empty());
            let series = series.map(|(look, series)| (Some(look), series.name.as_str()));
            (title, diagonal.into_iter().chain(series).collect())
        }
    };
    let drawing = draw(chart, width, height - TITLE);
    let (mut x, mut y) = (0.0, TITLE + drawing.height + LINE);
    let entries: Vec<Markup> = entries
        .into_iter()
        .map(|(look, name)| {
            let shown = truncate(name, (width - 2.0 * LINE) / LETTER);
            let wide = 2.5 * LINE + shown.chars().count() as f64 * LETTER;
            if x > 0.0 && x + wide > width {
                (x, y) = (0.0, y + LINE);
            }
            let left = x;
            x += wide;
            html! {
                g transform={ "translate(" (at(left)) " " (at(y - 9.0)) ")" } { (swatch(look)) }
                text x=(at(left + 32.0)) y=(at(y)) { (shown) @if shown != name { title { (name) } } }
            }
        })
        .collect();
    Drawing {
        height: if entries.is_empty() { TITLE + drawing.height } else { y + LINE / 2.0 },
        body: html! {
            text.title x="0" y="16" { (title) }
            g transform={ "translate(0 " (TITLE) ")" } { (drawing.body) }
            @for entry in &entries { (entry) }
        },
        words: format!("{title}: {}", drawing.words),
    }
}

/// The look of a series in a legend 24 wide and 10 high, or of the diagonal.
pub fn swatch(look: Option<usize>) -> Markup {
    html! {
        @match look {
            Some(look) => {
                polyline class={ "line s" (look % LOOKS) } points="0,5 24,5" {}
                (mark(look, (12.0, 5.0), 1.0))
            }
            None => path.axis d="M0 5h24" {},
        }
    }
}

fn draw(chart: &Chart, width: f64, height: f64) -> Drawing {
    match chart {
        Chart::Rows { axis, rows, form, .. } => draw_rows(axis, rows, *form, width),
        Chart::Plane { x, y, series, lines, .. } => draw_plane([x, y], series, *lines, [width, height]),
    }
}

fn draw_rows(axis: &Axis, rows: &[(String, Vec<f64>)], form: Form, width: f64) -> Drawing {
    let rows: Vec<(&str, Vec<f64>)> = rows
        .iter()
        .map(|(name, samples)| {
            let placed: Vec<f64> = samples.iter().copied().filter(|sample| axis.has_place(*sample)).collect();
            (name.as_str(), sorted(&placed))
        })
        .collect();
    let scale = Scale::of(axis, rows.iter().flat_map(|(_, samples)| samples).copied());
    let place = |value: f64| EDGE + scale.place(value) * (width - 2.0 * EDGE);
    let base = rows.len() as f64 * (NAME + BODY + GAP) - GAP + 4.0;
    let note = |samples: &[f64]| match samples {
        [] => "no samples".to_owned(),
        _ => {
            let [median, tail] = [0.5, 0.99].map(|share| (axis.words)(quantile(samples, share)));
            format!("median {median}, p99 {tail}")
        }
    };
    let label = if axis.label.is_empty() { 0.0 } else { LABEL };
    let words: Vec<String> = rows.iter().map(|(name, samples)| format!("{name}: {}", note(samples))).collect();
    let body = html! {
        @for (tick, words) in scale.ticks((width / ACROSS).floor()) {
            path.rule d={ "M" (at(place(tick))) " 0V" (at(base)) } {}
            text.tick x=(at(place(tick))) y=(at(base + 14.0)) text-anchor="middle" { (words) }
        }
        @for (look, (name, samples)) in rows.iter().enumerate() {
            @let top = look as f64 * (NAME + BODY + GAP);
            @let floor = at(top + NAME + BODY);
            text.lane x="0" y=(at(top + 11.0)) {
                (truncate(name, (width - 150.0) / 8.0))
                title { (name) ": " (samples.len()) " samples" }
            }
            text.tick x=(width) y=(at(top + 11.0)) text-anchor="end" { (note(samples)) }
            path.axis d={ "M0 " (floor) "H" (width) } {}
            @if !samples.is_empty() {
                @match form {
                    Form::Box => (draw_box(look, samples, top + NAME, place)),
                    Form::Histogram => (draw_bars(look, samples, top + NAME, place)),
                }
                path.median d={ "M" (at(place(quantile(samples, 0.5)))) " " (at(top + NAME - 1.0)) "V" (floor) } {}
            }
        }
        text.tick x=(at(width / 2.0)) y=(at(base + 14.0 + LABEL)) text-anchor="middle" { (axis.label) }
    };
    Drawing { height: base + LABEL + label, body, words: words.join("; ") }
}

fn draw_box(look: usize, samples: &[f64], top: f64, place: impl Fn(f64) -> f64) -> Markup {
    let [least, low, high, most] = [0.0, 0.25, 0.75, 1.0].map(|share| place(quantile(samples, share)));
    let middle = at(top + BODY / 2.0);
    html! {
        rect class={ "box s" (look % LOOKS) } x=(at(low)) y=(at(top + 4.0)) width=(at(high - low)) height=(at(BODY - 8.0)) {}
        path class={ "line solid s" (look % LOOKS) } d={ "M" (at(least)) " " (middle) "H" (at(most)) } {}
        @for sample in samples { circle class={ "mark s" (look % LOOKS) } cx=(at(place(*sample))) cy=(middle) r="3" {} }
    }
}

fn draw_bars(look: usize, samples: &[f64], top: f64, place: impl Fn(f64) -> f64) -> Markup {
    let bucket = |value: f64| (value.log10() * BARS).floor() as i64;
    let first = bucket(samples[0]);
    let mut counts = vec![0_u64; (bucket(samples[samples.len() - 1]) - first) as usize + 1];
    for sample in samples {
        counts[(bucket(*sample) - first) as usize] += 1;
    }
    let most = counts.iter().copied().max().unwrap_or(1) as f64;
    let edge = |index: usize| place(10_f64.powf((first + index as i64) as f64 / BARS));
    html! {
        @for (index, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            @let high = (*count as f64 / most * BODY).max(1.0);
            rect class={ "bar s" (look % LOOKS) } x=(at(edge(index) + 0.5)) y=(at(top + BODY - high))
                width=(at((edge(index + 1) - edge(index) - 1.0).max(1.0))) height=(at(high)) {}
        }
    }
}

/// Points across and up.
type Points = Vec<(f64, f64)>;

/// The points of a series that have a place.
fn place(series: &Series, x: &Axis, y: &Axis) -> Points {
    series.points.iter().copied().filter(|(across, up)| x.has_place(*across) && y.has_place(*up)).collect()
}

fn draw_plane([x, y]: [&Axis; 2], series: &[Series], lines: Lines, [width, height]: [f64; 2]) -> Drawing {
    let series: Vec<(usize, &str, Points)> = series
        .iter()
        .enumerate()
        .map(|(look, series)| (look, series.name.as_str(), place(series, x, y)))
        .filter(|(_, _, points)| !points.is_empty())
        .collect();
    let points = || series.iter().flat_map(|(_, _, points)| points);
    let mut across = Scale::of(x, points().map(|(x, _)| *x));
    let mut up = Scale::of(y, points().map(|(_, y)| *y));
    if lines == Lines::Diagonal {
        // Equal axes, so that the diagonal is one.
        (across, up) = (across.and(up), up.and(across));
    }
    let [below, beside] = [x, y].map(|axis| if axis.label.is_empty() { 0.0 } else { LABEL });
    let (left, right, base) = (LEFT + beside, width - RIGHT, height - BOTTOM - below);
    let place_x = |value: f64| left + across.place(value) * (right - left);
    let place_y = |value: f64| base - up.place(value) * (base - TOP);
    let has_line = |look: usize| match lines {
        Lines::None | Lines::Diagonal => false,
        Lines::Series => true,
        Lines::Bounds(count) => look < count,
    };
    let is_bounded = matches!(lines, Lines::Bounds(_));
    let words = |(look, name, points): &(usize, &str, Vec<(f64, f64)>)| match points.last() {
        Some((_, last)) if has_line(*look) => format!("{name}: last {}", (y.words)(*last)),
        Some((across, up)) if is_bounded => format!("{name}: {} at {}", (y.words)(*up), (x.words)(*across)),
        _ => format!("{name}: {} points", points.len()),
    };
    let body = html! {
        @for (tick, words) in up.ticks(((base - TOP) / UPWARDS).floor()) {
            path.rule d={ "M" (at(left)) " " (at(place_y(tick))) "H" (at(right)) } {}
            text.tick x=(at(left - 6.0)) y=(at(place_y(tick) + 3.5)) text-anchor="end" { (words) }
        }
        @for (tick, words) in across.ticks(((right - left) / ACROSS).floor()) {
            @if lines != Lines::Series { path.rule d={ "M" (at(place_x(tick))) " " (at(TOP)) "V" (at(base)) } {} }
            path.axis d={ "M" (at(place_x(tick))) " " (at(base)) "v4" } {}
            text.tick x=(at(place_x(tick))) y=(at(base + 16.0)) text-anchor="middle" { (words) }
        }
        @if lines == Lines::Diagonal {
            @let [from, to] = across.ends();
            path.axis d={ "M" (at(place_x(from))) " " (at(place_y(from))) "L" (at(place_x(to))) " " (at(place_y(to))) } {}
        }
        @for (look, _, points) in &series {
            @let points: Vec<(f64, f64)> = points.iter().map(|(x, y)| (place_x(*x), place_y(*y))).collect();
            @let scale = if lines == Lines::Series { 1.0 } else { 1.6 };
            @let is_dense = lines == Lines::Series && points.len() as f64 * MARK > width;
            @if has_line(*look) {
                @let corners: Vec<String> = points.iter().map(|(x, y)| format!("{},{}", at(*x), at(*y))).collect();
                polyline class={ "line s" (look % LOOKS) } points=(corners.join(" ")) {}
            }
            @if !has_line(*look) || !is_bounded {
                @for point in &points[if is_dense { points.len() - 1 } else { 0 }..] { (mark(*look, *point, scale)) }
            }
        }
        @if is_bounded {
            @let last = |(x, y): (f64, f64)| (place_x(x), place_y(y));
            @let names = series.iter().filter_map(|(_, name, points)| Some((*name, last(*points.last()?))));
            (labels::beside(&names.collect::<Vec<_>>(), [left, right]))
        }
        text.tick x=(at((left + right) / 2.0)) y=(at(base + 16.0 + LABEL)) text-anchor="middle" { (x.label) }
        text.tick transform={ "translate(12 " (at((TOP + base) / 2.0)) ") rotate(-90)" } text-anchor="middle" { (y.label) }
    };
    Drawing { height, body, words: series.iter().map(words).collect::<Vec<_>>().join("; ") }
}

/// The mark of a series: shapes differ, as colours do, so that nothing depends on colour alone.
fn mark(look: usize, (x, y): (f64, f64), scale: f64) -> Markup {
    let class = format!("mark s{}", look % LOOKS);
    let place = format!("translate({} {}) scale({scale})", at(x), at(y));
    html! {
        @match look % LOOKS {
            0 => circle class=(class) transform=(place) r="2.6" {},
            1 => path class=(class) transform=(place) d="M0 -3.6l3.4 5.8h-6.8z" {},
            2 => rect class=(class) transform=(place) x="-2.4" y="-2.4" width="4.8" height="4.8" {},
            // A ring leaves the marks below it visible.
            3 => circle class={ (class) " open" } transform=(place) r="4" {},
            4 => path class=(class) transform=(place) d="M0 -3.4l3.4 3.4l-3.4 3.4l-3.4 -3.4z" {},
            _ => path class={ (class) " open" } transform=(place) d="M-2.5 -2.5l5 5m0 -5l-5 5" {},
        }
    }
}

/// A coordinate.
pub fn at(value: f64) -> String {
    format!("{value:.1}")
}

/// A text of at most this many letters.
pub fn truncate(text: &str, most: f64) -> String {
    match text.char_indices().nth(most as usize) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
