//! Packed matrices that wait in pinned host memory, or in their file where there is too little of
//! it, and are copied to a GPU ahead of each of their turns.

mod fill;
mod reader;
mod ring;
mod slabs;

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tch::{Device, Kind, Tensor};
use tilewright_kernels::Packed;

use self::{
    fill::fill,
    reader::{Mark, Reader},
    slabs::Slabs,
};
use crate::{
    Result,
    device::{is_unified, synchronize, system_memory},
    device_packed::DevicePacked,
    event::Event,
    transfer,
};

/// The bytes that matrices may be kept in, of `available` bytes of the host's memory. Pinned memory
/// can't be swapped out, so that some is left to everything else; and most of it where the device
/// has no other memory.
fn most_kept(available: u64, is_unified: bool) -> u64 {
    let quarters = if is_unified { 1 } else { 3 };
    available / 4 * quarters
}

/// True while no matrix of a new store is kept in host memory.
static KEEPS_NONE: AtomicBool = AtomicBool::new(false);

/// The time in which no matrix of a new store is kept in host memory.
#[derive(Debug)]
pub struct KeepsNone(());

impl Drop for KeepsNone {
    fn drop(&mut self) {
        KEEPS_NONE.store(false, Ordering::Relaxed);
    }
}

/// Leaves the matrices of new stores in their files, in the whole process, until the result is
/// dropped: for the comparison of both ways.
#[must_use]
pub fn keep_none() -> KeepsNone {
    KEEPS_NONE.store(true, Ordering::Relaxed);
    KeepsNone(())
}

/// The host's side of the matrices of a network: memory that they are kept in, and the thread that
/// reads those that are not.
pub struct Store {
    device: Device,
    slabs: Mutex<Slabs<Tensor>>,
    reader: Mutex<Reader>,
}

impl Store {
    /// A store for `bytes` bytes of matrices for a GPU. They are kept in up to three quarters of
    /// the memory that is available now, a quarter if the GPU has no memory of its own; none is if
    /// the system does not say what there is.
    pub fn new(device: Device, bytes: u64) -> Arc<Self> {
        let available = system_memory().map_or(0, |memory| memory.available);
        let most = most_kept(available, is_unified(device));
        Self::with_memory(device, bytes, if KEEPS_NONE.load(Ordering::Relaxed) { 0 } else { most })
    }

    /// The same with `most` bytes of host memory to keep matrices in.
    pub fn with_memory(device: Device, bytes: u64, most: u64) -> Arc<Self> {
        let (slabs, reader) = (Slabs::new(bytes, most), Reader::new(device, bytes));
        Arc::new(Self { device, slabs: Mutex::new(slabs), reader: Mutex::new(reader) })
    }

    /// A matrix that is kept in host memory if there is pinned memory for it, or else stays in its
    /// file.
    ///
    /// # Errors
    /// Memory of the device is out.
    pub fn hold(self: &Arc<Self>, packed: Packed) -> Result<Streamed> {
        let form = DevicePacked::form(&packed, self.device)?;
        let rows = packed.shape()[0] as i64;
        let bytes = packed.bytes().len() as u64;
        let (shape, row_bytes) = ([rows, form.columns()], bytes as i64 / rows.max(1));
        let host = match self.keep(packed.bytes())? {
            Some(kept) => Host::Kept(kept.f_view([rows, row_bytes])?),
            None => Host::InFile(Arc::new(packed)),
        };
        let is_kept = matches!(host, Host::Kept(_));
        let places = Mutex::new(Places { form, host, turn: None });
        Ok(Streamed { shape, stored: [rows, row_bytes], is_kept, places, store: self.clone() })
    }

    /// The bytes in pinned memory, if there is some for them.
    fn keep(&self, bytes: &[u8]) -> Result<Option<Tensor>> {
        let mut slabs = self.slabs.lock().unwrap_or_else(PoisonError::into_inner);
        let length = bytes.len() as u64;
        let Some((slab, first)) = slabs.place(length, |size| transfer::pinned(size).ok()) else { return Ok(None) };
        let mut kept = slab.f_narrow(0, first as i64, length as i64)?;
        drop(slabs);
        fill(bytes_of(&mut kept), bytes);
        Ok(Some(kept))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Memory of both goes back to the system; nobody else is left.
        let has_read = self.reader.get_mut().unwrap_or_else(PoisonError::into_inner).end();
        let slabs = std::mem::replace(self.slabs.get_mut().unwrap_or_else(PoisonError::into_inner), Slabs::new(0, 0));
        if slabs.is_empty() && !has_read {
            return;
        }
        drop(slabs);
        // libtorch gives back no memory that a stream may still read.
        if let Err(error) = synchronize(self.device).and_then(|()| transfer::trim_pinned()) {
            tracing::debug!(%error, "pinned memory is not given back");
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({:?})", self.device)
    }
}

/// The bytes of a contiguous tensor on the CPU that nobody else uses now.
fn bytes_of(tensor: &mut Tensor) -> &mut [u8] {
    // SAFETY: the tensor's memory is as long as its elements, lives as long as the borrow, and is
    // written to by nobody else: each matrix has a place of its own, and each block of the ring is
    // filled when no copy reads it any more.
    unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast(), tensor.numel()) }
}

