//! The request, its model, and its device. Mirrors the contract's `types` and `vae.request`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kind of device that the work runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// The host's own processor.
    Cpu,
    /// NVIDIA.
    Cuda,
    /// AMD; libtorch addresses it as `cuda`.
    Rocm,
    /// Apple.
    Metal,
}

crate::names! {
    /// The element type of a tensor.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Dtype {
        /// IEEE single precision.
        F32 = "f32",
        /// f32 whose convolutions round their operands to 10 bits of mantissa on NVIDIA's tensor
        /// cores. Tensors stay f32: a plan names it as
        /// [`Precision::Mixed`](crate::Precision::Mixed) alone.
        Tf32 = "tf32",
        /// bfloat16: the range of f32, 8 bits of precision.
        Bf16 = "bf16",
        /// IEEE half precision: overflows above 65504.
        F16 = "f16",
        /// 8-bit float, 4 exponent bits.
        F8E4m3 = "f8-e4m3",
        /// 8-bit float, 5 exponent bits.
        F8E5m2 = "f8-e5m2",
        /// 8-bit integer.
        I8 = "i8",
        /// 4-bit integer, two to a byte.
        I4 = "i4",
    }
}

crate::from_name!(Dtype, "type", "one of ");

impl Dtype {
    /// Bits of one element.
    pub const fn bits(self) -> u32 {
        match self {
            Dtype::F32 | Dtype::Tf32 => 32,
            Dtype::Bf16 | Dtype::F16 => 16,
            Dtype::F8E4m3 | Dtype::F8E5m2 | Dtype::I8 => 8,
            Dtype::I4 => 4,
        }
    }

    /// Bytes of one element; those of 4 bits stand two to a byte.
    pub const fn bytes(self) -> u64 {
        self.bits().div_ceil(8) as u64
    }
}

/// The device that the work will run on, as measured by the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Device {
    /// The kind of device.
    pub backend: Backend,
    /// For people: "AMD Radeon 8060S".
    pub name: String,
    /// For rules: "gfx1151", "sm_90", "x86-64-v4".
    pub arch: String,
    /// Streaming multiprocessors, compute units or cores.
    pub compute_units: u32,
    /// All memory of the device, in bytes.
    pub total_bytes: u64,
    /// Memory that was free when the device was examined, in bytes.
    pub free_bytes: u64,
    /// Host and device share one memory, as on an APU.
    pub unified: bool,
    /// The types that a probe on this device found no slower than f32, fastest first.
    pub fast_dtypes: Vec<Dtype>,
    /// Facts that have no field, of a GPU: the versions of its libraries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<Hint>,
}

impl Device {
    /// The device without what is measured in each process and differs from one to the next: free
    /// memory, and the types that a probe found fast. Measurements of two devices hold for each
    /// other if their identities are equal.
    pub fn identity(&self) -> Self {
        Self { free_bytes: 0, fast_dtypes: Vec::new(), ..self.clone() }
    }
}

/// The loaded weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Model {
    /// "sd", "sdxl", "sd3", "flux", "wan-2.1", …
    pub family: String,
    /// The type that the file stores.
    pub stored: Dtype,
    /// The weights are quantized integers.
    pub quantized: bool,
    /// Bytes of the parameters as stored.
    pub parameter_bytes: u64,
    /// Output pixels per latent pixel.
    pub spatial_scale: u32,
    /// Output frames per latent frame.
    pub temporal_scale: u32,
}

/// The user's priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// Shortest time within the memory limit.
    Fastest,
    /// Memory is worth some time.
    #[default]
    Balanced,
    /// Least memory.
    Leanest,
}

/// The most time, relative to the quickest plan that fits, that a plan may take under
/// [`Objective::Leanest`].
pub const LEANEST_TIME: f64 = 4.0;

impl Objective {
    /// The cost of a plan that takes a time, in any unit, and holds bytes, within a memory limit in
    /// bytes; the least is best. Time under [`Objective::Balanced`] counts half as much again for a
    /// plan that fills the limit.
    pub fn cost(self, time: f64, held_bytes: u64, memory_limit: u64) -> f64 {
        let held = held_bytes as f64;
        match self {
            Self::Fastest => time,
            Self::Balanced => time * (1.0 + held / memory_limit.max(1) as f64 / 2.0),
            Self::Leanest => held.max(1.0),
        }
    }

    /// True if a plan's time is short enough, beside that of the quickest that fits.
    pub fn allows(self, time: f64, quickest: f64) -> bool {
        self != Self::Leanest || time <= LEANEST_TIME * quickest
    }
}

/// Memory of the host, and its way to a device of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostMemory {
    /// Bytes of host memory; 0 if the system does not tell.
    #[serde(rename = "host_total_bytes", default)]
    pub total_bytes: u64,
    /// Bytes of host memory that are free.
    #[serde(rename = "host_free_bytes", default)]
    pub free_bytes: u64,
    /// Bytes a second from host memory to a GPU; 0 of a CPU, and if it is not known.
    #[serde(default)]
    pub transfer_rate: u64,
}

/// A fact that this version of the contract has no field for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hint {
    /// The fact's name.
    pub name: String,
    /// The fact, as text.
    pub value: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

const fn is_allowed() -> bool {
    true
}

/// A request for a decode or an encode. Extents are pixels and frames of the frames' side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Request {
    /// The loaded weights.
    pub model: Model,
    /// Samples.
    pub batch: u32,
    /// Output frames; 1 for pictures.
    pub frames: u32,
    /// Output height in pixels.
    pub height: u32,
    /// Output width in pixels.
    pub width: u32,
    /// The memory limit of the work, in bytes.
    pub memory_limit: u64,
    /// The memory limit counts the weights, and so do costs and measured peaks; otherwise none of
    /// them does.
    #[serde(default, skip_serializing_if = "is_false")]
    pub limit_counts_weights: bool,
    /// Memory of the host, and its way to the device.
    #[serde(flatten)]
    pub host: HostMemory,
    /// The user's priority.
    pub objective: Objective,
    /// The user allows blended tiles and chunks where an exact plan fits; otherwise they are the
    /// last resort. Records of earlier programs lack it: there they were allowed.
    #[serde(default = "is_allowed")]
    pub allows_blended: bool,
    /// Facts that have no field.
    pub hints: Vec<Hint>,
}
