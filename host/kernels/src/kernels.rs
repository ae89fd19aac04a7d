//! [`Kernels`].

use serde::{Deserialize, Serialize};
use tilewright_plan::Dtype;

use crate::Stored;

/// The kernels that a process has on a device, and what decides on the bytes that they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernels {
    /// True if tensors are in host memory.
    pub on_cpu: bool,
    /// Threads that compute on the CPU.
    pub threads: i64,
    /// Channels of a block in oneDNN's own order: 16 with AVX-512, 8 on other x86 processors
    /// (oneDNN, "Understanding Memory Formats", nChw16c and nChw8c).
    pub block: i64,
    /// The types, f32 and bf16, whose products the CPU has in blocks: those of tokens with
    /// matrices, which are expanded a panel at a time, of attention, and of convolutions by
    /// Winograd's filtering.
    pub products: [bool; 2],
    /// True if the CPU has products in 8-bit integers.
    pub int8: bool,
}

impl Default for Kernels {
    /// All kernels of a CPU with AVX-512 and its extensions, on one thread.
    fn default() -> Self {
        Self { on_cpu: true, threads: 1, block: 16, products: [true; 2], int8: true }
    }
}

impl Kernels {
    /// The kernels of a GPU: libtorch's alone, the same beside every processor. Channels go to
    /// tensor cores in eights (NVIDIA, "Convolutional Layers User's Guide", channels in and out).
    pub const fn of_a_gpu() -> Self {
        Self { on_cpu: false, threads: 1, block: 8, products: [false; 2], int8: false }
    }

    /// True if products of a type run in blocks: with a panel of the matrix at a time, in attention
    /// of this project's own, and in 3×3 convolutions by Winograd's filtering. libtorch's own
    /// operations are used otherwise.
    pub fn has_products(&self, dtype: Dtype) -> bool {
        let place = [Dtype::F32, Dtype::Bf16].iter().position(|known| *known == dtype);
        self.on_cpu && place.is_some_and(|place| self.products[place])
    }

    /// True if tokens of a type are normed, gated and activated in passes of this project's own,
    /// which hold nothing beside their result. libtorch's operators are used otherwise.
    pub fn has_passes(&self, dtype: Dtype) -> bool {
        self.on_cpu && matches!(dtype, Dtype::F32 | Dtype::Bf16)
    }

    /// True if there are products in 8-bit integers.
    pub fn has_int8(&self) -> bool {
        self.on_cpu && self.int8
    }

    /// True if matrices that are stored in a type are multiplied in 8-bit integers.
    pub fn has_int8_products(&self, stored: Stored) -> bool {
        self.has_int8() && stored.suits_int8_products()
    }

    /// Channels as a copy in oneDNN's own order holds them: whole blocks.
    pub fn whole_blocks(&self, channels: f64) -> f64 {
        (channels / self.block as f64).ceil() * self.block as f64
    }

    /// The memory of a convolution of libtorch's that does not depend on its size: on a CPU oneDNN
    /// gives each thread a page, as measured with 2.11.
    pub fn convolution_bytes(&self) -> u64 {
        if self.on_cpu { 4096 * (self.threads + 2) as u64 } else { 0 }
    }
}
