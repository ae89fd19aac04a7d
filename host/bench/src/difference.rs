//! Differences of pictures or frames from a reference, overall and along tile borders.

use serde::Serialize;
use tch::{Kind, Tensor};
use tilewright_engine::{Axis, Grid};
use tilewright_plan::Space;

use crate::{Error, Result};

/// Pixels on either side of a border that count as along it.
const REACH: u32 = 4;

/// Pictures are in −1…1.
const PEAK_TO_PEAK: f64 = 2.0;

/// The difference of two pictures in −1…1. Undefined values are null: the PSNR of equal pictures,
/// border values without borders.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The largest absolute difference.
    pub max: f64,
    /// The mean absolute difference.
    pub mean: f64,
    /// Peak signal-to-noise ratio in decibels, peak to peak 2.
    pub psnr: Option<f64>,
    /// The mean absolute difference within four pixels of tile borders.
    pub border_mean: Option<f64>,
    /// The largest absolute difference there.
    pub border_max: Option<f64>,
    /// `border_mean` over the mean absolute difference elsewhere: 1 if borders don't show.
    pub border_over_inside: Option<f64>,
}

/// The rows and columns of pixels along the borders of a plan's tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Borders {
    rows: Vec<bool>,
    columns: Vec<bool>,
}

impl Borders {
    /// The borders of a picture of this size under a plan. Neighbouring tiles meet in the middle of
    /// their overlap.
    pub fn new(height: u32, width: u32, space: &Space) -> Self {
        let Some(tile) = space.tile() else {
            return Self { rows: vec![false; height as usize], columns: vec![false; width as usize] };
        };
        let grid = Grid::new(height, width, tile);
        Self { rows: along(&grid.rows), columns: along(&grid.columns) }
    }

    fn any(&self) -> bool {
        self.rows.iter().chain(&self.columns).any(|border| *border)
    }
}

fn along(axis: &Axis) -> Vec<bool> {
    let mut marked = vec![false; axis.extent as usize];
    for pair in axis.starts.windows(2) {
        let middle = (pair[1] + pair[0] + axis.tile) / 2;
        let last = (middle + REACH).min(axis.extent);
        marked[middle.saturating_sub(REACH) as usize..last as usize].fill(true);
    }
    marked
}

impl Difference {
    /// The difference of pictures or frames [N, C, H, W], f32 in host memory, the first of which
    /// was decoded with this plan's space.
    ///
    /// # Errors
    /// [`Error::Shapes`] if they differ in shape, or libtorch can't read them.
    pub fn between(found: &Tensor, reference: &Tensor, space: &Space) -> Result<Self> {
        if found.size() != reference.size() || found.dim() != 4 {
            return Err(Error::Shapes { found: found.size(), reference: reference.size() });
        }
        let (_, _, height, width) = found.size4()?;
        let borders = Borders::new(height as u32, width as u32, space);
        Ok(Self::of_values(&values(found)?, &values(reference)?, &borders))
    }

    /// The difference of values in the order [.., H, W], with as many rows and columns as the
    /// borders have.
    fn of_values(found: &[f32], reference: &[f32], borders: &Borders) -> Self {
        let (height, width) = (borders.rows.len().max(1), borders.columns.len().max(1));
        let (mut border, mut inside) = (Sum::default(), Sum::default());
        let mut squares = 0.0;
        for (index, (found, reference)) in found.iter().zip(reference).enumerate() {
            let difference = (f64::from(*found) - f64::from(*reference)).abs();
            squares += difference * difference;
            let (row, column) = (index / width % height, index % width);
            let sum = if borders.rows[row] || borders.columns[column] { &mut border } else { &mut inside };
            sum.add(difference);
        }
        let count = (border.count + inside.count).max(1) as f64;
        let mean_square = squares / count;
        let border_mean = border.mean();
        Self {
            max: border.largest.max(inside.largest),
            mean: (border.total + inside.total) / count,
            psnr: (mean_square > 0.0).then(|| 10.0 * (PEAK_TO_PEAK.powi(2) / mean_square).log10()),
            border_mean,
            border_max: borders.any().then_some(border.largest),
            border_over_inside: border_mean
                .zip(inside.mean())
                .map(|(border, inside)| border / inside)
                .filter(|ratio| ratio.is_finite()),
        }
    }
}

