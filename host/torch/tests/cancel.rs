//! Cancellation within each of this project's own kernels: no block begins after the cancellation.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use tch::{Device, Kind, Tensor};
use tilewright_kernels::{Packed, Scales, Stored};
use tilewright_torch::{
    Error, Result, attention,
    cancel::Scope,
    channels_last, multi_head, packed,
    pieces::Rates,
    set_threads, tokens, unit_norm,
    winograd::{Rows, Winograd},
};

/// Runs work whose cancellation comes at a look; the result, and the number of looks.
fn run(work: &dyn Fn() -> Result<()>, at: usize) -> (Result<()>, usize) {
    let looks = Arc::new(AtomicUsize::new(0));
    let counter = looks.clone();
    let _scope = Scope::enter(Arc::new(move || counter.fetch_add(1, Ordering::SeqCst) + 1 >= at), Rates::default());
    let ended = work();
    (ended, looks.load(Ordering::SeqCst))
}

/// Sets the number of threads, which the process has one of: tests with others wait.
fn with_threads(threads: u16) -> MutexGuard<'static, ()> {
    static THREADS: Mutex<()> = Mutex::new(());
    let guard = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    set_threads(threads);
    guard
}

fn random(shape: &[i64], kind: Kind) -> Tensor {
    Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind)
}

fn matrix(stored: Stored, shape: [usize; 2]) -> Packed {
    let bytes = vec![0; stored.bytes(&shape).unwrap()];
    Packed::new(bytes.into(), stored, shape, Scales::default()).unwrap()
}

/// A kernel, and its work.
type Named = (&'static str, Box<dyn Fn() -> Result<()>>);

fn named(name: &'static str, work: impl Fn() -> Result<()> + 'static) -> Named {
    (name, Box::new(work))
}

/// The kernels that work in a type.
fn kernels(kind: Kind) -> Vec<Named> {
    let tokens = move |width: i64| random(&[1, 640, width], kind);
    let heads = move || [tokens(256), tokens(256), tokens(256)];
    let mut all = vec![
        named("layer norm", move || tokens::layer_norm(&tokens(3072), &tokens(3072), 1e-6, None, None)),
        named("norm of heads", move || tokens::norm_heads(&tokens(3072), &random(&[128], Kind::Float), 1e-6, None)),
        named("gelu", move || tokens::gelu(&tokens(3072), &tokens(3072))),
        named("gated sum", move || tokens::add_gated(&tokens(3072), None, &tokens(3072))),
        named("expansion", move || packed::expand(&matrix(Stored::Q8_0, [512, 3072]), 0..512, kind).map(drop)),
    ];
    if packed::has_products(kind) {
        all.push(named("product", move || {
            let (left, output) = (random(&[640, 96], kind), random(&[640, 256], kind));
            packed::multiply(&left, &matrix(Stored::Q8_0, [256, 96]), None, &output)
        }));
    }
    if tilewright_torch::kernels(Device::Cpu).has_int8() {
        all.push(named("product in integers", move || {
            let (left, output) = (random(&[1600, 96], kind), random(&[1600, 256], kind));
            packed::multiply_int8(&left, &matrix(Stored::Q8_0, [256, 96]), None, &output)
        }));
    }
    if packed::has_products(kind) {
        all.push(named("attention of heads", move || {
            let [query, key, value] = heads();
            multi_head::attend_onto(
                &tokens(256),
                [&query, &key, &value],
                2,
                false,
                multi_head::Way::Fused { apart: false },
            )
        }));
    }
    if packed::has_products(kind) {
        all.push(named("convolution", move || {
            let (weight, bias) = (random(&[64, 64, 3, 3], Kind::Float), random(&[64], Kind::Float));
            let kernel = Winograd::new(&weight, &bias, false, kind)?;
            let picture = channels_last(&random(&[1, 64, 96, 96], Kind::Float))?;
            let output = channels_last(&random(&[1, 64, 96, 96], Kind::Float))?;
            kernel.convolve(Rows::all(&picture), None, 0..96, None, Some(&output), None)
        }));
    }
    all
}

#[test]
fn no_block_of_a_kernel_begins_after_the_cancellation() {
    let (_no_grad, _threads) = (tch::no_grad_guard(), with_threads(1));
    let mut all: Vec<Named> = [Kind::Float, Kind::BFloat16].into_iter().flat_map(kernels).collect();
    all.push(named("unit norm", || {
        let picture = channels_last(&random(&[1, 64, 96, 96], Kind::Float))?;
        unit_norm(&picture, &random(&[64], Kind::Float), true, &picture)
    }));
    all.push(named("attention", || {
        let [query, key, value] = [(); 3].map(|()| random(&[1, 1280, 64], Kind::Float));
        attention::attend(query, &key, &value).map(drop)
    }));
    for (name, work) in &all {
        let (ended, looks) = run(work, usize::MAX);
        ended.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(looks > 6, "{name}: {looks} looks");
        for at in [1, looks / 2, looks] {
            let (ended, seen) = run(work, at);
            assert!(matches!(ended, Err(Error::Cancelled)), "{name} at {at} of {looks}: {ended:?}");
            assert_eq!(seen, at, "{name}: it goes on");
        }
    }
}

#[test]
fn threads_that_work_together_all_end() {
    let threads = 4;
    let (_no_grad, _threads) = (tch::no_grad_guard(), with_threads(threads));
    for (name, work) in kernels(Kind::Float) {
        // Each thread may be asking when the first one hears of the cancellation.
        let (ended, seen) = run(&work, 3);
        assert!(matches!(ended, Err(Error::Cancelled)), "{name}: {ended:?}");
        assert!(seen < 3 + usize::from(threads), "{name}: {seen} looks");
    }
}
