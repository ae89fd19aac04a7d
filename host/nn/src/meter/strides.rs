//! Extents and strides as libtorch keeps them: they decide which operations are views and which
//! copy.

use std::{array, ops::Range};

/// The most axes of a tensor.
const MOST: usize = 8;

/// The extents of a tensor, and the values in memory from one index of an axis to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Axes {
    extents: [i64; MOST],
    strides: [i64; MOST],
    length: usize,
}

/// The order of axes in channels-last memory, the innermost first.
const CHANNELS_LAST: [usize; 4] = [1, 3, 2, 0];

impl Axes {
    /// Values one after another, the last axis innermost. None for negative extents and for too
    /// many axes.
    pub fn contiguous(extents: &[i64]) -> Option<Self> {
        let is_possible = extents.len() <= MOST && extents.iter().all(|&extent| extent >= 0);
        is_possible.then(|| Self::dense_in(extents, (0..extents.len()).rev()))
    }

    /// A picture with its columns innermost.
    pub fn four(extents: [i64; 4]) -> Self {
        Self::dense_in(&extents, (0..4).rev())
    }

    /// A picture with its channels innermost.
    pub fn channels_last(extents: [i64; 4]) -> Self {
        Self::dense_in(&extents, CHANNELS_LAST.into_iter())
    }

    /// No gaps between values, with axes in this order from the innermost.
    fn dense_in(extents: &[i64], order: impl Iterator<Item = usize>) -> Self {
        let mut axes = Self { extents: [1; MOST], strides: [1; MOST], length: extents.len() };
        axes.extents[..extents.len()].copy_from_slice(extents);
        let mut stride: i64 = 1;
        for axis in order {
            axes.strides[axis] = stride;
            stride = stride.saturating_mul(extents[axis].max(1));
        }
        axes
    }

    /// The extents.
    pub fn extents(&self) -> &[i64] {
        &self.extents[..self.length]
    }

    fn strides(&self) -> &[i64] {
        &self.strides[..self.length]
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.extents().iter().fold(1, |count: u64, &extent| count.saturating_mul(extent as u64))
    }

    /// Contiguous axes of the same extents.
    pub fn made_contiguous(&self) -> Self {
        Self::dense_in(self.extents(), (0..self.length).rev())
    }

    /// The axes of a result that keeps the order in memory: without gaps, with the axes in the same
    /// order (`empty_like`).
    pub fn dense(&self) -> Self {
        let mut order: [usize; MOST] = array::from_fn(|axis| axis);
        let order = &mut order[..self.length];
        // The later of two axes with equal strides is the inner one.
        order.sort_by_key(|&axis| (self.strides[axis], MOST - axis));
        Self::dense_in(self.extents(), order.iter().copied())
    }

    /// True if values lie one after another, the last axis innermost. Axes of one index don't
    /// count.
    pub fn is_contiguous(&self) -> bool {
        self.is_dense_in((0..self.length).rev())
    }

    /// True for a picture without gaps whose channels are innermost.
    pub fn is_dense_channels_last(&self) -> bool {
        self.length == 4 && self.is_dense_in(CHANNELS_LAST.into_iter())
    }

    fn is_dense_in(&self, order: impl Iterator<Item = usize>) -> bool {
        let mut stride = 1;
        for axis in order.filter(|&axis| self.extents[axis] != 1) {
            if self.strides[axis] != stride {
                return false;
            }
            stride = stride.saturating_mul(self.extents[axis]);
        }
        true
    }

    /// True if libtorch takes a picture for one in channels-last order, gaps or not (pytorch
    /// v2.11.0, c10/core/MemoryFormat.h, `is_channels_last_strides_2d_s4`).
    pub fn suggests_channels_last(&self) -> bool {
        if self.length != 4 || self.strides[1] == 0 {
            return false;
        }
        let mut least = 0;
        for axis in CHANNELS_LAST {
            let (extent, stride) = (self.extents[axis], self.strides[axis]);
            if extent == 0 || stride < least || axis == 0 && least == self.strides[1] {
                return false;
            }
            least = stride.saturating_mul(extent.max(1));
        }
        true
    }

    /// True for a picture of several channels whose channels are innermost.
    pub fn has_channels_innermost(&self) -> bool {
        self.length > 1 && self.strides[1] == 1 && self.extents[1] != 1
    }

    /// Part of an axis; none if it is not there.
    pub fn narrow(&self, axis: usize, start: i64, length: i64) -> Option<Self> {
        let extent = *self.extents().get(axis)?;
        (start >= 0 && length >= 0 && start.checked_add(length)? <= extent).then(|| {
            let mut axes = *self;
            axes.extents[axis] = length;
            axes
        })
    }

