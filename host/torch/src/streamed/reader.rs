//! The thread that reads matrices from their files and queues their copies to a GPU.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tch::{Device, Kind, Tensor};
use tilewright_kernels::Packed;

use super::{bytes_of, fill, ring::Ring};
use crate::{Error, Result, cancel, event::Event, transfer};

/// The most bytes of a block of the ring: many times what a copy's start costs, and few enough that
/// a slow disk does not keep a store that is given up for long.
const BLOCK: u64 = 16 << 20;

/// Blocks of the ring: one that is filled, one whose copy runs, and some for uneven work.
const BLOCKS: usize = 4;

/// The time after which a wait looks whether the work was cancelled.
const PATIENCE: Duration = Duration::from_millis(10);

/// A copy to a device that is on its way: its one end belongs to the turn, the other to the reader.
pub(super) struct Mark {
    /// The device.
    index: usize,
    state: Mutex<State>,
    changed: Condvar,
}

enum State {
    /// The reader has not begun. The copy may write to the memory behind the event.
    Waiting(Tensor, Event),
    /// The reader is at it.
    Reading,
    /// The copy is queued, and this is its end until work has been queued to wait for it.
    Queued(Option<Event>),
    Failed(Error),
    /// Nobody wants it any more.
    GivenUp,
}

