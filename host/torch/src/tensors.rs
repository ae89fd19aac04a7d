//! Conversions between bytes and tensors, which tch leaves to raw pointers, and of dtype and memory
//! order.

use tch::{Device, Kind, Tensor};
use tilewright_kernels::Stored;
use tilewright_plan::{Dtype, Layout};

use crate::{Error, Result};

/// tch's name of a type that tensors can be computed in.
///
/// # Errors
/// A quantized type, which no tensor is computed in.
pub fn kind(dtype: Dtype) -> Result<Kind> {
    match dtype {
        Dtype::F32 | Dtype::Tf32 => Ok(Kind::Float),
        Dtype::Bf16 => Ok(Kind::BFloat16),
        Dtype::F16 => Ok(Kind::Half),
        other => Err(Error::Torch(format!("nothing is computed in {other}"))),
    }
}

/// The name in plans of a type that tensors are computed in; none of the others.
pub fn dtype(kind: Kind) -> Option<Dtype> {
    match kind {
        Kind::Float => Some(Dtype::F32),
        Kind::BFloat16 => Some(Dtype::Bf16),
        Kind::Half => Some(Dtype::F16),
        _ => None,
    }
}

/// tch's name of the type of values that stand in a file as they are; none of packed ones.
pub fn stored_kind(stored: Stored) -> Option<Kind> {
    match stored {
        Stored::F64 => Some(Kind::Double),
        other => other.computable().and_then(|dtype| kind(dtype).ok()),
    }
}

/// A tensor of `kind` on `device` from `bytes` stored as `stored`: copied once on a CPU. On the way
/// to a GPU it is copied within host memory first: `bytes` may be a mapped file's, from which HIP
/// takes up to half a second for each tensor (ROCm/legacy-rocm-build issues 6358 and 6606).
///
/// # Errors
/// `bytes` is not as long as `shape` and `stored` say, or memory is out.
pub fn from_bytes(bytes: &[u8], shape: &[i64], stored: Kind, kind: Kind, device: Device) -> Result<Tensor> {
    let elements: usize = shape.iter().map(|&extent| extent as usize).product();
    let size = stored.elt_size_in_bytes();
    if bytes.len() != elements * size {
        return Err(Error::Torch(format!("{} bytes for {elements} elements of {size} bytes", bytes.len())));
    }
    if device != Device::Cpu || stored == kind || bytes.as_ptr().align_offset(size) != 0 {
        return Ok(Tensor::f_from_data_size(bytes, shape, stored)?.f_to_device(device)?.f_to_kind(kind)?);
    }
    // SAFETY: `bytes` holds exactly `shape` elements, is aligned for them, and outlives the tensor,
    // which is only read: the conversion below makes a new one because the kind differs.
    let borrowed = unsafe { Tensor::f_from_blob(bytes.as_ptr(), shape, &dense(shape), stored, Device::Cpu)? };
    Ok(borrowed.f_to_kind(kind)?)
}

/// The steps of a tensor's axes whose values lie one after another.
fn dense(shape: &[i64]) -> Vec<i64> {
    (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect()
}

/// The values of a tensor in host memory, one after another. They take no memory of libtorch's on a
/// CPU.
///
/// # Errors
/// Memory is out.
pub fn bytes_of(tensor: &Tensor) -> Result<Vec<u8>> {
    let (shape, kind) = (tensor.size(), tensor.f_kind()?);
    let length = tensor.numel() * kind.elt_size_in_bytes();
    let mut bytes: Vec<u8> = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| Error::OutOfMemory { bytes: length as u64 })?;
    bytes.resize(length, 0);
    if length > 0 {
        let place = bytes.as_mut_ptr();
        // SAFETY: the bytes are as long as a dense tensor of this shape and type, and outlive the
        // one that stands for them.
        unsafe { Tensor::f_from_blob(place, &shape, &dense(&shape), kind, Device::Cpu) }?.f_copy_(tensor)?;
    }
    Ok(bytes)
}

/// The same values in memory of their own. tch's own copy panics if memory is out.
///
/// # Errors
/// Memory is out.
pub fn copy(tensor: &Tensor) -> Result<Tensor> {
    let mut copy = tensor.f_empty_like()?;
    copy.f_copy_(tensor)?;
    Ok(copy)
}

/// The same values with the memory order [N, H, W, C]; copies only if the order differs.
///
/// # Errors
/// The tensor has not four dimensions, or memory is out.
pub fn channels_last(tensor: &Tensor) -> Result<Tensor> {
    Ok(tensor.f_permute([0, 2, 3, 1])?.f_contiguous()?.f_permute([0, 3, 1, 2])?)
}

/// The same values with the memory order of `layout`; copies only if the order differs.
///
/// # Errors
/// As [`channels_last`].
pub fn to_layout(tensor: &Tensor, layout: Layout) -> Result<Tensor> {
    match layout {
        Layout::ChannelsFirst => Ok(tensor.f_contiguous()?),
        Layout::ChannelsLast => channels_last(tensor),
    }
}

/// The number of values that are NaN or infinite. One pass without temporaries if all are finite.
///
/// # Errors
/// Memory is out.
pub fn non_finite(tensor: &Tensor) -> Result<u64> {
    if tensor.numel() == 0 {
        return Ok(0);
    }
    let (least, most) = tensor.f_aminmax(None, false)?;
    // One copy to the host, which waits for the device.
    let both = Tensor::f_stack(&[least, most], 0)?.f_to_device(Device::Cpu)?.f_to_kind(Kind::Double)?;
    if Vec::<f64>::try_from(&both)?.into_iter().all(f64::is_finite) {
        return Ok(0);
    }
    let finite = i64::try_from(&tensor.f_isfinite()?.f_sum(Kind::Int64)?)?;
    Ok(tensor.numel() as u64 - finite as u64)
}

/// Sets the number of processor threads that one operation may use.
pub fn set_threads(threads: u16) {
    tch::set_num_threads(i32::from(threads));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_tensors_whatever_their_alignment() {
        let values = [1.5_f32, -2.0, 3.25, 0.0];
        let mut bytes = vec![0_u8];
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        for kind in [Kind::Float, Kind::BFloat16] {
            let tensor = from_bytes(&bytes[1..], &[2, 2], Kind::Float, kind, Device::Cpu).unwrap();
            let back: Vec<f32> = Vec::try_from(tensor.to_kind(Kind::Float).flatten(0, -1)).unwrap();
            assert_eq!(back, values);
        }
        assert!(from_bytes(&bytes[1..], &[3, 2], Kind::Float, Kind::Float, Device::Cpu).is_err());
    }

    #[test]
    fn non_finite_values_are_counted() {
        let tensor = Tensor::from_slice(&[1.0_f32, f32::NAN, f32::INFINITY, -3.0]);
        assert_eq!(non_finite(&tensor).unwrap(), 2);
        assert_eq!(non_finite(&Tensor::from_slice(&[1.0_f32, 2.0])).unwrap(), 0);
    }
}
