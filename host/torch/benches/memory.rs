//! The cost of a large block: allocate, touch every page, free. The pool, with memory held and with
//! none, against the C library's aligned allocation, which libtorch's own CPU allocator calls.
//!
//! The three take turns, so that drift of the machine falls on all alike.

use std::{
    alloc::{Layout, alloc, dealloc},
    hint::black_box,
    time::Instant,
};

use tch::{Device, Kind, Tensor};
use tilewright_torch::memory;

const ROUNDS: usize = 15;
const PAGE: usize = 4096;

/// Writes a byte to each page.
///
/// # Safety
/// `start` is valid for writing `bytes`.
unsafe fn touch(start: *mut u8, bytes: usize) {
    for offset in (0..bytes).step_by(PAGE) {
        // SAFETY: the caller's promise.
        unsafe { start.add(offset).write_volatile(1) };
    }
}

fn pooled(bytes: usize) {
    let block = Tensor::empty([bytes as i64], (Kind::Uint8, Device::Cpu));
    // SAFETY: the tensor has as many bytes, and no one else knows it.
    unsafe { touch(block.data_ptr().cast(), bytes) };
    black_box(&block);
}

fn from_the_c_library(bytes: usize) {
    let layout = Layout::from_size_align(bytes, 64).expect("64 is a power of two");
    // SAFETY: the layout is not empty; the block is freed with the same one.
    unsafe {
        let block = alloc(layout);
        assert!(!block.is_null(), "no memory");
        touch(block, bytes);
        dealloc(black_box(block), layout);
    }
}

fn milliseconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e3
}

fn mean_and_spread(samples: &[f64]) -> (f64, f64) {
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    (mean, (squares / (samples.len() - 1) as f64).sqrt())
}

fn main() -> tilewright_torch::Result<()> {
    memory::install()?;
    tch::set_num_threads(1);
    println!("{ROUNDS} rounds, mean ± standard deviation in ms of allocate + touch every page + free, one thread");
    for mib in [1_usize, 64, 256] {
        let bytes = mib << 20;
        let (mut fresh, mut held, mut c_library) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            memory::trim(Device::Cpu)?;
            let times = [
                milliseconds(|| pooled(bytes)),
                milliseconds(|| pooled(bytes)),
                milliseconds(|| from_the_c_library(bytes)),
            ];
            // The first round warms up.
            if round > 0 {
                fresh.push(times[0]);
                held.push(times[1]);
                c_library.push(times[2]);
            }
        }
        let (baseline, _) = mean_and_spread(&c_library);
        for (name, samples) in [("C library", &c_library), ("pool, nothing held", &fresh), ("pool, held", &held)] {
            let (mean, spread) = mean_and_spread(samples);
            println!("{mib:4} MiB  {name:18} {mean:9.4} ± {spread:8.4}  × {:.4}", mean / baseline);
        }
    }
    Ok(())
}
