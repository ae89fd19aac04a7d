//! A transformer's weights, loaded to a device.

use std::{cell::RefCell, sync::Arc};

use tch::{Device, Kind, Tensor};
use tilewright_kernels::Packed;
use tilewright_nn::{ComputeFormat, Matrix, Piece, TokenSource, Torch};
use tilewright_plan::Dtype;
use tilewright_torch::{
    device_packed::DevicePacked,
    kind, packed,
    streamed::{Store, Streamed},
};

use super::{Join, Residency, TransformerFile};
use crate::{Error, LoadStep, Result, known::LoadProgress};

impl TransformerFile {
    /// Rows of a table of tokens in f32, on the CPU: each is read from the file by itself.
    ///
    /// # Errors
    /// The table is missing, can't be expanded, or has no such row.
    pub(crate) fn rows_of(&self, name: &str, rows: impl IntoIterator<Item = usize>) -> Result<Tensor> {
        let (parts, _) = self.stored_names(name);
        let part = parts.first().ok_or_else(|| self.missing(name, &[]))?;
        let table = self.file.matrix(part)?;
        let row = |row: usize| match table.narrow(row..row.saturating_add(1)) {
            Some(one) => Ok(packed::expand(&one, 0..1, Kind::Float)?),
            None => {
                let reason = format!("tensor {part} has {} rows: there is no row {row}", table.shape()[0]);
                Err(Error::Unknown { path: self.file.path().to_owned(), reason })
            }
        };
        Ok(Tensor::f_cat(&rows.into_iter().map(row).collect::<Result<Vec<_>>>()?, 0)?)
    }

    /// A vector in f32, on the CPU.
    ///
    /// # Errors
    /// It is missing, or can't be read.
    pub(crate) fn values_of(&self, name: &str) -> Result<Tensor> {
        let (parts, _) = self.stored_names(name);
        let part = parts.first().ok_or_else(|| self.missing(name, &[]))?;
        self.vector_of(part, Kind::Float, Device::Cpu)
    }

    /// A tensor that is no matrix, in its own shape.
    fn vector_of(&self, part: &str, kind: Kind, device: Device) -> Result<Tensor> {
        let shape = self.file.shape(part).unwrap_or_default().to_vec();
        match self.file.find_stored(part) {
            Some(stored) if Packed::expands_alone(stored) => {
                let packed = self.file.packed_vector(part)?;
                let shape: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
                let values = packed::expand(&packed, 0..packed.shape()[0], Kind::Float)?;
                Ok(values.f_reshape(shape)?.f_to_kind(kind)?.f_to_device(device)?)
            }
            _ => Ok(self.file.load(part, &shape, kind, device)?),
        }
    }

    /// The weights as a network on a device asks for them. `step` is called before each with the
    /// share of `all` bytes that are done.
    pub(crate) fn on<'a>(
        &'a self,
        (format, device, residency): (ComputeFormat, Device, Residency),
        all: u64,
        blocks: &'a [Vec<String>],
        step: LoadStep<'a>,
    ) -> OnDevice<'a> {
        let progress = RefCell::new(LoadProgress { done: 0, all, step: Some(step) });
        let streams = RefCell::new(blocks.iter().map(|_| Vec::new()).collect());
        let bytes =
            blocks.iter().flatten().filter_map(|part| self.file.bytes(part)).map(|bytes| bytes.len() as u64).sum();
        let store = (residency == Residency::Streamed).then(|| Store::new(device, bytes));
        OnDevice { weights: self, format, device, residency, blocks, streams, store, progress }
    }
}

/// Weights of a file for a device.
pub(crate) struct OnDevice<'a> {
    weights: &'a TransformerFile,
    format: ComputeFormat,
    device: Device,
    residency: Residency,
    /// The file's tensors of each block, and the matrices of each that are streamed.
    blocks: &'a [Vec<String>],
    streams: RefCell<Vec<Vec<Arc<Streamed>>>>,
    /// The store of matrices that are streamed.
    store: Option<Arc<Store>>,
    progress: RefCell<LoadProgress<'a>>,
}

