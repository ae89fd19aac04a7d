//! The devices and weights of the golden set, one row each. Speeds are rounded figures for
//! convolutions, good enough to tell plans apart; they promise nothing about a device.

use tilewright_plan::{Backend, Device, Dtype, HostMemory, Model, Precision};

use Dtype::{Bf16, F8E4m3, F16, F32, I4, I8, Tf32};

/// A device and its speed.
#[derive(Debug)]
pub(crate) struct Machine {
    /// The device's name in the golden set.
    pub label: &'static str,
    pub backend: Backend,
    pub arch: &'static str,
    pub name: &'static str,
    pub units: u32,
    pub gibibytes: u64,
    pub unified: bool,
    /// The types that convolutions run in.
    pub dtypes: &'static [Dtype],
    /// The types no slower than f32, fastest first.
    pub fast: &'static [Dtype],
    /// Operations per second of f32 convolutions, in 10¹².
    pub tera: f64,
    /// The speed of the fast types over that of f32; the others take twice as long as f32.
    pub gain: f64,
    /// The time of channels-last over that of channels-first.
    pub last: f64,
}

impl Machine {
    /// The device as policies see it, a tenth of its memory in use.
    pub fn device(&self) -> Device {
        let total_bytes = self.gibibytes << 30;
        Device {
            backend: self.backend,
            name: self.name.into(),
            arch: self.arch.into(),
            compute_units: self.units,
            total_bytes,
            free_bytes: total_bytes / 10 * 9,
            unified: self.unified,
            fast_dtypes: self.fast.to_vec(),
            hints: Vec::new(),
        }
    }

    /// The memory beside the device, from which weights come at this rate if it is a GPU.
    pub fn host(&self, transfer: f64) -> HostMemory {
        let transfer_rate = if self.backend == Backend::Cpu { 0 } else { transfer as u64 };
        HostMemory { total_bytes: 64 << 30, free_bytes: 48 << 30, transfer_rate }
    }

    /// The types that products of matrices run in.
    pub fn product_dtypes(&self) -> Vec<Dtype> {
        self.dtypes.iter().copied().filter(|dtype| *dtype != Tf32).collect()
    }

    /// Operations per second of products in a type.
    pub fn speed(&self, precision: Precision) -> f64 {
        let by_type = match precision.dtype() {
            F32 => 1.0,
            dtype if self.fast.contains(&dtype) => self.gain,
            _ => 0.5,
        };
        let mixed = if matches!(precision, Precision::Mixed(_)) { 0.95 } else { 1.0 };
        self.tera * 1e12 * by_type * mixed
    }

    /// The row nearest to a device: of its architecture, else of its backend.
    pub fn near(device: &Device) -> &'static Machine {
        let alike = |machine: &&&Machine| machine.backend == device.backend && machine.arch == device.arch;
        let of_kind = |machine: &&&Machine| machine.backend == device.backend;
        MACHINES.iter().find(alike).or(MACHINES.iter().find(of_kind)).copied().unwrap_or(&X86_V3)
    }
}

const ALL: &[Dtype] = &[F32, Bf16, F16];
const WITH_TF32: &[Dtype] = &[F32, Tf32, Bf16, F16];

macro_rules! machines {
    ($($id:ident: $backend:ident $arch:literal $name:literal, $units:literal units, $gib:literal GiB, $unified:literal, $dtypes:expr, $fast:expr, $tera:literal, $gain:literal, $last:literal;)+) => {
        $(pub(crate) static $id: Machine = Machine {
            label: stringify!($id), backend: Backend::$backend, arch: $arch, name: $name, units: $units, gibibytes: $gib, unified: $unified,
            dtypes: $dtypes, fast: $fast, tera: $tera, gain: $gain, last: $last,
        };)+
        pub(crate) static MACHINES: &[&Machine] = &[$(&$id),+];
    };
}

