//! The part of a profile that is kept, and recordings that are put aside.

use tilewright_profile::{Category::Gemm, Part, Recording};

use crate::made::Made;

/// A stage of layers, of which the later ones take longer.
fn made(layers: usize, name: &str) -> Made {
    let mut made = Made::stage(1000.0);
    for layer in 0..layers {
        let start = 10.0 * layer as f64;
        made = made.part(Part::Layer, &format!("{name} {layer}"), start, start + 1.0 + layer as f64 / 100.0);
        made = made.operator(&format!("aten::{layer}"), 1 + layer as u64, start, start + 0.5);
    }
    made.operation(Gemm, [1e9, 1e6], 900.0, 1000.0)
}

#[test]
fn a_summary_has_the_times_of_all_categories() {
    let profile = made(3, "layer").profile(false);
    let summary = profile.summary();
    let total: f64 = summary.categories.iter().map(|row| row.total_ms).sum();
    crate::made::assert_near(total, summary.stage_ms);
    assert_eq!((summary.overhead, summary.unprofiled_ms), (profile.overhead, profile.unprofiled_ms));
    assert_eq!(summary.categories.len(), profile.categories.len());
    assert_eq!(summary.categories[0].category, profile.categories[0].category);
}

#[test]
fn a_shortened_profile_keeps_the_longest_rows_in_their_order() {
    let profile = made(80, "layer").profile(false);
    let whole = profile.clone().shortened(1000);
    assert_eq!(whole, profile);
    let short = profile.clone().shortened(50);
    let names: Vec<&str> = short.layers.iter().map(|row| row.name.as_str()).collect();
    let expected: Vec<String> = (30..80).map(|layer| format!("layer {layer}")).collect();
    assert_eq!(names, expected);
    assert_eq!((short.operators.len(), short.categories == profile.categories), (50, true));
    assert_eq!(short.operators[..], profile.operators[..50]);
}

#[test]
fn a_shortened_profile_has_no_name_without_end() {
    let short = made(2, &"ä".repeat(10_000)).profile(false).shortened(50);
    assert!(short.layers.iter().all(|row| row.name.chars().count() == 201 && row.name.ends_with('…')));
}

#[test]
fn a_recording_comes_back_from_json_as_it_was() {
    let made = made(3, "layer").call("cudaLaunchKernel", 40.0, 41.0).kernel("gemm", 1, 42.0, 43.0);
    let text = serde_json::to_string(&made.0).unwrap();
    assert_eq!(serde_json::from_str::<Recording>(&text).unwrap(), made.0);
}
