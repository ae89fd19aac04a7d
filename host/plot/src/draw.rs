//! The drawing of charts as SVG.

use plotters::{
    coord::{Shift, ranged1d::ValueFormatter},
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use tilewright_statistics::{quantile, sorted};

use crate::{Axis, Chart, Error, Result, Series};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Okabe and Ito's colours, which the colour-blind can tell apart; marks differ too.
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(228, 228, 228);

/// Pixels above the charts.
const TITLE: u32 = 60;

/// Pixels and letters of labels and legend in a chart at least [`WIDE`] pixels wide; in a narrower
/// one they shrink in proportion.
const WIDE: u32 = 960;
const LABELS: u32 = 300;
const LONGEST_LABEL: u32 = 44;
const LEGEND: u32 = 220;
const LEGEND_LETTERS: u32 = 30;

/// The part of `most` pixels or letters that a chart as wide as this area gets.
fn share(area: &Area<'_>, most: u32) -> u32 {
    most * area.dim_in_pixel().0.min(WIDE) / WIDE
}

/// Charts below each other, with a title above unless it is empty.
pub fn sheet(title: &str, about: &str, charts: &[&Chart], (width, height): (u32, u32)) -> Result<String> {
    let top = if title.is_empty() { 0 } else { TITLE };
    let mut svg = String::new();
    {
        let root =
            SVGBackend::with_string(&mut svg, (width, top + height * charts.len().max(1) as u32)).into_drawing_area();
        root.fill(&WHITE).map_err(draw_error)?;
        let (head, mut rest) = root.split_vertically(top);
        if top > 0 {
            head.draw(&Text::new(title.to_owned(), (16, 8), font(20))).map_err(draw_error)?;
            head.draw(&Text::new(about.to_owned(), (16, 36), font(13))).map_err(draw_error)?;
        }
        for chart in charts {
            let (area, below) = rest.split_vertically(height);
            rest = below;
            match chart {
                Chart::Boxes { title, axis, rows } => boxes(&area, title, axis, rows)?,
                Chart::Lines { title, x, y, series } => plane(&area, title, x, y, series, Marks::Lines)?,
                Chart::Scatter { title, x, y, series, diagonal } => {
                    let marks = if *diagonal { Marks::Compared } else { Marks::Points };
                    plane(&area, title, x, y, series, marks)?;
                }
            }
        }
        root.present().map_err(draw_error)?;
    }
    Ok(svg)
}

fn draw_error(error: impl std::fmt::Display) -> Error {
    Error::Chart(error.to_string())
}

#[derive(Clone, Copy, PartialEq)]
enum Marks {
    Lines,
    Points,
    Compared,
}

/// The range of an axis: from zero, or from just below the least value if it is logarithmic; never
/// empty.
fn range(values: impl Iterator<Item = f64>, axis: &Axis) -> (f64, f64) {
    let shown = values.filter(|value| value.is_finite() && (!axis.logarithmic || *value > 0.0));
    let (least, most) =
        shown.fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
    match axis.logarithmic {
        true if least.is_finite() => (least / 1.3, most * 1.3),
        true => (1.0, 10.0),
        false if most > 0.0 || least < 0.0 => (least.min(0.0) * 1.08, most * 1.08),
        false => (0.0, 1.0),
    }
}

fn font(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

fn boxes(area: &Area<'_>, title: &str, axis: &Axis, rows: &[(String, Vec<f64>)]) -> Result<()> {
    let (from, to) = range(rows.iter().flat_map(|(_, samples)| samples.iter().copied()), axis);
    // From the top down: the first row is row zero.
    let across = (rows.len() as f64 - 0.5)..-0.5;
    let mut builder = ChartBuilder::on(area);
    builder.caption(title, font(17)).margin(14).x_label_area_size(44).y_label_area_size(share(area, LABELS));
    if axis.logarithmic {
        let chart = builder.build_cartesian_2d((from..to).log_scale(), across).map_err(draw_error)?;
        draw_boxes(area, chart, axis, rows)
    } else {
        let chart = builder.build_cartesian_2d(from..to, across).map_err(draw_error)?;
        draw_boxes(area, chart, axis, rows)
    }
}

fn draw_boxes<'a, X>(
    area: &Area<'a>,
    mut chart: ChartContext<'_, SVGBackend<'a>, Cartesian2d<X, plotters::coord::types::RangedCoordf64>>,
    axis: &Axis,
    rows: &[(String, Vec<f64>)],
) -> Result<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut mesh = chart.configure_mesh();
    mesh.disable_y_mesh().y_labels(0).x_desc(&axis.label).x_label_formatter(&|value| short(*value));
    mesh.light_line_style(WHITE).bold_line_style(GRID).axis_style(INK).label_style(font(13)).axis_desc_style(font(14));
    mesh.draw().map_err(draw_error)?;
    for (index, (name, samples)) in rows.iter().enumerate() {
        let (row, color) = (index as f64, COLORS[index % COLORS.len()]);
        let left = chart.plotting_area().get_pixel_range().0.start;
        let base = area.get_base_pixel();
        let line = chart.backend_coord(&(axis_start(samples, axis), row)).1;
        let anchor = font(13).pos(Pos::new(HPos::Right, VPos::Center));
        area.draw(&Text::new(
            truncate(name, share(area, LONGEST_LABEL) as usize),
            (left - base.0 - 8, line - base.1),
            anchor,
        ))
        .map_err(draw_error)?;
        let Some(first) = samples.first() else { continue };
        let ordered = sorted(samples);
        let at = |share| quantile(&ordered, share);
        let bar =
            |a: f64, b: f64, half: f64, style: ShapeStyle| Rectangle::new([(a, row - half), (b, row + half)], style);
        chart
            .draw_series([
                bar(at(0.25), at(0.75), 0.28, color.mix(0.22).filled()),
                bar(at(0.25), at(0.75), 0.28, color.stroke_width(1)),
            ])
            .map_err(draw_error)?;
        let stroke = |points: Vec<(f64, f64)>, width| PathElement::new(points, color.stroke_width(width));
        let middle = at(0.5);
        chart
            .draw_series([
                stroke(vec![(at(0.0), row), (at(1.0), row)], 1),
                stroke(vec![(middle, row - 0.34), (middle, row + 0.34)], 3),
            ])
            .map_err(draw_error)?;
        let dot = |sample: &f64| Circle::new((*sample, row), 3, color.mix(0.7).filled());
        chart.draw_series(std::iter::once(first).chain(&samples[1..]).map(dot)).map_err(draw_error)?;
    }
    Ok(())
}

