//! Accounting and limits. Alone in its process, since the allocator's counters and the limit belong to the process.

use tch::{Device, Kind, Tensor};
use tilewright_torch::{
    Error,
    memory::{Limit, install, of, reset_peak},
};

#[test]
fn tensors_are_counted_and_limited() {
    install().unwrap();
    let before = of(Device::Cpu).unwrap();
    reset_peak(Device::Cpu).unwrap();
    let tensor = Tensor::zeros([1 << 20], (Kind::Float, Device::Cpu));
    let during = of(Device::Cpu).unwrap();
    assert_eq!(during.in_use - before.in_use, 4 << 20);
    drop(tensor);
    let after = of(Device::Cpu).unwrap();
    assert_eq!(after.in_use, before.in_use);
    assert!(after.peak >= before.in_use + (4 << 20));

    let limit = Limit::new(Device::Cpu, 1 << 20);
    let refused = Tensor::f_zeros([1 << 20], (Kind::Float, Device::Cpu)).map_err(Error::from);
    assert!(matches!(refused, Err(Error::OutOfMemory { bytes }) if bytes == 4 << 20), "{refused:?}");
    assert_eq!(of(Device::Cpu).unwrap().in_use, before.in_use);
    drop(limit);
    assert!(Tensor::f_zeros([1 << 20], (Kind::Float, Device::Cpu)).is_ok());
}
