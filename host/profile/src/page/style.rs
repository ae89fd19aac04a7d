//! The style of pages, and the marks of categories.

use maud::{Markup, html};

use crate::Category;

/// The style of a page: light, readable, printable. Wide tables and the timeline scroll by
/// themselves in a narrow window.
pub const STYLE: &str = "*{box-sizing:border-box}body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:1240px;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.4rem;overflow-wrap:anywhere}h2{font-size:1.2rem;margin-top:2.5rem;overflow-wrap:anywhere}h3{font-size:1rem;margin:1.5rem 0 .25rem}\
dt{color:#555;float:left;clear:left;width:9rem}dd{margin-left:9.5rem;overflow-wrap:anywhere}\
.scroll{overflow-x:auto}.scroll:focus-visible,summary:focus-visible,a:focus-visible{outline:2px solid #0072b2;outline-offset:2px}\
table{border-collapse:collapse;margin:.25rem 0 1rem;font-size:.85rem;font-variant-numeric:tabular-nums;width:100%}\
th,td{padding:.25rem .5rem;border-bottom:1px solid #ddd;text-align:right;vertical-align:top;white-space:nowrap}th{color:#555;font-weight:600}\
th:first-child,td:first-child{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:10rem}\
summary{cursor:pointer;font-weight:600;margin:.5rem 0}.note{color:#555}.swatch{display:inline-block;width:1.9em;height:1.3em;margin-right:.5em;border-radius:2px;font-size:.75rem;text-align:center;vertical-align:middle}\
.plot{max-width:100%;height:auto;margin:.5rem 0;display:block}.narrow{display:none}@media(max-width:700px){.wide{display:none}.narrow{display:block}dt{float:none}dd{margin-left:0}}\
.timeline{width:100%;min-width:40rem;display:block;font:11px system-ui,sans-serif}.timeline .lane{fill:#555}.timeline rect{stroke:#fff;stroke-width:.5}.timeline .rule{stroke:#ddd}";

/// The mark of a category: its letters, its colour and the colour of letters on it. Okabe and Ito's
/// colours and two greys; the letters say the same without colours.
pub const fn mark(category: Category) -> (&'static str, &'static str, &'static str) {
    match category {
        Category::Gemm => ("Ge", "#0072b2", "#fff"),
        Category::Convolution => ("Co", "#d55e00", "#fff"),
        Category::Norm => ("No", "#009e73", "#fff"),
        Category::Attention => ("At", "#cc79a7", "#000"),
        Category::Elementwise => ("El", "#e69f00", "#000"),
        Category::Copies => ("Cp", "#56b4e9", "#000"),
        Category::Layout => ("La", "#f0e442", "#000"),
        Category::Expansion => ("Ex", "#332288", "#fff"),
        Category::LaunchGaps => ("Ga", "#777", "#fff"),
        Category::Host => ("Ho", "#d0d0d0", "#000"),
    }
}

/// The mark of a category beside its name.
pub fn swatch(category: Category) -> Markup {
    let (letters, colour, ink) = mark(category);
    html! { span.swatch style={ "background:" (colour) ";color:" (ink) } aria-hidden="true" { (letters) } }
}
