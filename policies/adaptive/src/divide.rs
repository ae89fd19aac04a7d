//! Divisions of a picture: band heights and tiles that are worth pricing.
//!
//! Tiles divide the picture evenly. The host moves the last tile of a row inward, so that all have
//! one shape; a tile that is chosen without regard to the picture then computes much of it twice.
//! So the number of tiles follows from a wanted side, and their size is then made as small as
//! possible, in steps of 64 pixels. This gives few distinct shapes over many picture sizes, which
//! matters if each new shape costs a kernel search.

use tilewright_sdk::{Request, Tile};

use crate::UserBounds;

/// Heights of exact bands to consider, in pixels. Memory and time depend little on them, so a
/// handful is enough.
const BANDS: [u32; 4] = [64, 128, 256, 512];

/// Sides of tiles to consider, in pixels, and the steps that they are made smaller in.
const SIDES: [u32; 7] = [256, 384, 512, 768, 1024, 1536, 2048];
const STEP: u32 = 64;

/// The same if nothing larger fits.
const SMALL_SIDES: [u32; 4] = [64, 96, 128, 192];
const SMALL_STEP: u32 = 32;

/// Heights of bands, ascending; empty if the host has none.
pub fn bands(request: &Request) -> Vec<u32> {
    if !request.capabilities.exact {
        return Vec::new();
    }
    let (unit, least) = (request.tile_unit(), request.tile_least());
    let bands = BANDS.into_iter().map(|band| band.max(least).next_multiple_of(unit));
    let mut bands: Vec<u32> = bands.filter(|band| *band < request.height).collect();
    bands.dedup();
    bands
}

/// Tiles within the user's bounds, ascending.
pub fn tiles(request: &Request, wishes: &UserBounds) -> Vec<Tile> {
    let allowed = wishes.min_tile..=wishes.max_tile;
    fit_tiles(request, wishes, SIDES.into_iter().filter(|side| allowed.contains(side)), STEP, wishes.min_tile)
}

/// Tiles below the user's bounds, ascending.
pub fn small_tiles(request: &Request, wishes: &UserBounds) -> Vec<Tile> {
    fit_tiles(request, wishes, SMALL_SIDES.into_iter(), SMALL_STEP, 0)
}

fn fit_tiles(
    request: &Request,
    wishes: &UserBounds,
    sides: impl Iterator<Item = u32>,
    step: u32,
    smallest: u32,
) -> Vec<Tile> {
    let unit = request.tile_unit();
    let least = request.tile_least().max(smallest).next_multiple_of(unit);
    let mut tiles: Vec<Tile> = Vec::with_capacity(8);
    for side in sides.map(|side| side.max(least).next_multiple_of(unit)) {
        if side >= request.longest() {
            break;
        }
        let overlap = |side: u32| wishes.overlap.unwrap_or(side / 8).min(side / 4);
        let along = |extent: u32| {
            if side >= extent {
                return extent;
            }
            let shared = overlap(side);
            let count = (extent - side).div_ceil(side - shared) + 1;
            // The least side with which that many tiles cover the extent: count · side − (count −
            // 1) · overlap.
            let reaching = match wishes.overlap {
                None => extent.saturating_mul(8).div_ceil(7 * count + 1),
                Some(_) => (extent + (count - 1) * shared).div_ceil(count),
            };
            reaching.next_multiple_of(step).next_multiple_of(unit).clamp(least, side)
        };
        let (height, width) = (along(request.height), along(request.width));
        // An axis that one tile covers shares nothing.
        let divided = [(height, request.height), (width, request.width)];
        let divided = divided.into_iter().filter(|(side, extent)| side < extent).map(|(side, _)| side).min();
        let shared = overlap(divided.unwrap_or(side)).min(height.min(width) / 4);
        let tile = Tile { height, width, overlap: shared - shared % unit };
        if tiles.last() != Some(&tile) {
            tiles.push(tile);
        }
    }
    tiles
}
