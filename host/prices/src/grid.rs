//! Places of tiles, and the ramps that fade them into each other. All tiles of a grid have one
//! shape: the last one of a row or column moves inward rather than shrinking, since every new shape
//! may cost a kernel search.

use tilewright_plan::Tile;

/// The tiles along one axis, in whatever unit the caller counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Extent of the whole picture.
    pub extent: u32,
    /// Extent of each tile.
    pub tile: u32,
    /// Nominal overlap of neighbours.
    pub overlap: u32,
    /// The first place of each tile, ascending.
    pub starts: Vec<u32>,
}

impl Axis {
    /// Lays tiles of `tile` with `overlap` over `extent`. A tile larger than the extent becomes the
    /// extent.
    pub fn new(extent: u32, tile: u32, overlap: u32) -> Self {
        if tile == 0 || tile >= extent {
            return Self { extent, tile: extent, overlap: 0, starts: vec![0] };
        }
        let step = tile - overlap.min(tile - 1);
        let last = extent - tile;
        let mut starts: Vec<u32> = (0..last).step_by(step as usize).collect();
        starts.push(last);
        Self { extent, tile, overlap, starts }
    }

    /// The number of tiles along an axis, as [`Axis::new`] lays them.
    pub fn count(extent: u32, tile: u32, overlap: u32) -> u32 {
        if tile == 0 || tile >= extent {
            return 1;
        }
        (extent - tile).div_ceil(tile - overlap.min(tile - 1)) + 1
    }

    /// For each tile the weight of each of its places. At every place of the axis the weights of
    /// the tiles there add up to 1.
    ///
    /// Towards a neighbour a tile's weight falls linearly over the overlap, (j + ½) / overlap at
    /// the j-th place from its end; if tiles overlap more than nominally, because the last one
    /// moved inward, the sum is divided out.
    pub fn weights(&self) -> Vec<Vec<f32>> {
        let (tile, overlap) = (self.tile as usize, f64::from(self.overlap));
        let ramp = |place: usize| if self.overlap == 0 { 1.0 } else { ((place as f64 + 0.5) / overlap).min(1.0) };
        let raw = |index: usize, place: usize| {
            let before = if index == 0 { 1.0 } else { ramp(place) };
            let after = if index + 1 == self.starts.len() { 1.0 } else { ramp(tile - 1 - place) };
            f64::min(before, after)
        };
        let mut sum = vec![0.0; self.extent as usize];
        for (index, start) in self.starts.iter().enumerate() {
            for place in 0..tile {
                sum[*start as usize + place] += raw(index, place);
            }
        }
        let weights = |(index, start): (usize, &u32)| {
            (0..tile).map(|place| (raw(index, place) / sum[*start as usize + place]) as f32).collect()
        };
        self.starts.iter().enumerate().map(weights).collect()
    }
}

/// The tiles of a picture: every row with every column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Along the height.
    pub rows: Axis,
    /// Along the width.
    pub columns: Axis,
}

impl Grid {
    /// Lays tiles over a picture, both in output pixels.
    pub fn new(height: u32, width: u32, tile: Tile) -> Self {
        Self { rows: Axis::new(height, tile.height, tile.overlap), columns: Axis::new(width, tile.width, tile.overlap) }
    }

    /// Tiles in all.
    pub fn len(&self) -> usize {
        self.rows.starts.len() * self.columns.starts.len()
    }

    /// Never: a picture has one tile at least.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Each tile's row and column, row by row.
    pub fn tiles(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..self.rows.starts.len()).flat_map(|row| (0..self.columns.starts.len()).map(move |column| (row, column)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_tile_moves_inward() {
        assert_eq!(Axis::new(1000, 512, 64).starts, [0, 448, 488]);
        assert_eq!(Axis::new(960, 512, 64).starts, [0, 448]);
        assert_eq!(Axis::new(512, 512, 64).starts, [0]);
        assert_eq!(Axis::new(300, 512, 64).tile, 300);
    }

    proptest! {
        #[test]
        fn tiles_cover_every_place_and_weights_add_up_to_one(extent in 1_u32..600, tile in 1_u32..300, share in 0_u32..100) {
            let axis = Axis::new(extent, tile, tile * share / 100);
            prop_assert_eq!(axis.starts.len() as u32, Axis::count(extent, tile, tile * share / 100));
            let mut sums = vec![0.0_f64; extent as usize];
            for (start, weights) in axis.starts.iter().zip(axis.weights()) {
                prop_assert_eq!(weights.len() as u32, axis.tile);
                for (place, weight) in weights.iter().enumerate() {
                    prop_assert!(*weight > 0.0 && *weight <= 1.0);
                    sums[*start as usize + place] += f64::from(*weight);
                }
            }
            prop_assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-5), "{:?}", axis);
        }
    }
}
