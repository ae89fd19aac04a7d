//! Pages that stand alone.

use tilewright_profile::{
    Category::{Attention, Gemm},
    Part, Profile, Recording, write_page,
};

use crate::made::Made;

fn page(stages: &[(Profile, Recording)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.html");
    write_page(&path, stages).unwrap();
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_page_has_its_tables_and_charts_and_loads_nothing() {
    let made = Made::stage(100.0)
        .part(Part::Step, "step 1", 0.0, 100.0)
        .part(Part::Layer, "<script>alert(1)</script>", 0.0, 60.0)
        .operation(Gemm, [1e9, 1e7], 0.0, 60.0)
        .operation(Attention, [1e9, 1e6], 60.0, 90.0);
    let mut profile = made.profile(false);
    profile.facts.device = "a \"<b>\" & c".into();
    let html = page(&[(profile.clone(), made.0.clone()), (profile, made.0)]);
    for outside in ["<script", "<link", "src=", "@import", "url(", "<b>", "NaN", "inf"] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(html.contains("name=\"viewport\"") && html.contains("lang=\"en\"") && html.ends_with("</html>\n"));
    for part in ["Roofline", "Timeline", "Operators", "Layers", "Advice", "peak of products", "#stage-1", "GFLOP/s"] {
        assert!(html.contains(part), "{part}");
    }
    assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
    assert_eq!(html.matches("class=\"timeline\"").count(), 2);
}

#[test]
fn a_stage_without_events_has_a_page_too() {
    for ms in [0.0, 5.0] {
        let made = Made::stage(ms);
        let html = page(&[(made.profile(true), made.0)]);
        assert!(
            html.contains("no kernel of the GPU was recorded") && !html.contains("Roofline") && !html.contains("NaN")
        );
    }
    assert!(page(&[]).ends_with("</html>\n"));
}
