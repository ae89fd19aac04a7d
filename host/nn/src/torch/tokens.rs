//! Operations on tokens by libtorch, and by kernels of this project's own on the CPU.

use std::{ops::Range, sync::Arc};

use tch::{Device, Kind, Tensor};
use tilewright_kernels::{Packed, expanded_rows};
use tilewright_plan::{Dtype, Products};
use tilewright_torch::{
    Error as TorchError, cancel,
    device_packed::DevicePacked,
    device_tokens, dtype, kind, linear, linear_onto, multi_head, packed,
    profile::{Amount, Category, operation},
    scalar,
    streamed::Streamed,
    tokens as passes,
};

use super::{Torch, amounts};
use crate::{Biased, Error, Gelu, HeadNorm, LayerNorm, Ops, Result, TokenOps, tokens::norm_of_a_copy};

/// The weight [out, into] of a linear layer: matrices one below the other, and changes beside them.
#[derive(Debug)]
pub struct Matrix {
    pieces: Vec<Piece>,
    columns: i64,
    changes: Vec<MatrixChange>,
}

/// A change of some rows of a matrix that is multiplied beside it: the rows of one matrix, or of a
/// product of several.
#[derive(Debug)]
pub struct MatrixChange {
    /// The first row.
    pub first: i64,
    /// The matrices, that with the matrix's columns first; in the type of products, on the device.
    pub factors: Vec<Tensor>,
}

/// Some of a matrix's rows.
#[derive(Debug)]
pub enum Piece {
    /// As its file stores them.
    Packed(Packed),
    /// As its file stores them, on the device.
    OnDevice(DevicePacked),
    /// As its file stores them, in host memory: copied to the device for their turn.
    Streamed(Arc<Streamed>),
    /// [rows, columns], in the type of products, on the device.
    Expanded(Tensor),
}

impl Piece {
    fn rows(&self) -> i64 {
        match self {
            Piece::Packed(packed) => packed.shape()[0] as i64,
            Piece::OnDevice(packed) => packed.shape()[0],
            Piece::Streamed(streamed) => streamed.shape()[0],
            Piece::Expanded(tensor) => tensor.size()[0],
        }
    }
}

impl Matrix {
    /// A matrix of pieces with the same number of columns.
    pub fn new(pieces: Vec<Piece>, columns: i64) -> Self {
        Self { pieces, columns, changes: Vec::new() }
    }

    /// The same matrix with changes beside it.
    #[must_use]
    pub fn with_changes(self, changes: Vec<MatrixChange>) -> Self {
        Self { changes, ..self }
    }

    fn rows(&self) -> i64 {
        self.pieces.iter().map(Piece::rows).sum()
    }
}

impl Torch {
    /// Rows of products, in this format's type, onto output of any type.
    fn multiply_rows(&self, output: &Tensor, left: &Tensor, matrix: &Matrix, bias: Option<&Tensor>) -> Result<()> {
        let mut first = 0;
        for piece in &matrix.pieces {
            let rows = piece.rows();
            let part = output.f_narrow(1, first, rows)?;
            let bias = bias.map(|bias| bias.f_narrow(0, first, rows)).transpose()?;
            match piece {
                Piece::Packed(packed)
                    if self.format.product_form == Products::Int8 && packed::has_int8_products(packed) =>
                {
                    let stored = || packed.bytes().len() as f64;
                    let _product = amounts::product("tilewright::multiply_int8", left, rows, stored, &part);
                    packed::multiply_int8(left, packed, bias.as_ref(), &part)?;
                }
                Piece::Packed(packed) => multiply_packed(&part, left, packed, bias.as_ref())?,
                Piece::OnDevice(packed) => self.multiply_on_device(&part, left, packed, bias.as_ref())?,
                Piece::Streamed(streamed) => {
                    self.multiply_on_device(&part, left, &streamed.on_device()?, bias.as_ref())?;
                }
                Piece::Expanded(weight) => {
                    let bias = bias
                        .map(|bias| Ok::<_, Error>(bias.f_to_kind(kind(self.format.product_dtype)?)?))
                        .transpose()?;
                    let stored = || amounts::bytes(weight);
                    let _product = amounts::product("tilewright::multiply", left, rows, stored, &part);
                    linear_onto(&part, left, weight, bias.as_ref())?;
                }
            }
            first += rows;
        }
        for MatrixChange { first, factors } in &matrix.changes {
            let mut change = left.shallow_clone();
            for factor in factors {
                let _product = amounts::linear(&change, factor);
                change = linear(&change, factor, None)?;
            }
            let rows = change.size().last().copied().unwrap_or_default();
            drop(output.f_narrow(1, *first, rows)?.f_add_(&change)?);
        }
        Ok(())
    }
}

