//! Benchmarks of policies. A [`Contest`] runs them in turn on one latent, of pictures or of a clip,
//! and reports each one's time, memory and difference from a reference; the [`suite`] and the
//! [`sweep`] are contests over tables of cases.
//!
//! Times are the engine's own, around synchronised device work. Policies come in from outside, as
//! planners: nothing here knows WebAssembly, and nothing here prints.

#![forbid(unsafe_code)]

mod contest;
mod difference;
mod error;
pub mod estimates;
mod files;
mod generate;
mod race;
mod report;
pub mod samples;
mod spelling;
pub mod suite;
pub mod sweep;

pub use contest::{Contest, Entry};
pub use difference::{Borders, Difference};
pub use error::{Error, Result};
pub use files::{cache_folder, write_whole};
pub use generate::{Latents, Network, Transformer, TransformerWeights, Weights};
pub use race::{Planners, Rounds, StageProfile, Watch};
pub use report::{Against, Report, Row};
pub use spelling::Spelling;
pub use tilewright_statistics::{Ratio, Summary};