#[derive(Default)]
struct Sum {
    total: f64,
    largest: f64,
    count: usize,
}

impl Sum {
    fn add(&mut self, value: f64) {
        self.total += value;
        self.largest = self.largest.max(value);
        self.count += 1;
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.total / self.count as f64)
    }
}

fn values(picture: &Tensor) -> Result<Vec<f32>> {
    let picture = picture.f_to_kind(Kind::Float)?.f_contiguous()?;
    let mut values = vec![0.0_f32; picture.numel()];
    picture.f_copy_data(&mut values, picture.numel())?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use tilewright_plan::Tile;

    use super::*;

    #[test]
    fn tiles_meet_in_the_middle_of_what_they_share() {
        let space = Space::Blended(Tile { height: 64, width: 64, overlap: 16 });
        let borders = Borders::new(64, 112, &space);
        // Along the width tiles start at 0 and 48: they share 48..64, and meet at 56.
        let marked: Vec<usize> = (0..112).filter(|column| borders.columns[*column]).collect();
        assert_eq!(marked, (52..60).collect::<Vec<_>>());
        assert!(!borders.rows.iter().any(|row| *row), "one row of tiles has no border along it");
        assert!(!Borders::new(64, 112, &Space::Whole).any());
        // The last tile moves inward: starts 0, 48, 56, so the last two share 56..112 and meet at
        // 84.
        let moved = Borders::new(64, 120, &space);
        assert!(moved.columns[84] && moved.columns[56] && !moved.columns[70]);
    }

    #[test]
    fn the_border_measure_is_that_of_the_synthetic_image() {
        // 0.4 within the border's eight columns, 0.1 elsewhere.
        let space = Space::Blended(Tile { height: 64, width: 64, overlap: 0 });
        let borders = Borders::new(16, 128, &space);
        let value = |index: usize| if (60..68).contains(&(index % 128)) { 0.4 } else { 0.1 };
        let found: Vec<f32> = (0..3 * 16 * 128).map(value).collect();
        let difference = Difference::of_values(&found, &vec![0.0; found.len()], &borders);
        let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
        close(difference.border_mean.unwrap(), 0.4);
        close(difference.border_max.unwrap(), 0.4);
        close(difference.border_over_inside.unwrap(), 4.0);
        close(difference.max, 0.4);
        close(difference.mean, (8.0 * 0.4 + 120.0 * 0.1) / 128.0);
        let mean_square: f64 = (8.0 * 0.16 + 120.0 * 0.01) / 128.0;
        close(difference.psnr.unwrap(), 10.0 * (4.0 / mean_square).log10());
    }

    #[test]
    fn equal_pictures_have_no_ratio() {
        let picture = Tensor::zeros([1, 3, 16, 128], (Kind::Float, tch::Device::Cpu));
        let space = Space::Exact(Tile { height: 16, width: 64, overlap: 0 });
        let difference = Difference::between(&picture, &picture, &space).unwrap();
        assert_eq!((difference.max, difference.mean, difference.psnr), (0.0, 0.0, None));
        assert_eq!((difference.border_mean, difference.border_max), (Some(0.0), Some(0.0)));
        assert_eq!(difference.border_over_inside, None);
        let whole = Difference::between(&picture, &picture, &Space::Whole).unwrap();
        assert_eq!((whole.border_mean, whole.border_max), (None, None));
        let other = Tensor::zeros([1, 3, 16, 64], (Kind::Float, tch::Device::Cpu));
        assert!(Difference::between(&picture, &other, &space).is_err());
    }
}
