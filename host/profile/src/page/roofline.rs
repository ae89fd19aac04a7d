//! The roofline: operations per byte against operations per second, below the device's peaks.

use tilewright_plot::{Axis, Chart, Lines, Series};

use crate::{Category, Peaks, Profile};

/// A category's roof extends beyond the points by this factor.
const BEYOND: f64 = 4.0;

/// The peaks: the name of their roof and a category that has it.
const ROOFS: &[(&str, Category)] =
    &[("products", Category::Gemm), ("convolutions", Category::Convolution), ("attention", Category::Attention)];

/// The chart; without points if no category has an amount.
pub fn chart(profile: &Profile) -> Chart {
    let points: Vec<Series> = profile
        .categories
        .iter()
        .filter(|row| row.bytes > 0.0)
        .filter_map(|row| {
            let point = (row.operations / row.bytes, row.operations_per_second? / 1e9);
            Some(Series { name: row.category.name().to_owned(), points: vec![point] })
        })
        .collect();
    let roofs = if points.is_empty() { Vec::new() } else { roofs(&profile.facts.peaks, &points) };
    let lines = Lines::Bounds(roofs.len());
    let axes = [Axis::logarithmic("operations per byte"), Axis::logarithmic("GFLOP/s")];
    Chart::plane("Roofline", axes, roofs.into_iter().chain(points), lines)
}

/// The roofs that are known, each over all of the points; equal ones once.
fn roofs(peaks: &Peaks, points: &[Series]) -> Vec<Series> {
    let bandwidth = peaks.bytes_per_second;
    let is_known = |peak: &f64| *peak > 0.0 && peak.is_finite();
    let mut roofs: Vec<(String, f64)> = Vec::new();
    for (name, category) in ROOFS {
        let peak = peaks.of(*category);
        if !is_known(&peak) || !is_known(&bandwidth) {
            continue;
        }
        match roofs.iter_mut().find(|(_, known)| *known == peak) {
            Some((names, _)) => *names += &format!(", {name}"),
            None => roofs.push((format!("peak of {name}"), peak)),
        }
    }
    let across = points.iter().flat_map(|series| &series.points).map(|(x, _)| *x);
    let ridges = roofs.iter().map(|(_, peak)| peak / bandwidth);
    let (from, to) = across.chain(ridges).fold((f64::INFINITY, 0.0_f64), |(from, to), x| (from.min(x), to.max(x)));
    let (from, to) = (from / BEYOND, to * BEYOND);
    let corners = |peak: f64| [from, peak / bandwidth, to].map(|x| (x, (x * bandwidth).min(peak) / 1e9)).to_vec();
    roofs.into_iter().map(|(name, peak)| Series { name, points: corners(peak) }).collect()
}
