//! Tensors as safetensors: written from where they are, and read whole.

use std::{collections::BTreeMap, fmt};

use safetensors::{
    Dtype, SafeTensors,
    tensor::{Metadata, TensorInfo},
};
use tilewright_files::header;

use crate::{Error, Result};

tilewright_plan::names! {
    /// The side of a layer that a tensor was taken from.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum End {
        /// The input.
        In = "in",
        /// The output.
        Out = "out",
    }
}

/// A tensor to write. Elements are little-endian, in row-major order.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// The type of its elements.
    pub dtype: Dtype,
    /// The shape; empty for a single number.
    pub shape: &'a [usize],
    /// The elements.
    pub bytes: &'a [u8],
}

/// A tensor that was read. Elements are little-endian, in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The type of its elements.
    pub dtype: Dtype,
    /// The shape; empty for a single number.
    pub shape: Vec<usize>,
    /// The elements.
    pub bytes: Vec<u8>,
}

/// The name of a layer's tensor in its file.
pub(crate) fn layer_key(layer: &str, call: u32, end: End) -> String {
    format!("{layer}|{call}|{end}")
}

/// The layer, call and side of such a name; none for other names.
pub(crate) fn parse_layer_key(key: &str) -> Option<(&str, u32, End)> {
    let mut parts = key.rsplitn(3, '|');
    let (end, call, layer) = (parts.next()?, parts.next()?, parts.next()?);
    Some((layer, call.parse().ok()?, End::of_name(end)?))
}

/// The parts of a file of tensors, in order: its header, and each tensor's elements.
///
/// # Errors
/// [`Error::Tensor`] if a name is empty, too long or there twice, or a tensor has not as many bytes
/// as its shape takes.
pub(crate) fn file_parts<'a>(tensors: &[(&str, TensorView<'a>)]) -> Result<(Vec<u8>, Vec<&'a [u8]>)> {
    let mut tensors: Vec<_> = tensors.iter().collect();
    // The widest elements come first, so that all are aligned, as safetensors has it.
    tensors.sort_by(|(name, view), (other, than)| than.dtype.cmp(&view.dtype).then(name.cmp(other)));
    let (mut infos, mut parts, mut offset) = (Vec::new(), Vec::new(), 0usize);
    for (name, view) in &tensors {
        check(name, view)?;
        if tensors.iter().filter(|(other, _)| other == name).count() > 1 {
            return Err(refused(name, "there is another one of its name"));
        }
        let end = offset.saturating_add(view.bytes.len());
        let info = TensorInfo { dtype: view.dtype, shape: view.shape.to_vec(), data_offsets: (offset, end) };
        infos.push(((*name).to_owned(), info));
        parts.push(view.bytes);
        offset = end;
    }
    let first = tensors.first().map_or("", |(name, _)| name);
    let metadata = Metadata::new(None, infos).map_err(|error| refused(first, error))?;
    let mut text = serde_json::to_vec(&metadata).map_err(|error| refused(first, error))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok(([&(text.len() as u64).to_le_bytes(), &*text].concat(), parts))
}

fn check(name: &str, view: &TensorView) -> Result<()> {
    if name.is_empty() || name.len() > header::MOST_NAME || name.starts_with("__") {
        return Err(refused(name, format!("a name has 1 to {} bytes, and begins with no __", header::MOST_NAME)));
    }
    if view.shape.len() > header::MOST_AXES {
        return Err(refused(name, format!("it has more than {} axes", header::MOST_AXES)));
    }
    let elements = view.shape.iter().try_fold(1usize, |all, axis| all.checked_mul(*axis));
    let bits = elements.and_then(|elements| elements.checked_mul(view.dtype.bitsize()));
    match bits {
        Some(bits) if bits % 8 == 0 && bits / 8 == view.bytes.len() => Ok(()),
        _ => Err(refused(name, format!("{:?} of {} are not {} bytes", view.shape, view.dtype, view.bytes.len()))),
    }
}

fn refused(name: &str, reason: impl fmt::Display) -> Error {
    Error::Tensor { name: name.chars().take(100).collect(), reason: reason.to_string() }
}