impl Torch {
    /// A product with a matrix that is packed on the device.
    fn multiply_on_device(
        &self,
        output: &Tensor,
        left: &Tensor,
        packed: &DevicePacked,
        bias: Option<&Tensor>,
    ) -> Result<()> {
        let quick_sums = self.format.quick_fp8_sums;
        if self.format.product_form == Products::Fp8 && multiply_fp8(output, left, packed, bias, quick_sums)? {
            return Ok(());
        }
        multiply_rows_of(output, left, packed.shape(), bias, &|rows, kind| packed.expand(rows, kind))
    }
}

/// A product with a matrix that stays packed: a panel at a time where the processor can, some rows
/// at a time elsewhere.
fn multiply_packed(output: &Tensor, left: &Tensor, packed: &Packed, bias: Option<&Tensor>) -> Result<()> {
    let kind = left.f_kind()?;
    if left.device() == Device::Cpu && packed::has_products(kind) {
        let (rows, stored) = (packed.shape()[0] as i64, || packed.bytes().len() as f64);
        let _product = amounts::product("tilewright::multiply_packed", left, rows, stored, output);
        return Ok(packed::multiply(left, packed, bias, output)?);
    }
    let shape = packed.shape().map(|extent| extent as i64);
    multiply_rows_of(output, left, shape, bias, &|rows, kind| {
        Ok(packed::expand(packed, rows.start as usize..rows.end as usize, kind)?.f_to_device(left.device())?)
    })
}

/// A product with operands in FP8, if the matrix has them.
fn multiply_fp8(
    output: &Tensor,
    left: &Tensor,
    packed: &DevicePacked,
    bias: Option<&Tensor>,
    quick_sums: bool,
) -> Result<bool> {
    // A matrix without such operands is no product of this name in a profile.
    if !packed.has_fp8_operands() {
        return Ok(false);
    }
    let size = left.size();
    let columns = size.last().copied().unwrap_or_default();
    let flat = left.f_reshape([-1, columns])?;
    let [rows, wide] = packed.shape();
    let _product = amounts::product("tilewright::multiply_fp8", left, rows, || (rows * wide) as f64, output);
    let Some(product) = packed.multiply_fp8(&flat, bias, quick_sums)? else { return Ok(false) };
    output.shallow_clone().f_copy_(&product.f_view_as(output).or_else(|_| product.f_reshape(output.size()))?)?;
    Ok(true)
}

/// The operations of a gelu on a value.
const GELU: f64 = 8.0;

/// The longest period of an embedding of times, over 2π.
const LONGEST: f64 = 10_000.0;

/// Cosines and then sines of each time at `width` / 2 frequencies, on the CPU: [times, width].
fn sinusoids(times: &[f32], width: i64) -> Result<Tensor> {
    let half = width / 2;
    let steps = Tensor::f_arange(half, (Kind::Float, Device::Cpu))?;
    let exponents = scalar::multiply(&steps, -LONGEST.ln())?;
    let frequencies = scalar::divide(&exponents, half as f64)?.f_exp()?;
    let times = Tensor::f_from_slice(times)?.f_unsqueeze(1)?;
    let phases = times.f_mul(&frequencies.f_unsqueeze(0)?)?;
    Ok(Tensor::f_cat(&[phases.f_cos()?, phases.f_sin()?], 1)?)
}

/// Expands rows of a matrix.
type Expand<'a> = &'a dyn Fn(Range<i64>, Kind) -> std::result::Result<Tensor, TorchError>;

