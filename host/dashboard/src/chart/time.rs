//! Points over time, a line per series, with the newest at the right.

use std::time::{Duration, SystemTime};

use maud::{Markup, html};

use super::{LOOKS, Title, WIDTH, at, figure, mark, truncate};
use crate::units::{between, coarse, milliseconds, percent};
use crate::views::TimeSeries;

const HEIGHT: f64 = 176.0;
const LEFT: f64 = 48.0;
const RIGHT: f64 = 8.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 22.0;

/// Lines with more points than this have a mark at their newest only.
const MARKED: usize = 48;

/// Points of a line that are drawn, the newest.
const POINTS: usize = 240;

/// The seconds that ticks across may be apart.
const APART: [u64; 15] = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 259_200, 604_800];

/// The scale of values: their words, and their ticks if they differ by more than [`FAR`].
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    /// A value with its unit.
    pub(crate) words: fn(f64) -> String,
    /// The ticks of a logarithmic axis; if there are none, the axis is always linear.
    pub(crate) logarithmic: &'static [f64],
}

/// Milliseconds, in the unit that fits.
pub(crate) const DURATIONS: Scale = Scale {
    words: milliseconds,
    logarithmic: &[1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 6e4, 6e5, 3.6e6, 3.6e7, 8.64e7, 8.64e8, 8.64e9],
};

/// Shares of one.
pub(crate) const SHARES: Scale = Scale { words: percent, logarithmic: &[] };

/// The largest over the smallest value of a linear axis that may be logarithmic.
const FAR: f64 = 20.0;

/// The range of the values, and their places.
struct Axis {
    from: f64,
    to: f64,
    is_logarithmic: bool,
}

impl Axis {
    fn of(values: &[f64], scale: Scale) -> Self {
        let (least, most) = values
            .iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(*value), most.max(*value)));
        if !scale.logarithmic.is_empty() && least > 0.0 && most / least > FAR {
            return Self { from: least.log10() - 0.1, to: most.log10() + 0.1, is_logarithmic: true };
        }
        let (least, most) = (least.min(0.0), most.max(0.0));
        Self {
            from: least,
            to: if most > least { most + (most - least) * 0.06 } else { least + 1.0 },
            is_logarithmic: false,
        }
    }

    fn up(&self, value: f64) -> f64 {
        let value = if self.is_logarithmic { value.log10() } else { value };
        HEIGHT - BOTTOM - (value - self.from) / (self.to - self.from) * (HEIGHT - BOTTOM - TOP)
    }

    fn ticks(&self, scale: Scale) -> Vec<f64> {
        if self.is_logarithmic {
            let is_shown = |tick: &f64| (self.from..=self.to).contains(&tick.log10());
            let shown: Vec<f64> = scale.logarithmic.iter().copied().filter(is_shown).collect();
            return shown.iter().copied().step_by(shown.len().div_ceil(6).max(1)).collect();
        }
        let step = even((self.to - self.from) / 4.0);
        let first = (self.from / step).ceil();
        (0..8).map(|tick| (first + f64::from(tick)) * step).take_while(|tick| *tick <= self.to).collect()
    }
}

/// The next 1, 2 or 5 times a power of ten.
fn even(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|even| *even >= step * 0.999).unwrap_or(step)
}

/// The chart.
pub(crate) fn over_time(title: Title, now: SystemTime, series: &[TimeSeries], scale: Scale) -> Markup {
    // Beyond these, differences are lost to rounding.
    let is_placed = |value: f64| value == 0.0 || (1e-12..1e15).contains(&value.abs());
    let lines: Vec<(&str, Vec<(f64, f64)>)> = series
        .iter()
        .map(|series| {
            let skipped = series.points.len().saturating_sub(POINTS);
            let newest = series.points[skipped..].iter().filter(|(_, value)| is_placed(*value));
            (
                series.name.as_str(),
                newest.map(|(time, value)| (between(*time, now).as_secs_f64(), *value)).collect::<Vec<_>>(),
            )
        })
        .filter(|(_, points)| !points.is_empty())
        .collect();
    let body = (!lines.is_empty()).then(|| draw(&lines, scale));
    figure(title, body)
}

fn draw(lines: &[(&str, Vec<(f64, f64)>)], scale: Scale) -> Markup {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let axis = Axis::of(&points().map(|(_, value)| *value).collect::<Vec<_>>(), scale);
    let oldest = points().map(|(age, _)| *age).fold(10.0, f64::max);
    let across = |age: f64| WIDTH - RIGHT - 4.0 - age / oldest * (WIDTH - RIGHT - 4.0 - LEFT);
    let apart = APART.into_iter().find(|apart| oldest / *apart as f64 <= 4.5).unwrap_or((oldest / 4.0) as u64);
    let ages: Vec<u64> = (0..=4).map(|tick| tick * apart).take_while(|age| *age as f64 <= oldest).collect();
    let newest = |points: &[(f64, f64)]| points.last().map_or_else(String::new, |(_, value)| (scale.words)(*value));
    let words: Vec<String> = lines.iter().map(|(name, points)| format!("{name}: newest {}", newest(points))).collect();
    html! {
        svg.plot viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(words.join("; ")) {
            @for tick in axis.ticks(scale) {
                path.rule d=(format!("M{LEFT} {}H{}", at(axis.up(tick)), WIDTH - RIGHT)) {}
                text.tick x=(LEFT - 6.0) y=(at(axis.up(tick) + 3.5)) text-anchor="end" { ((scale.words)(tick)) }
            }
            @for age in ages {
                path.axis d=(format!("M{0} {1}v4", at(across(age as f64)), HEIGHT - BOTTOM)) {}
                text.tick x=(at(across(age as f64))) y=(HEIGHT - 6.0) text-anchor=(if age == 0 { "end" } else { "middle" }) {
                    @if age == 0 { "now" } @else { "−" (coarse(Duration::from_secs(age))) }
                }
            }
            @for (look, (_, points)) in lines.iter().enumerate() {
                @let placed: Vec<(f64, f64)> = points.iter().map(|(age, value)| (across(*age), axis.up(*value))).collect();
                @let corners: Vec<String> = placed.iter().map(|(x, y)| format!("{},{}", at(*x), at(*y))).collect();
                polyline class={ "line s" (look % LOOKS) } points=(corners.join(" ")) {}
                @let from = if placed.len() > MARKED { placed.len() - 1 } else { 0 };
                @for (x, y) in &placed[from..] { (mark(look, *x, *y)) }
            }
        }
        ul.legend {
            @for (look, (name, points)) in lines.iter().enumerate() {
                li {
                    svg viewBox="0 0 24 10" aria-hidden="true" {
                        polyline class={ "line s" (look % LOOKS) } points="0,5 24,5" {}
                        (mark(look, 12.0, 5.0))
                    }
                    span title=(name) { (truncate(name, 32)) }
                    span.quiet { (newest(points)) }
                }
            }
        }
    }
}
