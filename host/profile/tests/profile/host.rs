//! Profiles by the times of the host.

use proptest::prelude::*;
use tilewright_profile::{
    Category::{self, Attention, Convolution, Copies, Elementwise, Gemm, Host, Layout, Norm},
    Error, Event, Kind, Part, Profile, Recording, Track, text,
};

use crate::made::{Made, assert_near, assert_whole, facts, ms};

fn denoise() -> Made {
    Made::stage(100.0)
        .part(Part::Step, "step 1", 0.0, 95.0)
        .part(Part::Layer, "blocks.0.attn.q", 10.0, 40.0)
        .operation(Gemm, [4e9, 1e9], 10.0, 30.0)
        .operator("aten::linear", 1, 10.0, 28.0)
        .operator("aten::to", 2, 11.0, 15.0)
        .operator("aten::copy_", 3, 12.0, 15.0)
        .operator("aten::empty", 4, 11.0, 12.0)
        .operator("aten::addmm", 5, 15.0, 27.0)
        .operator("aten::add", 6, 30.0, 38.0)
        .operation(Attention, [1e9, 2e9], 50.0, 90.0)
        .operation(Gemm, [5e8, 1e9], 55.0, 65.0)
        .operator("aten::copy_", 7, 56.0, 58.0)
        .operator("aten::empty_like", 8, 92.0, 94.0)
}

#[test]
fn time_goes_to_the_category_that_an_event_lies_within() {
    let profile = denoise().profile(false);
    assert_whole(&profile);
    // The conversion beside the product is seen, with the allocation that is a part of it.
    for (category, expected) in [(Gemm, 16.0), (Copies, 4.0), (Elementwise, 8.0), (Attention, 40.0), (Host, 32.0)] {
        assert_near(ms(&profile, category), expected);
    }
    assert_eq!(profile.categories[0].category, Attention, "the longest first");
    let order: Vec<f64> = profile.categories.iter().map(|row| row.total_ms).collect();
    assert!(order.is_sorted_by(|one, other| one >= other), "{order:?}");
    let calls = |category| profile.category(category).unwrap().calls;
    assert_eq!([Gemm, Copies, Elementwise, Attention, Host].map(calls), [1, 1, 1, 1, 1]);
}

#[test]
fn amounts_count_once_and_are_set_against_the_peaks() {
    let profile = denoise().profile(false);
    let gemm = profile.category(Gemm).unwrap();
    // 4 GFLOP at 1 TFLOP/s are 4 ms, 1 GB at 100 GB/s 10 ms, in 16 ms.
    assert_eq!((gemm.operations, gemm.bytes), (4e9, 1e9), "the inner product is the attention's");
    assert_near(gemm.of_roof.unwrap(), 10.0 / 16.0);
    assert_near(gemm.operations_per_second.unwrap(), 4e9 / 0.016);
    assert_near(gemm.bytes_per_second.unwrap(), 1e9 / 0.016);
    let attention = profile.category(Attention).unwrap();
    assert_eq!((attention.operations, attention.bytes), (1e9, 2e9));
    assert_near(attention.of_roof.unwrap(), 20.0 / 40.0);
    let host = profile.category(Host).unwrap();
    assert_eq!((host.of_roof, host.operations_per_second), (None, None));

    // An outer operation without an amount has those within it.
    let made = Made::stage(10.0).operation(Convolution, [0.0, 0.0], 0.0, 8.0);
    let made = made.operation(Convolution, [1e9, 1e6], 1.0, 3.0).operation(Layout, [0.0, 1e7], 3.0, 4.0);
    let profile = made.profile(false);
    let convolution = profile.category(Convolution).unwrap();
    assert_eq!((convolution.operations, convolution.total_ms), (1e9, 7.0));
    assert_near(convolution.of_roof.unwrap(), 2.0 / 7.0);
    assert_eq!(profile.category(Layout).unwrap().bytes, 1e7);
}

#[test]
fn all_within_a_norm_is_the_norms_and_operators_outside_go_by_their_names() {
    let profile = Made::stage(100.0)
        .operation(Norm, [0.0, 0.0], 0.0, 20.0)
        .operation(Gemm, [0.0, 0.0], 1.0, 5.0)
        .operator("aten::contiguous", 0, 5.0, 8.0)
        .operator("aten::conv2d", 0, 20.0, 50.0)
        .operator("aten::add_", 0, 21.0, 25.0)
        .operator("aten::contiguous", 0, 25.0, 30.0)
        .operator("aten::copy_", 0, 26.0, 30.0)
        .operator("aten::scaled_dot_product_attention", 0, 50.0, 60.0)
        .operator("aten::matmul", 0, 51.0, 55.0)
        .operator("aten::nobody_knows", 0, 60.0, 61.0)
        .profile(false);
    assert_whole(&profile);
    let expected = [(Norm, 20.0), (Convolution, 25.0), (Layout, 5.0), (Attention, 10.0), (Elementwise, 1.0)];
    for (category, expected) in expected {
        assert_near(ms(&profile, category), expected);
    }
}

