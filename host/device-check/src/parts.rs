//! The parts.

mod facts;
mod memory;
mod parity;
mod time;

pub use facts::{facts, order};
pub use memory::{estimates, leaks, limit, offload, out_of_memory};
pub use parity::{attention_in_pieces, networks, operators};
pub use time::{cancellation, large_tensors, speed, without_miopen};
