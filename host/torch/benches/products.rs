//! Products with matrices that stay packed against libtorch's with the same matrix expanded, at
//! the sizes of Flux.1 and WAN: `cargo bench -p tilewright-torch --bench products`. Ten runs each,
//! in turns, after a warm-up; mean and spread.

use std::time::Instant;

use tch::{Device, Kind, Tensor};
use tilewright_kernels::{Packed, Scales, Stored};
use tilewright_torch::{
    memory,
    packed::{has_products, multiply},
};

/// Rows of the left side, rows and columns of the matrix.
const SIZES: [[i64; 3]; 4] = [[512, 3072, 3072], [512, 12288, 3072], [512, 3072, 15360], [2000, 1536, 1536]];

const TYPES: [Stored; 6] = [Stored::F32, Stored::Bf16, Stored::F8E4m3, Stored::Q8_0, Stored::Q4K, Stored::Q6K];

const RUNS: usize = 10;

fn matrix(stored: Stored, [rows, columns]: [usize; 2]) -> Packed {
    let length = stored.bytes(&[rows, columns]).expect("whole blocks");
    let mut state = 1_u64;
    let mut bytes = vec![0_u8; length];
    for byte in &mut bytes {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // Without the highest bits of an exponent, whatever the type.
        *byte = (state >> 33) as u8 & 0x3f;
    }
    Packed::new(bytes.into(), stored, [rows, columns], Scales::default()).expect("a sound matrix")
}

fn mean_and_spread(seconds: &[f64]) -> (f64, f64) {
    let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
    let squares: f64 = seconds.iter().map(|of| (of - mean).powi(2)).sum();
    (mean, (squares / (seconds.len() - 1) as f64).sqrt())
}

fn main() {
    let _no_grad = tch::no_grad_guard();
    memory::install().expect("a pool");
    println!(
        "left × matrix, types: GFLOP/s packed, GFLOP/s by libtorch (expanded before), packed's time over libtorch's"
    );
    for [left_rows, rows, columns] in SIZES {
        for kind in [Kind::Float, Kind::BFloat16].into_iter().filter(|kind| has_products(*kind)) {
            let left = Tensor::randn([left_rows, columns], (Kind::Float, Device::Cpu)).to_kind(kind);
            let output = Tensor::empty([left_rows, rows], (kind, Device::Cpu));
            let wide = Tensor::randn([rows, columns], (Kind::Float, Device::Cpu)).to_kind(kind);
            for stored in TYPES {
                let packed = matrix(stored, [rows as usize, columns as usize]);
                let (mut own, mut theirs) = (Vec::new(), Vec::new());
                for run in 0..=RUNS {
                    let start = Instant::now();
                    multiply(&left, &packed, None, &output).expect("a product");
                    let middle = Instant::now();
                    let _ = left.linear(&wide, None::<&Tensor>);
                    let end = Instant::now();
                    if run > 0 {
                        own.push((middle - start).as_secs_f64());
                        theirs.push((end - middle).as_secs_f64());
                    }
                }
                let operations = 2.0 * left_rows as f64 * rows as f64 * columns as f64 / 1e9;
                let [(own, own_spread), (theirs, spread)] = [&own, &theirs].map(|of| mean_and_spread(of));
                println!(
                    "{left_rows}×{columns}×{rows} {kind:?} {stored}: {:.0} ± {:.0} %, {:.0} ± {:.0} %, {:.3}",
                    operations / own,
                    100.0 * own_spread / own,
                    operations / theirs,
                    100.0 * spread / theirs,
                    own / theirs
                );
            }
        }
    }
}