#[test]
fn operators_are_counted_without_counting_recursion_twice() {
    let profile = Made::stage(100.0)
        .operator("aten::matmul", 1, 0.0, 50.0)
        .operator("aten::matmul", 2, 10.0, 40.0)
        .operator("aten::mm", 3, 20.0, 30.0)
        .operator("aten::matmul", 4, 60.0, 65.0)
        .profile(false);
    let row = |name: &str| profile.operators.iter().find(|row| row.name == name).unwrap();
    let matmul = row("aten::matmul");
    assert_eq!((matmul.calls, matmul.device_ms, matmul.category), (3, None, Gemm));
    assert_near(matmul.self_ms, 45.0);
    assert_near(matmul.total_ms, 55.0);
    assert_eq!((row("aten::mm").self_ms, row("aten::mm").total_ms), (10.0, 10.0));
    assert_eq!(profile.operators[0].name, "aten::matmul");
    assert_eq!(text::operators(&profile, 1).rows, [["aten::matmul", "gemm", "3", "45.0 ms", "55.0 ms"]]);
}

#[test]
fn layers_and_parts_have_their_calls_and_come_in_order() {
    let mut made = denoise();
    for tile in 0..2 {
        let start = 60.0 - 40.0 * f64::from(tile);
        made = made.part(Part::Tile, &format!("tile {tile}"), start, start + 2.0);
    }
    let profile = made.part(Part::Layer, "blocks.0.attn.q", 40.0, 45.0).profile(false);
    let layer = &profile.layers[0];
    assert_eq!((layer.name.as_str(), layer.calls, layer.total_ms, layer.category), ("blocks.0.attn.q", 2, 35.0, Gemm));
    let names: Vec<&str> = profile.parts.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names, ["step 1", "tile 1", "tile 0"]);
    assert_eq!(text::layers(&profile, 5).rows, [["blocks.0.attn.q", "gemm", "2", "35.0 ms", "35.0 %"]]);
}

#[test]
fn other_threads_count_while_the_stages_thread_does_nothing() {
    let reader =
        |made: Made, name: &str, start, end| made.on(Track::Thread(2), name, Kind::Operator, [start, end], [0, 0]);
    let made = Made::stage(100.0).operator("aten::mm", 0, 0.0, 50.0);
    let made = reader(made, "aten::copy_", 30.0, 70.0);
    let profile = reader(made, "aten::cat", 200.0, 300.0).profile(false);
    assert_whole(&profile);
    assert_eq!([Gemm, Copies, Host].map(|category| ms(&profile, category)), [50.0, 20.0, 30.0]);
    let copies = profile.operators.iter().find(|row| row.name == "aten::copy_").unwrap();
    assert_eq!(copies.self_ms, 40.0);
    assert!(profile.operators.iter().all(|row| row.name != "aten::cat"), "it lies beyond the stage");
}

#[test]
fn events_that_overlap_a_little_are_cut() {
    let profile = Made::stage(1.0)
        .operator("aten::mm", 0, 0.1, 0.500_004)
        .operator("aten::add", 0, 0.5, 0.9)
        .operator("aten::mul", 0, 0.8, 0.900_002)
        .operator("aten::cat", 0, 0.95, 5.0)
        .profile(false);
    assert_whole(&profile);
    assert_near(ms(&profile, Gemm), 0.400_004);
    assert_near(ms(&profile, Elementwise), 0.399_996);
    assert_near(ms(&profile, Layout), 0.05);
    let mul = profile.operators.iter().find(|row| row.name == "aten::mul").unwrap();
    assert_near(mul.total_ms, 0.1);
}