/// A product with a matrix of which some rows at a time are expanded on the device.
fn multiply_rows_of(
    output: &Tensor,
    left: &Tensor,
    [rows, columns]: [i64; 2],
    bias: Option<&Tensor>,
    expand: Expand<'_>,
) -> Result<()> {
    let kind = left.f_kind()?;
    let step = dtype(kind).map_or(1, |dtype| expanded_rows(columns, dtype)).min(rows.max(1));
    for start in (0..rows).step_by(step as usize) {
        let count = step.min(rows - start);
        let expansion = operation("tilewright::expand", Category::Expansion, || Amount {
            operations: 0.0,
            bytes: (count * columns) as f64 * kind.elt_size_in_bytes() as f64,
        });
        let weight = expand(start..start + count, kind)?;
        drop(expansion);
        let bias = bias.map(|bias| bias.f_narrow(0, start, count)?.f_to_kind(kind)).transpose()?;
        let part = output.f_narrow(1, start, count)?;
        let _product = amounts::product("tilewright::multiply", left, count, || amounts::bytes(&weight), &part);
        linear_onto(&part, left, &weight, bias.as_ref())?;
    }
    Ok(())
}

impl TokenOps for Torch {
    type Matrix = Matrix;

    fn constant<E: From<Error>>(
        &self,
        shape: &[i64],
        values: impl FnOnce() -> std::result::Result<Vec<f32>, E>,
    ) -> std::result::Result<Tensor, E> {
        let values = values()?;
        let placed = Tensor::f_from_slice(&values).and_then(|all| all.f_reshape(shape)?.f_to_device(self.device));
        Ok(placed.map_err(Error::from)?)
    }

    fn embed_times(&self, times: &[f32], spans: i64, width: i64) -> Result<Tensor> {
        Ok(sinusoids(times, width)?.f_reshape([-1, spans, width])?.f_to_device(self.device)?)
    }

    fn unset(&self, shape: &[i64], dtype: Dtype) -> Result<Tensor> {
        Ok(Tensor::f_empty(shape, (kind(dtype)?, self.device))?)
    }

    fn multiply(&self, tokens: &Tensor, matrix: &Matrix, bias: Option<&Tensor>, dtype: Dtype) -> Result<Tensor> {
        let mut shape = tokens.size();
        let Some(width) = shape.last_mut() else {
            return Err(TorchError::Torch("a linear layer of a single value".into()).into());
        };
        *width = matrix.rows();
        let output = self.unset(&shape, dtype)?;
        self.multiply_onto(&output, tokens, matrix, bias)?;
        Ok(output)
    }

    fn multiply_onto(&self, output: &Tensor, tokens: &Tensor, matrix: &Matrix, bias: Option<&Tensor>) -> Result<()> {
        cancel::check()?;
        let left = tokens.f_to_kind(kind(self.format.product_dtype)?)?.f_contiguous()?;
        let rows = matrix.rows();
        // Samples lie apart in a wider tensor, the tokens of each don't.
        if output.is_contiguous() {
            let left = left.f_reshape([-1, matrix.columns])?;
            return self.multiply_rows(&output.f_view([-1, rows])?, &left, matrix, bias);
        }
        for sample in 0..output.size()[0] {
            self.multiply_rows(&output.f_select(0, sample)?, &left.f_select(0, sample)?, matrix, bias)?;
        }
        Ok(())
    }

    fn layer_norm(&self, tokens: &Tensor, norm: LayerNorm<'_, Self>, dtype: Dtype) -> Result<Tensor> {
        let _norm = amounts::norm("tilewright::layer_norm", tokens, || 2);
        if passes::fits(tokens) && [Dtype::F32, Dtype::Bf16].contains(&dtype) {
            let output = self.unset(&tokens.size(), dtype)?;
            passes::layer_norm(&output, tokens, norm.epsilon, norm.affine, norm.modulation)?;
            return Ok(output);
        }
        cancel::check()?;
        Ok(device_tokens::layer_norm(tokens, norm.epsilon, norm.affine, norm.modulation, kind(dtype)?)?)
    }

    fn norm_heads(
        &self,
        tokens: &Tensor,
        norm: HeadNorm<'_, Tensor>,
        heads: i64,
        rotation: Option<&Tensor>,
    ) -> Result<()> {
        let _norm = amounts::norm("tilewright::norm_heads", tokens, || 2);
        if passes::fits(tokens) {
            return Ok(passes::norm_heads(tokens, norm.weight, norm.epsilon, rotation)?);
        }
        cancel::check()?;
        Ok(device_tokens::norm_heads(tokens, norm.weight, norm.epsilon, heads, rotation)?)
    }

