//! The header of a safetensors file.

use safetensors::{Dtype, SafeTensorError, SafeTensors};
use tilewright_files::{header, json_fault};
use tilewright_kernels::Stored;
use tilewright_plan::bytes;

use crate::contents::{Contents, Entry, check_shape};

/// The library's types as they are called here.
const TYPES: [(Dtype, Stored); 22] = [
    (Dtype::BOOL, Stored::Bool),
    (Dtype::U8, Stored::U8),
    (Dtype::I8, Stored::I8),
    (Dtype::U16, Stored::U16),
    (Dtype::I16, Stored::I16),
    (Dtype::U32, Stored::U32),
    (Dtype::I32, Stored::I32),
    (Dtype::U64, Stored::U64),
    (Dtype::I64, Stored::I64),
    (Dtype::F64, Stored::F64),
    (Dtype::C64, Stored::C64),
    (Dtype::F32, Stored::F32),
    (Dtype::F16, Stored::F16),
    (Dtype::BF16, Stored::Bf16),
    (Dtype::F8_E4M3, Stored::F8E4m3),
    (Dtype::F8_E5M2, Stored::F8E5m2),
    (Dtype::F8_E8M0, Stored::F8E8m0),
    (Dtype::F8_E4M3FNUZ, Stored::F8E4m3fnuz),
    (Dtype::F8_E5M2FNUZ, Stored::F8E5m2fnuz),
    (Dtype::F6_E2M3, Stored::F6E2m3),
    (Dtype::F6_E3M2, Stored::F6E3m2),
    (Dtype::F4, Stored::F4),
];

/// Checks the announced length of the header, before the file is mapped.
///
/// # Errors
/// One line: the fault, and what to do.
pub fn check_start(start: &[u8], length: u64) -> Result<(), String> {
    let Some(announced) = start.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else {
        return Err(format!("{length} bytes are no safetensors file: it starts with the header's length in 8 bytes"));
    };
    if announced > header::MOST_BYTES {
        let most = bytes::display(header::MOST_BYTES);
        return Err(match start.get(8) {
            Some(b'{') => format!("a header of {announced} bytes: files have at most {most}"),
            _ => format!(
                "no safetensors file, nor another kind that is known: its first 8 bytes are no header's length of at most {most}"
            ),
        });
    }
    if announced > length - 8 {
        return Err(format!(
            "truncated, or no safetensors file: a header of {announced} bytes is announced and {} bytes follow; copy or download it again",
            length - 8
        ));
    }
    Ok(())
}

/// Reads the header of a file from all its bytes, which [`check_start`] passed: every tensor's
/// bytes lie within the file, none overlap, shapes and sizes agree.
///
/// # Errors
/// One line: the fault, and what to do.
pub fn read(file: &[u8]) -> Result<Contents, String> {
    let announced = file.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)) as usize;
    let text = file.get(8..8 + announced).unwrap_or_default();
    header::check(text).map_err(|reason| format!("its header has {reason}: no model's or latent's has"))?;
    let (length, header) = SafeTensors::read_metadata(file).map_err(|error| explain(&error))?;
    let data = length + 8;
    let mut contents = Contents::default();
    for (name, info) in header.tensors() {
        let stored = TYPES.iter().find(|(of, _)| *of == info.dtype).map(|(_, stored)| *stored);
        let stored =
            stored.ok_or_else(|| format!("tensor {name} is of the type {:?}, which is unknown", info.dtype))?;
        check_shape(&name, &info.shape)?;
        let (start, end) = info.data_offsets;
        let (shape, range) = (info.shape.clone(), data + start..data + end);
        contents.tensors.insert(name, Entry { shape, stored, range, strides: None });
    }
    contents.texts = header.metadata().clone().unwrap_or_default();
    Ok(contents)
}

/// The library's errors in words that need no knowledge of the format.
fn explain(error: &SafeTensorError) -> String {
    let reason = match error {
        SafeTensorError::MetadataIncompleteBuffer => {
            return "truncated or padded: the header describes more or fewer bytes than the file has; copy or download it again".into();
        }
        SafeTensorError::InvalidOffset(name) => format!("the bytes of tensor {name} overlap others or leave a gap"),
        SafeTensorError::TensorInvalidInfo => "a tensor's shape and size in bytes disagree".into(),
        SafeTensorError::ValidationOverflow => "a tensor's shape is larger than any memory".into(),
        SafeTensorError::InvalidHeader(_) => "the header is no text".into(),
        SafeTensorError::InvalidHeaderDeserialization(error) => {
            format!("the header is no valid description of tensors ({})", json_fault(error))
        }
        other => format!("{other}"),
    };
    format!("no sound safetensors file: {reason}")
}
