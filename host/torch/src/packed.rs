//! Matrices that stay in the type that their file stores them in. Their values are expanded where
//! they are needed: a panel at a time within a product on the CPU, a few rows at a time elsewhere.

use std::ops::Range;

use tch::{Device, Kind, Tensor};
use tilewright_kernels::{Groups, Packed};

use crate::{Error, Result, ffi, tokens};

fn raw(matrix: &Packed) -> ffi::RawPacked {
    let ([rows, columns], scales) = (matrix.shape(), matrix.scales());
    let groups = scales.groups.as_ref();
    ffi::RawPacked {
        bytes: matrix.bytes().as_ptr(),
        rows: rows as i64,
        columns: columns as i64,
        // The codes are in the order of `tw_packing` in `shim/expand.h`.
        packing: matrix.code() as i32,
        scales: scales.factors.as_ptr(),
        scale_count: scales.factors.len() as i64,
        groups: ffi::RawGroups {
            codes: groups.map_or(std::ptr::null(), |Groups { codes, .. }| codes.as_ptr()),
            values: groups.map_or(0, |groups| groups.values as i64),
            e8m0: groups.is_some_and(|groups| groups.powers).into(),
        },
    }
}

/// Some rows of a matrix, expanded in host memory: in f32 first, which is then rounded to `kind`.
///
/// # Errors
/// There are no such rows, or the kind is none of f32, bf16 and f16; memory is out.
pub fn expand(matrix: &Packed, rows: Range<usize>, kind: Kind) -> Result<Tensor> {
    let code = [Kind::Float, Kind::BFloat16, Kind::Half].iter().position(|of| *of == kind);
    let [all, columns] = matrix.shape();
    let (Some(code), true) = (code, rows.start <= rows.end && rows.end <= all) else {
        return Err(Error::Torch(format!("rows {rows:?} of {all} as {kind:?}")));
    };
    let tensor = Tensor::f_empty([rows.len() as i64, columns as i64], (kind, Device::Cpu))?;
    let (raw, to) = (raw(matrix), tensor.data_ptr());
    // SAFETY: the bytes and scales are as many as the shape says, which `Packed::new` checked; the
    // tensor is contiguous, of the kind that the code says, and has as many rows.
    unsafe { ffi::tw_expand(&raw, rows.start as i64, rows.len() as i64, code as i32, to) }?;
    Ok(tensor)
}

/// True if products of a kind run with a panel at a time on this processor.
pub fn has_products(kind: Kind) -> bool {
    match kind {
        Kind::Float => ffi::tw_product_available(0) != 0,
        Kind::BFloat16 => ffi::tw_product_available(1) != 0,
        _ => false,
    }
}

/// True if this processor multiplies a matrix in 8-bit integers ([`multiply_int8`]).
pub fn has_int8_products(matrix: &Packed) -> bool {
    ffi::tw_int8_available() != 0 && matrix.stored().suits_int8_products() && matrix.suits_int8_products()
}

/// `left` [M, columns] · matrixᵀ + `bias`, written to `output` [M, rows], which may be part of
/// wider rows. Each is f32 or bf16, on the CPU; `bias` is f32. Sums are f32.
///
/// # Errors
/// Shapes or types do not fit, or the processor has no such products ([`has_products`]).
pub fn multiply(left: &Tensor, matrix: &Packed, bias: Option<&Tensor>, output: &Tensor) -> Result<()> {
    match has_products(left.f_kind()?) {
        true => multiply_by(ffi::tw_multiply, left, matrix, bias, output),
        false => Err(Error::Torch(format!("a product in {:?}", left.f_kind()?))),
    }
}

/// The same with operands in 8-bit integers: those of the matrix as they are stored, and the left
/// side's rounded to them by a scale for each 32 columns, of their largest magnitude over 127.
/// Sums of 32 products are exact.
///
/// # Errors
/// As [`multiply`], or the matrix has no such products ([`has_int8_products`]).
pub fn multiply_int8(left: &Tensor, matrix: &Packed, bias: Option<&Tensor>, output: &Tensor) -> Result<()> {
    match has_int8_products(matrix) && [Kind::Float, Kind::BFloat16].contains(&left.f_kind()?) {
        true => multiply_by(ffi::tw_int8_multiply, left, matrix, bias, output),
        false => Err(Error::Torch(format!("a product in 8-bit integers with {}", matrix.stored()))),
    }
}

