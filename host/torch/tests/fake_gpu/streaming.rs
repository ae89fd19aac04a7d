//! Matrices that are copied to a GPU for their turns, from memory and from files that are slow.

use std::{
    fs::File,
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

use tch::{Device, Kind, Tensor};
use tilewright_kernels::{Bytes, Packed, Scales, Stored};
use tilewright_mapped::MappedFile;
use tilewright_torch::{
    Error,
    cancel::Scope,
    memory, packed,
    pieces::Rates,
    streamed::{Store, Streamed, keep_none},
};

use super::{MIB, difference, gpu, is_with_gpu};

/// A test that takes longer fails.
const PATIENCE: Duration = Duration::from_secs(20);

const ROWS: usize = 64;
const COLUMNS: usize = 4096;

/// Bytes that no read passes while it is closed.
struct Gate {
    bytes: Vec<u8>,
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_closed: bool,
    readers: usize,
    was_forced: bool,
}

/// The gate as the owner of a matrix's bytes.
struct Gated(Arc<Gate>);

impl AsRef<[u8]> for Gated {
    fn as_ref(&self) -> &[u8] {
        let mut state = self.0.state.lock().unwrap();
        state.readers += 1;
        self.0.changed.notify_all();
        let (mut state, late) = self.0.changed.wait_timeout_while(state, PATIENCE, |state| state.is_closed).unwrap();
        state.readers -= 1;
        state.was_forced |= late.timed_out();
        drop(state);
        &self.0.bytes
    }
}

impl Gate {
    fn new(seed: usize) -> Arc<Self> {
        Arc::new(Self { bytes: codes(seed, ROWS), state: Mutex::default(), changed: Condvar::new() })
    }

    fn matrix(self: &Arc<Self>) -> Packed {
        let bytes = Bytes::new(Arc::new(Gated(self.clone())), 0..self.bytes.len()).unwrap();
        matrix(bytes, ROWS)
    }

    fn close(&self) {
        self.state.lock().unwrap().is_closed = true;
    }

    fn open(&self) {
        self.state.lock().unwrap().is_closed = false;
        self.changed.notify_all();
    }

    /// Waits for a read that stands before it.
    fn until_reached(&self) {
        let state = self.state.lock().unwrap();
        let (reached, late) = self.changed.wait_timeout_while(state, PATIENCE, |state| state.readers == 0).unwrap();
        drop(reached);
        assert!(!late.timed_out(), "nobody reads");
    }

    /// No read was let through for want of an end.
    fn assert_obeyed(&self) {
        assert!(!self.state.lock().unwrap().was_forced, "the test's own thread has read");
    }
}

/// Codes of FP8 that are numbers.
fn codes(seed: usize, rows: usize) -> Vec<u8> {
    (0..rows * COLUMNS).map(|index| ((index / 7 + index * 31 + seed) % 126) as u8).collect()
}

fn matrix(bytes: Bytes, rows: usize) -> Packed {
    Packed::new(bytes, Stored::F8E4m3, [rows, COLUMNS], Scales { factors: vec![0.25], groups: None }).unwrap()
}

fn expected(bytes: &[u8]) -> Tensor {
    let rows = bytes.len() / COLUMNS;
    packed::expand(&matrix(bytes.to_vec().into(), rows), 0..rows, Kind::Float).unwrap()
}

/// A store whose matrices all stay in their files.
fn in_files(gpu: Device) -> Arc<Store> {
    Store::with_memory(gpu, MIB, 0)
}

fn values(streamed: &Streamed) -> Tensor {
    let [rows, _] = streamed.shape();
    streamed.on_device().unwrap().expand(0..rows, Kind::Float).unwrap()
}

fn in_use(gpu: Device) -> u64 {
    memory::of(gpu).unwrap().in_use
}

/// Waits until a device holds as many bytes.
fn until_in_use(gpu: Device, bytes: u64) {
    let start = Instant::now();
    while in_use(gpu) != bytes {
        assert!(start.elapsed() < PATIENCE, "{} instead of {bytes}", in_use(gpu));
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn matrices_are_on_the_device_for_their_turns_alone() {
    if !is_with_gpu("streaming::matrices_are_on_the_device_for_their_turns_alone", "devices=1") {
        return;
    }
    let gpu = gpu(0);
    let codes = codes(0, ROWS);
    let expected = expected(&codes);
    for most in [u64::MAX, 0] {
        let streamed = Store::with_memory(gpu, MIB, most).hold(matrix(codes.clone().into(), ROWS)).unwrap();
        assert_eq!(streamed.is_kept(), most > 0);
        assert_eq!((streamed.shape(), streamed.bytes()), ([64, 4096], 64 * 4096));
        let before = in_use(gpu);
        for fetched in [true, false] {
            if fetched {
                streamed.fetch().unwrap();
                streamed.fetch().unwrap();
            }
            let found = values(&streamed);
            assert_eq!(difference(&found, &expected), 0.0);
            drop(found);
            let held = in_use(gpu) - before;
            assert!((64 * 4096..64 * 4096 + 4096).contains(&held), "{held}");
            streamed.release();
            assert_eq!(in_use(gpu), before);
        }
    }
}

#[test]
fn a_fetch_does_not_wait_for_a_slow_file() {
    if !is_with_gpu("streaming::a_fetch_does_not_wait_for_a_slow_file", "devices=1") {
        return;
    }
    let gpu = gpu(0);
    let gates = [Gate::new(1), Gate::new(2)];
    let store = in_files(gpu);
    let all = gates.each_ref().map(|gate| store.hold(gate.matrix()).unwrap());
    gates.iter().for_each(|gate| gate.close());
    // Were either to read, it would stand before the gate until the test fails.
    all.iter().chain(&all).for_each(|streamed| streamed.fetch().unwrap());
    gates[0].until_reached();
    gates[1].open();
    thread::scope(|scope| {
        let found = scope.spawn(|| values(&all[0]));
        thread::sleep(Duration::from_millis(50));
        assert!(!found.is_finished());
        gates[0].open();
        assert_eq!(difference(&found.join().unwrap(), &expected(&gates[0].bytes)), 0.0);
    });
    assert_eq!(difference(&values(&all[1]), &expected(&gates[1].bytes)), 0.0);
    gates.iter().for_each(|gate| gate.assert_obeyed());
}

#[test]
fn turns_may_end_before_their_files_are_read() {
    if !is_with_gpu("streaming::turns_may_end_before_their_files_are_read", "devices=1") {
        return;
    }
    let gpu = gpu(0);
    let gates = [Gate::new(3), Gate::new(4)];
    let store = in_files(gpu);
    let all = gates.each_ref().map(|gate| store.hold(gate.matrix()).unwrap());
    let before = in_use(gpu);
    gates[0].close();
    all[0].fetch().unwrap();
    gates[0].until_reached();
    let with_first = in_use(gpu);
    // One that has not begun gives its memory back at once, one that has when it may.
    all[1].fetch().unwrap();
    assert!(in_use(gpu) > with_first);
    all[1].release();
    assert_eq!(in_use(gpu), with_first);
    all[0].release();
    all[0].fetch().unwrap();
    gates[0].open();
    for (streamed, gate) in all.iter().zip(&gates) {
        assert_eq!(difference(&values(streamed), &expected(&gate.bytes)), 0.0);
        streamed.release();
    }
    until_in_use(gpu, before);
    gates[0].assert_obeyed();
}

#[test]
fn weights_may_go_while_their_file_is_read() {
    if !is_with_gpu("streaming::weights_may_go_while_their_file_is_read", "devices=1") {
        return;
    }
    let gpu = gpu(0);
    let gate = Gate::new(5);
    let before = in_use(gpu);
    let streamed = in_files(gpu).hold(gate.matrix()).unwrap();
    gate.close();
    streamed.fetch().unwrap();
    gate.until_reached();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            gate.open();
        });
        drop(streamed);
    });
    assert_eq!(in_use(gpu), before);
    assert_eq!(Arc::strong_count(&gate), 1, "nobody has the file any more");
}

