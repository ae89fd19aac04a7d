//! The parts.

mod facts;
mod memory;
mod parity;
mod samples;
mod texts;
mod time;

pub use facts::{facts, order};
pub use memory::{estimates, leaks, limit, offload, out_of_memory};
pub use parity::{attention_in_pieces, networks, operators};
pub use samples::{loras, recovery, samples};
pub use texts::texts;
pub use time::{cancellation, large_tensors, speed, without_miopen};
