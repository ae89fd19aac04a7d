//! The module's memory. The host's arguments, two dozen strings and lists per call, are placed one
//! after the other in a fixed space, which is freed as a whole when the call is over. The policy's
//! own allocations may last: they go to the allocator that the standard library has for Wasm, too.
//! So a string costs a few instructions, while allocating and freeing it takes hundreds.

use std::{
    alloc::{GlobalAlloc, Layout, handle_alloc_error},
    arch::wasm32::memory_grow,
    cell::{Cell, UnsafeCell},
    ptr::null_mut,
};

use dlmalloc::{Allocator, Dlmalloc};

/// Bytes for arguments; further ones are allocated as usual. A request with a dozen hints takes
/// about one thousand.
const SPACE: usize = 16 << 10;

/// Bytes of a page of WebAssembly's memory.
const PAGE: usize = 64 << 10;

#[global_allocator]
static ARENA: Arena = Arena {
    space: Space(UnsafeCell::new([0; SPACE])),
    used: Cell::new(0),
    // False until the first call is over: allocations when a module starts may last for good.
    arrives: Cell::new(false),
    is_whole: Cell::new(false),
};

#[repr(align(16))]
struct Space(UnsafeCell<[u8; SPACE]>);

static HEAP: Heap = Heap(UnsafeCell::new(Dlmalloc::new_with_allocator(Pages { is_begun: Cell::new(false) })));

struct Heap(UnsafeCell<Dlmalloc<Pages>>);

// SAFETY: as `Arena`.
unsafe impl Sync for Heap {}

/// The heap's first page. It is part of the memory that an instance begins with: the host makes an
/// instance for each question, and to grow its memory takes longer than an answer. All of it is
/// zero, so that it takes no bytes in the file.
static FIRST: Page = Page(UnsafeCell::new([0; PAGE]));

#[repr(align(16))]
struct Page(UnsafeCell<[u8; PAGE]>);

// SAFETY: as `Arena`.
unsafe impl Sync for Page {}

/// The heap's pages.
struct Pages {
    /// The first one is given out.
    is_begun: Cell<bool>,
}

// SAFETY: every region is valid, and given out once: the first page while it is not taken, others
// as they are added to the memory, which never shrinks. They begin as zeros.
unsafe impl Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        if size <= PAGE && !self.is_begun.replace(true) {
            return (FIRST.0.get().cast(), PAGE, 0);
        }
        let pages = size.div_ceil(PAGE);
        match memory_grow::<0>(pages) {
            usize::MAX => (null_mut(), 0, 0),
            // A region that ended with the address space would have no end.
            before if before + pages >= usize::MAX / PAGE => (null_mut(), 0, 0),
            before => (std::ptr::with_exposed_provenance_mut(before * PAGE), pages * PAGE, 0),
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE
    }
}

struct Arena {
    space: Space,
    used: Cell<usize>,
    /// No code of the policy runs: allocations are arguments for the next call or the answer to the
    /// last one.
    arrives: Cell<bool>,
    /// All arguments fit into the space. Every field begins as zero, so that the space takes no
    /// bytes in the file.
    is_whole: Cell<bool>,
}

// SAFETY: a module has one thread; this file is only compiled for WebAssembly without threads, see
// `lib.rs`.
unsafe impl Sync for Arena {}

impl Heap {
    /// The heap, for one call of it.
    ///
    /// # Safety
    /// No other reference to it lives: a module has one thread, and the heap calls nothing that
    /// allocates.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that there is no other")]
    unsafe fn get(&self) -> &mut Dlmalloc<Pages> {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.0.get() }
    }
}

impl Arena {
    fn holds(&self, pointer: *mut u8) -> bool {
        (pointer as usize).wrapping_sub(self.space.0.get() as usize) < SPACE
    }

    /// The next bytes of the space, or null if there are not enough or the policy runs.
    #[inline]
    fn take(&self, size: usize, align: usize) -> *mut u8 {
        let start = (self.used.get() + align - 1) & !(align - 1);
        if !self.arrives.get() || size > SPACE || start + size > SPACE || align > align_of::<Space>() {
            self.is_whole.set(false);
            return null_mut();
        }
        self.used.set(start + size);
        self.space.0.get().cast::<u8>().wrapping_add(start)
    }
}

// SAFETY: `take` returns memory within the space, aligned, and only once until `call` frees it,
// which it does when nothing points there any more: see there. Everything else is the heap's, and a
// pointer's address says whose it is.
unsafe impl GlobalAlloc for Arena {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let taken = self.take(layout.size(), layout.align());
        // SAFETY: the caller's promise about the layout is passed on, and no reference to the heap
        // outlives a call of it.
        if taken.is_null() { unsafe { HEAP.get().malloc(layout.size(), layout.align()) } } else { taken }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if !self.holds(pointer) {
            // SAFETY: outside the space, so it belongs to the heap; the layout is the caller's
            // promise.
            unsafe { HEAP.get().free(pointer, layout.size(), layout.align()) }
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.holds(pointer) {
            // SAFETY: as in `dealloc`.
            return unsafe { HEAP.get().realloc(pointer, layout.size(), layout.align(), size) };
        }
        // SAFETY: the caller promises that the size, rounded up to the alignment, does not
        // overflow; both ends are valid for the copied bytes, and the new one was free until now.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !moved.is_null() {
                pointer.copy_to_nonoverlapping(moved, layout.size().min(size));
            }
            moved
        }
    }
}

/// The host's allocation function. Replaces wit-bindgen's, which does the same in more steps.
///
/// # Safety
/// As in the canonical ABI: `old` was returned by this function for `old_size` bytes, and `align`
/// is a power of two.
#[unsafe(no_mangle)]
unsafe extern "C" fn cabi_realloc(old: *mut u8, old_size: usize, align: usize, size: usize) -> *mut u8 {
    if old_size == 0 && size == 0 {
        return std::ptr::without_provenance_mut(align);
    }
    // SAFETY: the host keeps to the canonical ABI.
    unsafe {
        let layout = |size| Layout::from_size_align_unchecked(size, align);
        let pointer = match old_size {
            0 => ARENA.alloc(layout(size)),
            _ => ARENA.realloc(old, layout(old_size), size),
        };
        if pointer.is_null() {
            handle_alloc_error(layout(size));
        }
        pointer
    }
}

/// Runs the policy's part of an exported call and then frees the call's arguments, all of them: a
/// policy only borrows them, and the answer to the call before was read when this one began.
pub fn call<A, R>(arguments: A, answer: impl FnOnce(&A) -> R) -> R {
    ARENA.arrives.set(false);
    // Read before the policy allocates, which never uses the space.
    let is_whole = ARENA.is_whole.get();
    let answer = answer(&arguments);
    if is_whole {
        // All of it is in the space: freeing each piece would do nothing, two dozen times.
        std::mem::forget(arguments);
    }
    ARENA.used.set(0);
    ARENA.is_whole.set(true);
    ARENA.arrives.set(true);
    answer
}
