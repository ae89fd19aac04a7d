//! Operators that take numbers. tch 0.24 drops the number of a failed one before it reads the
//! error, and panics there (`Scalar::drop`): an allocation that fails would end the program.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use tch::{Kind, Tensor};

use crate::{Result, ffi};

/// The operators of `shim/scalar.h`.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Operator {
    Add = 0,
    Multiply = 1,
    MultiplyInPlace = 2,
    Clamp = 3,
    ClampMinInPlace = 4,
    FillInPlace = 5,
    Divide = 6,
    Line = 7,
}

/// The tensor plus a number.
///
/// # Errors
/// Memory is out; any other error of libtorch.
pub fn add(tensor: &Tensor, number: f64) -> Result<Tensor> {
    apply(Operator::Add, tensor, number, 0.0)
}

/// The tensor times a number.
///
/// # Errors
/// As [`add`].
pub fn multiply(tensor: &Tensor, number: f64) -> Result<Tensor> {
    apply(Operator::Multiply, tensor, number, 0.0)
}

/// The tensor times a number, in its own memory.
///
/// # Errors
/// As [`add`].
pub fn multiply_in_place(tensor: Tensor, number: f64) -> Result<Tensor> {
    apply(Operator::MultiplyInPlace, &tensor, number, 0.0)
}

/// The tensor times a number, plus another.
///
/// # Errors
/// As [`add`].
pub fn multiply_add(tensor: &Tensor, factor: f64, summand: f64) -> Result<Tensor> {
    apply(Operator::Line, tensor, factor, summand)
}

/// The tensor divided by a number.
///
/// # Errors
/// As [`add`].
pub fn divide(tensor: &Tensor, number: f64) -> Result<Tensor> {
    apply(Operator::Divide, tensor, number, 0.0)
}

/// The tensor with values between two numbers.
///
/// # Errors
/// As [`add`].
pub fn clamp(tensor: &Tensor, least: f64, most: f64) -> Result<Tensor> {
    apply(Operator::Clamp, tensor, least, most)
}

/// The tensor with values of at least a number, in its own memory.
///
/// # Errors
/// As [`add`].
pub fn clamp_min_in_place(tensor: Tensor, least: f64) -> Result<Tensor> {
    apply(Operator::ClampMinInPlace, &tensor, least, 0.0)
}

/// A new tensor with one value throughout.
///
/// # Errors
/// As [`add`].
pub fn full(shape: &[i64], value: f64, options: (Kind, tch::Device)) -> Result<Tensor> {
    apply(Operator::FillInPlace, &Tensor::f_empty(shape, options)?, value, 0.0)
}

/// Zeros of a shape in the memory of one value: they stand for a tensor of whose extents alone
/// something depends, such as a price.
///
/// # Errors
/// As [`add`].
pub fn stand_in(shape: &[i64]) -> Result<Tensor> {
    let one = vec![1_i64; shape.len()];
    Ok(full(&one, 0.0, (Kind::Float, tch::Device::Cpu))?.f_expand(shape, false)?)
}

fn apply(operator: Operator, tensor: &Tensor, first: f64, second: f64) -> Result<Tensor> {
    // SAFETY: the tensor lives through the call, and the result's pointer is valid for writing.
    new_tensor(|result| unsafe {
        ffi::tw_with_scalar(operator as c_int, tensor.as_ptr().cast(), first, second, result)
    })
}

/// The largest magnitude, without axes; in f32.
///
/// # Errors
/// As [`add`].
pub fn largest(tensor: &Tensor) -> Result<Tensor> {
    // SAFETY: as in `apply`.
    new_tensor(|result| unsafe { ffi::tw_largest(tensor.as_ptr().cast(), result) })
}

/// The square root of the sum of squares along an axis, which stays with extent 1; in f32.
///
/// # Errors
/// As [`add`].
pub fn length(tensor: &Tensor, axis: i64) -> Result<Tensor> {
    // SAFETY: as in `apply`.
    new_tensor(|result| unsafe { ffi::tw_length(tensor.as_ptr().cast(), axis, result) })
}

pub(crate) fn new_tensor(function: impl FnOnce(*mut *mut c_void) -> Result<()>) -> Result<Tensor> {
    let mut result = ptr::null_mut();
    function(&mut result)?;
    // SAFETY: the shim made a tensor of its own, which is this one's from now on.
    Ok(unsafe { Tensor::from_ptr(result.cast()) })
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn operators_are_those_of_libtorch() {
        let tensor = Tensor::from_slice(&[-2.0_f32, 0.5, 3.0]);
        let values = |tensor: Result<Tensor>| -> Vec<f32> { Vec::try_from(tensor.unwrap()).unwrap() };
        assert_eq!(values(add(&tensor, 1.0)), [-1.0, 1.5, 4.0]);
        assert_eq!(values(multiply(&tensor, 2.0)), [-4.0, 1.0, 6.0]);
        assert_eq!(values(divide(&tensor, 2.0)), [-1.0, 0.25, 1.5]);
        assert_eq!(values(multiply_add(&tensor, 2.0, 1.0)), [-3.0, 2.0, 7.0]);
        assert_eq!(values(largest(&tensor).map(|number| number.unsqueeze(0))), [3.0]);
        assert_eq!(values(clamp(&tensor, -1.0, 1.0)), [-1.0, 0.5, 1.0]);
        assert_eq!(values(multiply_in_place(tensor.copy(), 2.0)), [-4.0, 1.0, 6.0]);
        assert_eq!(values(clamp_min_in_place(tensor.copy(), 0.0)), [0.0, 0.5, 3.0]);
        assert_eq!(values(full(&[2], 0.5, (Kind::Float, Device::Cpu))), [0.5, 0.5]);
        let square = Tensor::from_slice(&[3.0_f32, 4.0, 6.0, 8.0]).view([2, 2]);
        assert_eq!(values(length(&square, 1).map(|tensor| tensor.flatten(0, -1))), [5.0, 10.0]);
    }

    #[test]
    fn a_failure_is_an_error_and_no_panic() {
        let huge = Tensor::ones([1], (Kind::Float, Device::Cpu)).expand([1 << 60], false);
        assert!(add(&huge, 1.0).is_err());
    }
}