/// A packed matrix in host memory or in its file. Copies run beside the GPU's work.
#[derive(Debug)]
pub struct Streamed {
    shape: [i64; 2],
    /// Rows, and bytes of a row.
    stored: [i64; 2],
    is_kept: bool,
    // Before the store, which gives back the memory that these are in.
    places: Mutex<Places>,
    store: Arc<Store>,
}

/// The places of a matrix.
#[derive(Debug)]
struct Places {
    /// Everything of the matrix but its bytes, on the device.
    form: DevicePacked,
    host: Host,
    turn: Option<Turn>,
}

/// The bytes [rows, bytes of a row] of a matrix.
#[derive(Debug)]
enum Host {
    /// In pinned memory.
    Kept(Tensor),
    /// In their file, from which they are read for each turn.
    InFile(Arc<Packed>),
}

/// A copy on the device, or on its way there.
#[derive(Debug)]
struct Turn {
    bytes: Tensor,
    mark: Arc<Mark>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.mark.give_up();
    }
}

impl Streamed {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rows and columns.
    pub fn shape(&self) -> [i64; 2] {
        self.shape
    }

    /// Bytes of a turn.
    pub fn bytes(&self) -> u64 {
        (self.stored[0] * self.stored[1]) as u64
    }

    /// True if the matrix is kept in host memory, false if it stays in its file.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// The copy on the device, begun if there is none.
    fn turn<'a>(&self, places: &'a mut Places) -> Result<&'a Turn> {
        let Places { host, turn, .. } = places;
        match turn {
            Some(turn) => Ok(turn),
            None => Ok(turn.insert(self.begin(host)?)),
        }
    }

    /// Begins a copy: of memory by queueing it here, of a file by leaving it to the reader, whose
    /// copy waits only for the work that is queued now.
    fn begin(&self, host: &Host) -> Result<Turn> {
        let device = self.store.device;
        let index = if let Device::Cuda(index) = device { index } else { 0 };
        let (bytes, mark) = match host {
            Host::Kept(host) => {
                let (bytes, end) = transfer::start_upload(host, device)?;
                (bytes, Mark::queued(index, end))
            }
            Host::InFile(packed) => {
                let bytes = Tensor::f_empty(self.stored, (Kind::Uint8, device))?;
                let ready = Event::new();
                ready.record(index)?;
                let mark = Mark::waiting(index, bytes.shallow_clone(), ready);
                let mut reader = self.store.reader.lock().unwrap_or_else(PoisonError::into_inner);
                reader.read(packed.clone(), mark.clone())?;
                (bytes, mark)
            }
        };
        Ok(Turn { bytes, mark })
    }

    /// Begins the copy to the device, unless it has arrived or is on its way. Waits for no disk.
    ///
    /// # Errors
    /// Memory is out; a fault of the device.
    pub fn fetch(&self) -> Result<()> {
        self.turn(&mut self.places()).map(drop)
    }

    /// Gives the memory on the device back. Work that is queued may still read it.
    pub fn release(&self) {
        self.places().turn = None;
    }

    /// The matrix on the device, for work that is queued from now on. Waits until its file is read.
    ///
    /// # Errors
    /// As [`Streamed::fetch`], that of the copy, and [`crate::Error::Cancelled`].
    pub fn on_device(&self) -> Result<DevicePacked> {
        loop {
            let (mark, bytes) = {
                let mut places = self.places();
                let turn = self.turn(&mut places)?;
                (turn.mark.clone(), turn.bytes.shallow_clone())
            };
            match mark.arrive() {
                Ok(true) => return Ok(self.places().form.with_bytes(bytes)),
                // Another thread has ended the turn meanwhile.
                Ok(false) => {}
                Err(error) => {
                    let mut places = self.places();
                    if places.turn.as_ref().is_some_and(|turn| Arc::ptr_eq(&turn.mark, &mark)) && mark.is_over() {
                        places.turn = None;
                    }
                    return Err(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_quarters_are_kept_unless_the_device_needs_them() {
        assert_eq!(most_kept(64 << 30, false), 48 << 30);
        assert_eq!(most_kept(64 << 30, true), 16 << 30);
        assert_eq!(most_kept(0, false), 0);
    }
}
