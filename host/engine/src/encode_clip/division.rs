//! The division of frames into tiles, and the ramps that fade the tiles' latents into each other.

use tch::{Device, Kind, Tensor};
use tilewright_models::wan_vae::{EncoderState, Place, PlacedState};
use tilewright_plan::Space;

use crate::{Axis, Grid, Result};

/// One division of an area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Division {
    /// In latent pixels.
    grid: Grid,
    scale: i64,
}

impl Division {
    /// The division of an area in pixels: one tile if the plan does not divide it.
    pub fn new(space: &Space, height: u32, width: u32, scale: u32) -> Self {
        let latent = |pixels: u32| pixels / scale;
        let tile = match space {
            Space::Blended(tile) => tilewright_plan::Tile {
                height: latent(tile.height),
                width: latent(tile.width),
                overlap: latent(tile.overlap),
            },
            Space::Whole | Space::Exact(_) => {
                tilewright_plan::Tile { height: latent(height), width: latent(width), overlap: 0 }
            }
        };
        Self { grid: Grid::new(latent(height), latent(width), tile), scale: i64::from(scale) }
    }

    pub fn len(&self) -> usize {
        self.grid.len()
    }

    /// The place of each tile, in pixels.
    pub fn places(&self) -> Vec<Place> {
        let along =
            |axis: &Axis, index: usize| (i64::from(axis.starts[index]) * self.scale, i64::from(axis.tile) * self.scale);
        self.grid
            .tiles()
            .map(|(row, column)| [along(&self.grid.rows, row), along(&self.grid.columns, column)])
            .collect()
    }

    /// The part of each tile that counts, so that every place has one tile: neighbours meet in
    /// the middle of their overlap.
    pub fn shares(&self) -> Vec<Place> {
        let along = |axis: &Axis| -> Vec<(i64, i64)> {
            let meets = |index: usize| i64::from((axis.starts[index] + axis.starts[index - 1] + axis.tile) / 2);
            let count = axis.starts.len();
            let ends = |index: usize| if index == count { i64::from(axis.extent) } else { meets(index) };
            let starts = |index: usize| if index == 0 { 0 } else { meets(index) };
            (0..count).map(|index| (starts(index), ends(index + 1))).collect()
        };
        let (rows, columns) = (along(&self.grid.rows), along(&self.grid.columns));
        let scaled = |(start, end): (i64, i64)| (start * self.scale, (end - start) * self.scale);
        self.grid.tiles().map(|(row, column)| [scaled(rows[row]), scaled(columns[column])]).collect()
    }

    /// The states of other places, out of those of this division's tiles, which have all seen the
    /// same frames.
    pub fn relaid<'a>(
        &self,
        states: impl Iterator<Item = &'a EncoderState>,
        places: &[Place],
    ) -> Result<Vec<EncoderState>> {
        let tiles = self.places().into_iter().zip(self.shares());
        let parts: Vec<PlacedState<'_>> =
            states.zip(tiles).map(|(state, (place, share))| PlacedState { state, place, share }).collect();
        Ok(EncoderState::relaid(&parts, places)?)
    }

    /// Adds a tile's latents [1, C, t, h, w] to those of all, which come into being with the first.
    pub fn gather(&self, gathered: &mut Option<Tensor>, index: usize, latents: Tensor, device: Device) -> Result<()> {
        if self.len() == 1 {
            *gathered = Some(latents);
            return Ok(());
        }
        let (_, channels, count, tall, wide) = latents.size5()?;
        let (rows, columns) = (&self.grid.rows, &self.grid.columns);
        let whole = match gathered {
            Some(whole) => whole,
            None => {
                let shape = [1, channels, count, i64::from(rows.extent), i64::from(columns.extent)];
                gathered.insert(Tensor::f_zeros(shape, (Kind::Float, device))?)
            }
        };
        let Some((row, column)) = self.grid.tiles().nth(index) else { return Ok(()) };
        let weights = |axis: &Axis, index: usize, shape: [i64; 5]| -> Result<Tensor> {
            Ok(Tensor::f_from_slice(&axis.weights()[index])?.f_to_device(device)?.f_view(shape)?)
        };
        let down = weights(rows, row, [1, 1, 1, -1, 1])?;
        let across = weights(columns, column, [1, 1, 1, 1, -1])?;
        let weighted = latents.f_mul(&down)?.f_mul_(&across)?;
        let (top, left) = (i64::from(rows.starts[row]), i64::from(columns.starts[column]));
        let _ = whole.f_narrow(3, top, tall)?.f_narrow(4, left, wide)?.f_add_(&weighted)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tilewright_plan::Tile;

    use super::*;

    #[test]
    fn shares_cover_every_place_once_and_lie_in_their_tiles() {
        for (height, width, tile, overlap) in
            [(64, 96, 64, 16), (200, 168, 64, 0), (128, 240, 72, 24), (64, 64, 512, 64)]
        {
            let space = Space::Blended(Tile { height: tile, width: tile, overlap });
            let division = Division::new(&space, height, width, 8);
            let mut covered = vec![0; (height * width) as usize];
            for (place, share) in division.places().iter().zip(division.shares()) {
                for axis in 0..2 {
                    assert!(share[axis].0 >= place[axis].0 && share[axis].1 > 0 && share[axis].0 % 8 == 0);
                    assert!(share[axis].0 + share[axis].1 <= place[axis].0 + place[axis].1);
                }
                for y in share[0].0..share[0].0 + share[0].1 {
                    for x in share[1].0..share[1].0 + share[1].1 {
                        covered[(y * i64::from(width) + x) as usize] += 1;
                    }
                }
            }
            assert!(covered.iter().all(|times| *times == 1));
        }
    }
}
