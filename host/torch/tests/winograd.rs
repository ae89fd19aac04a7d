//! Winograd's filtering against libtorch's convolution in double precision.

use tch::{Device, Kind, Tensor};
use tilewright_torch::{
    channels_last,
    packed::has_products,
    unit_norm,
    winograd::{Affine, Rows, Sums, Winograd},
};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// A convolution and its expected result.
struct Case {
    input: Tensor,
    conv: Winograd,
    affine: Affine,
    /// [N, out, H, W] in double precision.
    expected: Tensor,
}

/// The types of products that this processor has, and the largest difference for each. Outputs are
/// about 1; bf16 rounds the 16 transformed weights and inputs to 8 bits.
fn products() -> Vec<(Kind, f64)> {
    let all = [(Kind::Float, 2e-5), (Kind::BFloat16, 6e-2)];
    all.into_iter().filter(|(kind, _)| has_products(*kind)).collect()
}

fn case([batch, into, out, height, width]: [i64; 5], upsample: bool, kind: Kind) -> Case {
    let input = channels_last(&Tensor::randn([batch, into, height, width], FLOAT)).unwrap();
    let weight = Tensor::randn([out, into, 3, 3], FLOAT) / (9.0 * into as f64).sqrt();
    let bias = Tensor::randn([out], FLOAT);
    let (scale, shift) = (Tensor::rand([batch, into], FLOAT) + 0.5, Tensor::randn([batch, into], FLOAT));
    let wide = |tensor: &Tensor| tensor.to_kind(Kind::Double);
    let per_channel = |tensor: &Tensor| wide(tensor).view([batch, into, 1, 1]);
    let mut normed = (wide(&input) * per_channel(&scale) + per_channel(&shift)).silu();
    if upsample {
        normed = normed.upsample_nearest2d([2 * height, 2 * width], None, None);
    }
    let expected = normed.conv2d(&wide(&weight), Some(&wide(&bias)), [1, 1], [1, 1], [1, 1], 1);
    let host = |tensor: &Tensor| Vec::try_from(tensor.flatten(0, -1)).unwrap();
    Case {
        input,
        conv: Winograd::new(&weight, &bias, upsample, kind).unwrap(),
        affine: Affine { scale: host(&scale), shift: host(&shift) },
        expected,
    }
}

fn picture(shape: [i64; 4]) -> Tensor {
    channels_last(&Tensor::full(shape, f64::NAN, FLOAT)).unwrap()
}

fn largest(tensor: &Tensor) -> f64 {
    f64::try_from(tensor.abs().max()).unwrap()
}

const SHAPES: [[i64; 5]; 7] = [
    [1, 128, 128, 33, 47],
    [2, 24, 40, 9, 11],
    [2, 70, 3, 5, 8],
    [3, 1, 1, 1, 1],
    [1, 4, 130, 2, 1],
    [1, 16, 64, 64, 16],
    [1, 65, 63, 17, 100],
];

#[test]
fn it_agrees_with_the_definition_and_counts_its_output() {
    let _no_grad = tch::no_grad_guard();
    for (kind, bound) in products() {
        for (shape, upsample) in SHAPES.into_iter().flat_map(|shape| [(shape, false), (shape, true)]) {
            let Case { input, conv, affine, expected } = case(shape, upsample, kind);
            let (batch, out, height, width) = expected.size4().unwrap();
            let beside = channels_last(&Tensor::randn(expected.size(), FLOAT)).unwrap();
            let expected = expected + beside.to_kind(Kind::Double);
            let output = picture([batch, out, height, width]);
            let mut sums = Sums::new(batch, out);
            let all = Rows::all(&input);
            conv.convolve(all, Some(&affine), 0..height, Some(&beside), Some(&output), Some(&mut sums)).unwrap();
            let difference = largest(&(&output - &expected));
            assert!(difference < bound, "{shape:?} {upsample} {kind:?}: {difference}");
            assert_eq!(sums.pixels, (height * width) as f64);
            let added = expected.sum_dim_intlist(&[2_i64, 3][..], false, None);
            let squared = expected.square().sum_dim_intlist(&[2_i64, 3][..], false, None);
            let counted = Tensor::from_slice(&sums.values).view([batch, 2, out]);
            let per_pixel = largest(&(counted.select(1, 0) - added)).max(largest(&(counted.select(1, 1) - squared)));
            let bound = 5.0 * bound;
            assert!(per_pixel / ((height * width) as f64) < bound, "{shape:?} {upsample} {kind:?}: {per_pixel}");
            // The addend may be the output itself.
            conv.convolve(all, Some(&affine), 0..height, Some(&beside), Some(&beside), None).unwrap();
            assert_eq!(largest(&(&beside - &output)), 0.0);
        }
    }
}