// Kind, architecture, name; size; unified; types; fast types; 10¹²/s in f32; gain of fast types;
// channels-last.
machines! {
    GFX1030: Rocm "gfx1030" "AMD Radeon RX 6800 XT",      72 units,  16 GiB, false, &[F32, F16], &[F16],       10.0, 1.6, 1.3;
    GFX1100: Rocm "gfx1100" "AMD Radeon RX 7900 XTX",     96 units,  24 GiB, false, ALL,         &[F16, Bf16], 20.0, 2.5, 1.4;
    GFX1151: Rocm "gfx1151" "AMD Radeon 8060S",           40 units,  96 GiB, true,  ALL,         &[Bf16, F16],  6.0, 2.2, 1.4;
    GFX1201: Rocm "gfx1201" "AMD Radeon RX 9070 XT",      64 units,  16 GiB, false, ALL,         &[F16, Bf16], 20.0, 3.0, 1.2;
    GFX942:  Rocm "gfx942"  "AMD Instinct MI300X",       304 units, 192 GiB, false, ALL,         &[Bf16, F16], 80.0, 4.0, 0.9;
    SM_75:   Cuda "sm_75"   "Tesla T4",                   40 units,  16 GiB, false, ALL,         &[F16],        4.0, 3.0, 0.95;
    SM_89:   Cuda "sm_89"   "NVIDIA GeForce RTX 4090",   128 units,  24 GiB, false, WITH_TF32,   &[F16, Bf16, Tf32], 40.0, 2.5, 0.85;
    SM_90:   Cuda "sm_90"   "NVIDIA H100 80GB HBM3",     132 units,  80 GiB, false, WITH_TF32,   &[Bf16, F16, Tf32], 50.0, 6.0, 0.8;
    X86_V3:  Cpu  "x86-64-v3" "AMD Ryzen 7 5800X",         8 units,  32 GiB, true,  ALL,         &[],           0.5, 1.0, 0.87;
    X86_V4:  Cpu  "x86-64-v4" "Intel Core i9-11900K",      8 units,  64 GiB, true,  ALL,         &[],           0.9, 1.0, 0.87;
    X86_AMX: Cpu  "x86-64-v4" "Intel Xeon Platinum 8480+", 56 units, 256 GiB, true, ALL,         &[Bf16],       4.0, 2.5, 0.87;
    ARM_BIG: Cpu  "aarch64" "Neoverse-V2",                64 units, 128 GiB, true,  ALL,         &[Bf16, F16],  2.0, 1.8, 0.9;
    ARM:     Cpu  "aarch64" "Cortex-A76",                  4 units,   8 GiB, true,  &[F32, F16], &[F16],       0.05, 1.3, 0.9;
}

/// Published weights, with the memory and work of their decoder per output pixel.
#[derive(Debug)]
pub(crate) struct Weights {
    pub label: &'static str,
    pub family: &'static str,
    pub stored: Dtype,
    pub quantized: bool,
    /// Parameters in 10⁶.
    pub parameters: u64,
    /// Output pixels per latent pixel.
    pub scale: u32,
    /// Output frames per latent frame.
    pub frames: u32,
    /// The sample size in the model's configuration; 0 if it has none.
    pub sample_size: u32,
}

impl Weights {
    /// The model as policies see it.
    pub fn model(&self) -> Model {
        Model {
            family: self.family.into(),
            stored: self.stored,
            quantized: self.quantized,
            parameter_bytes: self.parameters * 1_000_000 * u64::from(self.stored.bits()) / 8,
            spatial_scale: self.scale,
            temporal_scale: self.frames,
        }
    }
}

macro_rules! weights {
    ($($id:ident: $label:literal $family:literal $stored:ident, $quantized:literal, $parameters:literal M, $scale:literal x $frames:literal, $sample:literal;)+) => {
        $(pub(crate) static $id: Weights = Weights {
            label: $label, family: $family, stored: $stored, quantized: $quantized, parameters: $parameters,
            scale: $scale, frames: $frames, sample_size: $sample,
        };)+
        pub(crate) static WEIGHTS: &[&Weights] = &[$(&$id),+];
    };
}

// Label, family, stored as, quantized; parameters; scale in space and time; sample size.
weights! {
    SD_F16:     "sd-f16"       "sd"      F16,    false,  84 M,  8 x 1, 512;
    SDXL_F16:   "sdxl-f16"     "sdxl"    F16,    false,  84 M,  8 x 1, 1024;
    SDXL_F32:   "sdxl-f32"     "sdxl"    F32,    false,  84 M,  8 x 1, 0;
    SD3_BF16:   "sd3-bf16"     "sd3"     Bf16,   false,  84 M,  8 x 1, 1024;
    FLUX_BF16:  "flux-bf16"    "flux"    Bf16,   false,  84 M,  8 x 1, 1024;
    FLUX_F32:   "flux-f32"     "flux"    F32,    false,  84 M,  8 x 1, 0;
    FLUX_F8:    "flux-f8"      "flux"    F8E4m3, false,  84 M,  8 x 1, 0;
    FLUX_I8:    "flux-i8"      "flux"    I8,     true,   84 M,  8 x 1, 0;
    FLUX_I4:    "flux-i4"      "flux"    I4,     true,   84 M,  8 x 1, 0;
    WAN21_F32:  "wan-2.1-f32"  "wan-2.1" F32,    false, 127 M,  8 x 4, 0;
    WAN21_BF16: "wan-2.1-bf16" "wan-2.1" Bf16,   false, 127 M,  8 x 4, 0;
    WAN21_F16:  "wan-2.1-f16"  "wan-2.1" F16,    false, 127 M,  8 x 4, 0;
    WAN21_F8:   "wan-2.1-f8"   "wan-2.1" F8E4m3, false, 127 M,  8 x 4, 0;
    WAN22_BF16: "wan-2.2-bf16" "wan-2.2" Bf16,   false, 705 M, 16 x 4, 0;
    WAN22_I8:   "wan-2.2-i8"   "wan-2.2" I8,     true,  705 M, 16 x 4, 0;
    OTHER:      "other-f32"    "unknown" F32,    false,  20 M,  4 x 1, 0;
}
