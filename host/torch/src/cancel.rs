//! Cancellation of work in the middle of an operation. It belongs to the thread that works: the
//! kernels of `shim/` look at it between their blocks, and operations of libtorch between the
//! pieces that they are divided into ([`crate::pieces`]).

use std::{
    cell::RefCell,
    collections::VecDeque,
    ffi::c_void,
    fmt,
    marker::PhantomData,
    ptr,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tch::Device;

use crate::{Error, Result, event::Event, ffi, pieces::Rates};

/// A question from any thread, many times a second: true if the work is to end.
pub type Check = Arc<dyn Fn() -> bool + Send + Sync>;

/// The cancellation of a thread's work. Once it was asked for it stays.
struct Cancellation {
    check: Check,
    seen: AtomicBool,
}

impl Cancellation {
    fn is_asked(&self) -> bool {
        if self.seen.load(Ordering::Relaxed) {
            return true;
        }
        let is_asked = (self.check)();
        if is_asked {
            self.seen.store(true, Ordering::Relaxed);
        }
        is_asked
    }
}

/// Answers the shim.
extern "C" fn is_asked(of: *const c_void) -> i32 {
    // SAFETY: the shim has the address from `Scope::enter`, whose scope outlives the work within.
    let cancellation = unsafe { &*of.cast::<Cancellation>() };
    cancellation.is_asked().into()
}

/// The surroundings of a thread's work.
pub(crate) struct Current {
    cancellation: Cancellation,
    pub rates: Rates,
    queue: RefCell<Queue>,
}

/// The work that a GPU is expected to have before it.
#[derive(Default)]
struct Queue {
    /// Seconds of work since the last event.
    seconds: f64,
    events: VecDeque<Event>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Current>>> = const { RefCell::new(None) };
}

/// A time in which the work of this thread can be cancelled. The one before counts again when it is
/// dropped.
pub struct Scope {
    before: Option<Rc<Current>>,
    raw_before: ffi::RawCancellation,
    /// The cancellation is this thread's.
    _here: PhantomData<*const ()>,
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scope")
    }
}

impl Scope {
    /// Lets the work of this thread end once a check says so, with [`Error::Cancelled`]. The rates
    /// say how operations are divided for it.
    pub fn enter(check: Check, rates: Rates) -> Self {
        let cancellation = Cancellation { check, seen: AtomicBool::new(false) };
        let current = Rc::new(Current { cancellation, rates, queue: RefCell::default() });
        let raw = ffi::RawCancellation { is_asked: Some(is_asked), of: ptr::from_ref(&current.cancellation).cast() };
        let before = CURRENT.replace(Some(current));
        // SAFETY: the cancellation stays where it is until the scope is dropped, which takes its
        // address back first.
        let raw_before = unsafe { ffi::tw_cancellation_exchange(raw) };
        Self { before, raw_before, _here: PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // SAFETY: the cancellation before belongs to a scope that is still there.
        unsafe { ffi::tw_cancellation_exchange(self.raw_before) };
        CURRENT.set(self.before.take());
    }
}

pub(crate) fn current() -> Option<Rc<Current>> {
    CURRENT.with_borrow(Option::clone)
}

/// Ends the work if it is cancelled.
///
/// # Errors
/// [`Error::Cancelled`].
pub fn check() -> Result<()> {
    current().map_or(Ok(()), |current| current.check())
}

impl Current {
    pub fn check(&self) -> Result<()> {
        if self.cancellation.is_asked() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Notes that work is about to be queued on a device. Waits first while a GPU has more than
    /// `most` seconds of it before it, half of which it keeps, so that it never runs dry.
    pub fn queue(&self, device: Device, seconds: f64, most: f64) -> Result<()> {
        self.check()?;
        let Device::Cuda(index) = device else { return Ok(()) };
        let mut queue = self.queue.borrow_mut();
        if queue.seconds > 0.0 && queue.seconds + seconds > most / 2.0 {
            let event = Event::new();
            event.record(index)?;
            queue.events.push_back(event);
            queue.seconds = 0.0;
            while queue.events.len() > 1 {
                let Some(event) = queue.events.pop_front() else { break };
                event.wait()?;
            }
        }
        queue.seconds += seconds;
        drop(queue);
        self.check()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// A check that is asked a number of times before it cancels the work, and the number of
    /// times that it was asked.
    pub(crate) fn after(count: usize) -> (Check, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = asked.clone();
        (Arc::new(move || counter.fetch_add(1, Ordering::SeqCst) >= count), asked)
    }

    #[test]
    fn a_cancellation_counts_within_its_scope_and_stays() {
        assert!(check().is_ok());
        let (cancellation, asked) = after(2);
        let outer = Scope::enter(cancellation, Rates::default());
        assert!(check().is_ok());
        {
            let _inner = Scope::enter(after(0).0, Rates::default());
            assert!(matches!(check(), Err(Error::Cancelled)));
        }
        assert!(check().is_ok() && check().is_err() && check().is_err());
        assert_eq!(asked.load(Ordering::SeqCst), 3, "it is not asked again once it has cancelled");
        drop(outer);
        assert!(check().is_ok());
    }
}
