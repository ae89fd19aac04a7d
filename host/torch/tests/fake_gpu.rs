//! GPUs, with the fake one of `tilewright-fake-gpu`. libtorch's back end is loaded once per
//! process, so that each test runs in a process of its own, with a script of its own.

use std::{
    env,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use tch::{Device, Kind, Tensor};
use tilewright_fake_gpu::{LIBTORCH, ROCM_LIBTORCH, SCRIPT};
use tilewright_kernels::{Expansion, Groups, Packed, Scales, Scaling, Stored};
use tilewright_plan::{Backend, Dtype, Layout};
use tilewright_torch::{
    Error, Pace, attention, backend,
    cancel::Scope,
    conv2d,
    device::{self, Choice},
    device_packed::DevicePacked,
    device_tokens, group_norm, group_norm_with, kind, linear, linear_onto,
    memory::{self, Limit},
    miopen,
    pieces::Rates,
    probe, scalar, transfer,
};

#[path = "fake_gpu/streaming.rs"]
mod streaming;

const MIB: u64 = 1 << 20;

/// Runs the rest of a test in a process with the fake GPU: true in that process, false in the one
/// that started it, which has waited for its success.
fn is_with_gpu(test: &str, script: &str) -> bool {
    is_with(test, LIBTORCH, script)
}

fn is_with(test: &str, libtorch: &str, script: &str) -> bool {
    const CHILD: &str = "TILEWRIGHT_FAKE_GPU_CHILD";
    if env::var_os(CHILD).is_some() {
        return true;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env("LD_LIBRARY_PATH", format!("{libtorch}/lib"))
        .env(SCRIPT, script)
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// The same with ROCm's back end.
fn is_with_radeon(test: &str, script: &str) -> bool {
    is_with(test, ROCM_LIBTORCH, script)
}

fn radeon() -> Device {
    assert_eq!(backend::load().unwrap(), Some(Backend::Rocm));
    memory::install().unwrap();
    device::select(Choice::Gpu(0)).unwrap()
}

/// A GPU of the fake back end.
fn gpu(index: usize) -> Device {
    assert_eq!(backend::load().unwrap(), Some(Backend::Cuda));
    memory::install().unwrap();
    let device = device::select(Choice::Gpu(index)).unwrap();
    assert_eq!(device, Device::Cuda(index));
    device
}

fn random(shape: &[i64]) -> Tensor {
    Tensor::randn(shape, (Kind::Float, Device::Cpu))
}

fn difference(one: &Tensor, other: &Tensor) -> f64 {
    f64::try_from((one.to_device(Device::Cpu) - other.to_device(Device::Cpu)).abs().max()).unwrap()
}

#[test]
fn a_cpu_that_is_opened_first_leaves_the_gpu_there() {
    if !is_with_gpu("a_cpu_that_is_opened_first_leaves_the_gpu_there", "devices=2") {
        return;
    }
    memory::install().unwrap();
    assert_eq!(device::select(Choice::Cpu).unwrap(), Device::Cpu);
    let _tensor = random(&[4]) + 1.0;
    assert_eq!(backend::load().unwrap(), Some(Backend::Cuda));
    assert_eq!(device::select(Choice::Auto).unwrap(), Device::Cuda(0));
    assert_eq!(device::select(Choice::Gpu(1)).unwrap(), Device::Cuda(1));
    let refused = device::select(Choice::Gpu(2)).unwrap_err().to_string();
    assert_eq!(refused, "cuda:2: there are 2 GPUs, cuda:0 to cuda:1");
}

#[test]
fn a_machine_without_a_driver_has_its_cpu_and_says_why() {
    if !is_with_gpu("a_machine_without_a_driver_has_its_cpu_and_says_why", "devices=0") {
        return;
    }
    backend::load().unwrap();
    memory::install().unwrap();
    assert_eq!(device::select(Choice::Auto).unwrap(), Device::Cpu);
    let refused = device::select(Choice::Gpu(0)).unwrap_err().to_string();
    assert!(refused.contains("no CUDA-capable device is detected"), "{refused}");
}

#[test]
fn work_for_a_gpu_is_divided_and_no_piece_is_queued_after_the_cancellation() {
    if !is_with_gpu("work_for_a_gpu_is_divided_and_no_piece_is_queued_after_the_cancellation", "devices=1") {
        return;
    }
    let (gpu, _no_grad) = (gpu(0), tch::no_grad_guard());
    let [query, key, value] = [(); 3].map(|()| random(&[1, 2048, 1024]).to_device(gpu));
    let (left, weight) = (random(&[3072, 1024]).to_device(gpu), random(&[2048, 1024]).to_device(gpu));
    type Work<'a> = (&'a str, &'a dyn Fn() -> tilewright_torch::Result<Tensor>);
    let all: [Work<'_>; 3] = [
        ("product", &|| linear(&left, &weight, None)),
        ("attention", &|| attention::attend(query.copy(), &key, &value)),
        ("attention in pieces", &|| attention::plain(&query, &key, &value)),
    ];
    for (name, work) in all {
        let whole = work().unwrap();
        let run = |at: usize| {
            let looks = Arc::new(AtomicUsize::new(0));
            let counter = looks.clone();
            let check = Arc::new(move || counter.fetch_add(1, Ordering::SeqCst) + 1 >= at);
            let _scope = Scope::enter(check, Rates::default());
            (work(), looks.load(Ordering::SeqCst))
        };
        let (found, looks) = run(usize::MAX);
        assert!(difference(&found.unwrap(), &whole) < 1e-3, "{name}");
        // Each piece looks before and after it waits for those before.
        assert!(looks >= 4, "{name}: {looks} looks");
        for at in [1, 3, looks] {
            let (ended, seen) = run(at);
            assert!(matches!(ended, Err(Error::Cancelled)), "{name}: {ended:?}");
            assert_eq!(seen, at, "{name}: it goes on");
        }
    }
}

#[test]
fn a_gpu_without_kernels_is_skipped() {
    if !is_with_gpu("a_gpu_without_kernels_is_skipped", "devices=2;refuses=0") {
        return;
    }
    backend::load().unwrap();
    memory::install().unwrap();
    assert_eq!(device::select(Choice::Auto).unwrap(), Device::Cuda(1));
    let refused = device::select(Choice::Gpu(0)).unwrap_err();
    assert!(matches!(refused, Error::NoKernel(_)), "{refused}");
}

#[test]
fn facts_come_from_the_runtime() {
    if !is_with_gpu("facts_come_from_the_runtime", "devices=2;memory=1073741824;arch=sm_90") {
        return;
    }
    let facts = device::facts(gpu(1), Some(Backend::Cuda)).unwrap();
    assert_eq!((facts.name.as_str(), facts.arch.as_str(), facts.compute_units), ("Fake GPU 1", "sm_90", 40));
    assert_eq!((facts.total_bytes, facts.unified), (1 << 30, false));
    assert_eq!(device::versions(), Some([13000, 13000]));
    let versions: Vec<String> = facts.hints.iter().map(|hint| format!("{} {}", hint.name, hint.value)).collect();
    assert_eq!(versions, ["cuda-driver 13.0", "cuda 13.0", "cudnn 9.19.0"]);
    assert_eq!(device::bus_address(Device::Cuda(1)).as_deref(), Some("0000:02:00.0"));
}

#[test]
fn operators_agree_with_the_cpus() {
    if !is_with_gpu("operators_agree_with_the_cpus", "devices=1") {
        return;
    }
    let gpu = gpu(0);
    let _no_grad = tch::no_grad_guard();
    let (picture, weight, bias) = (random(&[1, 32, 24, 40]), random(&[64, 32, 3, 3]), random(&[64]));
    let there = |tensor: &Tensor| tensor.to_device(gpu);
    let on_cpu = picture.conv2d(&weight, Some(&bias), [1, 1], [1, 1], [1, 1], 1);
    let on_gpu = there(&picture).conv2d(&there(&weight), Some(&there(&bias)), [1, 1], [1, 1], [1, 1], 1);
    assert_eq!(on_gpu.device(), gpu);
    assert!(difference(&on_cpu, &on_gpu) < 1e-4);

    // Views share memory, and operations in place change it.
    let values = there(&picture);
    let mut part = values.narrow(2, 4, 8);
    let _ = part.fill_(7.0);
    assert_eq!(f64::try_from(values.narrow(2, 4, 8).mean(Kind::Float)).unwrap(), 7.0);
    assert!(difference(&values.narrow(2, 12, 12), &picture.narrow(2, 12, 12)) == 0.0);

    // Norms in 16 bits, in both memory orders.
    let (scale, shift) = (random(&[64]).abs(), random(&[64]));
    let wide = on_cpu.to_kind(Kind::BFloat16);
    let expected = wide.to_kind(Kind::Double).group_norm(
        16,
        Some(scale.to_kind(Kind::Double)),
        Some(shift.to_kind(Kind::Double)),
        1e-6,
        true,
    );
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        let input = tilewright_torch::to_layout(&there(&wide), layout).unwrap();
        let found = group_norm(&input, &there(&scale), &there(&shift), 16, 1e-6).unwrap();
        assert_eq!((found.kind(), found.stride()), (Kind::BFloat16, input.stride()));
        // Nothing is rounded but the result, whose type has eight bits.
        let excess = (found.to_device(Device::Cpu).to_kind(Kind::Double) - &expected).abs() - expected.abs() / 250.0;
        assert!(f64::try_from(excess.max()).unwrap() < 1e-3);
    }
}

#[test]
fn tensors_of_two_devices_do_not_mix() {
    if !is_with_gpu("tensors_of_two_devices_do_not_mix", "devices=2") {
        return;
    }
    let (one, other) = (gpu(0), gpu(1));
    let refused = random(&[4]).to_device(one).f_add(&random(&[4]).to_device(other)).unwrap_err();
    assert!(refused.to_string().contains("same device"), "{refused}");
    let refused = random(&[4]).to_device(one).f_add(&random(&[4])).unwrap_err();
    assert!(refused.to_string().contains("same device"), "{refused}");
}

#[test]
fn memory_is_counted_limited_and_returned() {
    if !is_with_gpu("memory_is_counted_limited_and_returned", "devices=2;memory=1073741824") {
        return;
    }
    let (gpu, other) = (gpu(0), gpu(1));
    let floats = |mib: i64| Tensor::f_zeros([mib << 18], (Kind::Float, gpu));
    let kept = floats(100).unwrap();
    memory::reset_peak(gpu).unwrap();
    drop(floats(200).unwrap());
    let now = memory::of(gpu).unwrap();
    assert!(now.in_use >= 100 * MIB && now.in_use < 101 * MIB, "{now:?}");
    assert!(now.peak >= 300 * MIB && now.peak < 301 * MIB, "{now:?}");
    assert!(now.held >= 300 * MIB, "{now:?}");
    // Memory that the pool holds and does not use counts as free.
    let free = device::free_bytes(gpu).unwrap();
    assert!(free > 922 * MIB && free <= 924 * MIB, "{free}");
    memory::trim(gpu).unwrap();
    assert!(memory::of(gpu).unwrap().held < 101 * MIB);
    assert_eq!(memory::of(other).unwrap().in_use, 0);

    let limit = Limit::new(gpu, 128 * MIB).unwrap();
    drop(floats(128).unwrap());
    let refused = Error::from(floats(300).unwrap_err());
    assert!(matches!(refused, Error::OutOfMemory { bytes } if bytes == 300 * MIB), "{refused}");
    drop(limit);
    drop(floats(300).unwrap());
    drop(kept);
}

#[test]
fn every_spelling_of_out_of_memory_is_known() {
    let test = "every_spelling_of_out_of_memory_is_known";
    // The parent's process goes through all of them.
    for text in ["", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "HIP error: hipErrorOutOfMemory"] {
        if is_with_gpu(test, &format!("devices=1;oom=2;oom-text={text}")) {
            let gpu = gpu(0);
            let floats = || Tensor::f_zeros([1 << 19], (Kind::Float, gpu));
            let _first = floats().unwrap();
            let refused = Error::from(floats().unwrap_err());
            assert!(matches!(refused, Error::OutOfMemory { .. }), "{refused}");
            drop(floats().unwrap());
            return;
        }
    }
}

#[test]
fn a_lost_device_is_an_error_and_stays_lost() {
    if !is_with_gpu("a_lost_device_is_an_error_and_stays_lost", "devices=1;lost=40") {
        return;
    }
    let gpu = gpu(0);
    let work = || -> tilewright_torch::Result<()> {
        let mut values = Tensor::f_zeros([64], (Kind::Float, gpu))?;
        for _ in 0..60 {
            values = scalar::add(&values, 1.0)?;
        }
        device::synchronize(gpu)
    };
    for _ in 0..2 {
        let lost = work().unwrap_err();
        assert!(matches!(lost, Error::DeviceLost(_)), "{lost}");
    }
}

#[test]
fn attention_without_a_kernel_goes_in_pieces() {
    for kernel in ["math", "flash"] {
        let script = format!("devices=1;attention={kernel}");
        if is_with_gpu("attention_without_a_kernel_goes_in_pieces", &script) {
            let is_fused = env::var(SCRIPT).unwrap().ends_with("flash");
            let gpu = gpu(0);
            for dtype in [Dtype::F32, Dtype::Bf16] {
                assert_eq!(attention::is_fused(gpu, 512, dtype), is_fused, "{dtype}");
            }
            return;
        }
    }
}

#[test]
fn the_pace_is_that_of_the_device() {
    if !is_with_gpu("the_pace_is_that_of_the_device", "devices=1;delay=100") {
        return;
    }
    let gpu = gpu(0);
    let _no_grad = tch::no_grad_guard();
    device::synchronize(gpu).unwrap();
    let (picture, weight) = (random(&[1, 8, 8, 8]).to_device(gpu), random(&[8, 8, 3, 3]).to_device(gpu));
    let mut pace = Pace::new(gpu);
    let mut queued = Vec::new();
    let start = Instant::now();
    for _ in 0..8 {
        let _ = picture.conv2d(&weight, None::<Tensor>, [1, 1], [1, 1], [1, 1], 1);
        pace.keep().unwrap();
        queued.push(start.elapsed().as_secs_f64());
    }
    // Each is told of when the device has done it, but for the first ones in the queue.
    for (index, told) in queued.iter().enumerate().skip(3) {
        let done = 0.1 * (index as f64 + 1.0);
        assert!(*told > done - 0.25, "{queued:?}");
    }
    assert!(queued[7] > 0.7, "{queued:?}");
}

#[test]
fn a_gpu_is_measured() {
    if !is_with_gpu("a_gpu_is_measured", "devices=1") {
        return;
    }
    let measured = probe::measure(gpu(0)).unwrap();
    let single = measured.speeds.iter().find(|speed| speed.dtype == Dtype::F32).unwrap();
    assert!(single.flops_per_second > 0.0 && single.winograd.is_none() && !single.fused_attention);
    assert!(measured.bytes_per_second > 0.0);
}

#[test]
fn tensors_change_places_in_the_memory_of_the_larger_group() {
    let test = "tensors_change_places_in_the_memory_of_the_larger_group";
    if !is_with_gpu(test, "devices=2") {
        return;
    }
    let gpu = gpu(1);
    let all = |seed: i64| -> Vec<Tensor> {
        let of = |index: i64| Tensor::arange(1 << 20, (Kind::Float, Device::Cpu)) * (index + seed) as f64;
        // Views and other memory orders keep their values, too.
        let mut tensors: Vec<Tensor> = (0..8).map(of).collect();
        tensors.push(of(8).reshape([64, 128, 128]).permute([2, 0, 1]));
        tensors
    };
    let (mut there, mut here): (Vec<Tensor>, Vec<Tensor>) = (all(1), all(100));
    transfer::swap(gpu, Vec::new(), there.iter_mut().collect()).unwrap();
    assert!(there.iter().all(|tensor| tensor.device() == gpu));
    let held = memory::of(gpu).unwrap().in_use;
    assert_eq!(held, 9 * 4 * MIB);

    memory::reset_peak(gpu).unwrap();
    transfer::swap(gpu, there.iter_mut().collect(), here.iter_mut().collect()).unwrap();
    assert!(there.iter().all(|tensor| tensor.device() == Device::Cpu));
    assert!(here.iter().all(|tensor| tensor.device() == gpu));
    for (tensors, expected) in [(&there, all(1)), (&here, all(100))] {
        assert!(tensors.iter().zip(&expected).all(|(found, expected)| difference(found, expected) == 0.0));
    }
    let usage = memory::of(gpu).unwrap();
    assert_eq!((usage.in_use, usage.peak), (held, held));
    let rate = probe::measure(gpu).unwrap().transfer_bytes_per_second;
    assert!(rate.is_some_and(|rate| rate > 1e6), "{rate:?}");
}

#[test]
fn tf32_is_what_a_call_asks_for() {
    if !is_with_gpu("tf32_is_what_a_call_asks_for", "devices=1;arch=sm_80") {
        return;
    }
    let gpu = gpu(0);
    assert!(device::has_tf32(gpu) && !device::has_tf32(Device::Cpu));
    let _no_grad = tch::no_grad_guard();
    let (picture, weight, bias) = (random(&[1, 32, 24, 40]), random(&[64, 32, 3, 3]), random(&[64]));
    let expected = picture.conv2d(&weight, Some(&bias), [2, 2], [0, 1], [1, 1], 1);
    let there = |tensor: &Tensor| tensor.to_device(gpu);
    let (picture, weight, bias) = (there(&picture), there(&weight), there(&bias));
    let of = |tf32| difference(&conv2d(&picture, &weight, Some(&bias), 2, [0, 1], tf32).unwrap(), &expected);
    assert!(of(false) < 1e-4, "{}", of(false));
    assert!((1e-3..0.1).contains(&of(true)), "{}", of(true));
    let measured = probe::measure(gpu).unwrap();
    let tf32 = measured.speeds.iter().find(|speed| speed.dtype == Dtype::Tf32).unwrap();
    let single = measured.speeds.iter().find(|speed| speed.dtype == Dtype::F32).unwrap();
    assert_eq!(tf32.attention_flops_per_second, single.attention_flops_per_second);
}

#[test]
fn f32_is_exact_in_the_whole_process_from_the_load_on() {
    if !is_with_gpu("f32_is_exact_in_the_whole_process_from_the_load_on", "devices=1;arch=sm_80") {
        return;
    }
    assert!(!backend::is_f32_exact().unwrap(), "libtorch's own setting rounds convolutions");
    backend::load().unwrap();
    assert!(backend::is_f32_exact().unwrap());
}

#[test]
fn an_older_gpu_has_no_tf32() {
    if !is_with_gpu("an_older_gpu_has_no_tf32", "devices=1;arch=sm_75") {
        return;
    }
    let gpu = gpu(0);
    assert!(!device::has_tf32(gpu));
    assert!(probe::measure(gpu).unwrap().speeds.iter().all(|speed| speed.dtype != Dtype::Tf32));
}

#[test]
fn a_radeon_is_measured_in_the_order_that_its_library_computes_in() {
    let test = "a_radeon_is_measured_in_the_order_that_its_library_computes_in";
    if !is_with_radeon(test, "devices=1;memory=1073741824;integrated=1") {
        return;
    }
    backend::set_environment();
    assert_eq!(backend::load().unwrap(), Some(Backend::Rocm));
    memory::install().unwrap();
    let gpu = device::select(Choice::Auto).unwrap();
    let facts = device::facts(gpu, Some(Backend::Rocm)).unwrap();
    assert_eq!((facts.backend, facts.name.as_str(), facts.arch.as_str()), (Backend::Rocm, "Fake Radeon 0", "gfx1151"));
    assert!(facts.unified && facts.compute_units == 40);
    let measured = probe::measure(gpu).unwrap();
    assert_eq!(measured.backend, Backend::Rocm);
    assert!(measured.speeds.iter().all(|speed| speed.layout == Layout::ChannelsFirst), "{measured:?}");
}

#[test]
fn convolutions_go_on_without_a_miopen_that_fails() {
    let test = "convolutions_go_on_without_a_miopen_that_fails";
    if !is_with_radeon(test, "devices=1;memory=1073741824;miopen=fails;miopen-from=1000") {
        return;
    }
    let gpu = radeon();
    assert!(miopen::is_used() && !miopen::has_failed(), "the first small convolution passes");
    assert!(device::library_facts().iter().all(|fact| fact.name != miopen::FACT));
    let (picture, weight) = (random(&[1, 8, 24, 24]), random(&[8, 8, 3, 3]));
    let convolved = |on: Device| conv2d(&picture.to_device(on), &weight.to_device(on), None, 1, [1, 1], false);
    let expected = convolved(Device::Cpu).unwrap();
    for _ in 0..2 {
        assert!(difference(&convolved(gpu).unwrap(), &expected) < 1e-4);
        assert!(!miopen::is_used() && miopen::has_failed());
    }
    assert!(device::library_facts().iter().any(|fact| fact.name == miopen::FACT && fact.value == "false"));
    // It is not tried again.
    miopen::set_used(true);
    assert!(!miopen::is_used());
    assert_eq!(probe::measure(gpu).unwrap().miopen, Some(false));
}

#[test]
fn a_miopen_that_fails_in_the_measurement_is_left_out_of_all_of_it() {
    let test = "a_miopen_that_fails_in_the_measurement_is_left_out_of_all_of_it";
    if !is_with_radeon(test, "devices=1;memory=1073741824;miopen=fails;miopen-from=100000") {
        return;
    }
    let gpu = radeon();
    assert!(miopen::is_used());
    assert_eq!(probe::measure(gpu).unwrap().miopen, Some(false));
    assert!(miopen::has_failed());
}

/// Measures a device of which convolutions are slow in one of the two ways.
fn measures_the_faster_way(test: &str, miopen: &str, is_used: bool) {
    if !is_with_radeon(test, &format!("devices=1;memory=1073741824;miopen={miopen}")) {
        return;
    }
    assert_eq!(probe::measure(radeon()).unwrap().miopen, Some(is_used));
    assert_eq!((miopen::is_used(), miopen::has_failed()), (is_used, false));
}

#[test]
fn a_slow_miopen_is_left_out() {
    measures_the_faster_way("a_slow_miopen_is_left_out", "slow", false);
}

#[test]
fn a_fast_miopen_is_used() {
    measures_the_faster_way("a_fast_miopen_is_used", "fast", true);
}

#[test]
fn versions_of_libraries_are_facts() {
    if !is_with_radeon("versions_of_libraries_are_facts", "devices=1") {
        return;
    }
    let facts = device::facts(radeon(), Some(Backend::Rocm)).unwrap();
    let versions: Vec<String> = facts.hints.iter().map(|hint| format!("{} {}", hint.name, hint.value)).collect();
    for version in ["hip-driver 7.2.53211", "hip 7.2.53211", "miopen 3.5.1"] {
        assert!(versions.iter().any(|told| told == version), "{versions:?}");
    }
    assert!(versions.iter().all(|told| !told.starts_with("cu")), "{versions:?}");
    assert!(device::facts(Device::Cpu, None).unwrap().hints.is_empty());
}

#[test]
fn mapped_files_are_not_copied_from_directly() {
    if !is_with_gpu("mapped_files_are_not_copied_from_directly", "devices=1;borrowed=refused") {
        return;
    }
    let gpu = gpu(0);
    let values: Vec<f32> = (0..4096).map(|value| value as f32).collect();
    // SAFETY: the tensor is dropped before the values.
    let borrowed = unsafe { Tensor::from_blob(values.as_ptr().cast(), &[4096], &[1], Kind::Float, Device::Cpu) };
    assert!(borrowed.f_to_device(gpu).is_err(), "the fake device refuses it");
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    for kind in [Kind::Float, Kind::BFloat16] {
        let tensor = tilewright_torch::from_bytes(&bytes, &[64, 64], Kind::Float, kind, gpu).unwrap();
        assert_eq!((tensor.device(), tensor.kind()), (gpu, kind));
        let expected = Tensor::from_slice(&values).view([64, 64]).to_kind(kind);
        assert_eq!(difference(&tensor.to_kind(Kind::Float), &expected.to_kind(Kind::Float)), 0.0);
    }
}

/// Launches of what is no product, convolution or attention, and the bytes that it moves, so far.
fn counted(gpu: Device, counts: &str) -> [i64; 2] {
    // The file is written when the host waits.
    let _ = f64::try_from(Tensor::zeros([1], (Kind::Float, gpu))).unwrap();
    let text = std::fs::read_to_string(counts).unwrap();
    let total = text.lines().find_map(|line| line.strip_prefix("glue total ")).unwrap();
    let numbers: Vec<i64> = total.split(' ').map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// As [`is_with_gpu`], with counts of operators: their file, in the process with the fake GPU.
fn counts_with_gpu(test: &str) -> Option<String> {
    let file = env::temp_dir().join(format!("tilewright-{test}-{}", std::process::id()));
    if !is_with_gpu(test, &format!("devices=1;count={}", file.display())) {
        let _ = std::fs::remove_file(file);
        return None;
    }
    Some(env::var(SCRIPT).unwrap().split_once("count=").unwrap().1.to_owned())
}

#[test]
fn expansions_have_the_launches_and_bytes_of_their_price() {
    let Some(counts) = &counts_with_gpu("expansions_have_the_launches_and_bytes_of_their_price") else { return };
    let gpu = gpu(0);
    let _no_grad = tch::no_grad_guard();
    let shape @ [rows, columns] = [64, 4096];
    let one = |scale| Scales { factors: vec![scale], groups: None };
    let groups = Groups { codes: vec![0x38; rows * columns / 16], values: 16, powers: false };
    let scaled = [
        (Stored::F8E4m3, one(0.5)),
        (Stored::I8, one(0.5)),
        (Stored::F4, Scales { factors: vec![0.5], groups: Some(groups) }),
    ];
    let plain = Stored::all().filter(|stored| Packed::expands_alone(*stored) || stored.computable().is_some());
    let plain = plain.filter(|stored| *stored != Stored::F64).map(|stored| (stored, Scales::default()));
    for (stored, scales) in plain.chain(scaled) {
        let scaling = if scales.factors.is_empty() { Scaling::None } else { Scaling::One };
        let bytes = vec![0; stored.bytes(&shape).unwrap()];
        let packed = Packed::new(bytes.into(), stored, shape, scales).unwrap();
        let packed = DevicePacked::new(&packed, gpu).unwrap();
        for dtype in [Dtype::Bf16, Dtype::F32] {
            let before = counted(gpu, counts);
            drop(packed.expand(0..rows as i64, kind(dtype).unwrap()).unwrap());
            let after = counted(gpu, counts);
            let priced = Expansion::of(stored, scaling, dtype);
            let name = format!("{stored} to {dtype}");
            // Writing the zero that `counted` waits for is one more. A table in f32 needs no cast.
            let launches = after[0] - before[0] - 1;
            let fewer = i64::from(priced.launches) - launches;
            assert!((0..=1).contains(&fewer) && (fewer == 0 || dtype == Dtype::F32), "{name}: {launches} launches");
            let each = (after[1] - before[1]) as f64 / (rows * columns) as f64;
            assert!(
                (each - priced.value_bytes).abs() <= 0.03 * priced.value_bytes + 0.3,
                "{name}: {each} bytes a value"
            );
        }
    }
}

#[test]
fn what_stands_between_products_has_few_launches() {
    let Some(counts) = &counts_with_gpu("what_stands_between_products_has_few_launches") else { return };
    let gpu = gpu(0);
    let _no_grad = tch::no_grad_guard();
    let narrow = |shape: &[i64]| random(shape).to_kind(Kind::BFloat16).to_device(gpu);
    let (count, width) = (512, 1024);
    let wide = narrow(&[1, count, 3 * width]);
    let slice = wide.narrow(2, width, width);
    let (tokens, other) = (narrow(&[1, count, width]), narrow(&[1, count, width]));
    let single = |shape: &[i64]| random(shape).to_device(gpu);
    let (spans, weight, table) = (single(&[1, 1, width]), single(&[128]), single(&[count, 128]));
    let (matrix, bias, long) = (narrow(&[width, width]), narrow(&[width]), single(&[width]));
    let rows = |tensor: &Tensor| tensor.view([count, -1]);
    let picture = narrow(&[1, 64, 64, 128]);
    let last = tilewright_torch::to_layout(&picture, Layout::ChannelsLast).unwrap();
    let channels = narrow(&[64]);
    let whole = |tensor: Tensor| assert_eq!(tensor.kind(), Kind::BFloat16);
    // Launches, and bytes for each value.
    let cases: [(&str, i64, i64, &dyn Fn()); 12] = [
        ("a norm of heads", 3, 20, &|| device_tokens::norm_heads(&slice, &weight, 1e-6, 8, None).unwrap()),
        ("and a turn", 4, 28, &|| device_tokens::norm_heads(&slice, &weight, 1e-6, 8, Some(&table)).unwrap()),
        ("a modulation", 4, 20, &|| {
            let modulation = Some([&spans, &spans]);
            whole(device_tokens::layer_norm(&tokens, 1e-6, None, modulation, Kind::BFloat16).unwrap());
        }),
        ("a norm", 3, 20, &|| {
            let affine = Some((&long, &long));
            whole(device_tokens::layer_norm(&tokens, 1e-6, affine, None, Kind::BFloat16).unwrap());
        }),
        ("a norm of squares", 3, 20, &|| {
            whole(device_tokens::root_mean_square_norm(&tokens, &long, 1e-6, Kind::BFloat16).unwrap());
        }),
        ("a gelu", 1, 4, &|| device_tokens::gelu(&slice, &tokens, "tanh").unwrap()),
        ("a gated sum", 1, 6, &|| device_tokens::add_gated(&tokens, &spans, &other).unwrap()),
        ("a product", 0, 0, &|| linear_onto(&rows(&tokens), &rows(&other), &matrix, Some(&bias)).unwrap()),
        ("a product into a slice", 0, 0, &|| {
            linear_onto(&rows(&wide).narrow(1, 0, width), &rows(&other), &matrix, None).unwrap()
        }),
        ("and a bias", 1, 2, &|| {
            linear_onto(&rows(&wide).narrow(1, 0, width), &rows(&other), &matrix, Some(&bias)).unwrap()
        }),
        ("a group norm", 9, 8, &|| whole(group_norm(&picture, &channels, &channels, 16, 1e-6).unwrap())),
        ("and a summand", 10, 8, &|| {
            whole(group_norm_with(&last, &channels, &channels, &channels, 16, 1e-6).unwrap());
        }),
    ];
    for (name, launches, bytes, work) in cases {
        let before = counted(gpu, counts);
        work();
        let after = counted(gpu, counts);
        // Writing the zero that `counted` waits for is one more.
        assert_eq!(after[0] - before[0] - 1, launches, "{name}");
        let each = (after[1] - before[1]) as f64 / (count * width) as f64;
        assert!((each - bytes as f64).abs() < 0.6, "{name}: {each} bytes a value");
    }
}