impl Mark {
    fn new(index: usize, state: State) -> Arc<Self> {
        Arc::new(Self { index, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// A copy that is queued.
    pub fn queued(index: usize, end: Event) -> Arc<Self> {
        Self::new(index, State::Queued(Some(end)))
    }

    /// A copy for the reader, which may write to the memory behind the event.
    pub fn waiting(index: usize, target: Tensor, ready: Event) -> Arc<Self> {
        Self::new(index, State::Waiting(target, ready))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reader's beginning; none if nobody wants the copy any more.
    fn begin(&self) -> Option<(Tensor, Event)> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Reading) {
            State::Waiting(target, ready) => Some((target, ready)),
            other => {
                *state = other;
                None
            }
        }
    }

    fn is_given_up(&self) -> bool {
        matches!(*self.state(), State::GivenUp)
    }

    /// True if nothing is to come of it any more.
    pub fn is_over(&self) -> bool {
        matches!(*self.state(), State::GivenUp | State::Failed(_))
    }

    /// Ends the turn. The memory serves other work from then on, which begins after the copy has
    /// ended; if that is not queued whole, the reader has the memory until then.
    pub fn give_up(&self) {
        let mut state = self.state();
        let before = std::mem::replace(&mut *state, State::GivenUp);
        if let State::Queued(Some(end)) = &before {
            let _ = end.block(self.index);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the copy is queued, and lets work that is queued from then on wait for its end.
    /// False if the turn has ended instead.
    ///
    /// # Errors
    /// The reader's, once; the cancellation of this thread's work.
    pub fn arrive(&self) -> Result<bool> {
        let mut state = self.state();
        loop {
            match &mut *state {
                State::Queued(end) => {
                    // Before anybody else may find that nothing is left to wait for.
                    end.take().map_or(Ok(()), |end| end.block(self.index))?;
                    return Ok(true);
                }
                State::GivenUp => return Ok(false),
                State::Failed(_) => {
                    if let State::Failed(error) = std::mem::replace(&mut *state, State::GivenUp) {
                        return Err(error);
                    }
                }
                State::Waiting(..) | State::Reading => {
                    drop(state);
                    cancel::check()?;
                    state = self.state();
                    if matches!(*state, State::Waiting(..) | State::Reading) {
                        let waited = self.changed.wait_timeout(state, PATIENCE);
                        state = waited.unwrap_or_else(PoisonError::into_inner).0;
                    }
                }
            }
        }
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &*self.state() {
            State::Waiting(..) => "Mark(Waiting)",
            State::Reading => "Mark(Reading)",
            State::Queued(_) => "Mark(Queued)",
            State::Failed(_) => "Mark(Failed)",
            State::GivenUp => "Mark(GivenUp)",
        })
    }
}

/// A matrix to be read.
struct Job {
    packed: Arc<Packed>,
    mark: Arc<Mark>,
}

/// The thread, from its first job on.
pub(super) struct Reader {
    device: Device,
    block_bytes: u64,
    running: Option<(Sender<Job>, JoinHandle<()>)>,
}

impl Reader {
    /// A reader of matrices of `bytes` bytes in all.
    pub fn new(device: Device, bytes: u64) -> Self {
        Self { device, block_bytes: bytes.clamp(1, BLOCK).next_power_of_two(), running: None }
    }

    /// Leaves a matrix to the thread, behind those that it was given before.
    ///
    /// # Errors
    /// The system has no thread to spare.
    pub fn read(&mut self, packed: Arc<Packed>, mark: Arc<Mark>) -> Result<()> {
        let refused = |reason: String| Error::Device { what: "starting a thread that reads weights".into(), reason };
        let jobs = match &self.running {
            Some((jobs, _)) => jobs,
            None => {
                let (sender, jobs) = mpsc::channel();
                let (device, bytes) = (self.device, self.block_bytes);
                let thread = thread::Builder::new().name("weights".into()).spawn(move || work(&jobs, device, bytes));
                let thread = thread.map_err(|error| refused(error.to_string()))?;
                &self.running.insert((sender, thread)).0
            }
        };
        jobs.send(Job { packed, mark }).map_err(|_| refused("it has ended".into()))
    }

    /// Ends the thread, after the block that it is at. No turn is left. False if there was none.
    pub fn end(&mut self) -> bool {
        let Some((jobs, thread)) = self.running.take() else { return false };
        drop(jobs);
        let _ = thread.join();
        true
    }
}

/// The thread's work, until the reader ends.
fn work(jobs: &Receiver<Job>, device: Device, block_bytes: u64) {
    let _no_grad = tch::no_grad_guard();
    let mut ring = Ring::new(BLOCKS);
    for Job { packed, mark } in jobs {
        let Some((target, ready)) = mark.begin() else { continue };
        // A wait for it must end with a panic, too.
        let copy = AssertUnwindSafe(|| copy(&packed, &mark, &target, &ready, &mut ring, (device, block_bytes)));
        let panicked = |_| Err(Error::Torch("the thread that reads weights has failed".into()));
        let outcome = catch_unwind(copy).unwrap_or_else(panicked);
        let mut state = mark.state();
        if outcome.is_err() || matches!(*state, State::GivenUp) {
            // The memory serves other work when it is given back, which must not be written to.
            drop(state);
            ring.finish(|end| drop(end.wait()));
            drop(target);
            state = mark.state();
        } else {
            // Before the turn can end: it counts on having the only one.
            drop(target);
        }
        if !matches!(*state, State::GivenUp) {
            *state = outcome.map_or_else(State::Failed, |end| State::Queued(Some(end)));
        }
        mark.changed.notify_all();
    }
    ring.finish(|end| drop(end.wait()));
}

/// Reads a matrix and queues its copies by blocks of the ring, until nobody wants it any more.
/// Returns the end of the last.
fn copy(
    packed: &Packed,
    mark: &Mark,
    target: &Tensor,
    ready: &Event,
    ring: &mut Ring<Tensor, Event>,
    (device, block_bytes): (Device, u64),
) -> Result<Event> {
    let target = target.f_view([-1])?;
    let mut first = 0;
    for bytes in packed.bytes().chunks(block_bytes as usize) {
        if mark.is_given_up() {
            break;
        }
        let slot = ring.next(|| block(block_bytes), Event::wait)?;
        let length = bytes.len() as i64;
        let mut from = slot.memory.f_narrow(0, 0, length)?;
        fill(bytes_of(&mut from), bytes);
        slot.end = Some(transfer::start_copy_after(&target.f_narrow(0, first, length)?, &from, ready)?);
        first += length;
    }
    let end = Event::new();
    if let Device::Cuda(index) = device {
        end.record_behind_copies(index)?;
    }
    Ok(end)
}

/// A block of the ring. A copy from memory that can't be pinned holds up this thread and no other.
fn block(bytes: u64) -> Result<Tensor> {
    transfer::pinned(bytes).or_else(|_| Ok(Tensor::f_empty([bytes as i64], (Kind::Uint8, Device::Cpu))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cancel::Scope, pieces::Rates};

    #[test]
    fn a_failure_is_reported_once_and_is_then_over() {
        let mark = Mark::new(0, State::Failed(Error::OutOfMemory { bytes: 5 }));
        assert!(mark.is_over());
        assert!(matches!(mark.arrive(), Err(Error::OutOfMemory { bytes: 5 })));
        assert!(mark.is_over() && !mark.arrive().unwrap());
    }

    #[test]
    fn a_wait_ends_with_the_copy_the_turn_or_the_work() {
        let mark = Mark::new(0, State::Reading);
        thread::scope(|scope| {
            let waits = scope.spawn(|| mark.arrive().unwrap());
            thread::sleep(Duration::from_millis(30));
            assert!(!waits.is_finished());
            mark.give_up();
            assert!(!waits.join().unwrap());
        });
        let mark = Mark::new(0, State::Reading);
        {
            let _scope = Scope::enter(Arc::new(|| true), Rates::default());
            assert!(matches!(mark.arrive(), Err(Error::Cancelled)));
        }
        assert!(!mark.is_over(), "the copy goes on");
        *mark.state() = State::Queued(None);
        assert!(mark.arrive().unwrap());
    }

    #[test]
    fn blocks_of_the_ring_are_no_larger_than_all_matrices_need() {
        let of = |bytes| Reader::new(Device::Cuda(0), bytes).block_bytes;
        assert_eq!([0, 1000, 1 << 20, 23 << 30].map(of), [1, 1024, 1 << 20, BLOCK]);
    }
}
