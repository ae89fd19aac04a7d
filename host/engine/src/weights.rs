//! Weights on lease: loaded networks, kept between uses within a budget for each device.

use std::{
    any::Any,
    fmt,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tch::Device;
use tilewright_models::{
    ComputeFormat, FileId, Lora,
    transformer::{Residency, TransformerFile},
};
use tilewright_torch::memory;

use crate::Result;

/// A part of a file that is loaded by itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// An autoencoder's, from latents to frames.
    Decoder,
    /// An autoencoder's, from frames to latents.
    Encoder,
    /// A denoiser or a text encoder: a file may hold several.
    Transformer {
        /// The prefix of its tensors' names.
        prefix: String,
        /// The identities of its LoRAs, one a line; empty without any.
        loras: String,
    },
}

/// The weights that serve a task: those of one part of one file, on a device, in a format and a
/// place.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightKey {
    /// The file that they come from. A file that was replaced is another one.
    pub file: FileId,
    /// The part of it.
    pub part: Part,
    /// Their device.
    pub device: Device,
    /// Their types and memory order.
    pub format: ComputeFormat,
    /// The memory that they are kept in, and their form there.
    pub residency: Residency,
}

impl WeightKey {
    /// The key of a transformer. Weights are the same however attention and feed-forward layers are
    /// divided.
    pub(crate) fn of_transformer(
        file: &TransformerFile,
        device: Device,
        format: ComputeFormat,
        residency: Residency,
    ) -> Self {
        let loras = file.loras().iter().map(Lora::id).collect::<Vec<_>>().join("\n");
        Self {
            file: file.file().id().clone(),
            part: Part::Transformer { prefix: file.prefix.clone(), loras },
            device,
            format: ComputeFormat { queries: None, feed_forward_parts: 1, quick_fp8_sums: false, ..format },
            residency,
        }
    }
}

/// The idle weights that a store keeps on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// The weights that were used last and no others, whatever they take.
    Last,
    /// So many bytes, with those in use. Weights in use are never taken away: if they alone exceed
    /// the budget, nothing is idle.
    Bytes(u64),
    /// Bytes of weights' own, as [`Budget::Bytes`], and those that are lent to jobs: idle weights
    /// take what no job at work has reserved ([`WeightStore::reserve`]).
    Room {
        /// Bytes for weights, whatever jobs hold.
        own: u64,
        /// Bytes that jobs may hold besides weights.
        lent: u64,
    },
}

impl Budget {
    /// True if idle weights can stay beside a reservation. [`Budget::Last`] reserves nothing: a
    /// lease and its end apply it.
    fn holds(self, usage: &Usage) -> bool {
        let weights = usage.idle_bytes.saturating_add(usage.leased_bytes);
        match self {
            Self::Last => true,
            Self::Bytes(most) => weights <= most,
            Self::Room { own, lent } => weights <= own.saturating_add(lent.saturating_sub(usage.reserved_bytes)),
        }
    }
}

/// The weights that a store holds on a device, and its work there since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of weights in use.
    pub leased_bytes: u64,
    /// Bytes of idle weights.
    pub idle_bytes: u64,
    /// Bytes that jobs at work may hold besides weights.
    pub reserved_bytes: u64,
    /// Loads from files.
    pub loads: u64,
    /// Leases of weights that were there already.
    pub hits: u64,
    /// Idle weights freed to make room.
    pub evictions: u64,
}

/// Loaded weights. A lease takes them out of the store, so that a tensor is in the hands of one
/// thread at a time (libtorch's handles may be sent to a thread and not shared between threads); a
/// second task that needs the same weights at that time loads its own.
///
/// Clones share the same weights.
#[derive(Clone)]
pub struct WeightStore {
    shared: Arc<Shared>,
}

struct Shared {
    default: Budget,
    // Loading takes seconds, so that the lock is never held meanwhile; neither are weights freed
    // under it.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The least recently used first.
    idle: Vec<Idle>,
    usage: Vec<(Device, Usage)>,
    /// The devices whose budgets differ from the default.
    budgets: Vec<(Device, Budget)>,
}

struct Idle {
    key: WeightKey,
    bytes: u64,
    weights: Box<dyn Any + Send>,
}

impl State {
    fn usage(&mut self, device: Device) -> &mut Usage {
        let index = self.usage.iter().position(|(of, _)| *of == device).unwrap_or_else(|| {
            self.usage.push((device, Usage::default()));
            self.usage.len() - 1
        });
        &mut self.usage[index].1
    }

    fn take(&mut self, index: usize) -> Idle {
        let idle = self.idle.remove(index);
        self.usage(idle.key.device).idle_bytes -= idle.bytes;
        idle
    }

