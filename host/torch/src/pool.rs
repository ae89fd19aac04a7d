//! The allocator of CPU tensors: size classes for small requests, best fit for large ones, and
//! pages that stay for the next request until a trim or the limit returns them. Knows nothing of
//! libtorch; sizes are bytes.

mod pages;
mod ranges;
mod slab;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use pages::{GRANULE, Pages};
use ranges::Ranges;
use slab::{SMALL, Slab, cell_for, slab_for};

use crate::memory::Memory;

const PAGE: usize = 4 << 10;
/// Free ranges that are searched for memory already held before the one that lacks least is taken.
const CANDIDATES: usize = 32;
/// Above the limit, at most an eighth of it, and no less than this, may be lost to rounding: parts
/// of granules and of slabs whose rest is in use. Past that a request is refused although its own
/// bytes would fit.
const LEAST_ROUNDING: usize = 32 << 20;

/// The reason why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationError {
    /// It would pass the limit.
    Limit,
    /// The system has no memory or address space for it.
    System,
}

/// A pool; any thread may use it.
pub struct Pool(Mutex<State>);

struct State {
    pages: Pages,
    ranges: Ranges,
    /// Blocks in use, by offset.
    blocks: BTreeMap<usize, Block>,
    /// Slabs with a free cell: cell size → offsets. The lowest is filled first, so that the highest
    /// may become empty.
    open: BTreeMap<usize, BTreeSet<usize>>,
    limit: usize,
    /// True if something was freed since all cached memory was last returned.
    cached: bool,
    in_use: usize,
    peak: usize,
    allocations: u64,
    system: u64,
}

enum Block {
    Large { bytes: usize, requested: usize },
    Slab(Slab),
}

impl Pool {
    /// A pool over at most `reservation` bytes of address space; less if the system allows less.
    ///
    /// # Errors
    /// There is hardly any address space.
    pub fn new(reservation: usize) -> io::Result<Self> {
        let pages = Pages::reserve(reservation)?;
        let ranges = Ranges::new(pages.reserved_bytes());
        Ok(Self(Mutex::new(State {
            pages,
            ranges,
            blocks: BTreeMap::new(),
            open: BTreeMap::new(),
            limit: usize::MAX,
            cached: false,
            in_use: 0,
            peak: 0,
            allocations: 0,
            system: 0,
        })))
    }

    /// The address of at least `bytes` (not 0), aligned to 64.
    ///
    /// # Errors
    /// [`AllocationError`]; nothing has changed then, but that cached memory may have been
    /// returned.
    pub fn allocate(&self, bytes: usize) -> Result<*mut u8, AllocationError> {
        self.state().allocate(bytes)
    }

    /// Frees a block of [`Pool::allocate`]; returns false, and does nothing, for any other address.
    pub fn release(&self, address: *mut u8) -> bool {
        self.state().release(address).is_some()
    }

    /// From now on no request may raise the bytes in use above `bytes`, and no memory is cached
    /// above it.
    pub fn set_limit(&self, bytes: usize) {
        let mut state = self.state();
        state.limit = bytes;
        state.return_cached(bytes);
    }

    /// Returns all memory that is held and not in use to the system, except granules that are
    /// partly in use.
    pub fn trim(&self) {
        let mut state = self.state();
        if state.cached {
            state.return_cached(0);
            state.cached = false;
        }
    }

    /// Starts a new peak from the memory in use.
    pub fn reset_peak(&self) {
        let mut state = self.state();
        state.peak = state.in_use;
    }

