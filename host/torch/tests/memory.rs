//! The pool behind libtorch's tensors. One test, since the pool, its limit and the resident memory
//! belong to the process.

use std::fs;

use tch::{Device, Kind, Tensor};
use tilewright_torch::{
    Error,
    memory::{Limit, install, of, reset_peak, trim},
};

const MIB: i64 = 1 << 20;

fn tensor(bytes: i64) -> Tensor {
    Tensor::ones([bytes / 4], (Kind::Float, Device::Cpu))
}

fn refused(bytes: i64) -> Option<Error> {
    Tensor::f_zeros([bytes / 4], (Kind::Float, Device::Cpu)).map_err(Error::from).err()
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    // Kernels with larger pages would make the figure too small, and the differences asserted below
    // with it.
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Blocks of a decoder's layers: input, output and scratch, growing stage by stage.
fn decode(scale: f64) {
    let mut hidden = tensor(MIB);
    for stage in [0.5, 1.0, 2.0, 4.0, 8.0] {
        for _ in 0..4 {
            let bytes = (stage * scale * MIB as f64) as i64;
            let scratch = tensor(bytes + bytes / 3);
            let output = tensor(bytes);
            let sum = &output + output.sum(Kind::Float);
            drop(scratch);
            hidden = sum;
        }
    }
    assert!(hidden.numel() > 0);
}

#[test]
fn tensors_live_in_the_pool() {
    let memory = || of(Device::Cpu).unwrap();
    assert_eq!(memory().held, 0, "no pool yet");
    let older = tensor(MIB);
    install().unwrap();
    install().unwrap();
    drop(older);

    // Bytes are counted as they were asked for, large or small.
    for bytes in [4, 4 * MIB + 4] {
        let before = memory();
        reset_peak(Device::Cpu).unwrap();
        let some = tensor(bytes);
        let during = memory();
        assert_eq!((during.in_use - before.in_use) as i64, bytes);
        assert_eq!(some.data_ptr().addr() % 64, 0);
        drop(some);
        let after = memory();
        assert_eq!(after.in_use, before.in_use);
        assert!(after.peak >= before.in_use + bytes as u64);
    }
    let base = memory().in_use;
    let empty = tensor(0);
    assert_eq!((memory().in_use, empty.numel()), (base, 0));

    // Later rounds are served from what the first one left, whatever their sizes.
    decode(2.0);
    for scale in [1.6, 0.7, 1.9, 1.1] {
        let before = memory();
        decode(scale);
        let after = memory();
        let (served, misses) = (after.allocations - before.allocations, after.system - before.system);
        assert!(misses * 20 <= served, "{misses} misses in {served} at {scale}");
    }

    // A trim shows in what the system counts, not only here.
    drop(tensor(256 * MIB));
    let (held, before) = (memory().held, resident());
    trim(Device::Cpu).unwrap();
    let (less, after) = (held - memory().held, before - resident());
    assert!(less >= 256 << 20, "{less}");
    assert!(after >= 250 << 20, "{after} bytes fewer are resident, {less} fewer held");

    // The limit counts from what is in use, what is cached goes back first, and after a refusal all
    // goes on.
    let weights = tensor(16 * MIB);
    drop(tensor(128 * MIB));
    let most = memory().in_use + (64 << 20);
    let limit = Limit::new(Device::Cpu, 64 << 20);
    assert!(memory().held <= most + (4 << 20), "{:?}", memory());
    let kept = tensor(40 * MIB);
    assert!(matches!(refused(25 * MIB), Some(Error::OutOfMemory { bytes }) if bytes == 25 << 20));
    assert_eq!(memory().in_use, most - (24 << 20));
    assert!(refused(23 * MIB).is_none());
    drop(limit);
    assert!(refused(100 * MIB).is_none());
    drop((kept, weights));

    // More than there is address space for, and more than can be counted.
    assert!(matches!(refused(1 << 50), Some(Error::OutOfMemory { bytes }) if bytes == 1 << 50));
    assert!(refused(i64::MAX).is_some());
    assert_eq!(memory().in_use, base);
}