    /// Takes out the device's idle weights, the least recently used first and those to be spared
    /// never, until `is_enough` is true of the usage.
    fn evict(&mut self, device: Device, spared: Option<&WeightKey>, is_enough: impl Fn(&Usage) -> bool) -> Vec<Idle> {
        let mut evicted = Vec::new();
        while !is_enough(self.usage(device)) {
            let goes = |idle: &Idle| idle.key.device == device && Some(&idle.key) != spared;
            let Some(index) = self.idle.iter().position(goes) else { break };
            evicted.push(self.take(index));
            self.usage(device).evictions += 1;
        }
        evicted
    }
}

impl WeightStore {
    /// A store with this budget for every device.
    pub fn new(default: Budget) -> Self {
        Self { shared: Arc::new(Shared { default, state: Mutex::default() }) }
    }

    /// Gives a device a budget of its own. Idle weights beyond it go when weights are next given
    /// back or loaded there, or memory is reserved.
    pub fn set_budget(&self, device: Device, budget: Budget) {
        let mut state = self.state();
        state.budgets.retain(|(of, _)| *of != device);
        state.budgets.push((device, budget));
    }

    /// The budget of a device.
    pub fn budget(&self, device: Device) -> Budget {
        let own = self.state().budgets.iter().find(|(of, _)| *of == device).map(|(_, budget)| *budget);
        own.unwrap_or(self.shared.default)
    }

    /// The weights that the store holds on a device, and its work there.
    pub fn usage(&self, device: Device) -> Usage {
        *self.state().usage(device)
    }

    /// Takes the weights of a key, or loads them with `load` if no idle ones are there. Room is
    /// made before for the `bytes` that they take: idle weights on the device go, the least
    /// recently used first, until the budget holds all.
    ///
    /// The second value is the time that loading took; zero for weights that were there.
    ///
    /// # Errors
    /// Those of `load`; the room that was made stays free.
    pub fn lease<W: Any + Send>(
        &self,
        key: &WeightKey,
        bytes: u64,
        load: impl FnOnce() -> Result<W>,
    ) -> Result<(Lease<W>, Duration)> {
        let lease = |weights, bytes| Lease { weights, key: key.clone(), bytes, is_kept: true, store: self.clone() };
        if let Some((weights, bytes)) = self.find(key) {
            return Ok((lease(Some(weights), bytes), Duration::ZERO));
        }
        let budget = self.budget(key.device);
        let evicted = {
            let mut state = self.state();
            state.usage(key.device).leased_bytes += bytes;
            state.evict(key.device, None, |usage| match budget {
                Budget::Last => usage.idle_bytes == 0,
                budget => budget.holds(usage),
            })
        };
        // An empty lease gives the room back if loading fails or panics.
        let mut lease = lease(None, bytes);
        if !evicted.is_empty() {
            drop(evicted);
            // The pool keeps freed blocks by size, and other weights rarely fit them.
            memory::trim(key.device)?;
        }
        let start = Instant::now();
        lease.weights = Some(load()?);
        self.state().usage(key.device).loads += 1;
        Ok((lease, start.elapsed()))
    }

    /// True if weights of a key are idle: a lease loads nothing.
    pub fn has_idle(&self, key: &WeightKey) -> bool {
        self.state().idle.iter().any(|idle| idle.key == *key)
    }

    /// True if weights of `bytes` bytes may stay on a device when they are given back.
    pub fn may_keep(&self, device: Device, bytes: u64) -> bool {
        match self.budget(device) {
            Budget::Last => true,
            Budget::Bytes(most) => most > 0 && bytes <= most,
            Budget::Room { own, lent } => bytes <= own.saturating_add(lent),
        }
    }

    /// Reserves what a job may hold on a device besides weights, while the reservation lives. Idle
    /// weights go to make room for it, the least recently used first; those of `spared`, which the
    /// job is about to lease, stay.
    ///
    /// # Errors
    /// libtorch's failure to return memory.
    pub fn reserve(&self, device: Device, bytes: u64, spared: Option<&WeightKey>) -> Result<Reservation> {
        let budget = self.budget(device);
        let (evicted, bytes) = {
            let mut state = self.state();
            let reserved = &mut state.usage(device).reserved_bytes;
            // A job without a limit reserves all: what it gives back is what it added.
            let bytes = bytes.min(u64::MAX - *reserved);
            *reserved += bytes;
            (state.evict(device, spared, |usage| budget.holds(usage)), bytes)
        };
        let reservation = Reservation { device, bytes, store: self.clone() };
        if !evicted.is_empty() {
            drop(evicted);
            memory::trim(device)?;
        }
        Ok(reservation)
    }

    /// Frees the idle weights of a file, of which a newer one may be in its place.
    pub fn forget(&self, file: &FileId) {
        let mut state = self.state();
        let mut freed = Vec::new();
        while let Some(index) = state.idle.iter().position(|idle| idle.key.file == *file) {
            freed.push(state.take(index));
        }
        drop(state);
    }