    fn root_mean_square_norm(&self, tokens: &Tensor, norm: HeadNorm<'_, Tensor>, dtype: Dtype) -> Result<Tensor> {
        if tokens.device() == Device::Cpu {
            return norm_of_a_copy(self, tokens, norm, dtype);
        }
        cancel::check()?;
        let _norm = amounts::norm("tilewright::root_mean_square_norm", tokens, || 2);
        Ok(device_tokens::root_mean_square_norm(tokens, norm.weight, norm.epsilon, kind(dtype)?)?)
    }

    fn attend_onto(&self, output: &Tensor, [query, key, value]: [&Tensor; 3], heads: i64, add: bool) -> Result<()> {
        let way = match self.format.queries {
            None if self.fused => multi_head::Way::Fused { apart: self.format.heads_apart },
            queries => multi_head::Way::Pieces(queries),
        };
        let _attention = amounts::attention("tilewright::attend", [query, key], &[value, output]);
        Ok(multi_head::attend_onto(output, [query, key, value], heads, add, way)?)
    }

    fn attend_biased_onto(
        &self,
        output: &Tensor,
        operands: [&Tensor; 3],
        Biased { heads, scale, bias }: Biased<'_, Tensor>,
    ) -> Result<()> {
        let [query, key, value] = operands;
        let _attention = amounts::attention("tilewright::attend_biased", [query, key], &[value, output, bias]);
        Ok(multi_head::attend_biased_onto(output, operands, heads, bias, scale)?)
    }

    fn bias_by_distance(&self, table: &Tensor, rows: &[i64], tokens: i64) -> Result<Tensor> {
        let _bias = operation("tilewright::bias_by_distance", Category::Layout, Amount::default);
        let rows = Tensor::f_from_slice(rows)?.f_to_device(self.device)?;
        let by_distance = table.f_index_select(0, &rows)?.f_transpose(0, 1)?.f_contiguous()?;
        // The window that begins at a distance is the row of the query that is as far from the end.
        Ok(by_distance.f_unfold(1, tokens, 1)?.f_flip([1])?.f_unsqueeze(0)?)
    }

    fn offset(&self, spans: &Tensor, table: &Tensor, row: i64) -> Result<Tensor> {
        Ok(spans.f_to_kind(Kind::Float)?.f_add(&table.f_narrow(1, row, 1)?)?)
    }

    fn gelu_onto(&self, output: &Tensor, tokens: &Tensor, gelu: Gelu) -> Result<()> {
        let _gelu = amounts::each_value("tilewright::gelu", Category::Elementwise, GELU, &[tokens, output]);
        if gelu == Gelu::Tanh && passes::fits(tokens) && passes::fits(output) {
            return Ok(passes::gelu(output, tokens)?);
        }
        cancel::check()?;
        match gelu {
            Gelu::Exact => device_tokens::gelu(output, tokens, "none")?,
            Gelu::Tanh => device_tokens::gelu(output, tokens, "tanh")?,
            Gelu::Quick => device_tokens::quick_gelu(output, tokens)?,
        }
        Ok(())
    }

    fn multiply_by(&self, tokens: &Tensor, factors: &Tensor) -> Result<()> {
        let _product =
            amounts::each_value("tilewright::multiply_by", Category::Elementwise, 1.0, &[tokens, factors, tokens]);
        let _ = tokens.shallow_clone().f_mul_(factors)?;
        Ok(())
    }

    fn add_gated(&self, tokens: &Tensor, gate: Option<&Tensor>, other: Tensor) -> Result<()> {
        let _sum = amounts::each_value("tilewright::add_gated", Category::Elementwise, 2.0, &[tokens, &other, tokens]);
        if passes::fits(tokens) && passes::fits(&other) {
            return Ok(passes::add_gated(tokens, gate, &other)?);
        }
        cancel::check()?;
        let Some(gate) = gate else { return self.add_onto(tokens, &other) };
        Ok(device_tokens::add_gated(tokens, gate, &other)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_cosines_first() {
        let found = Vec::<f32>::try_from(sinusoids(&[0.0, 1.0], 4).unwrap().reshape([-1])).unwrap();
        assert_eq!(found[..4], [1.0, 1.0, 0.0, 0.0]);
        assert!((f64::from(found[4]) - 1f64.cos()).abs() < 1e-6 && (f64::from(found[7]) - 0.01).abs() < 1e-5);
    }
}
