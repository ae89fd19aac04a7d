//! The contents of one file, as its header tells them.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use tilewright_files::header;
use tilewright_torch::Stored;

/// The most tensors of a file.
pub const MOST_TENSORS: usize = header::MOST_TENSORS;

/// The most axes of a tensor.
pub const MOST_AXES: usize = header::MOST_AXES;

/// A tensor's facts. Its bytes lie within the file and are as many as shape and type say.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub shape: Vec<usize>,
    pub stored: Stored,
    /// In the file.
    pub range: Range<usize>,
}

/// The tensors of a file by name, and its texts.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    pub tensors: BTreeMap<String, Entry>,
    pub texts: HashMap<String, String>,
}
