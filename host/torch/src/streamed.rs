//! Packed matrices that wait in host memory, or in their file if there is too little of it, and are
//! copied to a GPU ahead of each of their turns.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tch::{Device, Tensor};
use tilewright_kernels::Packed;

use crate::{Result, device::system_memory, device_packed::DevicePacked, event::Event, transfer};

/// A packed matrix in host memory. Copies run beside the GPU's work, if the memory is pinned.
#[derive(Debug)]
pub struct Streamed {
    shape: [i64; 2],
    bytes: u64,
    places: Mutex<Places>,
}

/// The places of a matrix.
#[derive(Debug)]
struct Places {
    /// Everything of the matrix but its bytes, on the device.
    form: DevicePacked,
    host: Host,
    device: Device,
    turn: Option<Turn>,
}

/// The bytes [rows, bytes of a row] in host memory.
#[derive(Debug)]
enum Host {
    /// In memory of their own.
    Kept(Tensor),
    /// In their file, from which they are read for each turn.
    InFile(Packed),
}

/// True if matrices of `bytes` bytes may stay in host memory beside everything else. Pinned memory
/// is rounded up to a power of two, and can't be swapped out.
///
/// # Errors
/// The kernel does not tell what memory there is.
pub fn can_keep(bytes: u64) -> Result<bool> {
    Ok(bytes <= system_memory()?.available / 4)
}

/// A copy on the device.
#[derive(Debug)]
struct Turn {
    index: Option<usize>,
    bytes: Tensor,
    /// The end of the copy, until work has been queued to wait for it.
    arrival: Option<Event>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        // The memory serves other work from now on, which must not begin before the copy has ended.
        if let (Some(event), Some(index)) = (self.arrival.take(), self.index) {
            let _ = event.block(index);
        }
    }
}

impl Places {
    /// The copy on the device, queued if it is not there.
    fn turn(&mut self) -> Result<&mut Turn> {
        if self.turn.is_none() {
            let (bytes, event) = match &self.host {
                Host::Kept(host) => transfer::start_upload(host, self.device)?,
                // libtorch keeps pinned memory until its copies are done; others are done at once.
                Host::InFile(packed) => {
                    let (_, host) = DevicePacked::apart(packed, Device::Cpu)?;
                    transfer::start_upload(&transfer::to_pinned(&host, self.device)?, self.device)?
                }
            };
            let index = if let Device::Cuda(index) = self.device { Some(index) } else { None };
            self.turn = Some(Turn { index, bytes, arrival: Some(event) });
        }
        self.turn.as_mut().ok_or_else(|| crate::Error::Torch("a copy that is gone".into()))
    }
}

impl Streamed {
    /// A matrix that is kept in host memory of its own, pinned if the system allows it, or else
    /// stays in its file.
    ///
    /// # Errors
    /// Memory is out.
    pub fn new(packed: Packed, device: Device, is_kept: bool) -> Result<Self> {
        let (form, host) = DevicePacked::apart(&packed, device)?;
        let shape = [host.size()[0], form.columns()];
        let bytes = host.numel() as u64;
        let host = if is_kept { Host::Kept(transfer::to_pinned(&host, device)?) } else { Host::InFile(packed) };
        Ok(Self { shape, bytes, places: Mutex::new(Places { form, host, device, turn: None }) })
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rows and columns.
    pub fn shape(&self) -> [i64; 2] {
        self.shape
    }

    /// Bytes of a turn.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Queues the copy to the device, unless it has arrived or is on its way.
    ///
    /// # Errors
    /// Memory is out; a fault of the device.
    pub fn fetch(&self) -> Result<()> {
        self.places().turn().map(drop)
    }

    /// Gives the memory on the device back. Work that is queued may still read it.
    pub fn release(&self) {
        self.places().turn = None;
    }

    /// The matrix on the device, for work that is queued from now on.
    ///
    /// # Errors
    /// As [`Streamed::fetch`].
    pub fn on_device(&self) -> Result<DevicePacked> {
        let mut places = self.places();
        let device = places.device;
        let turn = places.turn()?;
        if let (Some(event), Device::Cuda(index)) = (turn.arrival.take(), device) {
            event.block(index)?;
        }
        let bytes = turn.bytes.shallow_clone();
        Ok(places.form.with_bytes(bytes))
    }
}
