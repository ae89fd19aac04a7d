//! Reports: a title, facts, a table and charts, as one file.

use std::path::Path;

use tilewright_outputs::write_whole;

use crate::{Chart, Error, Result, draw};

/// Width and height of a chart in pixels, for wide windows and for narrow ones.
const WIDE: (u32, u32) = (960, 420);
const NARROW: (u32, u32) = (480, 400);

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

/// A report for people.
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// As [`Page::check`]; a chart can't be drawn; the file can't be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        Self::check(path)?;
        let html = path.extension().is_some_and(|ending| ending == "html");
        let text = if html { self.html()? } else { self.svg()? };
        write_whole(path, text.as_bytes()).map_err(|source| Error::Write { path: path.to_owned(), source })
    }

    /// The charts, one below the other.
    ///
    /// # Errors
    /// A chart can't be drawn.
    pub fn svg(&self) -> Result<String> {
        let about: Vec<&str> = self.facts.iter().take(ABOUT).map(|(_, value)| value.as_str()).collect();
        draw::sheet(&self.title, &about.join(" · "), &self.drawable(), WIDE)
    }

    /// One file with everything in it.
    ///
    /// # Errors
    /// A chart can't be drawn.
    pub fn html(&self) -> Result<String> {
        let mut html = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{0}</title><style>{STYLE}</style></head>\n\
             <body><h1>{0}</h1>\n<dl>",
            escape(&self.title)
        );
        for (name, value) in &self.facts {
            html += &format!("<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
        }
        html += "</dl>\n";
        html += &self.rows();
        for chart in self.drawable() {
            for (class, extent) in [("wide", WIDE), ("narrow", NARROW)] {
                html += &format!("<div class=\"{class}\">{}</div>\n", draw::sheet("", "", &[chart], extent)?);
            }
        }
        Ok(html + "</body></html>\n")
    }

    /// The table. Each cell names its column, for the layout that has no heading above it.
    fn rows(&self) -> String {
        let Some((heading, rows)) = self.table.split_first() else { return String::new() };
        let of: Vec<String> = heading.iter().map(|text| escape(text)).collect();
        let head: String = of.iter().map(|text| format!("<th>{text}</th>")).collect();
        let mut html = format!("<table>\n<tr class=\"head\">{head}</tr>\n");
        for row in rows {
            let cells = row.iter().enumerate().map(|(place, text)| {
                let class = match text.chars().count() {
                    _ if place < NAMES => " class=\"name\"",
                    0..=FIGURE => " class=\"figure\"",
                    _ => "",
                };
                let of = of.get(place).map_or("", String::as_str);
                format!("<td{class} data-of=\"{of}\">{}</td>", escape(text))
            });
            html += &format!("<tr>{}</tr>\n", cells.collect::<String>());
        }
        html + "</table>\n"
    }

    fn drawable(&self) -> Vec<&Chart> {
        self.charts.iter().filter(|chart| chart.has_points()).collect()
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Series};

    fn page() -> Page {
        let series = |name: &str, points: &[(f64, f64)]| Series { name: name.into(), points: points.to_vec() };
        Page {
            title: "A <title>".into(),
            facts: vec![("device".into(), "a & b".into())],
            table: vec![vec!["policy".into()], vec!["<b>".into()]],
            charts: vec![
                Chart::Boxes {
                    title: "Times".into(),
                    axis: Axis::linear("time, ms"),
                    rows: vec![("one".into(), vec![1.0, 2.0, 4.0]), ("none".into(), vec![]), ("two".into(), vec![3.0])],
                },
                Chart::Lines {
                    title: "Drift".into(),
                    x: Axis::linear("iteration"),
                    y: Axis::linear("time, ms"),
                    series: vec![series("one", &[(0.0, 1.0), (1.0, 1.5)]), series("none", &[])],
                },
                Chart::Scatter {
                    title: "Estimates".into(),
                    x: Axis::logarithmic("measured, ms"),
                    y: Axis::logarithmic("estimated, ms"),
                    series: vec![series("plans", &[(10.0, 11.0), (1000.0, 900.0)]), series("odd", &[(0.0, 5.0)])],
                    diagonal: true,
                },
                Chart::Scatter {
                    title: "Nothing".into(),
                    x: Axis::linear("x"),
                    y: Axis::linear("y"),
                    series: vec![],
                    diagonal: false,
                },
            ],
        }
    }

    #[test]
    fn pages_are_whole_and_need_nothing_from_elsewhere() {
        let html = page().html().unwrap();
        assert_eq!(html.matches("<svg").count(), 6, "the empty chart is left out, the others are drawn for two widths");
        assert_eq!(html.matches("</svg>").count(), 6);
        assert!(
            html.contains("name=\"viewport\"") && html.contains("<td class=\"name\" data-of=\"policy\">&lt;b&gt;</td>")
        );
        assert!(html.contains("a &amp; b") && html.contains("&lt;b&gt;") && html.contains("A &lt;title&gt;"));
        for outside in ["<script", "<link", "src=", "@import", "url("] {
            assert!(!html.contains(outside), "{outside}");
        }
        let svg = page().svg().unwrap();
        assert_eq!(svg.matches("<svg").count(), 1);
        for words in ["Times", "Drift", "Estimates", "time, ms", "estimated, ms"] {
            assert!(svg.contains(words), "{words}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn one_point_and_equal_points_can_be_drawn() {
        let rows = vec![("one".to_owned(), vec![5.0]), ("same".to_owned(), vec![5.0, 5.0])];
        let chart = Chart::Boxes { title: "t".into(), axis: Axis::logarithmic("a"), rows };
        let points = vec![Series { name: "s".into(), points: vec![(0.0, 0.0)] }];
        let dots = Chart::Scatter {
            title: "t".into(),
            x: Axis::linear("x"),
            y: Axis::linear("y"),
            series: points,
            diagonal: true,
        };
        assert!(Page { charts: vec![chart, dots], ..Page::default() }.svg().unwrap().contains("</svg>"));
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
