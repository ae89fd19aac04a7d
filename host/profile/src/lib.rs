//! Profiles of runs: what operators, kernels and layers took, by category, and how far that is from
//! the device's measured peaks. It knows no profiler: whoever records events gives them as a
//! [`Recording`].
//!
//! ```
//! use tilewright_profile::{Category, Event, Facts, Kind, Part, Peaks, Profile, Recording, Track};
//!
//! let event = |name: &str, kind, start, end| Event {
//!     name: name.into(), kind, track: Track::Thread(1), start, end, id: 0, launched_by: 0,
//! };
//! let events = vec![
//!     event("decode", Kind::Part(Part::Stage), 0, 10_000_000),
//!     event("aten::mm", Kind::Operator, 1_000_000, 9_000_000),
//! ];
//! # let peaks = Peaks {
//! #     operations_per_second: 1e12,
//! #     convolution_operations_per_second: 1e12,
//! #     attention_operations_per_second: 1e12,
//! #     bytes_per_second: 1e11,
//! # };
//! # let facts = Facts {
//! #     stage: "decode".into(), device: "a device".into(), on_gpu: false, request: String::new(),
//! #     policy: String::new(), plan: String::new(), peaks, compared_ms: [9.0, 10.0],
//! #     estimated_parts: Vec::new(), peaks_are_rough: false,
//! #     compared: "the stage".into(), estimated_ms: None, manual_attention: false, in_f32: true,
//! # };
//! let profile = Profile::of(&Recording { events }, facts)?;
//! assert_eq!(profile.category(Category::Gemm).map(|row| row.total_ms), Some(8.0));
//! assert_eq!(profile.share(Category::Host), 0.2);
//! # Ok::<(), tilewright_profile::Error>(())
//! ```

#![forbid(unsafe_code)]

mod advice;
mod analysis;
mod attribution;
mod difference;
mod error;
mod event;
mod names;
mod page;
mod profile;
mod summary;
mod sweep;
pub mod text;
mod trace;
mod tree;
mod units;

pub use difference::{Difference, DifferenceRow};
pub use error::{Error, Result};
pub use event::{Amount, Category, EstimatedPart, Event, Facts, Kind, Part, Peaks, Recording, Track};
pub use page::write_page;
pub use profile::{CategoryRow, KernelRow, LayerRow, OperatorRow, PartRow, Profile};
pub use summary::{CategoryShare, ProfileSummary};
pub use trace::write_trace;
