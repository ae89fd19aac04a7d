//! The module's allocator. What the host passes in, a dozen strings and lists per call, is laid down one after the other in a fixed
//! space and forgotten as a whole when the call is over; what the policy itself allocates goes to the standard library's allocator and
//! may stay as long as it likes. A call so costs a few instructions per string, where allocating and freeing each takes hundreds.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::{Cell, UnsafeCell},
    ptr::null_mut,
};

/// Bytes that arguments may take; what goes beyond is allocated as usual. A request with a dozen hints takes about one thousand.
const SPACE: usize = 16 << 10;

#[global_allocator]
static ARENA: Arena = Arena {
    space: Space(UnsafeCell::new([0; SPACE])),
    used: Cell::new(0),
    // Until the first call is over: what is allocated when a module starts may stay for good.
    arrives: Cell::new(false),
};

#[repr(align(16))]
struct Space(UnsafeCell<[u8; SPACE]>);

struct Arena {
    space: Space,
    used: Cell<usize>,
    /// No code of the policy runs: what is allocated are arguments for the next call or the answer to the last one.
    arrives: Cell<bool>,
}

// SAFETY: a module has one thread; this file is only compiled for WebAssembly without threads, see `lib.rs`.
unsafe impl Sync for Arena {}

impl Arena {
    fn holds(&self, pointer: *mut u8) -> bool {
        (pointer as usize).wrapping_sub(self.space.0.get() as usize) < SPACE
    }

    /// The next bytes of the space, or null where there are not enough.
    fn take(&self, layout: Layout) -> *mut u8 {
        let start = self.used.get().next_multiple_of(layout.align());
        let end = start.saturating_add(layout.size());
        if end > SPACE || layout.align() > align_of::<Space>() {
            return null_mut();
        }
        self.used.set(end);
        self.space.0.get().cast::<u8>().wrapping_add(start)
    }
}

// SAFETY: what `take` gives is within the space, aligned, and given once until `call` forgets it, which it does when nothing points there
// any more: see there. Everything else is the standard library's allocator, and a pointer's address says whose it is.
unsafe impl GlobalAlloc for Arena {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let taken = if self.arrives.get() { self.take(layout) } else { null_mut() };
        // SAFETY: the caller's promise about the layout is passed on.
        if taken.is_null() { unsafe { System.alloc(layout) } } else { taken }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if !self.holds(pointer) {
            // SAFETY: not of the space, so it is of the only other allocator; the layout is the caller's promise.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.holds(pointer) {
            // SAFETY: as in `dealloc`.
            return unsafe { System.realloc(pointer, layout, size) };
        }
        // SAFETY: the caller promises that the size, rounded up to the alignment, does not overflow; both ends are valid for as many
        // bytes as are copied, and the new one was free until now.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !moved.is_null() {
                pointer.copy_to_nonoverlapping(moved, layout.size().min(size));
            }
            moved
        }
    }
}

/// Runs the policy's part of an exported call and then forgets the call's arguments, which have to end up inside of it: by value, and
/// dropped before it returns. A policy only ever borrows them, and the answer to the call before was read when this one began.
pub fn call<R>(answer: impl FnOnce() -> R) -> R {
    ARENA.arrives.set(false);
    let answer = answer();
    ARENA.used.set(0);
    ARENA.arrives.set(true);
    answer
}
