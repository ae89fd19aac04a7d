//! [`kernels`].

use tch::{Device, Kind};
use tilewright_kernels::Kernels;

use crate::{ffi, packed};

/// The kernels that this process has on a device, with as many threads as libtorch computes on now.
pub fn kernels(device: Device) -> Kernels {
    if device != Device::Cpu {
        return Kernels::of_a_gpu();
    }
    Kernels {
        on_cpu: true,
        threads: i64::from(tch::get_num_threads().max(1)),
        block: block(),
        products: [Kind::Float, Kind::BFloat16].map(packed::has_products),
        int8: ffi::tw_int8_available() != 0,
    }
}

/// Channels of a block in oneDNN's own order.
fn block() -> i64 {
    #[cfg(target_arch = "x86_64")]
    if !std::arch::is_x86_feature_detected!("avx512f") {
        return 8;
    }
    16
}

#[cfg(test)]
mod tests {
    use tilewright_kernels::{Packed, Stored, TAPS, winograd_weight_bytes};
    use tilewright_plan::Dtype;

    use super::*;

    const EXTENTS: [i64; 9] = [1, 3, 16, 17, 64, 96, 129, 1000, 4096];

    #[test]
    fn kernels_hold_what_the_facts_about_them_say() {
        let known = kernels(Device::Cpu);
        let threads = known.threads;
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let (bf16, each) = (i32::from(dtype == Dtype::Bf16), dtype.bytes() as i64);
            for one in EXTENTS {
                for (taps, upsamples) in [(1, false), (1, true), (TAPS, false)] {
                    let found = ffi::tw_winograd_scratch(one, taps as i32, upsamples.into(), bf16);
                    let expected = match taps {
                        1 => known.winograd_scratch_bytes(one, upsamples, dtype),
                        _ => known.causal_scratch_bytes(one, dtype),
                    };
                    assert_eq!(found as u64, expected, "{one} channels, {taps} frames, {upsamples}, {dtype}");
                    for out in EXTENTS {
                        let values = ffi::tw_winograd_values(one, out, taps as i32, upsamples.into(), bf16);
                        let expected = winograd_weight_bytes(one, out, taps, upsamples, dtype);
                        assert_eq!((values * each + 4 * out) as u64, expected, "{one} to {out}, {taps}, {dtype}");
                    }
                }
                for (width, heads) in [(1, 1), (2, 3), (24, 1), (64, 24), (100, 2), (512, 1)] {
                    let found = ffi::tw_attend_heads_scratch(one, width, heads, threads, bf16);
                    assert_eq!(found as u64, known.heads_scratch_bytes(one, width, heads, dtype), "{one} of {width}");
                }
            }
        }
        for columns in EXTENTS {
            let found = threads * ffi::tw_product_scratch(columns);
            assert_eq!(found as u64, known.product_scratch_bytes(columns), "{columns} columns");
            for rows in EXTENTS.into_iter().filter(|_| known.int8) {
                let found = ffi::tw_int8_scratch(rows, columns, threads);
                assert_eq!(found as u64, known.int8_scratch_bytes(rows, columns), "{rows} rows, {columns} columns");
            }
        }
    }

    #[test]
    fn types_with_products_in_integers_are_those_of_the_shim() {
        for stored in Stored::all().filter(|stored| Packed::expands(*stored)) {
            let row = vec![0_u8; stored.bytes(&[1, 256]).unwrap()];
            let matrix = Packed::new(row.into(), stored, [1, 256], Default::default()).unwrap();
            // The shim's table is that of its build, on processors without these kernels as well.
            let has = cfg!(target_arch = "x86_64") && stored.suits_int8_products();
            assert_eq!(ffi::tw_int8_packing(matrix.code() as i32) != 0, has, "{stored}");
        }
    }
}
