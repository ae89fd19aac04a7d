//! Marks of crashes: a process that crashes leaves one in a file, so that the next process can tell
//! that it was not killed from outside.

use std::{
    fs::File,
    io,
    os::fd::IntoRawFd,
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicI32, Ordering},
    },
};

/// Signals that a process causes itself.
const SIGNALS: [libc::c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT];

/// The descriptor that the mark goes to; negative before there is such a file.
static FILE: AtomicI32 = AtomicI32::new(-1);

/// The previous handlers of the signals.
static BEFORE: OnceLock<[libc::sigaction; SIGNALS.len()]> = OnceLock::new();

/// Makes a crash of this process append a byte to the file, the signal's number. To be called
/// before anything else that handles such signals and passes on those of others, such as a sandbox.
///
/// # Errors
/// The system does not take the handlers.
pub fn mark_in(file: File) -> io::Result<()> {
    FILE.store(file.into_raw_fd(), Ordering::Release);
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: all zeroes are a valid `sigaction`: no flags, an empty mask and the default action.
    let mut before: [libc::sigaction; SIGNALS.len()] = unsafe { std::mem::zeroed() };
    for (signal, before) in SIGNALS.into_iter().zip(&mut before) {
        // SAFETY: no handler is installed, and the present one is written to a place of ours.
        check_status(unsafe { libc::sigaction(signal, ptr::null(), before) })?;
    }
    // Set before the first signal can need it.
    let _ = BEFORE.set(before);
    for signal in SIGNALS {
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler has the signature that SA_SIGINFO asks for, and calls nothing that a
        // handler must not.
        check_status(unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) })?;
    }
    Ok(())
}

fn check_status(status: libc::c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Leaves the mark, and hands the signal on to its previous handler.
extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands over a valid `siginfo_t` for the length of the call; its sender is
    // set if the code is not positive.
    let (is_sent, sender) = unsafe { ((*info).si_code <= 0, (*info).si_pid()) };
    // SAFETY: `getpid` can't fail, and is allowed in a handler.
    let is_own = !is_sent || sender == unsafe { libc::getpid() };
    if is_own {
        let mark = signal as u8;
        // SAFETY: one byte of ours is read; the error of a file that is gone is ignored.
        unsafe { libc::write(FILE.load(Ordering::Acquire), ptr::from_ref(&mark).cast(), 1) };
    }
    let before = BEFORE.get().zip(SIGNALS.iter().position(|known| *known == signal));
    if let Some(before) = before.and_then(|(all, place)| all.get(place)) {
        // SAFETY: the action that the kernel gave for this signal is restored; a fault recurs when
        // this returns.
        unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
    }
    if is_sent && sender != 0 && signal != libc::SIGABRT {
        // SAFETY: allowed in a handler. A signal that was sent does not recur by itself.
        unsafe { libc::raise(signal) };
    }
}