    /// Two axes exchanged; none if they are not there.
    pub fn transpose(&self, one: usize, other: usize) -> Option<Self> {
        (one < self.length && other < self.length).then(|| {
            let mut axes = *self;
            axes.extents.swap(one, other);
            axes.strides.swap(one, other);
            axes
        })
    }

    /// The axes in another order; none if that is no order of them.
    pub fn permute(&self, order: &[usize]) -> Option<Self> {
        let is_order = order.len() == self.length && (0..self.length).all(|axis| order.contains(&axis));
        is_order.then(|| {
            let mut axes = *self;
            for (place, &axis) in order.iter().enumerate() {
                (axes.extents[place], axes.strides[place]) = (self.extents[axis], self.strides[axis]);
            }
            axes
        })
    }

    /// Every other index of the first axis; none if the range is not there.
    pub fn every_other(&self, range: Range<i64>) -> Option<Self> {
        let mut axes = self.narrow(0, range.start, range.end - range.start)?;
        axes.extents[0] = (range.end - range.start + 1) / 2;
        axes.strides[0] = axes.strides[0].saturating_mul(2);
        Some(axes)
    }

    /// Other extents of as many values over the same memory; none if no strides give them (pytorch
    /// v2.11.0, aten/src/ATen/TensorUtils.cpp, `computeStride_impl`).
    pub fn view(&self, extents: &[i64]) -> Option<Self> {
        let mut axes = Self::contiguous(extents)?;
        if self.count() == 0 || self.length == 0 {
            return Some(axes);
        }
        let mut left = extents.len();
        let mut base = self.strides()[self.length - 1];
        let (mut stored, mut viewed): (i64, i64) = (1, 1);
        for axis in (0..self.length).rev() {
            stored = stored.saturating_mul(self.extents[axis]);
            let ends =
                axis == 0 || self.extents[axis - 1] != 1 && self.strides[axis - 1] != stored.saturating_mul(base);
            if !ends {
                continue;
            }
            while left > 0 && (viewed < stored || extents[left - 1] == 1) {
                axes.strides[left - 1] = viewed.saturating_mul(base);
                viewed = viewed.saturating_mul(extents[left - 1]);
                left -= 1;
            }
            if viewed != stored {
                return None;
            }
            if axis > 0 {
                base = self.strides[axis - 1];
                (stored, viewed) = (1, 1);
            }
        }
        (left == 0).then_some(axes)
    }
}

#[cfg(all(test, feature = "torch"))]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

    fn of(tensor: &Tensor) -> Axes {
        let mut axes = Axes::contiguous(&tensor.size()).unwrap();
        axes.strides[..axes.length].copy_from_slice(&tensor.stride());
        axes
    }

    #[test]
    fn views_are_those_that_libtorch_makes() {
        let picture = Tensor::zeros([2, 6, 4, 10], (Kind::Float, Device::Cpu));
        let last = picture.permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2]);
        let narrow = Tensor::zeros([1, 1, 4, 10], (Kind::Float, Device::Cpu));
        let sources = [
            picture.shallow_clone(),
            last.shallow_clone(),
            picture.narrow(1, 1, 3),
            picture.narrow(2, 1, 2),
            last.narrow(2, 1, 2),
            last.narrow(3, 0, 5),
            picture.transpose(1, 2),
            narrow,
        ];
        let mut copies = 0;
        for source in &sources {
            let [n, c, h, w]: [i64; 4] = source.size().try_into().unwrap();
            let found = of(source);
            assert_eq!(found.is_contiguous(), source.is_contiguous(), "{source:?}");
            let like = Tensor::empty_like(source);
            assert_eq!(found.dense().strides(), like.stride(), "{:?} {:?}", source.size(), source.stride());
            for shape in [
                vec![n, c, h * w],
                vec![n * c, h, w],
                vec![n, c * h, w],
                vec![n * c * h * w],
                vec![n, c, h, 1, w],
                vec![n, c, h, w / 5, 5],
            ] {
                let reshaped = source.reshape(&shape);
                let is_view = reshaped.data_ptr() == source.data_ptr();
                copies += usize::from(!is_view);
                let view = found.view(&shape);
                assert_eq!(view.is_some(), is_view, "{:?} {:?} to {shape:?}", source.size(), source.stride());
                if let Some(view) = view {
                    assert_eq!(view.strides(), reshaped.stride(), "{shape:?}");
                }
            }
        }
        assert!(copies > 10, "{copies} copies were compared");
    }
}
