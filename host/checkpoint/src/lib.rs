//! Files of weights. A [`Checkpoint`] is a safetensors or GGUF file, a pickle of tensors as
//! `torch.save` writes it, or a model in several shards: tensors by name, as views of the mapped
//! files until they are loaded. Quantized weights come as
//! [`Packed`](tilewright_kernels::Packed) matrices, with the scales that stand beside them.
//!
//! Everything read from a file is hostile until checked: counts, offsets, shapes and sizes are
//! compared with the file before anything is made from them.

#![deny(unsafe_op_in_unsafe_fn)]

mod advice;
mod checkpoint;
mod contents;
mod error;
mod gguf;
mod gguf_tokenizer;
mod pickle;
mod quantized;
mod safetensors_file;
mod shards;
#[cfg(feature = "torch")]
mod tensors;
mod zeros;

pub use checkpoint::{Checkpoint, Container, FileId};
pub use error::{Error, Result, Shape};
pub use gguf_tokenizer::GgufTokenizer;
pub use pickle::{PICKLE_ENDINGS, is_pickle};
pub use quantized::Quantization;
pub use shards::{files_of, find_part, models_among, models_in, whole_of};
pub use tilewright_kernels::Stored;
