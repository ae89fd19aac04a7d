//! Recordings of the size of a long run.

use tilewright_profile::{Category::Gemm, Part};

use crate::made::Made;

/// Events of a layer.
const EVENTS: usize = 5;

#[test]
fn half_a_million_events_are_analysed_written_and_drawn() {
    let layers = 500_000 / EVENTS;
    let mut made = Made::stage(layers as f64);
    for layer in 0..layers {
        let (start, id) = (layer as f64, layer as u64 + 1);
        made = made
            .part(Part::Layer, &format!("layer {}", layer % 1000), start, start + 0.9)
            .operation(Gemm, [1e6, 1e6], start + 0.1, start + 0.8)
            .operator("aten::mm", id, start + 0.2, start + 0.7)
            .call("cudaLaunchKernel", start + 0.3, start + 0.4)
            .kernel("gemm", id, start + 0.4, start + 0.9);
    }
    let profile = made.profile(true);
    crate::made::assert_whole(&profile);
    assert_eq!((profile.layers.len(), profile.layers[0].calls), (1000, layers as u64 / 1000));
    let folder = tempfile::tempdir().unwrap();
    let [page, trace] = ["page.html", "trace.json"].map(|name| folder.path().join(name));
    let stages = [(profile, made.0)];
    tilewright_profile::write_page(&page, &stages).unwrap();
    tilewright_profile::write_trace(&trace, &stages).unwrap();
    assert!(page.metadata().unwrap().len() < 4 << 20, "the longest events suffice");
}