    fn find<W: Any + Send>(&self, key: &WeightKey) -> Option<(W, u64)> {
        let mut state = self.state();
        let index = state.idle.iter().rposition(|idle| idle.key == *key && (*idle.weights).is::<W>())?;
        let Idle { bytes, weights, .. } = state.take(index);
        let usage = state.usage(key.device);
        usage.leased_bytes += bytes;
        usage.hits += 1;
        drop(state);
        weights.downcast().ok().map(|weights| (*weights, bytes))
    }

    /// Puts weights back among the idle ones, within the budget.
    fn give_back<W: Any + Send>(&self, key: WeightKey, bytes: u64, weights: W) {
        let device = key.device;
        let budget = self.budget(device);
        let mut state = self.state();
        let usage = state.usage(device);
        usage.leased_bytes -= bytes;
        usage.idle_bytes += bytes;
        state.idle.push(Idle { key, bytes, weights: Box::new(weights) });
        let evicted = state.evict(device, None, |usage| match budget {
            Budget::Last => usage.idle_bytes == bytes,
            budget => budget.holds(usage),
        });
        drop(state);
        drop(evicted);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic leaves a change half done, so that a poisoned lock is still sound.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for WeightStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeightStore").field("usage", &self.state().usage).finish()
    }
}

/// Memory that a job may hold besides weights, until it is dropped.
#[derive(Debug)]
pub struct Reservation {
    device: Device,
    bytes: u64,
    store: WeightStore,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.store.state();
        state.usage(self.device).reserved_bytes -= self.bytes;
    }
}

/// Weights in use. They go back to their store when the lease is dropped, after a failed task as
/// after a finished one, unless they are to be freed; a panic frees them.
pub struct Lease<W: Any + Send> {
    weights: Option<W>,
    key: WeightKey,
    bytes: u64,
    is_kept: bool,
    store: WeightStore,
}

impl<W: Any + Send> Lease<W> {
    /// The bytes that the weights take on their device.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The weights' types and memory order.
    pub fn format(&self) -> ComputeFormat {
        self.key.format
    }

    /// The same lease, at whose end the weights are freed in place of given back.
    #[must_use]
    pub fn freed_after_use(mut self) -> Self {
        self.is_kept = false;
        self
    }
}

impl<W: Any + Send> Deref for Lease<W> {
    type Target = W;

    fn deref(&self) -> &W {
        // They are taken when the lease is dropped, and never before.
        self.weights.as_ref().expect("a lease has its weights until it is dropped")
    }
}

impl<W: Any + Send> DerefMut for Lease<W> {
    fn deref_mut(&mut self) -> &mut W {
        self.weights.as_mut().expect("a lease has its weights until it is dropped")
    }
}