/// A value within the axis.
fn axis_start(samples: &[f64], axis: &Axis) -> f64 {
    samples.first().copied().unwrap_or(if axis.logarithmic { 1.0 } else { 0.0 })
}

fn plane(area: &Area<'_>, title: &str, x: &Axis, y: &Axis, series: &[Series], marks: Marks) -> Result<()> {
    let points = || series.iter().flat_map(|series| series.points.iter());
    let (mut across, mut up) = (range(points().map(|(x, _)| *x), x), range(points().map(|(_, y)| *y), y));
    if marks == Marks::Compared {
        // Equal axes, so that the diagonal is one.
        across = (across.0.min(up.0), across.1.max(up.1));
        up = across;
    }
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(title, font(17))
        .margin(14)
        .margin_right(share(area, LEGEND))
        .x_label_area_size(44)
        .y_label_area_size(76);
    let (across, up) = (across.0..across.1, up.0..up.1);
    match (x.logarithmic, y.logarithmic) {
        (false, false) => {
            draw_plane(area, builder.build_cartesian_2d(across, up).map_err(draw_error)?, x, y, series, marks)
        }
        (true, false) => draw_plane(
            area,
            builder.build_cartesian_2d(across.log_scale(), up).map_err(draw_error)?,
            x,
            y,
            series,
            marks,
        ),
        (false, true) => draw_plane(
            area,
            builder.build_cartesian_2d(across, up.log_scale()).map_err(draw_error)?,
            x,
            y,
            series,
            marks,
        ),
        (true, true) => {
            let chart = builder.build_cartesian_2d(across.log_scale(), up.log_scale()).map_err(draw_error)?;
            draw_plane(area, chart, x, y, series, marks)
        }
    }
}

