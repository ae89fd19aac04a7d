//! The costs of operations on a device that was measured.

use tilewright_kernels::{ExpansionRate, Kernels, Measured, Rate, Scratch, Speed};
use tilewright_plan::{Backend, Dtype};

/// The bytes of a convolution's input, once for each of its taps, from which older releases of
/// MIOpen have no kernel but the naive one: the workspaces of products end there (ROCm/MIOpen
/// issues 148 and 3081, ROCm/TheRock issue 5845).
const MIOPEN_MOST: u64 = 1 << 31;

/// The costs of a format's operations on a device, as far as they are measured.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Bytes that convolutions hold beside their results.
    pub scratch: Scratch,
    /// The time of libtorch's convolutions, and of the products of a VAE's attention.
    pub plain: Rate,
    /// The time of products of tokens with matrices, which have no memory order: that of the order
    /// whose convolutions are the quickest.
    pub products: Rate,
    /// The time of convolutions by Winograd's filtering, if these are used.
    pub winograd: Option<Rate>,
    /// Seconds of a product of two channels and a token in 8-bit integers.
    pub integers: f64,
    /// The same in FP8, rounding included.
    pub fp8: f64,
    /// The rate of attention.
    pub attention_flops_per_second: f64,
    /// The same of fused attention of several heads.
    pub heads_flops_per_second: f64,
    /// True if attention is fused; else it goes in pieces.
    pub fused_attention: bool,
    /// True if a product expands the rows of a matrix for its turn where it has no kernel for rows
    /// as they are stored; else they are expanded already.
    pub expands_rows: bool,
    /// The speed of expanding packed rows; none of a CPU, which expands within products.
    pub expansion: Option<ExpansionRate>,
    /// The rate at which elementwise operations read and write.
    pub bytes_per_second: f64,
    /// The same of group norms, in f32 and in the type of convolutions.
    pub norm_bytes_per_second: [f64; 2],
    /// The kernels of the device.
    pub kernels: Kernels,
    /// The bytes of a convolution's input, once for each of its taps, from which the library has no
    /// quick kernel; none if it always has one.
    pub slow_from: Option<u64>,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            scratch: Scratch::default(),
            plain: Rate::default(),
            products: Rate::default(),
            winograd: None,
            integers: 0.0,
            fp8: 0.0,
            attention_flops_per_second: f64::INFINITY,
            heads_flops_per_second: f64::INFINITY,
            fused_attention: true,
            expands_rows: true,
            expansion: None,
            bytes_per_second: f64::INFINITY,
            norm_bytes_per_second: [f64::INFINITY; 2],
            kernels: Kernels::default(),
            slow_from: None,
        }
    }
}

impl Costs {
    /// The costs in a type and memory order on a device that was measured.
    pub fn new(speed: &Speed, measured: &Measured, kernels: &Kernels) -> Self {
        let alike = measured.speeds.iter().filter(|of| of.dtype == speed.dtype).map(|of| of.plain);
        let quickest = alike.min_by(|one, other| one.per_product.total_cmp(&other.per_product));
        let products = quickest.unwrap_or(speed.plain);
        let single = measured.speeds.iter().find(|of| of.dtype == Dtype::F32 && of.layout == speed.layout);
        Self {
            products,
            integers: measured.int8_per_product.unwrap_or(products.per_product),
            fp8: measured.fp8_per_product.unwrap_or(products.per_product),
            bytes_per_second: measured.bytes_per_second,
            norm_bytes_per_second: [single, Some(speed)]
                .map(|of| of.and_then(|of| of.norm_bytes_per_second).unwrap_or(measured.bytes_per_second)),
            kernels: *kernels,
            expansion: measured.expansion.filter(|_| !kernels.on_cpu),
            slow_from: (measured.backend == Backend::Rocm
                && measured.miopen != Some(false)
                && !measured.large_convolutions)
                .then_some(MIOPEN_MOST),
            ..speed.into()
        }
    }
}

impl From<&Speed> for Costs {
    fn from(speed: &Speed) -> Self {
        let Speed { scratch, plain, winograd, attention_flops_per_second, fused_attention, heads, .. } = *speed;
        Self {
            scratch,
            plain,
            products: plain,
            winograd,
            attention_flops_per_second,
            heads_flops_per_second: heads.map_or(attention_flops_per_second, |heads| heads.flops_per_second),
            fused_attention,
            ..Self::default()
        }
    }
}