impl<W: Any + Send> Drop for Lease<W> {
    fn drop(&mut self) {
        match self.weights.take() {
            Some(weights) if self.is_kept && !thread::panicking() => {
                self.store.give_back(self.key.clone(), self.bytes, weights)
            }
            weights => {
                drop(weights);
                self.store.state().usage(self.key.device).leased_bytes -= self.bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tilewright_plan::{Dtype, Layout, Precision};

    use super::*;

    static ALIVE: AtomicU32 = AtomicU32::new(0);

    struct Loaded;

    struct Counted(&'static AtomicU32);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn key(file: u64, dtype: Dtype) -> WeightKey {
        let format = ComputeFormat::new(Precision::Uniform(dtype), Layout::ChannelsLast).unwrap();
        WeightKey {
            file: FileId::for_tests(file),
            part: Part::Decoder,
            device: Device::Cpu,
            format,
            residency: Residency::Expanded,
        }
    }

    fn lease(store: &WeightStore, file: u64, bytes: u64) -> Lease<Loaded> {
        store.lease(&key(file, Dtype::F32), bytes, || Ok(Loaded)).unwrap().0
    }

    #[test]
    fn weights_that_were_used_are_leased_again_without_a_load() {
        let store = WeightStore::new(Budget::Bytes(100));
        drop(lease(&store, 1, 40));
        drop(lease(&store, 2, 40));
        drop(lease(&store, 1, 40));
        let usage = store.usage(Device::Cpu);
        assert_eq!((usage.loads, usage.hits, usage.idle_bytes, usage.leased_bytes), (2, 1, 80, 0));
        assert_eq!(store.usage(Device::Cuda(0)), Usage::default(), "another device");
    }

    #[test]
    fn the_least_recently_used_goes_first_and_nothing_in_use_goes() {
        let store = WeightStore::new(Budget::Bytes(100));
        drop(lease(&store, 1, 40));
        drop(lease(&store, 2, 40));
        let used = lease(&store, 1, 40);
        // 2 is idle and goes; 1 is in use, so that both together exceed the budget for a while.
        let large = lease(&store, 3, 90);
        let usage = store.usage(Device::Cpu);
        assert_eq!((usage.leased_bytes, usage.idle_bytes, usage.evictions), (130, 0, 1));
        drop(used);
        assert_eq!(store.usage(Device::Cpu).idle_bytes, 0, "no room while the other is in use");
        drop(large);
        let usage = store.usage(Device::Cpu);
        assert_eq!((usage.leased_bytes, usage.idle_bytes), (0, 90));
    }

    #[test]
    fn two_tasks_at_once_have_weights_of_their_own() {
        let store = WeightStore::new(Budget::Bytes(100));
        let (one, other) = (lease(&store, 1, 30), lease(&store, 1, 30));
        drop((one, other));
        let again = (lease(&store, 1, 30), lease(&store, 1, 30));
        let usage = store.usage(Device::Cpu);
        assert_eq!((usage.loads, usage.hits), (2, 2));
        drop(again);
    }

    #[test]
    fn only_the_last_stay_if_so_asked() {
        let store = WeightStore::new(Budget::Last);
        drop(lease(&store, 1, 40));
        let wider = store.lease(&key(1, Dtype::Bf16), 20, || {
            assert_eq!(store.usage(Device::Cpu).idle_bytes, 0, "the others are gone before the load");
            Ok(Loaded)
        });
        drop(wider.unwrap());
        assert_eq!(store.usage(Device::Cpu).idle_bytes, 20);
    }

    #[test]
    fn idle_weights_take_the_memory_that_no_job_needs() {
        let store = WeightStore::new(Budget::Room { own: 10, lent: 90 });
        drop((lease(&store, 1, 40), lease(&store, 2, 40)));
        assert_eq!(store.usage(Device::Cpu).idle_bytes, 80, "no job is at work");
        // The job is about to lease the one that was used last but one.
        let reserved = store.reserve(Device::Cpu, 50, Some(&key(1, Dtype::F32))).unwrap();
        assert!(store.has_idle(&key(1, Dtype::F32)) && !store.has_idle(&key(2, Dtype::F32)));
        let used = lease(&store, 1, 40);
        // Another one has no room beside it until the job ends.
        drop(lease(&store, 3, 20));
        let usage = store.usage(Device::Cpu);
        assert_eq!((usage.leased_bytes, usage.idle_bytes, usage.reserved_bytes), (40, 0, 50));
        drop((reserved, used));
        drop(lease(&store, 3, 20));
        let usage = store.usage(Device::Cpu);
        assert_eq!((usage.idle_bytes, usage.reserved_bytes, usage.hits), (60, 0, 1));
        assert!(store.may_keep(Device::Cpu, 100) && !store.may_keep(Device::Cpu, 101));
        let endless = [5, u64::MAX].map(|bytes| store.reserve(Device::Cpu, bytes, Some(&key(1, Dtype::F32))).unwrap());
        let [first, second] = endless;
        drop(second);
        assert_eq!(store.usage(Device::Cpu).reserved_bytes, 5, "the other job's stays");
        drop((first, lease(&store, 1, 40), lease(&store, 3, 20)));
        drop(lease(&store, 3, 20).freed_after_use());
        assert_eq!(store.usage(Device::Cpu).idle_bytes, 40, "freed, not given back");
    }

    #[test]
    fn a_load_that_fails_or_panics_leaves_nothing_behind() {
        let store = WeightStore::new(Budget::Bytes(100));
        let failed = store.lease::<Loaded>(&key(1, Dtype::F32), 50, || Err(crate::Error::Interrupted));
        assert!(failed.is_err());
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            store.lease::<Loaded>(&key(1, Dtype::F32), 50, || panic!("a test")).map(drop)
        }));
        assert!(panicked.is_err());
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _lease = lease(&store, 1, 30);
            panic!("a test");
        }));
        assert!(panicked.is_err());
        let usage = store.usage(Device::Cpu);
        assert_eq!((usage.leased_bytes, usage.idle_bytes, usage.loads), (0, 0, 1));
    }

    #[test]
    fn freed_weights_are_gone() {
        let store = WeightStore::new(Budget::Bytes(100));
        for file in 1..=3 {
            ALIVE.fetch_add(1, Ordering::SeqCst);
            drop(store.lease(&key(file, Dtype::F32), 10, || Ok(Counted(&ALIVE))).unwrap());
        }
        store.forget(&FileId::for_tests(2));
        assert_eq!(ALIVE.load(Ordering::SeqCst), 2);
        assert_eq!(store.usage(Device::Cpu).idle_bytes, 20);
        drop(store);
        assert_eq!(ALIVE.load(Ordering::SeqCst), 0);
    }
}