impl OnDevice<'_> {
    /// The matrices of each block that are copied to the device for their turns.
    pub(crate) fn into_streams(self) -> Vec<Vec<Arc<Streamed>>> {
        self.streams.into_inner()
    }

    /// The block that a weight belongs to.
    fn block_of(&self, name: &str) -> Option<usize> {
        let (parts, _) = self.weights.stored_names(name);
        self.blocks.iter().position(|block| parts.iter().any(|part| block.contains(part)))
    }

    /// Tells how far the load is, before a weight is loaded.
    fn step(&self, name: &str) -> Result<()> {
        let (parts, _) = self.weights.stored_names(name);
        let bytes = parts.iter().filter_map(|part| self.weights.file.bytes(part)).map(|bytes| bytes.len() as u64);
        self.progress.borrow_mut().step(bytes.sum())
    }

    /// The matrices of a weight of `rows` rows, one below the other. Rows beyond these are left
    /// out.
    fn matrices(&self, name: &str, rows: usize) -> Result<Vec<Packed>> {
        let (parts, join) = self.weights.stored_names(name);
        let stored = self.weights.shape(name).and_then(|shape| shape.first().copied()).unwrap_or_default();
        let own = if stored > rows { Some(rows / parts.len()) } else { None };
        let mut pieces = Vec::new();
        for part in parts {
            let packed = self.weights.file.matrix(&part)?;
            let [rows, _] = packed.shape();
            match join {
                Join::Rows => pieces.extend(packed.narrow(0..own.unwrap_or(rows))),
                Join::Swapped => {
                    pieces.extend([rows / 2..rows, 0..rows / 2].into_iter().filter_map(|of| packed.narrow(of)))
                }
            }
        }
        Ok(pieces)
    }
}

impl TokenSource<Torch> for OnDevice<'_> {
    fn vector(&self, name: &str, shape: &[i64], dtype: Dtype) -> tilewright_nn::Result<Tensor> {
        self.step(name)?;
        let kind = kind(dtype)?;
        let (parts, join) = self.weights.stored_names(name);
        let mut loaded = Vec::new();
        for part in parts {
            let tensor = self.weights.vector_of(&part, kind, self.device)?;
            match join {
                Join::Rows => loaded.push(tensor),
                Join::Swapped => {
                    let half = tensor.size().first().map_or(0, |rows| rows / 2);
                    loaded.extend([tensor.f_narrow(0, half, half)?, tensor.f_narrow(0, 0, half)?]);
                }
            }
        }
        let vector = Tensor::f_cat(&loaded, 0)?.f_reshape(shape)?;
        self.weights.changes.add_to_vector(name, &vector)?;
        Ok(vector)
    }

    fn matrix(&self, name: &str, [rows, columns]: [i64; 2]) -> tilewright_nn::Result<Matrix> {
        self.step(name)?;
        let turn = self.store.as_ref().and_then(|store| Some((store, self.block_of(name)?)));
        let pieces = self.matrices(name, rows as usize)?.into_iter().map(|packed| match (self.residency, turn) {
            _ if packed.shape()[1] as i64 > columns => {
                let rows = 0..packed.shape()[0];
                let expanded = packed::expand(&packed, rows, kind(self.format.product_dtype)?).map_err(Error::from)?;
                let own = expanded.f_narrow(1, 0, columns)?.f_contiguous()?;
                Ok(Piece::Expanded(own.f_to_device(self.device)?))
            }
            (Residency::Mapped, _) => Ok(Piece::Packed(packed)),
            (Residency::Streamed, Some((store, block))) => {
                let streamed = Arc::new(store.hold(packed).map_err(Error::from)?);
                self.streams.borrow_mut()[block].push(streamed.clone());
                Ok(Piece::Streamed(streamed))
            }
            (Residency::Packed | Residency::Streamed, _) => {
                Ok(Piece::OnDevice(DevicePacked::new(&packed, self.device).map_err(Error::from)?))
            }
            (Residency::Expanded, _) => {
                let kind = kind(self.format.product_dtype)?;
                let expanded = match self.device {
                    Device::Cpu => packed::expand(&packed, 0..packed.shape()[0], kind),
                    // Fewer bytes are copied.
                    device => DevicePacked::new(&packed, device).and_then(|packed| packed.expand_all(kind)),
                };
                Ok(Piece::Expanded(expanded.map_err(Error::from)?))
            }
        });
        let changes = self.weights.changes.of_matrix(name, kind(self.format.product_dtype)?, self.device)?;
        Ok(Matrix::new(pieces.collect::<tilewright_nn::Result<_>>()?, columns).with_changes(changes))
    }
}
