//! A recording of what a thread runs, and what its GPU does meanwhile, by libtorch's profiler. It
//! has ranges of our own among libtorch's operators: parts of a run, and operations with their
//! amounts. While nothing is recorded, a range costs a look at a flag.

use std::{
    cell::RefCell,
    ffi::c_void,
    marker::PhantomData,
    ptr::NonNull,
    slice,
    sync::{
        Mutex, MutexGuard, TryLockError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tch::Device;
pub use tilewright_profile::{Amount, Category, Kind, Part, Recording};
use tilewright_profile::{Event, Track};

use crate::{
    Error, Result, cancel, device,
    ffi::{self, RawEvent},
};

/// The beginning of the names by which our ranges come back; the rest is their place in the list.
const OURS: &str = "tilewright#";

/// True while a thread records: the others look no further.
static IS_RECORDING: AtomicBool = AtomicBool::new(false);

/// libtorch's profiler serves one recording at a time.
static PROFILER: Mutex<()> = Mutex::new(());

/// The number of the last recording.
static RECORDING: AtomicU64 = AtomicU64::new(0);

/// The name and the meaning of a range.
type Mark = (String, Kind);

thread_local! {
    /// The ranges of this thread's recording so far.
    static MARKS: RefCell<Option<Vec<Mark>>> = const { RefCell::new(None) };
}

/// A recording of this thread. It is over when it is dropped.
#[derive(Debug)]
pub struct Profiler {
    device: Device,
    /// Ends first.
    stage: Option<Range>,
    _alone: MutexGuard<'static, ()>,
}

impl Profiler {
    /// Begins to record this thread and a device: a stage of this name. It waits for a recording of
    /// another thread to end.
    ///
    /// # Errors
    /// This thread records already, the wait is cancelled, or libtorch's profiler can't record.
    pub fn begin(device: Device, stage: &str) -> Result<Self> {
        const LOOKS: Duration = Duration::from_millis(10);
        if MARKS.with_borrow(Option::is_some) {
            return Err(Error::Torch("the thread is profiled already".into()));
        }
        let alone = loop {
            match PROFILER.try_lock() {
                Ok(alone) => break alone,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    cancel::check()?;
                    thread::sleep(LOOKS);
                }
            }
        };
        device::synchronize(device)?;
        // SAFETY: recordings are begun and ended on this thread alone, one at a time.
        unsafe { ffi::tw_profile_begin(i32::from(device != Device::Cpu)) }?;
        MARKS.set(Some(Vec::new()));
        RECORDING.fetch_add(1, Ordering::Relaxed);
        IS_RECORDING.store(true, Ordering::Relaxed);
        Ok(Self { device, stage: part(Part::Stage, || stage.to_owned()), _alone: alone })
    }

    /// Ends the recording, when the device has done what was launched.
    ///
    /// # Errors
    /// A fault of the device, or of libtorch's profiler.
    pub fn end(mut self) -> Result<Recording> {
        let waited = device::synchronize(self.device);
        drop(self.stage.take());
        let marks = stop().unwrap_or_default();
        let mut gathered = Gathered { marks, events: Vec::new() };
        // SAFETY: the recording was begun on this thread; `gather` gets the address that it casts.
        let ended = unsafe { ffi::tw_profile_end(Some(gather), (&raw mut gathered).cast()) };
        waited.and(ended)?;
        Ok(Recording { events: from_first(gathered.events) })
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        drop(self.stage.take());
        if stop().is_some() {
            // SAFETY: the recording was begun on this thread, and is dropped.
            if let Err(error) = unsafe { ffi::tw_profile_end(None, std::ptr::null_mut()) } {
                tracing::warn!(%error, "a recording of libtorch's profiler did not end");
            }
        }
    }
}

/// Ends the ranges of this thread's recording; none if it has ended.
fn stop() -> Option<Vec<Mark>> {
    IS_RECORDING.store(false, Ordering::Relaxed);
    MARKS.take()
}

/// Times from the first event on.
fn from_first(mut events: Vec<Event>) -> Vec<Event> {
    let first = events.iter().map(|event| event.start).min().unwrap_or_default();
    for event in &mut events {
        (event.start, event.end) = (event.start - first, event.end - first);
    }
    events
}

/// Events as they come, and what our ranges mean.
struct Gathered {
    marks: Vec<Mark>,
    events: Vec<Event>,
}

/// Adds one of the profiler's events.
extern "C" fn gather(event: *const RawEvent, of: *mut c_void) {
    // SAFETY: the shim passes an event that lives through the call, and the address that
    // `Profiler::end` gave.
    let (event, gathered) = unsafe { (&*event, &mut *of.cast::<Gathered>()) };
    // SAFETY: the name has as many bytes.
    let name = unsafe { slice::from_raw_parts(event.name.cast::<u8>(), event.name_length) };
    let mut name = String::from_utf8_lossy(name).into_owned();
    let kind = match event.kind {
        RawEvent::CALL => Kind::Call,
        RawEvent::KERNEL => Kind::Kernel,
        RawEvent::TRANSFER => Kind::Transfer,
        _ => match name.strip_prefix(OURS).and_then(|place| gathered.marks.get(place.parse::<usize>().ok()?)) {
            Some((own, kind)) => {
                name.clone_from(own);
                *kind
            }
            None => Kind::Operator,
        },
    };
    let track = match kind {
        Kind::Kernel | Kind::Transfer => {
            Track::Stream { device: u32::try_from(event.device).unwrap_or_default(), stream: event.track }
        }
        _ => Track::Thread(event.track),
    };
    let RawEvent { start, end, id, launched_by, .. } = *event;
    gathered.events.push(Event { name, kind, track, start, end, id, launched_by });
}

/// A range of this thread's recording, until it is dropped.
#[derive(Debug)]
pub struct Range {
    raw: NonNull<c_void>,
    recording: u64,
    /// Ranges end on the thread that they began on.
    _here: PhantomData<*const ()>,
}

impl Drop for Range {
    fn drop(&mut self) {
        // One that outlived its recording is left alone: the profiler has closed it, and another
        // recording knows nothing of it.
        if MARKS.with_borrow(Option::is_some) && self.recording != RECORDING.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: it began on this thread, and ends once.
        unsafe { ffi::tw_range_end(self.raw.as_ptr()) };
    }
}

/// Begins a part of the run; its name is asked for only if this thread records.
pub fn part(part: Part, name: impl FnOnce() -> String) -> Option<Range> {
    if IS_RECORDING.load(Ordering::Relaxed) { begin(|| (name(), Kind::Part(part))) } else { None }
}

/// Begins an operation; its amount is asked for only if this thread records.
pub fn operation(name: &str, category: Category, amount: impl FnOnce() -> Amount) -> Option<Range> {
    if !IS_RECORDING.load(Ordering::Relaxed) {
        return None;
    }
    begin(|| (name.to_owned(), Kind::Operation(category, amount())))
}

#[cold]
fn begin(mark: impl FnOnce() -> Mark) -> Option<Range> {
    MARKS.with_borrow_mut(|marks| {
        let marks = marks.as_mut()?;
        let name = format!("{OURS}{}", marks.len());
        marks.push(mark());
        // SAFETY: the name has as many bytes; the profiler copies it.
        let raw = unsafe { ffi::tw_range_begin(name.as_ptr().cast(), name.len()) };
        NonNull::new(raw).map(|raw| Range { raw, recording: RECORDING.load(Ordering::Relaxed), _here: PhantomData })
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tch::{Kind as Dtype, Tensor};

    use super::*;

    fn named<'a>(recording: &'a Recording, name: &str) -> Vec<&'a Event> {
        recording.events.iter().filter(|event| event.name == name).collect()
    }

    #[test]
    fn ranges_stand_among_the_operators_that_they_hold() {
        let square = Tensor::ones([64, 64], (Dtype::Float, Device::Cpu));
        let profiler = Profiler::begin(Device::Cpu, "decode").unwrap();
        let tile = part(Part::Tile, || "tile 0".into());
        let amount = Amount { operations: 2.0 * 64f64.powi(3), bytes: 3.0 * 64.0 * 64.0 * 4.0 };
        let product = operation("product", Category::Gemm, || amount);
        let _ = square.matmul(&square);
        drop((product, tile));
        // Another thread is no part of the recording.
        let other = thread::spawn(|| part(Part::Tile, || "another".into()).is_none());
        assert!(other.join().unwrap());
        let recording = profiler.end().unwrap();
        let (stage, tile) = (named(&recording, "decode")[0], named(&recording, "tile 0")[0]);
        let (product, operator) = (named(&recording, "product")[0], named(&recording, "aten::mm")[0]);
        let is_within = |inner: &Event, outer: &Event| {
            inner.track == outer.track && outer.start <= inner.start && inner.end <= outer.end
        };
        assert!(is_within(tile, stage) && is_within(product, tile) && is_within(operator, product));
        assert_eq!(stage.kind, Kind::Part(Part::Stage));
        assert_eq!(product.kind, Kind::Operation(Category::Gemm, amount));
        assert_eq!(operator.kind, Kind::Operator);
        assert!(part(Part::Tile, || panic!("nothing is recorded")).is_none());
    }

    #[test]
    fn a_recording_that_is_given_up_makes_room_for_another() {
        drop(Profiler::begin(Device::Cpu, "decode").unwrap());
        let other = thread::spawn(|| Profiler::begin(Device::Cpu, "encode").unwrap().end().unwrap());
        assert_eq!(named(&other.join().unwrap(), "encode").len(), 1);
    }

    #[test]
    fn a_thread_is_recorded_once_at_a_time() {
        let first = Profiler::begin(Device::Cpu, "decode").unwrap();
        let tile = part(Part::Tile, || "tile 0".into());
        assert!(Profiler::begin(Device::Cpu, "decode").is_err());
        drop(first);
        let second = Profiler::begin(Device::Cpu, "encode").unwrap();
        drop(tile);
        let recording = second.end().unwrap();
        assert_eq!((named(&recording, "encode").len(), named(&recording, "tile 0").len()), (1, 0));
    }
}