#[test]
fn a_recording_has_one_stage() {
    let refused = |recording: &Recording| Profile::of(recording, facts(false)).unwrap_err();
    let error = refused(&Recording::default());
    assert!(matches!(error, Error::Stages { found: 0, .. }));
    let line = "recording of decode: 0 events are the stage, 1 was expected: record one stage at a time";
    assert_eq!(error.to_string(), line);
    let twice = Made::stage(1.0).part(Part::Stage, "encode", 2.0, 3.0);
    assert!(matches!(refused(&twice.0), Error::Stages { found: 2, .. }));
    let nothing = Made::stage(0.0).operator("aten::mm", 0, 0.0, 5.0).profile(false);
    assert_eq!((nothing.stage_ms, nothing.categories.len()), (0.0, 0));
}

#[test]
fn overhead_is_that_of_the_unit_that_ran_twice() {
    let made = Made::stage(200.0);
    let profile = made.profile(false);
    assert_near(profile.overhead, 0.25);
    assert_near(profile.unprofiled_ms, 160.0);
    let whole = tilewright_profile::Facts { compared: "the stage".into(), ..facts(false) };
    assert_eq!(Profile::of(&made.0, whole).unwrap().unprofiled_ms, 80.0);
    let unknown = tilewright_profile::Facts { compared_ms: [0.0, 0.0], ..facts(false) };
    let profile = Profile::of(&made.0, unknown).unwrap();
    assert_eq!((profile.overhead, profile.unprofiled_ms), (0.0, 200.0));
}

#[test]
fn a_profile_reads_back_with_stable_names() {
    let profile = denoise().profile(false);
    let text = serde_json::to_string(&profile).unwrap();
    assert_eq!(serde_json::from_str::<Profile>(&text).unwrap(), profile);
    for name in ["\"stage_ms\":100.0", "\"category\":\"gemm\"", "\"of_roof\":", "\"self_ms\":", "\"unprofiled_ms\":"] {
        assert!(text.contains(name), "{name}");
    }
    let names = Category::ALL.map(|category| serde_json::to_string(&category).unwrap());
    assert_eq!(names, Category::ALL.map(|category| format!("{:?}", category.name())));
    assert_eq!(Category::ALL.map(|category| category as usize), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn tables_have_a_cell_for_each_heading() {
    let profile = denoise().profile(false);
    let tables = [text::categories(&profile), text::operators(&profile, 9), text::parts(&profile, 9)];
    for table in &tables {
        assert!(!table.rows.is_empty());
        assert!(table.rows.iter().all(|row| row.len() == table.headings.len()), "{table:?}");
    }
    let gemm = tables[0].rows.iter().find(|row| row[0] == "gemm").unwrap();
    let expected = ["gemm", "16.0 ms", "16.0 %", "1", "4.00 GFLOP", "1.00 GB", "250 GFLOP/s", "62.5 GB/s", "62.5 %"];
    assert_eq!(gemm, &expected);
}

fn any_event() -> impl Strategy<Value = Event> {
    let kinds = prop::sample::select(vec![
        Kind::Part(Part::Layer),
        Kind::Operation(Gemm, tilewright_profile::Amount { operations: 1.0, bytes: 2.0 }),
        Kind::Operation(Norm, tilewright_profile::Amount::default()),
        Kind::Operator,
        Kind::Call,
        Kind::Kernel,
        Kind::Transfer,
    ]);
    let names =
        prop::sample::select(vec!["aten::mm", "aten::copy_", "aten::add", "cudaDeviceSynchronize", "aten::cat"]);
    let tracks = prop::sample::select(vec![
        Track::Thread(1),
        Track::Thread(2),
        Track::Stream { device: 0, stream: 0 },
        Track::Stream { device: 1, stream: 7 },
    ]);
    (names, kinds, tracks, 0_u64..1200, 0_u64..400, 0_u64..5, 0_u64..5).prop_map(
        |(name, kind, track, start, length, id, launched_by)| {
            let end = (start + length).saturating_sub(20);
            Event { name: name.into(), kind, track, start, end, id, launched_by }
        },
    )
}

proptest! {
    #[test]
    fn categories_add_up_whatever_was_recorded(events in prop::collection::vec(any_event(), 0..80), on_gpu: bool) {
        let stage = Made::default().part(Part::Stage, "decode", 100e-6, 1000e-6);
        let mut recording = stage.0;
        recording.events.extend(events);
        let profile = Profile::of(&recording, facts(on_gpu)).unwrap();
        let sum: f64 = profile.categories.iter().map(|row| row.total_ms).sum();
        prop_assert!((sum - 900e-6).abs() < 1e-12, "{sum}");
        prop_assert!(profile.operators.iter().all(|row| row.self_ms <= row.total_ms + 1e-12));
        crate::trace::assert_nested(&crate::trace::events(&[(profile, recording)]));
    }
}
