//! The facts about a device's kernels that estimates are made from: the types that files store
//! values in ([`Stored`], [`Packed`]), speeds that were measured ([`Measured`]), the kernels that
//! there are and the bytes that they hold ([`Kernels`]). Nothing here computes, and nothing needs
//! libtorch: `tilewright-torch` has the kernels, finds out what a device has of them, and measures
//! their speeds.

mod attention;
mod expansion;
mod group_norm;
mod kernels;
mod measured;
mod packed;
mod products;
mod stored;
mod winograd;

pub use attention::{
    SCORES, biased_bytes, gpu_fused_bytes, heads_of_biased, pieces_bytes, plain_bytes, plain_rows, rows_of_pieces,
};
pub use expansion::{Expansion, ExpansionRate};
pub use group_norm::{CPU_PIECE, GPU_PIECE, GROUP_NORM_LAUNCHES, group_norm_bytes, group_norm_passes};
pub use kernels::Kernels;
pub use measured::{HeadsSpeed, Measured, Rate, Scratch, Speed, TRIED};
pub use packed::{Bytes, Groups, INT8_COLUMNS, InvalidMatrix, Packed, Scales, Scaling, SharedBytes};
pub use products::{EXPANDED, FP8_SIDES, expanded_rows, expanding_bytes};
pub use stored::{Stored, e4m3};
pub use winograd::{BLOCK, TAPS, winograd_products, winograd_weight_bytes};
