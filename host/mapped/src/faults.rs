//! Reads of pages that a mapped file no longer has. The kernel answers them with SIGBUS, in any
//! thread, in the middle of any code: the handler puts pages of zeros in their place and marks the
//! map, and the thread goes on.

use std::{
    ffi::{c_int, c_void},
    io, ptr,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::SeqCst},
    },
};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// The code of a SIGBUS for an address that is mapped and has no page behind it. Broken memory has
/// other codes, and so have signals of other processes.
const NO_PAGE: c_int = 2;

/// The addresses of one map, as the handler reads them: there it can neither wait nor allocate.
struct Range {
    /// Odd while the range changes.
    version: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    is_damaged: AtomicBool,
    /// The range that was there before.
    next: *const Range,
}

// SAFETY: all that changes is atomic; `next` leads to a range that is never freed, and never
// changes.
unsafe impl Sync for Range {}
// SAFETY: as above.
unsafe impl Send for Range {}

/// All ranges, the newest first. None is ever freed; those of maps that are gone are empty, and
/// serve the next maps.
static RANGES: AtomicPtr<Range> = AtomicPtr::new(ptr::null_mut());

/// The ranges that no map has.
static FREE: Mutex<Vec<&'static Range>> = Mutex::new(Vec::new());

/// The size of a page, set before the handler is installed.
static PAGE: AtomicUsize = AtomicUsize::new(4096);

/// The handler of SIGBUS before ours; none if ours could not be installed.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

impl Range {
    fn set(&self, start: usize, end: usize) {
        self.version.fetch_add(1, SeqCst);
        self.start.store(start, SeqCst);
        self.end.store(end, SeqCst);
        self.version.fetch_add(1, SeqCst);
    }

    /// The end of the range, if an address is in it.
    fn end_beyond(&self, address: usize) -> Option<usize> {
        let version = self.version.load(SeqCst);
        let (start, end) = (self.start.load(SeqCst), self.end.load(SeqCst));
        // The range of a map that is being read does not change: one that does is another's.
        let is_whole = version.is_multiple_of(2) && version == self.version.load(SeqCst);
        (is_whole && (start..end).contains(&address)).then_some(end)
    }
}

/// A map that is watched for as long as this lives: longer than its addresses are read, and no
/// longer than they are mapped.
pub(crate) struct Watch(&'static Range);

impl Watch {
    /// Watches a map of `bytes` bytes that is readable and no more.
    ///
    /// # Errors
    /// The system does not take the handler.
    pub fn new(start: *const u8, bytes: usize) -> io::Result<Self> {
        install()?;
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let range = free.pop().unwrap_or_else(add);
        range.is_damaged.store(false, SeqCst);
        let start = start.addr();
        range.set(start, start + bytes.next_multiple_of(PAGE.load(SeqCst)));
        Ok(Self(range))
    }

    /// True if a page was read that the file no longer had.
    pub fn is_damaged(&self) -> bool {
        self.0.is_damaged.load(SeqCst)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.set(0, 0);
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}

/// Adds a range; the lock of the free ones is held.
fn add() -> &'static Range {
    let range = Box::leak(Box::new(Range {
        version: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        is_damaged: AtomicBool::new(false),
        next: RANGES.load(SeqCst),
    }));
    RANGES.store(range, SeqCst);
    range
}

/// Installs the handler, with the first map.
fn install() -> io::Result<()> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if BEFORE.get().is_some() {
        return Ok(());
    }
    PAGE.store(rustix::param::page_size(), SeqCst);
    // SAFETY: all zeroes are a valid `sigaction`: no flags, an empty mask and the default action.
    let (mut before, mut action): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    // SAFETY: no handler is installed, and the present one is written to a place of ours.
    check_status(unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) })?;
    // Set before the first signal can need it.
    let _ = BEFORE.set(before);
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and calls nothing that a
    // handler must not.
    check_status(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) })
}

fn check_status(status: c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Replaces pages that a watched file no longer has; every other SIGBUS is handed on.
extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands over a valid `siginfo_t` for the length of the call, with an address
    // for the codes of faults.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if code != NO_PAGE || !replace(address) {
        hand_on(signal, info, context);
    }
}

/// Replaces the pages of a watched map from an address to its end by zeros; false if there is no
/// such map.
fn replace(address: usize) -> bool {
    let mut next = RANGES.load(SeqCst).cast_const();
    // SAFETY: ranges are never freed, and the pointers to them are set before they can be found.
    while let Some(range) = unsafe { next.as_ref() } {
        if let Some(end) = range.end_beyond(address) {
            let page = address & !(PAGE.load(SeqCst) - 1);
            // Marked first: whoever reads a zero from then on finds the mark afterwards.
            range.is_damaged.store(true, SeqCst);
            let (readable, fixed) = (ProtFlags::READ, MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE);
            // SAFETY: the pages belong to a watched map, which is there for as long as it is read;
            // it is only read, so that no write to it can be lost. The map's owner frees them with
            // the rest. The call neither allocates nor sets `errno` if it succeeds.
            return unsafe { mmap_anonymous(ptr::with_exposed_provenance_mut(page), end - page, readable, fixed) }
                .is_ok();
        }
        next = range.next;
    }
    false
}

/// Calls the handler that was there before; the default one ends the process.
fn hand_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(before) = BEFORE.get() else { return };
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: all zeroes are the default action; `raise` is allowed in a handler, and its
            // signal is delivered when this returns.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &raw const default, ptr::null_mut());
                libc::raise(signal);
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the kernel gave this address for a handler of three arguments.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: the kernel gave this address for a handler of one argument.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