#[test]
fn rows_are_those_of_the_whole_and_need_only_their_neighbours() {
    let _no_grad = tch::no_grad_guard();
    let all = products().into_iter().flat_map(|of| [(of, false), (of, true)]);
    for ((kind, bound), upsample) in all {
        let Case { input, conv, affine, expected } = case([2, 20, 18, 37, 21], upsample, kind);
        let (batch, out, height, width) = expected.size4().unwrap();
        let scale = if upsample { 2 } else { 1 };
        for rows in [0..1, 0..16, 5..6, 7..30, 16..32, height - 3..height, 0..height] {
            let first = (rows.start - 1).max(0) / scale;
            let last = ((rows.end + scale) / scale).min(37);
            let stored = channels_last(&input.narrow(2, first, last - first).contiguous()).unwrap();
            let part = Rows { tensor: &stored, first, height: 37 };
            // A band of a larger picture: its samples lie apart.
            let whole = picture([batch, out, height, width]);
            let output = whole.narrow(2, rows.start, rows.end - rows.start);
            conv.convolve(part, Some(&affine), rows.clone(), None, Some(&output), None).unwrap();
            let wanted = expected.narrow(2, rows.start, rows.end - rows.start);
            let difference = largest(&(&output - wanted));
            assert!(difference < bound, "{upsample} {rows:?} {kind:?}: {difference}");
            let others = i64::try_from(whole.isnan().sum(Kind::Int64)).unwrap();
            assert_eq!(others, batch * out * (height - (rows.end - rows.start)) * width, "nothing else is written");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_before_it_reaches_cpp() {
    if !has_products(Kind::Float) {
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let Case { input, conv, affine, .. } = case([1, 8, 4, 6, 6], false, Kind::Float);
    let output = picture([1, 4, 6, 6]);
    let run = |input: &Tensor, first, height, affine: &Affine, rows, output: &Tensor| {
        let part = Rows { tensor: input, first, height };
        conv.convolve(part, Some(affine), rows, None, Some(output), Some(&mut Sums::new(1, 4)))
    };
    assert!(run(&input, 0, 6, &affine, 0..6, &output).is_ok());
    let short = Affine { scale: vec![1.0; 7], shift: vec![0.0; 8] };
    let refused = [
        ("channels-first input", run(&input.contiguous(), 0, 6, &affine, 0..6, &output)),
        ("double input", run(&input.to_kind(Kind::Double), 0, 6, &affine, 0..6, &output)),
        ("other channels", run(&picture([1, 9, 6, 6]), 0, 6, &affine, 0..6, &output)),
        ("rows that are not there", run(&input, 0, 12, &affine, 0..6, &output)),
        ("rows before the first", run(&input, 2, 12, &affine, 2..8, &picture([1, 4, 6, 6]))),
        ("no rows", run(&input, 0, 6, &affine, 3..3, &output)),
        ("rows beyond the picture", run(&input, 0, 6, &affine, 0..7, &picture([1, 4, 7, 6]))),
        ("an output of other rows", run(&input, 0, 6, &affine, 0..5, &output)),
        ("a channels-first output", run(&input, 0, 6, &affine, 0..6, &output.contiguous())),
        ("too few factors", run(&input, 0, 6, &short, 0..6, &output)),
    ];
    for (what, result) in refused {
        assert!(result.is_err(), "{what}");
    }
    assert!(Winograd::new(&Tensor::rand([4, 8, 1, 1], FLOAT), &Tensor::rand([4], FLOAT), false, Kind::Float).is_err());
    assert!(Winograd::new(&Tensor::rand([4, 8, 3, 3], FLOAT), &Tensor::rand([5], FLOAT), false, Kind::Float).is_err());
}

#[test]
fn three_frames_make_a_causal_convolution() {
    let _no_grad = tch::no_grad_guard();
    let shapes = [[96, 96, 19, 23], [4, 24, 6, 9], [24, 3, 17, 8], [130, 70, 5, 16]];
    let all = products().into_iter().flat_map(|of| shapes.map(|shape| (of, shape)));
    for ((kind, bound), [into, out, height, width]) in all {
        let weight = Tensor::randn([out, into, 3, 3, 3], FLOAT) / (27.0 * into as f64).sqrt();
        let bias = Tensor::randn([out], FLOAT);
        let conv = Winograd::causal(&weight, &bias, kind).unwrap();
        let frames: Vec<Tensor> =
            (0..3).map(|_| channels_last(&Tensor::randn([1, into, height, width], FLOAT)).unwrap()).collect();
        for there in 1..=3 {
            let frames = &frames[3 - there..];
            // [1, C, T, H, W], with zeros for missing frames.
            let clip =
                Tensor::stack(frames, 2).to_kind(Kind::Double).constant_pad_nd([0, 0, 0, 0, 3 - there as i64, 0]);
            let expected = clip.conv3d(
                &weight.to_kind(Kind::Double),
                Some(&bias.to_kind(Kind::Double)),
                [1, 1, 1],
                [0, 1, 1],
                [1, 1, 1],
                1,
            );
            let output = picture([1, out, height, width]);
            let rows: Vec<Rows<'_>> = frames.iter().map(Rows::all).collect();
            conv.convolve_frames(&rows, None, 0..height, None, Some(&output), None).unwrap();
            let difference = largest(&(&output - expected.squeeze_dim(2)));
            assert!(difference < bound, "{into} → {out}, {there} frames, {kind:?}: {difference}");
        }
    }
    if !has_products(Kind::Float) {
        return;
    }
    let frame = picture([1, 8, 4, 4]);
    let conv = Winograd::causal(&Tensor::rand([4, 8, 3, 3, 3], FLOAT), &Tensor::rand([4], FLOAT), Kind::Float).unwrap();
    let several = [Rows::all(&frame); 4];
    assert!(conv.convolve_frames(&several, None, 0..4, None, None, None).is_err());
    assert!(conv.convolve_frames(&[], None, 0..4, None, None, None).is_err());
    let other = picture([1, 8, 4, 5]);
    assert!(conv.convolve_frames(&[Rows::all(&frame), Rows::all(&other)], None, 0..4, None, None, None).is_err());
}

#[test]
fn norms_per_pixel_agree_with_the_definition() {
    let _no_grad = tch::no_grad_guard();
    for channels in [96, 5, 16, 130] {
        let input = channels_last(&(Tensor::randn([2, channels, 7, 9], FLOAT) * 3.0)).unwrap();
        let _ = input.narrow(2, 0, 1).zero_();
        let gamma = Tensor::randn([channels], FLOAT);
        let wide = input.to_kind(Kind::Double);
        let length = wide.square().sum_dim_intlist(&[1_i64][..], true, None).sqrt().clamp_min(1e-12);
        let normed = wide / length * (channels as f64).sqrt() * gamma.to_kind(Kind::Double).view([1, channels, 1, 1]);
        for (silu, expected) in [(false, normed.copy()), (true, normed.silu())] {
            let output = picture([2, channels, 7, 9]);
            unit_norm(&input, &gamma, silu, &output).unwrap();
            assert!(largest(&(&output - &expected)) < 1e-5);
            let same = input.copy();
            unit_norm(&same, &gamma, silu, &same).unwrap();
            assert_eq!(largest(&(&same - &output)), 0.0);
        }
    }
    let (first, last) = (Tensor::rand([1, 4, 3, 3], FLOAT), picture([1, 4, 3, 3]));
    assert!(unit_norm(&first, &Tensor::rand([4], FLOAT), true, &last).is_err(), "channels-first");
    assert!(unit_norm(&last, &Tensor::rand([5], FLOAT), true, &last).is_err());
}