/// The tensors of a file's bytes.
///
/// # Errors
/// One line, if the bytes are no safetensors.
pub(crate) fn parse(bytes: &[u8]) -> Result<BTreeMap<String, Tensor>, String> {
    let (length, rest) = bytes.split_first_chunk().ok_or("has no header")?;
    let length = u64::from_le_bytes(*length);
    if length > header::MOST_BYTES {
        return Err(format!("has a header of {length} bytes"));
    }
    header::check(rest.get(..length as usize).ok_or("ends within its header")?)
        .map_err(|fault| format!("has {fault}"))?;
    let tensors = SafeTensors::deserialize(bytes).map_err(|_| "is no sound safetensors file")?;
    let owned = |(name, view): (&str, safetensors::tensor::TensorView)| {
        let tensor = Tensor { dtype: view.dtype(), shape: view.shape().to_vec(), bytes: view.data().to_vec() };
        (name.to_owned(), tensor)
    };
    Ok(tensors.iter().map(owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(tensors: &[(&str, TensorView)]) -> Vec<u8> {
        let (header, parts) = file_parts(tensors).unwrap();
        [&*header, &parts.concat()].concat()
    }

    #[test]
    fn tensors_of_every_type_come_back() {
        let bytes: Vec<u8> = (0..16).collect();
        let types = [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F64, Dtype::I64, Dtype::U8, Dtype::F8_E4M3];
        let shapes = types.map(|dtype| [2, bytes.len() * 4 / dtype.bitsize()]);
        let names = types.map(|dtype| format!("a.{dtype}"));
        let views: Vec<_> = (0..types.len())
            .map(|at| (&*names[at], TensorView { dtype: types[at], shape: &shapes[at], bytes: &bytes }))
            .chain([("empty", TensorView { dtype: Dtype::F32, shape: &[0, 3], bytes: &[] })])
            .chain([("number", TensorView { dtype: Dtype::U8, shape: &[], bytes: &[7] })])
            .collect();
        let read = parse(&whole(&views)).unwrap();
        assert_eq!(read.len(), views.len());
        for (name, view) in views {
            let tensor = Tensor { dtype: view.dtype, shape: view.shape.to_vec(), bytes: view.bytes.to_vec() };
            assert_eq!(read[name], tensor);
        }
        assert!(parse(&whole(&[])).unwrap().is_empty());
    }

    #[test]
    fn a_tensor_that_makes_no_sense_is_refused() {
        let view = |shape, bytes| TensorView { dtype: Dtype::F32, shape, bytes };
        for (name, view) in [
            ("a", view(&[2], &[0; 4])),
            ("a", view(&[usize::MAX, 2], &[0; 4])),
            ("a", view(&[0; 17], &[])),
            ("", view(&[], &[0; 4])),
            ("__metadata__", view(&[], &[0; 4])),
            (&"a".repeat(1025), view(&[], &[0; 4])),
        ] {
            assert!(matches!(file_parts(&[(name, view)]), Err(Error::Tensor { .. })), "{name}");
        }
        let twice = [("a", view(&[], &[0; 4])), ("a", view(&[], &[1; 4]))];
        assert!(file_parts(&twice).unwrap_err().to_string().ends_with("another one of its name"));
    }

    #[test]
    fn hostile_files_are_refused() {
        let good = whole(&[("a", TensorView { dtype: Dtype::F32, shape: &[2], bytes: &[0; 8] })]);
        for at in 0..good.len() {
            assert!(parse(&good[..at]).is_err(), "cut at {at}");
            let mut changed = good.clone();
            changed[at] ^= 0x55;
            let _ = parse(&changed);
        }
        assert!(parse(&u64::MAX.to_le_bytes()).is_err());
    }

    #[test]
    fn names_of_layers_come_back() {
        for layer in ["a.b", "a|b", ""] {
            let key = layer_key(layer, 12, End::Out);
            assert_eq!(parse_layer_key(&key), Some((layer, 12, End::Out)));
        }
        for key in ["", "a", "a|1", "a|1|up", "a|x|in", "a|-1|in"] {
            assert_eq!(parse_layer_key(key), None, "{key}");
        }
    }
}
