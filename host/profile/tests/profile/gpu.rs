//! Profiles by the times of kernels.

use tilewright_profile::{
    Category::{Convolution, Copies, Elementwise, Gemm, Host, LaunchGaps},
    Kind, Part,
};

use crate::made::{COPIES, Made, assert_near, assert_whole, ms};

fn decode() -> Made {
    Made::stage(100.0)
        .part(Part::Layer, "conv_in", 0.0, 12.0)
        .operator("aten::conv2d", 1, 5.0, 12.0)
        .operator("aten::convolution", 2, 6.0, 12.0)
        .call("cudaLaunchKernel", 8.0, 9.0)
        .kernel("winograd", 2, 10.0, 40.0)
        .operator("aten::add", 3, 20.0, 22.0)
        .on(COPIES, "add_kernel", Kind::Kernel, [30.0, 50.0], [0, 3])
        .operator("aten::item", 4, 40.0, 70.0)
        .call("cudaStreamSynchronize", 41.0, 70.0)
        .on(COPIES, "Memcpy DtoH", Kind::Transfer, [60.0, 65.0], [0, 0])
}

#[test]
fn a_moment_goes_to_the_streams_that_are_at_work_or_to_what_holds_them_up() {
    let profile = decode().profile(true);
    assert_whole(&profile);
    // From 30 to 40 ms two streams share the time; launches before 10 ms are gaps, a wait is not.
    for (category, expected) in
        [(Convolution, 25.0), (Elementwise, 15.0), (Copies, 5.0), (LaunchGaps, 5.0), (Host, 50.0)]
    {
        assert_near(ms(&profile, category), expected);
    }
    assert_eq!(profile.category(LaunchGaps).unwrap().calls, 1);
    assert_eq!(profile.category(Convolution).unwrap().calls, 1);
    assert!(profile.notes.is_empty());
}

#[test]
fn operators_and_layers_have_the_kernels_that_were_launched_within_them() {
    let profile = decode().profile(true);
    let row = |name: &str| profile.operators.iter().find(|row| row.name == name).unwrap();
    assert_eq!((row("aten::convolution").device_ms, row("aten::convolution").self_ms), (Some(30.0), 5.0));
    assert_eq!((row("aten::conv2d").device_ms, row("aten::conv2d").device_total_ms), (Some(0.0), Some(30.0)));
    assert_eq!(row("cudaStreamSynchronize").category, Host);
    assert_eq!(profile.operators[0].name, "aten::convolution", "the longest on the device first");
    let layer = &profile.layers[0];
    assert_eq!((layer.total_ms, layer.category), (30.0, Convolution));
    let kernels: Vec<(&str, u64, f64)> =
        profile.kernels.iter().map(|row| (row.name.as_str(), row.calls, row.total_ms)).collect();
    assert_eq!(kernels, [("winograd", 1, 30.0), ("add_kernel", 1, 20.0), ("Memcpy DtoH", 1, 5.0)]);
}

#[test]
fn kernels_of_unknown_origin_go_by_their_names_and_calls_lead_to_operators() {
    let profile = Made::stage(50.0)
        .kernel("Cijk_Ailk_Bljk", 99, 0.0, 10.0)
        .operator("aten::zeros", 5, 0.0, 1.0)
        .kernel("vectorized_elementwise_kernel", 5, 10.0, 12.0)
        .operator("aten::mm", 6, 2.0, 4.0)
        .on(tilewright_profile::Track::Thread(1), "hipLaunchKernel", Kind::Call, [2.0, 3.0], [7, 6])
        .kernel("nameless", 7, 20.0, 25.0)
        .profile(true);
    assert_whole(&profile);
    assert_eq!([Gemm, Elementwise].map(|category| ms(&profile, category)), [15.0, 2.0]);
}

#[test]
fn without_kernels_the_times_are_the_hosts_and_a_note_says_so() {
    let profile = Made::stage(10.0).operator("aten::mm", 1, 2.0, 8.0).profile(true);
    assert_eq!([Gemm, Host].map(|category| ms(&profile, category)), [6.0, 4.0]);
    assert_eq!(profile.notes, ["no kernel of the GPU was recorded: times are the host's"]);
    assert_eq!(profile.operators[0].device_ms, None);
}
