//! The contents of one file, as its header lists them.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use tilewright_files::header;
use tilewright_kernels::Stored;

/// The most tensors of a file.
pub const MOST_TENSORS: usize = header::MOST_TENSORS;

/// The most axes of a tensor.
pub const MOST_AXES: usize = header::MOST_AXES;

/// The most elements of a tensor, empty axes aside: products of extents and sizes of types don't
/// overflow.
const MOST_ELEMENTS: usize = 1 << 56;

/// Refuses a shape whose extents can't be multiplied, even those beside an empty one.
///
/// # Errors
/// One line.
pub fn check_shape(name: &str, shape: &[usize]) -> Result<(), String> {
    let product = shape.iter().try_fold(1_usize, |all, of| all.checked_mul((*of).max(1)));
    match product.is_some_and(|elements| elements <= MOST_ELEMENTS) {
        true => Ok(()),
        false => Err(format!("tensor {name} is larger than any memory: {shape:?}")),
    }
}

/// A tensor's facts. Its bytes lie within the file and are as many as shape and type say.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub shape: Vec<usize>,
    pub stored: Stored,
    /// In the file.
    pub range: Range<usize>,
    /// Elements from one to the next along each axis, of a tensor that does not lie row by row. The
    /// range goes from its first element to its last.
    pub strides: Option<Box<[usize]>>,
}

impl Entry {
    /// The tensor's bytes row by row, from the bytes of its range.
    pub fn gather(&self, bytes: &[u8]) -> Vec<u8> {
        let (shape, width) = (&self.shape, self.stored.block_bytes());
        let strides = self.strides.as_deref().unwrap_or_default();
        let count = shape.iter().product::<usize>();
        let mut gathered = Vec::with_capacity(count * width);
        let (mut place, mut at) = (vec![0_usize; shape.len()], 0);
        for _ in 0..count {
            gathered.extend_from_slice(&bytes[at * width..(at + 1) * width]);
            for axis in (0..shape.len()).rev() {
                place[axis] += 1;
                at += strides[axis];
                if place[axis] < shape[axis] {
                    break;
                }
                at -= shape[axis] * strides[axis];
                place[axis] = 0;
            }
        }
        gathered
    }
}

/// The tensors of a file by name, and its texts.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    pub tensors: BTreeMap<String, Entry>,
    pub texts: HashMap<String, String>,
    /// Arrays of a tokenizer, by their keys: their places in the file.
    pub arrays: HashMap<String, Range<usize>>,
}