type Multiply = unsafe fn(*const ffi::RawProduct) -> Result<()>;

fn multiply_by(by: Multiply, left: &Tensor, matrix: &Packed, bias: Option<&Tensor>, output: &Tensor) -> Result<()> {
    let kind = left.f_kind()?;
    let (shape, into) = (left.size(), output.size());
    let [rows, columns] = matrix.shape().map(|extent| extent as i64);
    let fits = shape.len() == 2
        && shape[1] == columns
        && into == [shape[0], rows]
        && left.is_contiguous()
        && output.stride()[1] == 1
        && [Kind::Float, Kind::BFloat16].contains(&output.f_kind()?)
        && [left.device(), output.device()] == [Device::Cpu; 2];
    let bias = bias.map_or(Some(std::ptr::null()), |bias| tokens::vector(bias, rows).filter(|_| bias.dim() == 1));
    let (true, Some(bias)) = (fits, bias) else {
        return Err(Error::Torch(format!("a product of {shape:?} and {rows}×{columns} into {into:?} in {kind:?}")));
    };
    if shape[0] == 0 || rows == 0 {
        return Ok(());
    }
    let packed = raw(matrix);
    let raw = ffi::RawProduct {
        matrix: &packed,
        rows: shape[0],
        bf16: (kind == Kind::BFloat16).into(),
        output_bf16: (output.f_kind()? == Kind::BFloat16).into(),
        left: left.data_ptr(),
        bias,
        output: output.data_ptr(),
        output_apart: output.stride()[0],
    };
    // SAFETY: every address is of as many values as the shapes and strides checked above say, and
    // lives through the call.
    unsafe { by(&raw) }
}

#[cfg(test)]
mod tests {
    use tilewright_kernels::{Scales, Stored};

    use super::*;

