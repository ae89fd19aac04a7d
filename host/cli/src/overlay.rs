//! Draws the tiles of a plan over the picture: overlaps tinted, every tile outlined.

use tilewright_engine::Grid;
use tilewright_media::Pixels;
use tilewright_plan::Space;

/// Outlines, in turn, so that neighbours differ.
const OUTLINES: [[u8; 3]; 4] = [[255, 196, 0], [0, 200, 255], [255, 64, 160], [120, 255, 80]];

/// The strength of an overlap's tint, out of 256.
const TINT: u16 = 72;

/// Draws a plan's tiles; a whole decode gets one outline. Gray pictures are left as they are.
pub fn draw(pixels: &mut Pixels, space: &Space) {
    if pixels.channels < 3 {
        return;
    }
    let whole = tilewright_plan::Tile { height: pixels.height, width: pixels.width, overlap: 0 };
    let grid = Grid::new(pixels.height, pixels.width, space.tile().unwrap_or(whole));
    let cover = |axis: &tilewright_engine::Axis| {
        let mut cover = vec![0_u8; axis.extent as usize];
        for start in &axis.starts {
            cover[*start as usize..(*start + axis.tile) as usize].iter_mut().for_each(|count| *count += 1);
        }
        cover
    };
    let (rows, columns) = (cover(&grid.rows), cover(&grid.columns));
    for (y, across) in rows.iter().enumerate() {
        for (x, along) in columns.iter().enumerate() {
            if *across > 1 || *along > 1 {
                blend(pixels, x as u32, y as u32, [255, 255, 255], TINT);
            }
        }
    }
    let thickness = (pixels.width.min(pixels.height) / 400).max(1);
    for (row, column) in grid.tiles() {
        let color = OUTLINES[(row + 2 * column) % OUTLINES.len()];
        let (top, left) = (grid.rows.starts[row], grid.columns.starts[column]);
        let (bottom, right) = (top + grid.rows.tile - 1, left + grid.columns.tile - 1);
        for inset in 0..thickness {
            for x in left..=right {
                blend(pixels, x, top + inset, color, 230);
                blend(pixels, x, bottom.saturating_sub(inset), color, 230);
            }
            for y in top..=bottom {
                blend(pixels, left + inset, y, color, 230);
                blend(pixels, right.saturating_sub(inset), y, color, 230);
            }
        }
    }
}

fn blend(pixels: &mut Pixels, x: u32, y: u32, color: [u8; 3], share: u16) {
    let at = (y as usize * pixels.width as usize + x as usize) * pixels.channels;
    let Some(place) = pixels.values.get_mut(at..at + 3) else { return };
    for (value, target) in place.iter_mut().zip(color) {
        *value = ((u16::from(*value) * (256 - share) + u16::from(target) * share) / 256) as u8;
    }
}
