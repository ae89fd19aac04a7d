//! Tensors as a pickle describes them, and their places in the file.

use std::ops::Range;

use tilewright_kernels::Stored;

use crate::contents::{Entry, MOST_AXES, check_shape};

/// A storage that a pickle names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage<'a> {
    pub key: &'a str,
    /// The type of its elements; without one they are bytes.
    pub stored: Option<Stored>,
    pub elements: usize,
}

impl Storage<'_> {
    /// The storage's bytes; none if there are more than any memory has.
    pub fn bytes(&self) -> Option<usize> {
        self.elements.checked_mul(self.stored.map_or(1, Stored::block_bytes))
    }
}

/// A tensor: a view of a storage, in elements.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    pub storage: Storage<'a>,
    pub stored: Stored,
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

impl Tensor<'_> {
    /// The tensor's bytes within those of its storage.
    ///
    /// # Errors
    /// One line: the storage is of another size, or the tensor goes beyond it.
    pub fn place(&self, name: &str, storage: Range<usize>) -> Result<Entry, String> {
        let Tensor { storage: announced, stored, offset, shape, strides } = self;
        if shape.len() > MOST_AXES || strides.len() != shape.len() {
            return Err(format!("tensor {name} has {} axes and {} strides", shape.len(), strides.len()));
        }
        check_shape(name, shape)?;
        if announced.bytes() != Some(storage.len()) {
            return Err(format!(
                "truncated or unsound: storage {} has {} bytes, and its pickle announces {} elements",
                announced.key.escape_debug(),
                storage.len(),
                announced.elements
            ));
        }
        let width = stored.block_bytes();
        if shape.contains(&0) {
            let range = storage.start..storage.start;
            return Ok(Entry { shape: shape.clone(), stored: *stored, range, strides: None });
        }
        let last = shape
            .iter()
            .zip(strides)
            .try_fold(*offset, |last, (extent, stride)| last.checked_add((extent - 1).checked_mul(*stride)?));
        let end = last.and_then(|last| last.checked_add(1)?.checked_mul(width));
        let end = end.filter(|end| *end <= storage.len()).ok_or_else(|| {
            format!(
                "tensor {name} of shape {shape:?} goes beyond its storage {} of {} bytes",
                announced.key.escape_debug(),
                storage.len()
            )
        })?;
        let range = storage.start + offset * width..storage.start + end;
        let strides = (!is_contiguous(shape, strides)).then(|| strides.clone().into_boxed_slice());
        Ok(Entry { shape: shape.clone(), stored: *stored, range, strides })
    }
}

/// True if the elements lie row by row, without gaps.
fn is_contiguous(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1;
    shape.iter().zip(strides).rev().filter(|(extent, _)| **extent != 1).all(|(extent, stride)| {
        let is_next = *stride == expected;
        expected *= extent;
        is_next
    })
}
