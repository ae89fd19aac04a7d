//! Equal cells for small requests. Their bookkeeping stands apart from their data: a free cell is
//! neither read nor written.

/// The largest request that is served from slabs, in bytes. Beyond, rounding to pages wastes less
/// than size classes do.
pub const SMALL: usize = 256 << 10;

const LEAST_SLAB: usize = 64 << 10;
const LEAST_CELLS: usize = 8;
const PAGE: usize = 4 << 10;

/// The cell's bytes for a request: a multiple of 64, and above 256 one of four sizes per doubling,
/// so that at most a fifth is waste.
pub fn cell_for(bytes: usize) -> usize {
    if bytes <= 256 { bytes.next_multiple_of(64) } else { bytes.next_multiple_of(bytes.next_power_of_two() / 8) }
}

/// The slab's bytes for cells of a size.
pub fn slab_for(cell: usize) -> usize {
    (LEAST_CELLS * cell).max(LEAST_SLAB).next_multiple_of(PAGE)
}

/// A run of cells.
pub struct Slab {
    cell: usize,
    capacity: usize,
    live: usize,
    /// For each cell that was ever taken, the bytes asked for; 0 if it is free.
    requested: Vec<u32>,
    free: Vec<u32>,
}

impl Slab {
    pub fn new(cell: usize) -> Self {
        Self { cell, capacity: slab_for(cell) / cell, live: 0, requested: Vec::new(), free: Vec::new() }
    }

    /// Bytes of a cell.
    pub fn cell(&self) -> usize {
        self.cell
    }

    pub fn is_full(&self) -> bool {
        self.live == self.capacity
    }

    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Takes a cell of a slab that is not full; its offset in the slab.
    pub fn take(&mut self, bytes: usize) -> usize {
        let index = self.free.pop().unwrap_or(self.requested.len() as u32) as usize;
        if index == self.requested.len() {
            self.requested.push(0);
        }
        self.requested[index] = bytes as u32;
        self.live += 1;
        index * self.cell
    }

    /// Frees the cell at an offset; returns the bytes that were asked for, or `None` if no cell in
    /// use starts there.
    pub fn release(&mut self, offset: usize) -> Option<usize> {
        let index = offset / self.cell;
        let requested =
            self.requested.get_mut(index).filter(|bytes| **bytes != 0 && offset.is_multiple_of(self.cell))?;
        let bytes = std::mem::take(requested) as usize;
        self.free.push(index as u32);
        self.live -= 1;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_aligned_and_little_is_wasted() {
        for bytes in 1..=SMALL {
            let cell = cell_for(bytes);
            assert!(cell >= bytes && cell.is_multiple_of(64), "{bytes} → {cell}");
            assert!(cell < bytes + 64 || cell - bytes < cell / 5, "{bytes} → {cell}");
            assert!(slab_for(cell) / cell >= LEAST_CELLS);
        }
    }

    #[test]
    fn cells_do_not_overlap_and_come_back() {
        let mut slab = Slab::new(cell_for(9000));
        let mut offsets = Vec::new();
        while !slab.is_full() {
            offsets.push(slab.take(9000));
        }
        let apart = offsets.windows(2).all(|pair| pair[1] - pair[0] == slab.cell());
        assert!(apart && offsets.len() * slab.cell() <= slab_for(slab.cell()), "{offsets:?}");
        assert_eq!(slab.release(offsets[3]), Some(9000));
        for offset in [offsets[3], 1, slab.capacity * slab.cell()] {
            assert_eq!(slab.release(offset), None, "{offset}");
        }
        assert_eq!(slab.take(8193), offsets[3]);
        let asked: usize = offsets.iter().filter_map(|&offset| slab.release(offset)).sum();
        assert_eq!(asked, 9000 * (offsets.len() - 1) + 8193);
        assert!(slab.is_empty());
    }
}