    fn packed(stored: Stored, [rows, columns]: [usize; 2], seed: u64) -> Packed {
        let length = stored.bytes(&[rows, columns]).unwrap();
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u8
        };
        let mut bytes: Vec<u8> = (0..length).map(|_| next()).collect();
        // Finite values of order one: f32 and 16-bit floats made from codes, scales from zeros.
        match stored {
            Stored::F32 => bytes.chunks_mut(4).for_each(|b| {
                let value = f32::from(b[0]) / 64.0 - 2.0;
                b.copy_from_slice(&value.to_le_bytes());
            }),
            Stored::Bf16 => bytes.chunks_mut(2).for_each(|b| {
                let value = f32::from(b[0]) / 64.0 - 2.0;
                b.copy_from_slice(&((value.to_bits() >> 16) as u16).to_le_bytes());
            }),
            Stored::Q8_0 => bytes.chunks_mut(34).for_each(|b| b[..2].copy_from_slice(&0x2000_u16.to_le_bytes())),
            _ => {}
        }
        Packed::new(bytes.into(), stored, [rows, columns], Scales::default()).unwrap()
    }

    #[test]
    fn products_with_panels_are_those_with_the_expanded_matrix() {
        let _no_grad = tch::no_grad_guard();
        for (stored, columns) in [(Stored::F32, 33), (Stored::Bf16, 48), (Stored::Q8_0, 96), (Stored::Bf16, 7)] {
            for (rows, left_rows) in [(1, 1), (64, 65), (131, 3), (200, 130)] {
                let matrix = packed(stored, [rows, columns], rows as u64);
                for kind in [Kind::Float, Kind::BFloat16].into_iter().filter(|kind| has_products(*kind)) {
                    let left = Tensor::randn([left_rows, columns as i64], (Kind::Float, Device::Cpu)).to_kind(kind);
                    let bias = Tensor::randn([rows as i64], (Kind::Float, Device::Cpu));
                    let wide = Tensor::zeros([left_rows, rows as i64 + 5], (kind, Device::Cpu));
                    let output = wide.narrow(1, 2, rows as i64);
                    multiply(&left, &matrix, Some(&bias), &output).unwrap();
                    let expanded = expand(&matrix, 0..rows, kind).unwrap().to_kind(Kind::Double);
                    let expected = left.to_kind(Kind::Double).matmul(&expanded.tr()) + bias.to_kind(Kind::Double);
                    let difference = f64::try_from((output.to_kind(Kind::Double) - &expected).abs().max()).unwrap();
                    let most = f64::try_from(expected.abs().max()).unwrap();
                    let bound = if kind == Kind::Float { 1e-5 } else { 4e-3 } * most.max(1.0);
                    assert!(difference < bound, "{stored} {rows}×{columns} {kind:?}: {difference}");
                    let around = f64::try_from(wide.narrow(1, 0, 2).abs().sum(Kind::Float)).unwrap();
                    assert_eq!(around, 0.0, "written beside its place");
                }
            }
        }
    }

    /// Finite values of order one in any type that is multiplied in 8-bit integers: the scales of a
    /// block, wherever they are, are small numbers.
    fn quantized(stored: Stored, [rows, columns]: [usize; 2], seed: u64) -> Packed {
        let mut bytes = packed(stored, [rows, columns], seed).bytes().to_vec();
        let small = 0x2000_u16.to_le_bytes();
        let (block, halves): (usize, &[usize]) = match stored {
            Stored::Q8_0 => (34, &[0]),
            Stored::Q4_0 | Stored::Iq4Nl => (18, &[0]),
            Stored::Q4_1 => (20, &[0, 2]),
            Stored::Q5_0 => (22, &[0]),
            Stored::Q5_1 => (24, &[0, 2]),
            Stored::Q4K => (144, &[0, 2]),
            Stored::Q5K => (176, &[0, 2]),
            Stored::Q6K => (210, &[208]),
            Stored::Iq4Xs => (136, &[0]),
            _ => (1, &[]),
        };
        for block in bytes.chunks_mut(block) {
            halves.iter().for_each(|half| block[*half..half + 2].copy_from_slice(&small));
        }
        Packed::new(bytes.into(), stored, [rows, columns], Scales::default()).unwrap()
    }

    const INTEGERS: [Stored; 11] = [
        Stored::I8,
        Stored::Q8_0,
        Stored::Q4_0,
        Stored::Q4_1,
        Stored::Q5_0,
        Stored::Q5_1,
        Stored::Q4K,
        Stored::Q5K,
        Stored::Q6K,
        Stored::Iq4Nl,
        Stored::Iq4Xs,
    ];

    /// The left side as it is rounded, in f64: to whole multiples of the largest magnitude of 32
    /// columns over 127.
    fn rounded(left: &Tensor) -> Tensor {
        let (rows, columns) = left.size2().unwrap();
        let blocks = left.to_kind(Kind::Float).view([rows, columns / 32, 32]);
        let scales = blocks.abs().amax([2].as_slice(), true) / 127.0;
        let inverse = scales.reciprocal();
        let codes = (&blocks * &inverse).round();
        (codes.to_kind(Kind::Double) * scales.to_kind(Kind::Double)).view([rows, columns])
    }

    #[test]
    fn products_in_integers_are_those_of_the_rounded_left_side() {
        let _no_grad = tch::no_grad_guard();
        if ffi::tw_int8_available() == 0 {
            return;
        }
        for (index, stored) in INTEGERS.into_iter().enumerate() {
            assert!(stored.suits_int8_products(), "{stored}");
            for (rows, left_rows, columns) in [(1, 1, 256), (64, 3, 512), (131, 65, 768), (70, 1030, 256)] {
                let matrix = quantized(stored, [rows, columns], index as u64 + 1);
                let kind = if rows % 2 == 0 { Kind::BFloat16 } else { Kind::Float };
                let left = Tensor::randn([left_rows, columns as i64], (Kind::Float, Device::Cpu)).to_kind(kind);
                let bias = Tensor::randn([rows as i64], (Kind::Float, Device::Cpu));
                let wide = Tensor::zeros([left_rows, rows as i64 + 5], (Kind::Float, Device::Cpu));
                let output = wide.narrow(1, 2, rows as i64);
                multiply_int8(&left, &matrix, Some(&bias), &output).unwrap();
                let expanded = expand(&matrix, 0..rows, Kind::Float).unwrap().to_kind(Kind::Double);
                let expected = rounded(&left).matmul(&expanded.tr()) + bias.to_kind(Kind::Double);
                let difference = f64::try_from((output.to_kind(Kind::Double) - &expected).abs().max()).unwrap();
                let most = f64::try_from(expected.abs().max()).unwrap();
                assert!(difference < 1e-5 * most, "{stored} {rows}×{columns} {kind:?}: {difference} of {most}");
                let around = f64::try_from(wide.narrow(1, 0, 2).abs().sum(Kind::Float)).unwrap();
                assert_eq!(around, 0.0, "written beside its place");
            }
        }
    }

    #[test]
    fn products_in_integers_keep_what_is_not_finite_in_its_row() {
        let _no_grad = tch::no_grad_guard();
        if ffi::tw_int8_available() == 0 {
            return;
        }
        let matrix = quantized(Stored::Q8_0, [9, 64], 3);
        let left = Tensor::zeros([4, 64], (Kind::Float, Device::Cpu));
        let _ = left.get(1).get(40).fill_(f64::NAN);
        let _ = left.get(2).get(0).fill_(f64::NEG_INFINITY);
        let output = Tensor::ones([4, 9], (Kind::Float, Device::Cpu));
        multiply_int8(&left, &matrix, None, &output).unwrap();
        let nan = |row| i64::try_from(output.get(row).isnan().sum(Kind::Int64)).unwrap();
        assert_eq!([0, 1, 2, 3].map(nan), [0, 9, 9, 0]);
        assert_eq!(f64::try_from(output.get(0).abs().sum(Kind::Float)).unwrap(), 0.0);
    }

    #[test]
    fn types_without_products_in_integers_are_refused() {
        let left = Tensor::zeros([3, 64], (Kind::Float, Device::Cpu));
        let output = Tensor::zeros([3, 2], (Kind::Float, Device::Cpu));
        let narrow = packed(Stored::Bf16, [2, 64], 1);
        assert!(!has_int8_products(&narrow) && multiply_int8(&left, &narrow, None, &output).is_err());
        let odd = packed(Stored::I8, [2, 33], 1);
        let left = Tensor::zeros([3, 33], (Kind::Float, Device::Cpu));
        assert!(!has_int8_products(&odd) && multiply_int8(&left, &odd, None, &output).is_err());
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let new = |bytes: usize, shape, scales| Packed::new(vec![0; bytes].into(), Stored::Q8_0, shape, scales);
        assert!(new(68, [1, 64], Scales::default()).is_ok());
        assert!(new(67, [1, 64], Scales::default()).is_err());
        assert!(new(68, [1, 63], Scales::default()).is_err());
        let scales = |count| Scales { factors: vec![1.0; count], groups: None };
        assert!(new(68, [2, 32], scales(2)).is_ok());
        assert!(new(68, [2, 32], scales(3)).is_err());
        let groups = |codes: usize, values| Scales {
            factors: Vec::new(),
            groups: Some(Groups { codes: vec![0; codes], values, powers: true }),
        };
        assert!(new(68, [2, 32], groups(4, 16)).is_ok());
        assert!(new(68, [2, 32], groups(3, 16)).is_err());
        assert!(new(68, [2, 32], groups(4, 0)).is_err());
        let matrix = new(68, [2, 32], Scales::default()).unwrap();
        assert!(expand(&matrix, 1..3, Kind::Float).is_err());
        assert!(expand(&matrix, 0..2, Kind::Int64).is_err());
        let narrow = matrix.narrow(1..2).unwrap();
        assert_eq!((narrow.shape(), narrow.bytes().len()), ([1, 32], 34));
        assert!(matrix.narrow(1..3).is_none());
        let left = Tensor::zeros([3, 31], (Kind::Float, Device::Cpu));
        assert!(multiply(&left, &matrix, None, &Tensor::zeros([3, 2], (Kind::Float, Device::Cpu))).is_err());
    }
}
