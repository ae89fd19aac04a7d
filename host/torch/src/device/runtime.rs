//! Facts that CUDA's and HIP's own runtimes tell of their devices, in libtorch's order.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    fs,
};

use libloading::os::unix::Symbol;
use tilewright_plan::{Backend, Hint};

use crate::{backend, miopen};

/// The version of a library, if it says so.
type GetVersion = fn() -> Option<String>;

/// The functions of a runtime, and its numbers of attributes.
struct Runtime {
    device_count: &'static [u8],
    /// The functions for the versions of the driver and of the runtime itself.
    versions: [&'static [u8]; 2],
    /// The names of the two, and a version as its makers write it.
    version_names: [&'static str; 2],
    written: fn(u32) -> String,
    /// The other libraries, and their versions.
    others: &'static [(&'static str, GetVersion)],
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
    version_names: ["cuda-driver", "cuda"],
    written: |version| format!("{}.{}", version / 1000, version % 1000 / 10),
    others: &[("cudnn", cudnn_version)],
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
    version_names: ["hip-driver", "hip"],
    written: |version| format!("{}.{}.{}", version / 10_000_000, version / 100_000 % 100, version % 100_000),
    others: &[("rocm", rocm_version), ("miopen", miopen_version)],
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
type GetCudnnVersion = unsafe extern "C" fn() -> usize;
type GetMiopenVersion = unsafe extern "C" fn(*mut usize, *mut usize, *mut usize) -> c_int;
type GetRocmVersion = unsafe extern "C" fn(*mut u32, *mut u32, *mut u32) -> c_int;
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

/// Facts about the libraries of the back end that is loaded: their versions, and "miopen-used",
/// which is false if convolutions go on without MIOpen.
pub fn library_facts() -> Vec<Hint> {
    let mut facts = library_versions();
    if miopen::is_there() && !miopen::is_used() {
        facts.push(Hint { name: miopen::FACT.into(), value: "false".into() });
    }
    facts
}

/// The versions that the libraries of the back end tell, as "cudnn" 9.19.0. Those of the other back
/// end are not looked for.
pub fn library_versions() -> Vec<Hint> {
    let Some(runtime) = runtime() else { return Vec::new() };
    let counted = versions().into_iter().flat_map(|versions| versions.map(runtime.written));
    let mut facts: Vec<(&str, String)> = runtime.version_names.into_iter().zip(counted).collect();
    let others = runtime.others.iter().filter_map(|(name, version)| Some((*name, version()?)));
    facts.extend(others);
    facts.into_iter().map(|(name, value)| Hint { name: name.into(), value }).collect()
}

/// cudnn.h: from 9.0 on, 90100 is 9.1.0; before it, 8907 was 8.9.7.
fn cudnn_version() -> Option<String> {
    let get = function::<GetCudnnVersion>(b"cudnnGetVersion\0")?;
    // SAFETY: it takes nothing.
    let version = unsafe { get() };
    let major = if version >= 90_000 { 10_000 } else { 1000 };
    Some(format!("{}.{}.{}", version / major, version % major / 100, version % 100))
}

/// miopen.h, as the library says; libtorch's own word is that of its build.
fn miopen_version() -> Option<String> {
    let get = function::<GetMiopenVersion>(b"miopenGetVersion\0")?;
    let [mut major, mut minor, mut patch] = [0; 3];
    // SAFETY: the integers are valid for writing.
    let status = unsafe { get(&mut major, &mut minor, &mut patch) };
    (status == 0).then(|| format!("{major}.{minor}.{patch}"))
}

/// rocm_version.h, if its library is loaded; else the one that libtorch was built for.
fn rocm_version() -> Option<String> {
    if let Some(get) = function::<GetRocmVersion>(b"getROCmVersion\0") {
        let [mut major, mut minor, mut patch] = [0; 3];
        // SAFETY: the integers are valid for writing.
        let status = unsafe { get(&mut major, &mut minor, &mut patch) };
        return (status == 0).then(|| format!("{major}.{minor}.{patch}"));
    }
    let folder = backend::folder().ok()?;
    let files = ["version.py", "build-version"].map(|name| folder.parent().map(|root| root.join(name)));
    files.into_iter().flatten().find_map(|file| rocm_of_build(&fs::read_to_string(file).ok()?))
}

/// The version of ROCm in libtorch's own, "2.11.0+rocm7.2".
fn rocm_of_build(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("+rocm")?;
    let version: String = rest.chars().take_while(|letter| letter.is_ascii_digit() || *letter == '.').collect();
    (!version.is_empty()).then_some(version)
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
    fn versions_are_written_as_their_makers_write_them() {
        assert_eq!((CUDA.written)(13_020), "13.2");
        assert_eq!((HIP.written)(70_253_211), "7.2.53211");
        assert_eq!(rocm_of_build("__version__ = '2.11.0+rocm7.2'\ncuda = None").as_deref(), Some("7.2"));
        assert_eq!(rocm_of_build("2.11.0+cu130"), None);
    }

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