#[test]
fn a_wait_for_a_slow_file_can_be_cancelled() {
    if !is_with_gpu("streaming::a_wait_for_a_slow_file_can_be_cancelled", "devices=1") {
        return;
    }
    let gpu = gpu(0);
    let gate = Gate::new(6);
    let streamed = in_files(gpu).hold(gate.matrix()).unwrap();
    gate.close();
    {
        let _scope = Scope::enter(Arc::new(|| true), Rates::default());
        assert!(matches!(streamed.on_device(), Err(Error::Cancelled)));
    }
    gate.open();
    assert_eq!(difference(&values(&streamed), &expected(&gate.bytes)), 0.0);
    gate.assert_obeyed();
}

#[test]
fn a_file_that_is_cut_short_is_found_by_its_check() {
    if !is_with_gpu("streaming::a_file_that_is_cut_short_is_found_by_its_check", "devices=1") {
        return;
    }
    let gpu = gpu(0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    let codes = codes(7, ROWS);
    std::fs::write(&path, &codes).unwrap();
    let file = Arc::new(MappedFile::new(&path, File::open(&path).unwrap()).unwrap());
    let bytes = Bytes::new(file.clone(), 0..codes.len()).unwrap();
    let streamed = in_files(gpu).hold(matrix(bytes, ROWS)).unwrap();
    assert_eq!(difference(&values(&streamed), &expected(&codes)), 0.0);
    file.check().unwrap();
    streamed.release();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(5000).unwrap();
    let found = values(&streamed);
    assert_eq!(difference(&found.narrow(0, 0, 1), &expected(&codes[..COLUMNS])), 0.0);
    assert_eq!(f64::try_from(found.narrow(0, 2, 62).abs().max()).unwrap(), 0.0);
    assert!(file.check().is_err());
}

#[test]
fn new_stores_keep_no_matrix_while_none_is_to_be_kept() {
    if !is_with_gpu("streaming::new_stores_keep_no_matrix_while_none_is_to_be_kept", "devices=1") {
        return;
    }
    let codes = codes(3, ROWS);
    let held = || Store::new(gpu(0), MIB).hold(matrix(codes.clone().into(), ROWS)).unwrap();
    let none = keep_none();
    let in_file = held();
    drop(none);
    let kept = held();
    assert!(!in_file.is_kept() && kept.is_kept());
    assert_eq!(difference(&values(&in_file), &values(&kept)), 0.0);
}

#[test]
fn large_matrices_go_through_the_ring_more_than_once() {
    if !is_with_gpu("streaming::large_matrices_go_through_the_ring_more_than_once", "devices=1") {
        return;
    }
    let gpu = gpu(0);
    // Four blocks of 16 MiB, and a fifth that is not full.
    let rows = 17_900;
    let codes = codes(8, rows);
    let streamed = Store::with_memory(gpu, 1 << 30, 0).hold(matrix(codes.clone().into(), rows)).unwrap();
    let kept = Store::with_memory(gpu, 1 << 30, 1 << 30).hold(matrix(codes.into(), rows)).unwrap();
    assert!(kept.is_kept() && !streamed.is_kept());
    for rows in [0..100, 4000..4200, 8000..8400, 12_200..12_300, 16_300..16_500, 17_800..17_900] {
        let of = |streamed: &Streamed| streamed.on_device().unwrap().expand(rows.clone(), Kind::Float).unwrap();
        assert_eq!(difference(&of(&streamed), &of(&kept)), 0.0, "{rows:?}");
    }
}

#[test]
fn a_store_serves_several_threads() {
    if !is_with_gpu("streaming::a_store_serves_several_threads", "devices=1") {
        return;
    }
    let gpu = gpu(0);
    let store = in_files(gpu);
    let all: Vec<Streamed> = (0..3).map(|seed| store.hold(matrix(codes(seed, ROWS).into(), ROWS)).unwrap()).collect();
    let before = in_use(gpu);
    let expected: Vec<Tensor> = (0..3).map(|seed| expected(&codes(seed, ROWS))).collect();
    let expected = Mutex::new(expected);
    thread::scope(|scope| {
        for first in 0..3 {
            let (all, expected) = (&all, &expected);
            scope.spawn(move || {
                for turn in first..first + 60 {
                    let (this, next) = (turn % 3, (turn + 1) % 3);
                    all[next].fetch().unwrap();
                    let found = values(&all[this]);
                    all[this].release();
                    assert_eq!(difference(&found, &expected.lock().unwrap()[this]), 0.0);
                }
            });
        }
    });
    all.iter().for_each(Streamed::release);
    until_in_use(gpu, before);
}

#[test]
fn matrices_stay_in_their_files_where_memory_cannot_be_pinned() {
    let test = "streaming::matrices_stay_in_their_files_where_memory_cannot_be_pinned";
    // A slab for two of them, and no block of the ring.
    if !is_with_gpu(test, "devices=1;pinned=524288") {
        return;
    }
    let gpu = gpu(0);
    let hold = |store: &Arc<Store>, seed| store.hold(matrix(codes(seed, ROWS).into(), ROWS)).unwrap();
    for _ in 0..2 {
        // The second has the memory of the first.
        let store = Store::with_memory(gpu, MIB / 2, u64::MAX);
        let all: Vec<Streamed> = (0..4).map(|seed| hold(&store, seed)).collect();
        assert_eq!(all.iter().map(Streamed::is_kept).collect::<Vec<_>>(), [true, true, false, false]);
        all.iter().for_each(|streamed| streamed.fetch().unwrap());
        for (seed, streamed) in all.iter().enumerate() {
            assert_eq!(difference(&values(streamed), &expected(&codes(seed, ROWS))), 0.0);
        }
    }
}
