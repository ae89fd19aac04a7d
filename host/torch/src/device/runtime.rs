//! Facts that CUDA's and HIP's own runtimes tell of their devices, in libtorch's order.

use std::ffi::{CStr, c_char, c_int, c_void};

use libloading::os::unix::Symbol;
use tilewright_plan::Backend;

use crate::backend;

/// The functions of a runtime, and its numbers of attributes.
struct Runtime {
    device_count: &'static [u8],
    /// The functions for the versions of the driver and of the runtime itself.
    versions: [&'static [u8]; 2],
    error_string: &'static [u8],
    /// Newest first.
    properties: [&'static [u8]; 2],
    pci_bus_id: &'static [u8],
    attribute: &'static [u8],
    multiprocessors: c_int,
    integrated: c_int,
    /// The attribute of the major number of NVIDIA's compute capability.
    major: c_int,
    minor: c_int,
}

/// cuda_runtime_api.h; `cudaDeviceAttr` in driver_types.h.
const CUDA: Runtime = Runtime {
    device_count: b"cudaGetDeviceCount\0",
    versions: [b"cudaDriverGetVersion\0", b"cudaRuntimeGetVersion\0"],
    error_string: b"cudaGetErrorString\0",
    properties: [b"cudaGetDeviceProperties\0", b"cudaGetDeviceProperties_v2\0"],
    pci_bus_id: b"cudaDeviceGetPCIBusId\0",
    attribute: b"cudaDeviceGetAttribute\0",
    multiprocessors: 16,
    integrated: 18,
    major: 75,
    minor: 76,
};

/// hip_runtime_api.h; `hipDeviceAttribute_t`.
const HIP: Runtime = Runtime {
    device_count: b"hipGetDeviceCount\0",
    versions: [b"hipDriverGetVersion\0", b"hipRuntimeGetVersion\0"],
    error_string: b"hipGetErrorString\0",
    properties: [b"hipGetDevicePropertiesR0600\0", b"hipGetDeviceProperties\0"],
    pci_bus_id: b"hipDeviceGetPCIBusId\0",
    attribute: b"hipDeviceGetAttribute\0",
    multiprocessors: 63,
    integrated: 16,
    major: 23,
    minor: 61,
};

/// Room for either runtime's properties: about 1,500 bytes today.
const PROPERTIES: usize = 16 << 10;

/// The length of the name, which is the first field of the properties.
const NAME: usize = 256;

type GetCount = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetErrorString = unsafe extern "C" fn(c_int) -> *const c_char;
type GetProperties = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type GetPciBusId = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;

/// The properties of a device, as far as its runtime gives them.
#[derive(Debug, Default)]
pub struct Properties {
    /// "NVIDIA GeForce RTX 4090".
    pub name: Option<String>,
    /// "sm_89" or "gfx1151".
    pub arch: Option<String>,
    /// Streaming multiprocessors; compute units or workgroup processors.
    pub compute_units: Option<u32>,
    /// True if it has no memory of its own.
    pub integrated: bool,
    /// "0000:c5:00.0".
    pub pci: Option<String>,
}

/// A function of the runtime that the back end has loaded.
fn function<F>(name: &[u8]) -> Option<Symbol<F>> {
    let (_, library) = backend::loaded()?;
    // SAFETY: the callers name each function with its type in the runtime's header. The search goes
    // through the libraries that the back end needs, and its runtime is one of them.
    unsafe { library.get(name) }.ok()
}

fn runtime() -> Option<&'static Runtime> {
    match backend::loaded()?.0 {
        Backend::Cuda => Some(&CUDA),
        Backend::Rocm => Some(&HIP),
        Backend::Cpu | Backend::Metal => None,
    }
}

/// The number of devices that the runtime sees, or its reason that there is none; nothing if no
/// back end is loaded.
pub fn device_count() -> Option<Result<u32, String>> {
    let runtime = runtime()?;
    let get_count = function::<GetCount>(runtime.device_count)?;
    let mut count = 0;
    // SAFETY: the integer is valid for writing.
    let error = unsafe { get_count(&mut count) };
    if error == 0 {
        return Some(Ok(count.try_into().unwrap_or(0)));
    }
    let get_string = function::<GetErrorString>(runtime.error_string)?;
    // SAFETY: the runtime gives a constant text, or null.
    let text = unsafe { get_string(error) };
    // SAFETY: checked for null.
    (!text.is_null()).then(|| Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()))
}

