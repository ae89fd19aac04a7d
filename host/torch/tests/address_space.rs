//! In a short address space (`ulimit -v`), the pool makes do with less, and a request that doesn't
//! fit is an error.

use std::{env, process::Command};

use tch::{Device, Kind, Tensor};
use tilewright_torch::{Error, memory};

const INSIDE: &str = "TILEWRIGHT_TEST_INSIDE";

#[test]
fn a_limit_on_address_space_is_survived() {
    if env::var_os(INSIDE).is_some() {
        return within_the_limit();
    }
    // The limit binds a process for good, so this program runs once more under it.
    let program = env::current_exe().unwrap();
    let output =
        Command::new("sh").arg("-c").arg("ulimit -v 6291456 && exec \"$0\"").arg(program).env(INSIDE, "1").output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn within_the_limit() {
    memory::install().unwrap();
    let zeros = |bytes: i64| Tensor::f_zeros([bytes], (Kind::Uint8, Device::Cpu)).map_err(Error::from);
    let kept = zeros(64 << 20).unwrap();
    // More than the 6 GiB that there are.
    let refused = zeros(8 << 30);
    assert!(matches!(refused, Err(Error::OutOfMemory { bytes }) if bytes == 8 << 30), "{refused:?}");
    assert_eq!(memory::of(Device::Cpu).unwrap().in_use, 64 << 20);
    drop(kept);
    assert!(zeros(128 << 20).is_ok());
}
