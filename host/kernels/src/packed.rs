//! Matrices that stay in the type that their file stores them in.

use std::{fmt, ops::Range, sync::Arc};

use crate::Stored;

/// Bytes that live as long as somebody holds them: those of a mapped file, or of a buffer.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Part of some bytes.
#[derive(Clone)]
pub struct Bytes {
    owner: SharedBytes,
    range: Range<usize>,
}

impl Bytes {
    /// A range of bytes; none if it goes beyond them.
    pub fn new(owner: SharedBytes, range: Range<usize>) -> Option<Self> {
        (*owner).as_ref().get(range.clone())?;
        Some(Self { owner, range })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { owner: Arc::new(bytes), range }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.range.len())
    }
}

/// Factors of expanded values.
#[derive(Clone, Debug, Default)]
pub struct Scales {
    /// One for the whole matrix, one for each row, or none.
    pub factors: Vec<f32>,
    /// Scales of groups of values within a row.
    pub groups: Option<Groups>,
}

/// The number of scales beside a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// None.
    None,
    /// One for all of its values.
    One,
    /// One for each row, or for each group of values.
    Several,
}

/// Scales of groups of values within a row, as codes of 8 bits.
#[derive(Clone, Debug)]
pub struct Groups {
    /// [rows, columns / values]
    pub codes: Vec<u8>,
    /// Values of a group.
    pub values: usize,
    /// The codes are powers of two (E8M0); else E4M3.
    pub powers: bool,
}

/// A matrix [rows, columns] as its file stores it.
#[derive(Clone, Debug)]
pub struct Packed {
    bytes: Bytes,
    stored: Stored,
    code: usize,
    rows: usize,
    columns: usize,
    scales: Scales,
}

/// The types that can be expanded; the place of each is its code ([`Packed::code`]).
const PACKINGS: [Stored; 19] = [
    Stored::F32,
    Stored::F16,
    Stored::Bf16,
    Stored::F8E4m3,
    Stored::F8E5m2,
    Stored::I8,
    Stored::F4,
    Stored::Q4_0,
    Stored::Q4_1,
    Stored::Q5_0,
    Stored::Q5_1,
    Stored::Q8_0,
    Stored::Q2K,
    Stored::Q3K,
    Stored::Q4K,
    Stored::Q5K,
    Stored::Q6K,
    Stored::Iq4Nl,
    Stored::Iq4Xs,
];

/// Columns that share a scale of the left side of a product in 8-bit integers.
pub const INT8_COLUMNS: usize = 32;

impl Packed {
    /// True if values of a type can be expanded.
    pub fn expands(stored: Stored) -> bool {
        PACKINGS.contains(&stored)
    }

    /// True if values of a type can be expanded, and mean something without a scale beside them.
    pub fn expands_alone(stored: Stored) -> bool {
        Self::expands(stored) && stored.is_packed() && ![Stored::I8, Stored::F4].contains(&stored)
    }

    /// A matrix of `rows` and `columns` whose rows are whole blocks.
    ///
    /// # Errors
    /// The type can't be expanded, or the bytes or the scales are of another number.
    pub fn new(
        bytes: Bytes,
        stored: Stored,
        [rows, columns]: [usize; 2],
        scales: Scales,
    ) -> Result<Self, InvalidMatrix> {
        let refused = |reason: String| InvalidMatrix(format!("a matrix of {rows}×{columns} in {stored}: {reason}"));
        let code = PACKINGS.iter().position(|of| *of == stored);
        let code = code.ok_or_else(|| refused("the type can't be expanded".into()))?;
        // Rows without values take no bytes: a file could announce any number of them.
        if rows == 0 || columns == 0 {
            return Err(refused("it is empty".into()));
        }
        let found = bytes.as_slice().len();
        if stored.bytes(&[rows, columns]) != Some(found) {
            return Err(refused(format!("{found} bytes are not its size")));
        }
        let factors = scales.factors.len();
        if factors > 1 && factors != rows {
            return Err(refused(format!("{factors} scales are neither one nor one per row")));
        }
        if let Some(Groups { codes, values, .. }) = &scales.groups
            && (*values == 0 || columns % values != 0 || codes.len() != rows * (columns / values))
        {
            return Err(refused(format!("{} scales of groups of {values}", codes.len())));
        }
        Ok(Self { bytes, stored, code, rows, columns, scales })
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    /// The type that its values are stored in.
    pub fn stored(&self) -> Stored {
        self.stored
    }

    /// The bytes that it is stored in, without its scales.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// The factors of its values.
    pub fn scales(&self) -> &Scales {
        &self.scales
    }

    /// The place of its type among those that can be expanded.
    pub fn code(&self) -> usize {
        self.code
    }

    /// True if its columns and scales suit products in 8-bit integers; its type may still have none
    /// ([`crate::Kernels::has_int8_products`]).
    pub fn suits_int8_products(&self) -> bool {
        self.columns.is_multiple_of(INT8_COLUMNS) && self.scales.groups.is_none()
    }

    /// Some of the rows, which stay packed; none if they are not there.
    pub fn narrow(&self, rows: Range<usize>) -> Option<Self> {
        if rows.start > rows.end || rows.end > self.rows {
            return None;
        }
        let row = self.stored.bytes(&[1, self.columns])?;
        let start = self.bytes.range.start + rows.start * row;
        let bytes = Bytes::new(self.bytes.owner.clone(), start..start + rows.len() * row)?;
        let factors = match self.scales.factors.len() {
            0 | 1 => self.scales.factors.clone(),
            _ => self.scales.factors[rows.clone()].to_vec(),
        };
        let groups = self.scales.groups.as_ref().map(|Groups { codes, values, powers }| {
            let across = self.columns / values;
            let codes = codes[rows.start * across..rows.end * across].to_vec();
            Groups { codes, values: *values, powers: *powers }
        });
        Some(Self { bytes, rows: rows.len(), scales: Scales { factors, groups }, ..self.clone() })
    }
}

/// A matrix whose bytes, type or scales don't go together.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidMatrix(String);
