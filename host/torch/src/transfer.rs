//! Tensors that change places between a GPU's memory and the host's.

use std::{cell::RefCell, collections::VecDeque, ffi::c_void, ptr};

use tch::{Device, Kind, Tensor};

use crate::{Error, Result, device::system_memory, event::Event, ffi, scalar::new_tensor};

/// The share of the host's available memory that may be pinned, as a divisor: pinned memory can't
/// be swapped out, and libtorch rounds it up to a power of two.
const PINNED_SHARE: u64 = 4;

/// Brings some tensors from a GPU to the host and others from the host to the GPU, and returns when
/// the GPU's later work may use them. Tensors that are in their place already stay as they are.
///
/// Both directions run at the same time, from and to pinned memory, on streams of their own. A
/// tensor's memory is given back as soon as it is copied, so that at no time more is held than the
/// larger of the two groups takes, and one tensor.
///
/// # Errors
/// Memory is out, or a fault of the device. Each tensor is then in one of the two places.
pub fn swap(device: Device, leaving: Vec<&mut Tensor>, arriving: Vec<&mut Tensor>) -> Result<()> {
    let Device::Cuda(index) = device else { return Ok(()) };
    let _no_grad = tch::no_grad_guard();
    let leaving: Vec<_> = leaving.into_iter().filter(|tensor| tensor.device() == device).collect();
    let arriving = arriving.into_iter().filter(|tensor| tensor.device() != device);
    let needed: u64 = leaving.iter().map(|tensor| bytes(tensor)).sum();
    let pinned = needed > 0 && needed <= system_memory()?.available / PINNED_SHARE;
    let mut under_way = VecDeque::with_capacity(leaving.len());
    for tensor in leaving {
        let host = if pinned { host_like(tensor)? } else { memory_like(tensor, Device::Cpu)? };
        let event = start_copy(&host, tensor)?;
        under_way.push_back((tensor, host, event));
    }
    let mut last = None;
    let outcome = (|| {
        let (mut given, mut taken) = (0, 0);
        for tensor in arriving {
            taken += bytes(tensor);
            while given < taken {
                let Some(copy) = under_way.pop_front() else { break };
                given += finish(copy)?;
            }
            let there = memory_like(tensor, device)?;
            last = Some(start_copy(&there, tensor)?);
            // libtorch keeps pinned memory until its copies are done; others were done at once.
            *tensor = there;
        }
        under_way.into_iter().try_for_each(|copy| finish(copy).map(drop))
    })();
    // Copies of one direction are done in their order. Memory that they write to must not serve
    // other work before, not even after a failure.
    last.map_or(Ok(()), |event| event.block(index)).and(outcome)
}

fn bytes(tensor: &Tensor) -> u64 {
    (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64
}

/// Waits for a copy to the host, and gives the memory on the device back. Returns its bytes.
fn finish((tensor, host, event): (&mut Tensor, Tensor, Event)) -> Result<u64> {
    event.wait()?;
    *tensor = host;
    Ok(bytes(tensor))
}

/// Memory for a tensor's values on a device, not pinned if that is the CPU.
fn memory_like(tensor: &Tensor, device: Device) -> Result<Tensor> {
    Ok(Tensor::f_empty_strided(tensor.size(), tensor.stride(), (tensor.kind(), device))?)
}

/// Pinned memory for a tensor.
fn host_like(tensor: &Tensor) -> Result<Tensor> {
    // SAFETY: the tensor lives; `new_tensor` gives the place of the result.
    new_tensor(|result| unsafe { ffi::tw_host_like(tensor.as_ptr().cast(), result) })
}

/// As many bytes of pinned memory.
///
/// # Errors
/// The system does not allow it.
pub(crate) fn pinned(bytes: u64) -> Result<Tensor> {
    // SAFETY: `new_tensor` gives the place of the result.
    new_tensor(|result| unsafe { ffi::tw_pinned(bytes, result) })
}

/// Gives pinned memory that nothing uses back to the system.
pub(crate) fn trim_pinned() -> Result<()> {
    // SAFETY: it is given no address.
    unsafe { ffi::tw_pinned_empty_cache() }
}

/// Queues the copy of a tensor to a GPU, behind the work that is queued there; the event is its
/// end.
pub(crate) fn start_upload(host: &Tensor, device: Device) -> Result<(Tensor, Event)> {
    let there = memory_like(host, device)?;
    let event = start_copy(&there, host)?;
    Ok((there, event))
}

/// Queues a copy. `to` is a tensor that nothing else writes to.
fn start_copy(to: &Tensor, from: &Tensor) -> Result<Event> {
    start_copy_behind(to, from, ptr::null_mut())
}

/// Queues a copy behind an event that has been recorded.
pub(crate) fn start_copy_after(to: &Tensor, from: &Tensor, event: &Event) -> Result<Event> {
    start_copy_behind(to, from, event.as_ptr())
}

fn start_copy_behind(to: &Tensor, from: &Tensor, behind: *mut c_void) -> Result<Event> {
    let end = Event::new();
    let (to, from) = (to.as_ptr().cast_mut().cast(), from.as_ptr().cast());
    // SAFETY: the tensors and the events live; `behind` is one of them, or null.
    unsafe { ffi::tw_start_copy(to, from, behind, end.as_ptr()) }?;
    Ok(end)
}

/// The bytes of a trial of [`swap`] each way: several tensors, so that both directions overlap.
pub(crate) const TRIAL: i64 = 64 << 20;
const TRIAL_TENSORS: i64 = 8;

/// Work that brings [`TRIAL`] bytes to the host and as many back.
pub(crate) fn trial(device: Device) -> Result<impl Fn() -> Result<Tensor>> {
    let options = (Kind::Float, device);
    let tensor = || Ok::<_, Error>(Tensor::f_zeros([TRIAL / 4 / TRIAL_TENSORS], options)?);
    let one = (0..TRIAL_TENSORS).map(|_| tensor()).collect::<Result<Vec<_>>>()?;
    let mut other = (0..TRIAL_TENSORS).map(|_| tensor()).collect::<Result<Vec<_>>>()?;
    swap(device, other.iter_mut().collect(), Vec::new())?;
    let pair = RefCell::new((one, other));
    Ok(move || {
        let (one, other) = &mut *pair.borrow_mut();
        swap(device, one.iter_mut().collect(), other.iter_mut().collect())?;
        std::mem::swap(one, other);
        Ok(Tensor::new())
    })
}