/// The versions of the driver and of the runtime, as their makers count; none if no back end is
/// loaded, or if it does not tell.
pub fn versions() -> Option<[u32; 2]> {
    let version = |name: &[u8]| -> Option<u32> {
        // It has the type of the function that counts devices.
        let get = function::<GetCount>(name)?;
        let mut version = 0;
        // SAFETY: the integer is valid for writing.
        let status = unsafe { get(&mut version) };
        (status == 0).then_some(version)?.try_into().ok()
    };
    let [driver, own] = runtime()?.versions;
    Some([version(driver)?, version(own)?])
}

/// Asks for the properties of a device.
pub fn properties(index: usize) -> Properties {
    let (Some(runtime), Ok(index)) = (runtime(), c_int::try_from(index)) else { return Properties::default() };
    let block = runtime.properties.iter().find_map(|name| {
        let get = function::<GetProperties>(name)?;
        let mut block = vec![0_u64; PROPERTIES / 8];
        // SAFETY: the block is larger than the properties, and aligned for them.
        let status = unsafe { get(block.as_mut_ptr().cast(), index) };
        (status == 0).then(|| block.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>())
    });
    let attribute = |number: c_int| -> Option<u32> {
        let get = function::<GetAttribute>(runtime.attribute)?;
        let mut value = 0;
        // SAFETY: the integer is valid for writing.
        let status = unsafe { get(&mut value, number, index) };
        (status == 0).then_some(value)?.try_into().ok()
    };
    let arch = match block.as_deref().and_then(gfx_name) {
        Some(name) => Some(name),
        None => {
            attribute(runtime.major).zip(attribute(runtime.minor)).map(|(major, minor)| format!("sm_{major}{minor}"))
        }
    };
    Properties {
        name: block.as_deref().and_then(|block| text(&block[..NAME])),
        arch,
        compute_units: attribute(runtime.multiprocessors),
        integrated: attribute(runtime.integrated).is_some_and(|value| value != 0),
        pci: pci_bus_id(runtime, index),
    }
}

fn pci_bus_id(runtime: &Runtime, index: c_int) -> Option<String> {
    let get = function::<GetPciBusId>(runtime.pci_bus_id)?;
    let mut id = [0_u8; 64];
    // SAFETY: the buffer is valid for its length.
    let status = unsafe { get(id.as_mut_ptr().cast(), id.len() as c_int, index) };
    (status == 0).then(|| text(&id))?
}

/// A text that ends at a zero; none if it is empty.
fn text(bytes: &[u8]) -> Option<String> {
    let text = CStr::from_bytes_until_nul(bytes).ok()?.to_string_lossy().trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The architecture in HIP's properties, "gfx90a" of "gfx90a:sramecc+:xnack-". Its place differs
/// between versions of HIP; no other text there begins like it.
fn gfx_name(properties: &[u8]) -> Option<String> {
    let rest = properties.get(NAME..)?;
    let start = rest.windows(3).position(|window| window == b"gfx")?;
    let name: String =
        rest[start..].iter().map(|byte| char::from(*byte)).take_while(char::is_ascii_alphanumeric).collect();
    (name.len() > 3).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_architecture_is_found_wherever_it_stands() {
        let mut block = vec![0_u8; PROPERTIES];
        block[..20].copy_from_slice(b"AMD gfx of some name");
        assert_eq!(gfx_name(&block), None);
        block[1160..1184].copy_from_slice(b"gfx90a:sramecc+:xnack-\0\0");
        assert_eq!(gfx_name(&block).as_deref(), Some("gfx90a"));
        assert_eq!(text(&block[..NAME]).as_deref(), Some("AMD gfx of some name"));
    }
}
