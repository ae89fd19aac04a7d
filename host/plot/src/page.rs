//! Reports: a title, facts, a table and charts, as one file.

use std::path::Path;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use tilewright_outputs::write_whole;

use crate::{Chart, Error, Result, draw};

/// Width and height of a chart in pixels, for wide windows and for narrow ones. A chart of rows is
/// as high as they need.
const WIDE: (f64, f64) = (960.0, 420.0);
const NARROW: (f64, f64) = (480.0, 400.0);

/// Pixels around the charts of an SVG and above the first, and from one to the next.
const MARGIN: f64 = 16.0;
const HEAD: f64 = 70.0;
const APART: f64 = 28.0;

/// Letters of the longest text that counts as a figure with its unit and stays on one line.
const FIGURE: usize = 22;

/// The number of first columns that hold names, which may break anywhere.
const NAMES: usize = 2;

/// Facts that an SVG shows below its title.
const ABOUT: usize = 3;

/// The style of a page: light, readable, printable. It fits its window: columns of figures stay on
/// one line and names break. If a table still does not fit, each of its rows becomes a list, and
/// charts are drawn for that width.
const STYLE: &str = "*{box-sizing:border-box}body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:1240px;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.4rem;overflow-wrap:anywhere}table{border-collapse:collapse;margin:1rem 0;font-size:.85rem;font-variant-numeric:tabular-nums;width:100%}\
th,td{padding:.25rem .45rem;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}th{color:#555;font-weight:600}td.name{overflow-wrap:anywhere;min-width:7rem}td.figure{white-space:nowrap}\
svg{max-width:100%;height:auto;margin:1rem 0;display:block}.narrow{display:none}dt{color:#555;float:left;clear:left;width:8rem}dd{margin-left:8.5rem;overflow-wrap:anywhere}\
@media(max-width:1100px){table,tbody,tr,td{display:block}tr.head{display:none}tr{border-bottom:1px solid #ddd;padding:.5rem 0}td{border:0;display:flex;gap:1rem;justify-content:space-between;text-align:right;overflow-wrap:anywhere}\
td::before{content:attr(data-of);color:#555;text-align:left;flex:none}}\
@media(max-width:600px){.wide{display:none}.narrow{display:block}}";

/// The style of charts for pages of one's own: Okabe and Ito's colours, which the colour-blind can
/// tell apart.
pub const CHART_STYLE: &str = ".plot{overflow:visible;font:12px system-ui,sans-serif}.plot text{fill:#444}.plot .title{fill:#222;font-size:17px}.plot .lane{fill:#222;font-weight:600}\
.s0{fill:#0072b2;stroke:#0072b2}.s1{fill:#d55e00;stroke:#d55e00;stroke-dasharray:5 3}.s2{fill:#009e73;stroke:#009e73;stroke-dasharray:1.5 2.5}\
.s3{fill:#cc79a7;stroke:#cc79a7;stroke-dasharray:8 3 2 3}.s4{fill:#e69f00;stroke:#e69f00;stroke-dasharray:3 3}.s5{fill:#5a5a5a;stroke:#5a5a5a;stroke-dasharray:10 4}\
.rule,.axis,.median,.line,.mark.open{fill:none}.rule{stroke:#e4e4e4}.axis{stroke:#888}.median{stroke:#222;stroke-width:2}.line{stroke-width:1.6;stroke-linejoin:round}\
.box{fill-opacity:.22}.box,.mark,.line.solid{stroke-dasharray:none}.mark.open{stroke-width:1.6}.bar,.mark:not(.open){stroke:none}";

/// A report for people.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The title.
    pub title: String,
    /// Names and values.
    pub facts: Vec<(String, String)>,
    /// Rows; the first is the heading.
    pub table: Vec<Vec<String>>,
    /// Charts in order; those without a point are left out.
    pub charts: Vec<Chart>,
}

