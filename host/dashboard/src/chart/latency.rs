//! The times of decisions: a histogram per revision, one below the other on one logarithmic axis.

use maud::{Markup, html};

use super::{LOOKS, Title, WIDTH, at, figure, truncate};
use crate::units::{count, milliseconds};
use crate::views::LatencySamples;

const TITLE: Title = Title { name: "Decision latency", unit: "log scale", empty: "No policy has decided yet." };

/// Bars per power of ten.
const PER_DECADE: f64 = 8.0;

/// The range of the axis: from a nanosecond to eleven days.
const PLACED: std::ops::Range<f64> = 1e-3..1e12;

/// Heights, in the drawing's units.
const LABEL: f64 = 16.0;
const BARS: f64 = 34.0;
const GAP: f64 = 12.0;
const AXIS: f64 = 18.0;

/// The room beside the outermost powers of ten, for their labels.
const EDGE: f64 = 20.0;

/// The row of a revision; times are µs.
struct Row<'a> {
    of: &'a LatencySamples,
    sorted: Vec<f64>,
}

impl Row<'_> {
    /// The sample at this share of all, counted up from the least.
    fn at(&self, share: f64) -> f64 {
        self.sorted[((self.sorted.len() - 1) as f64 * share).round() as usize]
    }

    fn words(&self) -> String {
        let [median, tail] = [0.5, 0.99].map(|share| milliseconds(self.at(share) / 1e3));
        format!("median {median}, p99 {tail}")
    }
}

/// The chart.
pub(crate) fn latency(rows: &[LatencySamples]) -> Markup {
    let rows: Vec<Row<'_>> = rows.iter().filter_map(row).collect();
    let body = (!rows.is_empty()).then(|| draw(&rows));
    figure(TITLE, body)
}

fn row(of: &LatencySamples) -> Option<Row<'_>> {
    let mut sorted: Vec<f64> = of.samples_us.iter().copied().filter(|value| PLACED.contains(value)).collect();
    sorted.sort_by(f64::total_cmp);
    (!sorted.is_empty()).then_some(Row { of, sorted })
}

fn draw(rows: &[Row<'_>]) -> Markup {
    let least = rows.iter().map(|row| row.at(0.0)).fold(f64::INFINITY, f64::min).log10().floor();
    let most = rows.iter().map(|row| row.at(1.0)).fold(0.0, f64::max).log10().floor() + 1.0;
    let decades = most - least;
    let place = |value: f64| EDGE + (value.log10() - least) / decades * (WIDTH - 2.0 * EDGE);
    let lane = LABEL + BARS + GAP;
    let (base, height) = (rows.len() as f64 * lane - GAP + 4.0, rows.len() as f64 * lane - GAP + 4.0 + AXIS);
    // Labels that would touch are left out.
    let stride = (decades / 6.0).ceil().max(1.0) as usize;
    let ticks = (0..=decades as usize).step_by(stride).map(|tick| 10_f64.powf(least + tick as f64));
    let words: Vec<String> =
        rows.iter().map(|row| format!("{} r{}: {}", row.of.policy, row.of.revision, row.words())).collect();
    html! {
        svg.plot viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(words.join("; ")) {
            @for tick in ticks {
                path.rule d=(format!("M{} 0V{}", at(place(tick)), at(base))) {}
                text.tick x=(at(place(tick))) y=(at(base + 13.0)) text-anchor="middle" { (milliseconds(tick / 1e3)) }
            }
            @for (index, row) in rows.iter().enumerate() {
                (bars(index, row, lane * index as f64, least, place))
            }
        }
    }
}

fn bars(index: usize, row: &Row<'_>, top: f64, least: f64, place: impl Fn(f64) -> f64) -> Markup {
    let bucket = |value: f64| ((value.log10() - least) * PER_DECADE).floor().max(0.0) as usize;
    let mut buckets = vec![0_u64; bucket(row.at(1.0)) + 1];
    for value in &row.sorted {
        buckets[bucket(*value)] += 1;
    }
    let most = buckets.iter().copied().max().unwrap_or(1) as f64;
    let floor = top + LABEL + BARS;
    let edge = |index: usize| place(10_f64.powf(least + index as f64 / PER_DECADE));
    let label = truncate(&format!("{} r{}", row.of.policy, row.of.revision), 26);
    let median = at(place(row.at(0.5)));
    html! {
        text.lane x="0" y=(at(top + 11.0)) {
            (label)
            title { (row.of.policy) " r" (row.of.revision) ": " (count(row.sorted.len() as u64)) " decisions" }
        }
        text.tick x=(WIDTH) y=(at(top + 11.0)) text-anchor="end" { (row.words()) }
        path.axis d=(format!("M0 {0}H{WIDTH}", at(floor))) {}
        @for (bucket, held) in buckets.iter().enumerate().filter(|(_, held)| **held > 0) {
            @let high = (*held as f64 / most * BARS).max(1.0);
            rect class={ "bar s" (index % LOOKS) } x=(at(edge(bucket) + 0.5)) y=(at(floor - high))
                width=(at((edge(bucket + 1) - edge(bucket) - 1.0).max(1.0))) height=(at(high)) {}
        }
        path.median d=(format!("M{median} {}V{}", at(top + LABEL - 1.0), at(floor))) {}
    }
}
