//! Captures of runs. A [`Capture`] holds the inputs, outputs and records of stages, and tensors of
//! single layers, in a private folder that is whole or not there; [`Captured`] reads one that
//! nothing was changed in. [`Report::pack`] makes it one file to send, without prompts, file names
//! and secrets.
//!
//! ```
//! use tilewright_capture::{Capture, Captured, Dtype, Settings, TensorView};
//! use tilewright_plan::Stage;
//!
//! let place = tempfile::tempdir()?;
//! let folder = place.path().join("capture");
//! let capture = Capture::begin(Settings::new(&folder))?;
//! let mut stage = capture.stage(Stage::Decode, 1)?;
//! stage.inputs(&[("latent", TensorView { dtype: Dtype::U8, shape: &[2], bytes: &[1, 2] })])?;
//! stage.finish(std::time::Duration::from_millis(3))?;
//! capture.finish()?;
//!
//! let captured = Captured::open(&folder)?;
//! assert_eq!(captured.inputs(&captured.stages()[0])?["latent"].bytes, [1, 2]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod captured;
mod error;
mod fields;
mod hidden;
mod manifest;
mod pattern;
mod private;
mod redact;
mod report;
mod room;
mod sink;
mod tensor;
#[cfg(test)]
mod tests;
mod verify;
mod writer;

pub use captured::{Captured, LayerTensor};
pub use error::{Error, Result};
pub use manifest::{FileEntry, MANIFEST, Manifest, StageEntry};
pub use pattern::LayerPattern;
pub use redact::{Keep, LEFT_OUT, redact};
pub use report::{Entry, Report};
pub use safetensors::Dtype;
pub use tensor::{End, Tensor, TensorView};
pub use writer::{Capture, Settings, StageWriter};