    /// The pool's accounting.
    pub fn memory(&self) -> Memory {
        let state = self.state();
        let (mut all, mut largest) = (0, 0);
        for (start, bytes) in state.ranges.largest_first() {
            let (held, piece) = state.pages.pieces(start, bytes);
            all += held;
            largest = largest.max(piece);
        }
        Memory {
            in_use: state.in_use as u64,
            peak: state.peak as u64,
            held: state.pages.held_bytes() as u64,
            allocations: state.allocations,
            system: state.system,
            fragmentation: if all == 0 { 0.0 } else { 1.0 - largest as f64 / all as f64 },
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No change in here panics half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn allocate(&mut self, bytes: usize) -> Result<*mut u8, AllocationError> {
        if bytes > self.limit.saturating_sub(self.in_use) {
            return Err(AllocationError::Limit);
        }
        if bytes > self.pages.reserved_bytes() {
            return Err(AllocationError::System);
        }
        let (offset, fresh) = if bytes <= SMALL { self.take_cell(bytes)? } else { self.take_block(bytes)? };
        self.in_use += bytes;
        self.peak = self.peak.max(self.in_use);
        self.allocations += 1;
        self.system += u64::from(fresh);
        Ok(self.pages.address(offset))
    }

    /// The offset, and true if fresh pages were needed.
    fn take_block(&mut self, requested: usize) -> Result<(usize, bool), AllocationError> {
        let bytes = requested.next_multiple_of(PAGE);
        let (offset, fresh) = self.take_range(bytes)?;
        self.blocks.insert(offset, Block::Large { bytes, requested });
        Ok((offset, fresh))
    }

    fn take_cell(&mut self, requested: usize) -> Result<(usize, bool), AllocationError> {
        let cell = cell_for(requested);
        let known = self.open.get(&cell).and_then(BTreeSet::first).copied();
        let (start, fresh) = match known {
            Some(start) => (start, false),
            None => {
                let (start, fresh) = self.take_range(slab_for(cell))?;
                self.blocks.insert(start, Block::Slab(Slab::new(cell)));
                self.open.entry(cell).or_default().insert(start);
                (start, fresh)
            }
        };
        let Some(Block::Slab(slab)) = self.blocks.get_mut(&start) else {
            return Err(AllocationError::System);
        };
        let offset = start + slab.take(requested);
        if slab.is_full() {
            self.open.entry(cell).or_default().remove(&start);
        }
        Ok((offset, fresh))
    }

    /// Takes the free range that needs the fewest fresh pages, among those that are large enough;
    /// of several, the smallest, then the lowest.
    fn take_range(&mut self, bytes: usize) -> Result<(usize, bool), AllocationError> {
        let mut best = None;
        for start in self.ranges.at_least(bytes).take(CANDIDATES) {
            let missing = self.pages.missing(start, bytes);
            if best.is_none_or(|(_, fewest)| missing < fewest) {
                best = Some((start, missing));
            }
            if missing == 0 {
                break;
            }
        }
        let (start, missing) = best.ok_or(AllocationError::System)?;
        if missing == 0 {
            self.ranges.take(start, bytes);
            return Ok((start, false));
        }
        self.pages.back(start, bytes).map_err(|_| AllocationError::System)?;
        self.ranges.take(start, bytes);
        // Before the new pages are touched, so that the sum never exceeds the limit.
        self.return_cached(self.limit);
        if self.pages.held_bytes() > self.limit.saturating_add(LEAST_ROUNDING.max(self.limit / 8)) {
            self.give_back(start, bytes);
            // The pages counted a moment ago were never touched: none of them may pass for held.
            self.return_cached(0);
            return Err(AllocationError::Limit);
        }
        Ok((start, true))
    }

    fn release(&mut self, address: *mut u8) -> Option<()> {
        let offset = self.pages.offset(address)?;
        let (&start, block) = self.blocks.range_mut(..=offset).next_back()?;
        match block {
            Block::Large { bytes, requested } if start == offset => {
                let bytes = *bytes;
                self.in_use -= *requested;
                self.blocks.remove(&start);
                self.give_back(start, bytes);
            }
            Block::Large { .. } => return None,
            Block::Slab(slab) => {
                let (cell, was_full) = (slab.cell(), slab.is_full());
                self.in_use -= slab.release(offset - start)?;
                let open = self.open.entry(cell).or_default();
                if slab.is_empty() {
                    open.remove(&start);
                    self.blocks.remove(&start);
                    self.give_back(start, slab_for(cell));
                } else if was_full {
                    open.insert(start);
                }
            }
        }
        Some(())
    }

    fn give_back(&mut self, start: usize, bytes: usize) {
        self.ranges.give_back(start, bytes);
        self.cached = true;
    }

    /// Returns free memory to the system until no more than `most_held` bytes are held. The largest
    /// ranges go first and each from its end, so that few calls are needed and the blocks that stay
    /// are packed low.
    fn return_cached(&mut self, most_held: usize) {
        for (start, bytes) in self.ranges.largest_first() {
            if self.pages.held_bytes() <= most_held {
                return;
            }
            self.pages.give_back(start, bytes, most_held);
        }
    }
}

/// The pool's address space on this machine: four times its memory, so that pieces in use never
/// stand in the way of a block that memory has room for; under `ulimit -v` at most half of what is
/// allowed, since stacks and libraries need their share.
pub fn reservation() -> usize {
    // SAFETY: plain queries; `addresses` is valid for writing.
    let (pages, page, addresses) = unsafe {
        let mut addresses = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        libc::getrlimit(libc::RLIMIT_AS, &mut addresses);
        (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE), addresses.rlim_cur)
    };
    let physical = usize::try_from(pages).unwrap_or(0).saturating_mul(usize::try_from(page).unwrap_or(PAGE));
    let most = physical.saturating_mul(4).max(4 * GRANULE);
    if addresses == libc::RLIM_INFINITY { most } else { most.min((addresses / 2) as usize) }
}