fn draw_plane<'a, X, Y>(
    area: &Area<'a>,
    mut chart: ChartContext<'_, SVGBackend<'a>, Cartesian2d<X, Y>>,
    x: &Axis,
    y: &Axis,
    series: &[Series],
    marks: Marks,
) -> Result<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(&x.label).y_desc(&y.label);
    mesh.x_label_formatter(&|value| short(*value)).y_label_formatter(&|value| short(*value));
    mesh.light_line_style(WHITE).bold_line_style(GRID).axis_style(INK).label_style(font(13)).axis_desc_style(font(14));
    mesh.draw().map_err(draw_error)?;
    // The legend stands beside the plane, so that it covers no point.
    let left = area.dim_in_pixel().0 as i32 - share(area, LEGEND) as i32 + 8;
    let mut line = 44;
    if marks == Marks::Compared {
        let style = INK.mix(0.5).stroke_width(1);
        let (from, to) = (chart.x_range().start, chart.x_range().end);
        chart.draw_series([PathElement::new(vec![(from, from), (to, to)], style)]).map_err(draw_error)?;
        area.draw(&PathElement::new(vec![(left, line), (left + 16, line)], style)).map_err(draw_error)?;
        legend(area, "estimate = measurement", left, &mut line)?;
    }
    for (index, series) in series.iter().enumerate().filter(|(_, series)| !series.points.is_empty()) {
        let color = COLORS[index % COLORS.len()];
        // Values without a logarithm are left out.
        let placed = |(across, up): &&(f64, f64)| {
            (!x.logarithmic || *across > 0.0) && (!y.logarithmic || *up > 0.0) && across.is_finite() && up.is_finite()
        };
        let points: Vec<(f64, f64)> = series.points.iter().filter(placed).copied().collect();
        if marks == Marks::Lines {
            chart.draw_series(LineSeries::new(points.clone(), color.stroke_width(2))).map_err(draw_error)?;
        }
        chart.draw_series(points.into_iter().map(|point| mark(point, index, color))).map_err(draw_error)?;
        area.draw(&mark((left + 8, line), index, color)).map_err(draw_error)?;
        legend(area, &series.name, left, &mut line)?;
    }
    Ok(())
}

/// A name beside its mark, in as many lines as it needs.
fn legend(area: &Area<'_>, name: &str, left: i32, line: &mut i32) -> Result<()> {
    let anchor = font(12).pos(Pos::new(HPos::Left, VPos::Center));
    let letters: Vec<char> = name.chars().collect();
    // The mark takes the width of four letters, in a narrow legend too.
    let most = share(area, LEGEND_LETTERS + 4).saturating_sub(4).max(8) as usize;
    for part in letters.chunks(most) {
        let part: String = part.iter().collect();
        area.draw(&Text::new(part, (left + 24, *line), anchor.clone())).map_err(draw_error)?;
        *line += 15;
    }
    *line += 5;
    Ok(())
}

/// Marks differ in shape too, so that nothing depends on colour alone.
fn mark<'a, C: Clone + 'static>(at: C, index: usize, color: RGBColor) -> DynElement<'static, SVGBackend<'a>, C>
where
    Circle<C, i32>: IntoDynElement<'static, SVGBackend<'a>, C>,
    Cross<C, i32>: IntoDynElement<'static, SVGBackend<'a>, C>,
    TriangleMarker<C, i32>: IntoDynElement<'static, SVGBackend<'a>, C>,
{
    match index % 4 {
        0 => Circle::new(at, 4, color.mix(0.75).filled()).into_dyn(),
        1 => TriangleMarker::new(at, 6, color.mix(0.75).filled()).into_dyn(),
        2 => Cross::new(at, 4, color.stroke_width(2)).into_dyn(),
        // A ring leaves the marks below it visible.
        _ => Circle::new(at, 8, color.stroke_width(2)).into_dyn(),
    }
}

fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 1e5 => format!("{value:.0e}"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{}", (value * 10.0).round() / 10.0),
        size if size >= 0.1 => format!("{}", (value * 100.0).round() / 100.0),
        _ => format!("{value:.1e}"),
    }
}

fn truncate(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