impl Page {
    /// Checks that a report can have this name.
    ///
    /// # Errors
    /// [`Error::Ending`] if it ends in neither .svg nor .html, [`Error::Write`] if its folder is
    /// missing.
    pub fn check(path: &Path) -> Result<()> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if !["svg", "html"].contains(&ending) {
            return Err(Error::Ending { path: path.to_owned() });
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let missing = || std::io::Error::new(std::io::ErrorKind::NotFound, "there is no such folder");
        if folder.is_dir() { Ok(()) } else { Err(Error::Write { path: path.to_owned(), source: missing() }) }
    }

    /// Writes .svg with the charts, or .html with everything.
    ///
    /// # Errors
    /// As [`Page::check`]; the file can't be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        Self::check(path)?;
        let is_html = path.extension().is_some_and(|ending| ending == "html");
        let text = if is_html { self.html() } else { self.svg() };
        write_whole(path, text.as_bytes()).map_err(|source| Error::Write { path: path.to_owned(), source })
    }

    /// The charts, one below the other.
    pub fn svg(&self) -> String {
        let about: Vec<&str> = self.facts.iter().take(ABOUT).map(|(_, value)| value.as_str()).collect();
        let mut height = HEAD;
        let mut place = |drawing: draw::Drawing| {
            let top = height;
            height += drawing.height + APART;
            html! { g transform={ "translate(" (MARGIN) " " (top) ")" } { (drawing.body) } }
        };
        let charts: Vec<Markup> =
            self.drawable().map(|chart| place(draw::draw_with_legend(chart, WIDE.0, WIDE.1))).collect();
        let width = WIDE.0 + 2.0 * MARGIN;
        let svg = html! {
            svg.plot xmlns="http://www.w3.org/2000/svg" width=(width) height=(height) viewBox={ "0 0 " (width) " " (height) } {
                style { (PreEscaped(CHART_STYLE)) }
                rect width="100%" height="100%" fill="white" {}
                text.title x=(MARGIN) y="28" { (self.title) }
                text x=(MARGIN) y="48" { (about.join(" · ")) }
                @for chart in &charts { (chart) }
            }
        };
        svg.into_string() + "\n"
    }

    /// One file with everything in it.
    pub fn html(&self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) (PreEscaped(CHART_STYLE)) }
                }
                body {
                    h1 { (self.title) }
                    dl { @for (name, value) in &self.facts { dt { (name) } dd { (value) } } }
                    (self.rows())
                    @for chart in self.drawable() {
                        @for (class, (width, height)) in [("wide", WIDE), ("narrow", NARROW)] {
                            div class=(class) { (draw::svg(draw::draw_with_legend(chart, width, height), width)) }
                        }
                    }
                }
            }
        };
        page.into_string() + "\n"
    }

    /// The table. Each cell names its column, for the layout that has no heading above it.
    fn rows(&self) -> Markup {
        let class = |column: usize, text: &str| match text.chars().count() {
            _ if column < NAMES => Some("name"),
            0..=FIGURE => Some("figure"),
            _ => None,
        };
        html! {
            @if let Some((heading, rows)) = self.table.split_first() {
                table {
                    tr.head { @for text in heading { th { (text) } } }
                    @for row in rows {
                        tr {
                            @for (column, text) in row.iter().enumerate() {
                                td class=[class(column, text)] data-of=[heading.get(column)] { (text) }
                            }
                        }
                    }
                }
            }
        }
    }

    fn drawable(&self) -> impl Iterator<Item = &Chart> {
        self.charts.iter().filter(|chart| chart.has_points())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Form, Lines, Series};

    fn page() -> Page {
        let series = |name: &str, points: &[(f64, f64)]| Series { name: name.into(), points: points.to_vec() };
        Page {
            title: "A <title>".into(),
            facts: vec![("device".into(), "a & b".into())],
            table: vec![vec!["policy".into()], vec!["<b>".into()]],
            charts: vec![
                Chart::Rows {
                    title: "Times".into(),
                    axis: Axis::linear("time, ms"),
                    rows: vec![("one".into(), vec![1.0, 2.0, 4.0]), ("none".into(), vec![]), ("two".into(), vec![3.0])],
                    form: Form::Box,
                },
                Chart::Plane {
                    title: "Drift".into(),
                    x: Axis::linear("iteration"),
                    y: Axis::linear("time, ms"),
                    series: vec![series("one", &[(0.0, 1.0), (1.0, 1.5)]), series("none", &[])],
                    lines: Lines::Series,
                },
                Chart::Plane {
                    title: "Estimates".into(),
                    x: Axis::logarithmic("measured, ms"),
                    y: Axis::logarithmic("estimated, ms"),
                    series: vec![series("plans", &[(10.0, 11.0), (1000.0, 900.0)]), series("odd", &[(0.0, 5.0)])],
                    lines: Lines::Diagonal,
                },
                Chart::Plane {
                    title: "Nothing".into(),
                    x: Axis::linear("x"),
                    y: Axis::linear("y"),
                    series: vec![],
                    lines: Lines::None,
                },
            ],
        }
    }

    #[test]
    fn pages_are_whole_and_need_nothing_from_elsewhere() {
        let html = page().html();
        assert_eq!(html.matches("<svg").count(), 6, "the empty chart is left out, the others are drawn for two widths");
        assert_eq!(html.matches("</svg>").count(), 6);
        assert!(
            html.contains("name=\"viewport\"") && html.contains("<td class=\"name\" data-of=\"policy\">&lt;b&gt;</td>")
        );
        assert!(html.contains("a &amp; b") && html.contains("&lt;b&gt;") && html.contains("A &lt;title&gt;"));
        for outside in ["<script", "<link", "src=", "@import", "url("] {
            assert!(!html.contains(outside), "{outside}");
        }
        let svg = page().svg();
        assert_eq!(svg.matches("<svg").count(), 1);
        for words in ["Times", "Drift", "Estimates", "time, ms", "estimated, ms"] {
            assert!(svg.contains(words), "{words}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn one_point_and_equal_points_can_be_drawn() {
        let rows = vec![("one".to_owned(), vec![5.0]), ("same".to_owned(), vec![5.0, 5.0])];
        let chart = Chart::Rows { title: "t".into(), axis: Axis::logarithmic("a"), rows, form: Form::Box };
        let points = vec![Series { name: "s".into(), points: vec![(0.0, 0.0)] }];
        let dots = Chart::Plane {
            title: "t".into(),
            x: Axis::linear("x"),
            y: Axis::linear("y"),
            series: points,
            lines: Lines::Diagonal,
        };
        assert!(Page { charts: vec![chart, dots], ..Page::default() }.svg().contains("</svg>"));
    }

    #[test]
    fn bounds_are_lines_and_every_series_has_its_name_beside_it() {
        let series = |name: &str, points: &[(f64, f64)]| Series { name: name.into(), points: points.to_vec() };
        let chart = Chart::plane(
            "Roofs",
            [Axis::logarithmic("x"), Axis::logarithmic("y")],
            [
                series("roof", &[(0.1, 1.0), (10.0, 100.0), (1000.0, 100.0)]),
                series("<one>", &[(1.0, 5.0)]),
                series("same", &[(1.0, 5.0)]),
            ],
            Lines::Bounds(1),
        );
        let svg = chart.svg(600.0, 300.0).unwrap().into_string();
        assert_eq!(svg.matches("<polyline").count(), 1);
        assert_eq!(svg.matches("class=\"mark").count(), 2, "the bound has no marks");
        let line = |name: &str| {
            let before = svg.split(&format!(">{name}</text>")).next().unwrap();
            before.rsplit(" y=\"").next().unwrap().split('"').next().unwrap().parse::<f64>().unwrap()
        };
        assert!((line("same") - line("&lt;one&gt;")).abs() >= 16.0, "names do not cover each other");
        assert!(svg.contains(">roof</text>") && svg.contains(">&lt;one&gt;</text>"), "{svg}");
        assert!(svg.contains("&lt;one&gt;: 5 at 1"), "{svg}");
    }

    #[test]
    fn names_are_checked_and_files_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.png", "a", "nowhere/a.svg"] {
            assert!(Page::check(&folder.path().join(name)).is_err(), "{name}");
        }
        let path = folder.path().join("a.html");
        page().write(&path).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("</html>\n"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
