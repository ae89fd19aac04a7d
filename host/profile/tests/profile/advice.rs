//! Advice where its rule applies, and none elsewhere.

use tilewright_profile::{
    Category::{self, Attention, Convolution, Copies, Elementwise, Expansion, Gemm, Host, Layout},
    Facts, Part, Profile,
};

use crate::made::{Made, facts};

/// The advice for a stage in which categories have these shares of 100 ms.
fn advice(shares: &[(Category, f64)], facts: Facts) -> String {
    let mut made = Made::stage(100.0);
    let mut start = 0.0;
    for (category, ms) in shares.iter().filter(|(category, _)| *category != Host) {
        made = made.part(Part::Layer, &format!("{} layer", category.name()), start, start + ms);
        made = made.operation(*category, [1e6, 1e6], start, start + ms);
        start += ms;
    }
    Profile::of(&made.0, facts).unwrap().advice.join("\n")
}

fn denoise() -> Facts {
    Facts { stage: "denoise".into(), plan: "bf16, weights as stored".into(), ..facts(false) }
}

#[test]
fn each_rule_names_a_setting_that_exists() {
    let f32 = Facts { in_f32: true, ..denoise() };
    let pieces = Facts { manual_attention: true, ..denoise() };
    let streamed = Facts { plan: "bf16, weights as stored, read a block ahead".into(), ..denoise() };
    let mixed = Facts { plan: "mixed bf16".into(), ..denoise() };
    let on_gpu = |facts: Facts| Facts { on_gpu: true, ..facts };
    for (shares, facts, expected) in [
        (vec![(Gemm, 80.0)], f32, "matrix products take 80.0 % of the time, in f32: try set denoise.precision=bf16"),
        (vec![(Gemm, 80.0)], denoise(), "the most in gemm layer (80.0 %)"),
        (vec![(Expansion, 80.0)], denoise(), "try set denoise.weights=expanded"),
        (
            vec![(Attention, 80.0)],
            pieces,
            "in pieces: if the device has a fused kernel, try set denoise.attention=fused",
        ),
        (vec![(Copies, 80.0)], mixed, "try set denoise.precision=bf16"),
        (vec![(Copies, 80.0)], denoise(), "try set denoise.weights=expanded"),
        (vec![(Gemm, 20.0)], streamed, "weights come too late; if they fit, try set denoise.ahead=all"),
        (vec![(Gemm, 20.0)], denoise(), "the host takes 80.0 % of the time: the trace shows what it does"),
        (
            vec![(Convolution, 80.0)],
            on_gpu(facts(false)),
            "try policy decode=fixed set decode.space=exact set decode.tile=512",
        ),
        (vec![(Layout, 80.0)], facts(false), "try policy decode=fixed set decode.layout=channels-last"),
    ] {
        let lines = advice(&shares, facts);
        assert_eq!(lines.lines().filter(|line| line.contains(expected)).count(), 1, "{expected}: {lines}");
    }
}

#[test]
fn a_stage_of_many_small_things_has_no_advice() {
    let shares = [(Gemm, 40.0), (Elementwise, 30.0), (Copies, 5.0), (Attention, 10.0)];
    assert_eq!(advice(&shares, denoise()), "");
}

#[test]
fn many_small_kernels_ask_for_more_at_once() {
    let mut made = Made::stage(1.0);
    for index in 0..10_u32 {
        let start = f64::from(index) / 10.0;
        made = made.operator("aten::add", u64::from(index) + 1, start, start + 0.09);
        made = made.kernel("add", u64::from(index) + 1, start + 0.08, start + 0.085);
    }
    let advice = Profile::of(&made.0, Facts { stage: "denoise".into(), ..facts(true) }).unwrap().advice;
    let line = "launches take 85.0 % of the time, between kernels of less than 10 µs: try more samples at once, as by set \
                denoise.guidance=together";
    assert_eq!(advice, [line]);
}
