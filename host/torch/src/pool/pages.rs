//! The pool's pages: address space reserved once, backed by memory and returned to the system in
//! granules.

use std::{io, ops::Range, ptr};

/// The unit that is taken from the system and returned to it, in bytes: the huge page of x86-64,
/// and of arm64 with 4 KiB pages. With smaller steps the kernel would hold more than is counted
/// here, since it backs all of a huge page at the first touch.
pub const GRANULE: usize = 2 << 20;

/// A reservation below this would be of no use.
const LEAST: usize = 64 << 20;

/// One virtual range. Offsets count from its start, which is aligned to [`GRANULE`].
pub struct Pages {
    /// The mapping as the system gave it, and its length.
    mapping: (*mut libc::c_void, usize),
    base: *mut u8,
    reserved: usize,
    /// The end of the writable part.
    committed: usize,
    /// True for each granule that has memory.
    held: Vec<bool>,
    held_bytes: usize,
    /// Granules from this one on never had memory.
    top: usize,
}

// SAFETY: the pointers are to a mapping that belongs to this value alone.
unsafe impl Send for Pages {}

impl Pages {
    /// Reserves `most` bytes, or as large a part of it as the system allows.
    ///
    /// # Errors
    /// The system allows hardly any.
    pub fn reserve(most: usize) -> io::Result<Self> {
        let mut reserved = most.next_multiple_of(GRANULE);
        loop {
            let length = reserved + GRANULE;
            // Inaccessible until needed: a kernel that counts every writable page
            // (vm.overcommit_memory=2) then counts what is used.
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a new mapping at an address of the kernel's choice touches nothing that
            // exists.
            let start = unsafe { libc::mmap(ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
            if start != libc::MAP_FAILED {
                let base = start.cast::<u8>();
                let base = base.wrapping_add(base.addr().next_multiple_of(GRANULE) - base.addr());
                #[cfg(target_os = "linux")]
                // SAFETY: the range lies in the new mapping. A kernel without huge pages refuses,
                // which costs speed only.
                unsafe {
                    libc::madvise(base.cast(), reserved, libc::MADV_HUGEPAGE)
                };
                let held = vec![false; reserved / GRANULE];
                return Ok(Self {
                    mapping: (start, length),
                    base,
                    reserved,
                    committed: 0,
                    held,
                    held_bytes: 0,
                    top: 0,
                });
            }
            let error = io::Error::last_os_error();
            reserved = (reserved / 2).next_multiple_of(GRANULE);
            if reserved < LEAST {
                return Err(error);
            }
        }
    }

    /// Bytes of address space.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved
    }

    /// Bytes that have memory.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    pub fn address(&self, offset: usize) -> *mut u8 {
        self.base.wrapping_add(offset)
    }

    /// `None` for an address outside.
    pub fn offset(&self, address: *mut u8) -> Option<usize> {
        address.addr().checked_sub(self.base.addr()).filter(|offset| *offset < self.reserved)
    }

    /// The number of granules of a range that have no memory yet; the range is not empty.
    pub fn missing(&self, offset: usize, bytes: usize) -> usize {
        self.held[granules(offset, bytes)].iter().filter(|held| !**held).count()
    }

    /// Lets a range be written to and counts its granules as held.
    ///
    /// # Errors
    /// The system does not let it have memory; nothing has changed.
    pub fn back(&mut self, offset: usize, bytes: usize) -> io::Result<()> {
        let granules = granules(offset, bytes);
        let end = granules.end * GRANULE;
        if end > self.committed {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let start = self.address(self.committed).cast();
            // SAFETY: the range lies in our own mapping, and more access than before takes nothing
            // from anyone.
            if unsafe { libc::mprotect(start, end - self.committed, access) } != 0 {
                return Err(io::Error::last_os_error());
            }
            self.committed = end;
        }
        self.top = self.top.max(granules.end);
        for held in &mut self.held[granules] {
            self.held_bytes += if *held { 0 } else { GRANULE };
            *held = true;
        }
        Ok(())
    }

    /// Returns the granules that lie wholly within an unused range, from its end, until no more
    /// than `most_held` bytes are held.
    pub fn give_back(&mut self, offset: usize, bytes: usize, most_held: usize) {
        let first = offset.div_ceil(GRANULE);
        let mut last = ((offset + bytes) / GRANULE).min(self.top);
        while last > first && self.held_bytes > most_held {
            let mut from = last;
            while from > first && self.held[from - 1] && self.held_bytes > most_held {
                from -= 1;
                self.held[from] = false;
                self.held_bytes -= GRANULE;
            }
            if from == last {
                last -= 1;
                continue;
            }
            let (start, length) = (self.address(from * GRANULE).cast(), (last - from) * GRANULE);
            // SAFETY: the range lies in our own mapping, and the caller promises that nothing in it
            // is in use.
            if unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) } != 0 {
                // Locked pages stay, and are counted as what they are.
                self.held[from..last].fill(true);
                self.held_bytes += length;
                return;
            }
            last = from;
        }
    }

    /// The bytes of a range that have memory, and the largest unbroken piece of them.
    pub fn pieces(&self, offset: usize, bytes: usize) -> (usize, usize) {
        let (mut all, mut largest, mut piece) = (0, 0, 0);
        let end = (offset + bytes).min(self.top * GRANULE);
        let mut at = offset;
        while at < end {
            let next = end.min((at / GRANULE + 1) * GRANULE);
            if self.held[at / GRANULE] {
                all += next - at;
                piece += next - at;
                largest = largest.max(piece);
            } else {
                piece = 0;
            }
            at = next;
        }
        (all, largest)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours. Only a pool that never served a tensor is dropped, or one
        // whose blocks are all released.
        unsafe { libc::munmap(self.mapping.0, self.mapping.1) };
    }
}

/// The granules that a range touches.
fn granules(offset: usize, bytes: usize) -> Range<usize> {
    offset / GRANULE..(offset + bytes).div_ceil(GRANULE)
}
