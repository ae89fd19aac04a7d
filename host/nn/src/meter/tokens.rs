//! Operations on tokens, counted.

use tilewright_kernels::{
    Expansion, FP8_SIDES, Scaling, Stored, biased_bytes, expanded_rows, expanding_bytes, gpu_fused_bytes, pieces_bytes,
};
use tilewright_plan::{Dtype, Products};

use super::{Meter, MeterTensor, bytes, check_alike, ledger::Storage, shape_error};
use crate::{
    Biased, Error, Gelu, HeadNorm, LayerNorm, Listing, Ops, Result, TokenOps, TokenSource, tokens::norm_of_a_copy,
};

/// The extents of a linear layer's weight, and of the changes beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterMatrix {
    /// Rows and columns.
    pub extents: [i64; 2],
    /// The most rows of one of the matrices that it is made of: each is multiplied by itself.
    pub piece: i64,
    /// The number of these matrices.
    pub pieces: u64,
    /// Some of these matrices are stored in a type that has products in 8-bit integers, and some in
    /// one that has none.
    pub integers: [bool; 2],
    /// The matrices as they are stored.
    pub packed: Vec<PackedRows>,
    /// Rows and rank of each change; a rank of 0 is a whole matrix.
    pub changes: Vec<[i64; 2]>,
}

impl MeterMatrix {
    /// True if all that it is made of is stored for products in FP8.
    fn suits_fp8(&self) -> bool {
        let is_whole = |extent: i64| extent % FP8_SIDES == 0;
        let suits = |of: &PackedRows| {
            let is_plain = of.stored == Stored::F8E4m3 && of.scaling != Scaling::Several;
            is_plain && is_whole(of.rows) && is_whole(self.extents[1])
        };
        !self.packed.is_empty() && self.packed.iter().all(suits)
    }
}

/// A matrix among those of a linear layer, as its file stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedRows {
    /// Rows of the matrix.
    pub rows: i64,
    /// The type of its values.
    pub stored: Stored,
    /// The scales beside it.
    pub scaling: Scaling,
}

impl TokenSource<Meter> for Listing {
    fn vector(&self, name: &str, shape: &[i64], _: Dtype) -> Result<Vec<i64>> {
        self.add(name, &[shape]);
        Ok(shape.to_vec())
    }

    fn matrix(&self, name: &str, shape: [i64; 2]) -> Result<MeterMatrix> {
        self.add(name, &[&shape]);
        Ok(MeterMatrix {
            extents: shape,
            piece: shape[0],
            pieces: 1,
            integers: [false, true],
            packed: Vec::new(),
            changes: Vec::new(),
        })
    }
}

/// Tokens and spans of a modulation or gate that belong together: [N, tokens, width] and
/// [N, spans, width].
fn check_spans(operation: &'static str, tokens: &MeterTensor, spans: &MeterTensor) -> Result<()> {
    let (tokens, spans) = (tokens.axes.extents(), spans.axes.extents());
    match (tokens, spans) {
        (&[batch, count, width], &[samples, number, wide])
            if batch == samples && width == wide && number > 0 && count % number == 0 =>
        {
            Ok(())
        }
        _ => Err(shape_error(operation, &[tokens, spans])),
    }
}

impl Meter {
    /// The passes of a GPU beside a product with each piece of a matrix: its bias in the product's
    /// type, a result that is converted, a bias laid out in rows that lie apart.
    fn moves_beside_product(&self, output: &MeterTensor, matrix: &MeterMatrix, has_bias: bool) {
        if self.costs.kernels.on_cpu {
            return;
        }
        let (dtype, rows) = (self.format.product_dtype, matrix.extents[0].max(1) as u64);
        if has_bias && dtype != Dtype::F32 {
            self.moves_by(matrix.pieces, rows * (Dtype::F32.bytes() + dtype.bytes()));
        }
        let values = output.axes.count();
        if output.dtype != dtype {
            self.moves_by(matrix.pieces, values * (dtype.bytes() + output.dtype.bytes()));
        } else if has_bias && matrix.pieces > 1 && values > rows {
            self.moves_by(matrix.pieces, values * dtype.bytes());
        }
    }

    /// Values in f32, contiguous, normed by libtorch by the mean of squares of `over` values.
    fn normed_squares(&self, tokens: &MeterTensor, over: i64) -> Result<MeterTensor> {
        let wide = self.contiguous(&self.to_dtype(tokens.clone(), Dtype::F32)?)?;
        if !self.costs.kernels.on_cpu {
            self.moves(2 * wide.bytes());
            return Ok(self.output(wide.axes, Dtype::F32));
        }
        // On a CPU the norm is made of operators: squares and their means, the quotient, and its
        // product with the weight (pytorch v2.11.0, aten/src/ATen/native/layer_norm.cpp,
        // `rms_norm_composite`).
        let means = wide.bytes() / over.max(1) as u64;
        self.touch(wide.bytes() + 2 * means);
        let _factors = self.hold(means);
        let _quotient = self.hold(wide.bytes());
        self.moves(7 * wide.bytes());
        Ok(self.output(wide.axes, Dtype::F32))
    }

    /// Converts an operand as libtorch's operators do: on the way on GPUs, as a copy on CPUs.
    fn widened(&self, tokens: &MeterTensor) -> Option<Storage> {
        let copies = self.costs.kernels.on_cpu && tokens.dtype != Dtype::F32;
        let wide = bytes(&tokens.axes, Dtype::F32);
        copies.then(|| {
            self.moves(tokens.bytes() + wide);
            self.hold(wide)
        })
    }
}

impl TokenOps for Meter {
    type Matrix = MeterMatrix;

    fn constant<E: From<Error>>(
        &self,
        shape: &[i64],
        _: impl FnOnce() -> std::result::Result<Vec<f32>, E>,
    ) -> std::result::Result<MeterTensor, E> {
        Ok(self.contiguous_output("a constant", shape, Dtype::F32)?)
    }

    fn embed_times(&self, times: &[f32], spans: i64, width: i64) -> Result<MeterTensor> {
        let shape = [times.len() as i64 / spans.max(1), spans, width];
        self.contiguous_output("an embedding of times", &shape, Dtype::F32)
    }

    fn unset(&self, shape: &[i64], dtype: Dtype) -> Result<MeterTensor> {
        self.contiguous_output("a tensor", shape, dtype)
    }

    fn multiply(
        &self,
        tokens: &MeterTensor,
        matrix: &MeterMatrix,
        bias: Option<&Vec<i64>>,
        dtype: Dtype,
    ) -> Result<MeterTensor> {
        let mut shape = tokens.axes.extents().to_vec();
        match shape.last_mut() {
            Some(width) => *width = matrix.extents[0],
            None => return Err(shape_error("a linear layer", &[&matrix.extents])),
        }
        let output = self.contiguous_output("a linear layer", &shape, dtype)?;
        self.multiply_onto(&output, tokens, matrix, bias)?;
        Ok(output)
    }

    fn multiply_onto(
        &self,
        output: &MeterTensor,
        tokens: &MeterTensor,
        matrix: &MeterMatrix,
        bias: Option<&Vec<i64>>,
    ) -> Result<()> {
        let (from, to, [rows, columns]) = (tokens.axes.extents(), output.axes.extents(), matrix.extents);
        let is_sound = from.last() == Some(&columns)
            && to.last() == Some(&rows)
            && from[..from.len() - 1] == to[..to.len() - 1]
            && bias.is_none_or(|bias| *bias == [rows]);
        if !is_sound {
            return Err(shape_error("a linear layer", &[from, &matrix.extents, to]));
        }
        let dtype = self.format.product_dtype;
        self.moves_beside_product(output, matrix, bias.is_some());
        let left = self.contiguous(&self.to_dtype(tokens.clone(), dtype)?)?;
        let count = left.axes.count() / columns.max(1) as u64;
        let has_integers =
            self.costs.kernels.has_int8() && self.format.product_form == Products::Int8 && matrix.integers[0];
        let has_fp8 = !self.costs.kernels.on_cpu && self.format.product_form == Products::Fp8 && matrix.suits_fp8();
        if has_integers && !matrix.integers[1] {
            self.multiplies_in_form(self.costs.integers, columns, rows, count as i64);
        } else if has_fp8 {
            self.multiplies_in_form(self.costs.fp8, columns, rows, count as i64);
        } else {
            self.multiplies_tokens(columns, rows, count as i64);
        }
        for [changed, rank] in &matrix.changes {
            let inner = if *rank > 0 { *rank } else { 0 };
            self.multiplies_tokens(columns, if inner > 0 { inner } else { *changed }, count as i64);
            self.multiplies_tokens(inner, *changed, count as i64);
            self.touch(count * (changed + inner) as u64 * dtype.bytes());
            if !self.costs.kernels.on_cpu {
                self.moves(count * *changed as u64 * (dtype.bytes() + 2 * output.dtype.bytes()));
            }
        }
        if has_integers {
            self.touch(self.costs.kernels.int8_scratch_bytes(count as i64, columns));
            if !matrix.integers[1] {
                return Ok(());
            }
        }
        if has_fp8 {
            // The left side in FP8, and the product of one matrix before it goes to its place.
            self.touch(count * (columns + matrix.piece * dtype.bytes() as i64) as u64);
            return Ok(());
        }
        if self.costs.kernels.has_products(dtype) {
            self.touch(self.costs.kernels.product_scratch_bytes(columns));
            return Ok(());
        }
        if !self.costs.expands_rows {
            // A GPU's product of the output's type is written where it stays.
            if !self.costs.kernels.on_cpu && output.dtype == dtype {
                return Ok(());
            }
            self.touch(count * (matrix.piece * dtype.bytes() as i64) as u64);
            return Ok(());
        }
        // Some rows are expanded, on a GPU by operators that hold more beside them, and then
        // multiplied.
        let (at_once, width) = (expanded_rows(columns, dtype).min(matrix.piece), dtype.bytes());
        let values = (at_once * columns) as u64;
        let expanding = if self.costs.kernels.on_cpu { 0 } else { expanding_bytes(values, dtype) };
        self.touch(expanding.max(count * at_once as u64 * width) + values * width);
        if let Some(rate) = self.costs.expansion {
            for PackedRows { rows, stored, scaling } in &matrix.packed {
                let expansion = Expansion::of(*stored, *scaling, dtype);
                let goes = (*rows as f64 / expanded_rows(columns, dtype) as f64).ceil();
                self.spend(rate.seconds(expansion, (rows * columns) as f64, goes));
            }
        }
        Ok(())
    }

    fn layer_norm(&self, tokens: &MeterTensor, norm: LayerNorm<'_, Self>, dtype: Dtype) -> Result<MeterTensor> {
        let width = tokens.axes.extents().last().copied().unwrap_or_default();
        if let Some((weight, bias)) = norm.affine
            && (*weight != [width] || weight != bias)
        {
            return Err(shape_error("a norm", &[tokens.axes.extents(), weight, bias]));
        }
        for spans in norm.modulation.iter().flatten() {
            check_spans("a modulation", tokens, spans)?;
        }
        let kernels = &self.costs.kernels;
        if kernels.has_passes(tokens.dtype) && kernels.has_passes(dtype) {
            self.moves(4 * tokens.bytes());
            return Ok(self.output(tokens.axes.made_contiguous(), dtype));
        }
        let wide = self.to_dtype(tokens.clone(), Dtype::F32)?;
        let normed = self.output(wide.axes.made_contiguous(), Dtype::F32);
        if kernels.on_cpu {
            // The mean and the deviation of each token.
            self.touch(2 * normed.bytes() / width.max(1) as u64);
        }
        self.moves(wide.bytes() + normed.bytes());
        drop(wide);
        let Some([_, scale]) = norm.modulation else { return self.to_dtype(normed, dtype) };
        // One and the scale, and then all at once onto the result, in place if it is f32.
        let _factor = kernels.on_cpu.then(|| self.hold(bytes(&scale.axes, Dtype::F32)));
        self.moves(2 * scale.bytes());
        self.moves(normed.bytes() + tokens.axes.count() * dtype.bytes() + 2 * scale.bytes());
        if dtype == Dtype::F32 {
            return Ok(normed);
        }
        let output = self.output(normed.axes, dtype);
        drop(self.widened(&output));
        Ok(output)
    }

    fn norm_heads(
        &self,
        tokens: &MeterTensor,
        norm: HeadNorm<'_, Vec<i64>>,
        heads: i64,
        rotation: Option<&MeterTensor>,
    ) -> Result<()> {
        let shape = tokens.axes.extents();
        let &[_, count, width] = shape else { return Err(shape_error("a norm of heads", &[shape])) };
        let each = width / heads.max(1);
        let is_sound = heads > 0
            && width % heads == 0
            && (*norm.weight == [each] || *norm.weight == [width])
            && rotation.is_none_or(|table| table.axes.extents() == [count, each] && each % 2 == 0);
        if !is_sound {
            return Err(shape_error("a norm of heads", &[shape, norm.weight, &[heads]]));
        }
        if self.costs.kernels.has_passes(tokens.dtype) {
            self.moves(2 * tokens.bytes());
            return Ok(());
        }
        let normed = self.normed_squares(tokens, norm.weight[0])?;
        if let Some(rotation) = rotation {
            self.moves(2 * normed.bytes() + rotation.bytes());
        }
        self.moves(normed.bytes() + tokens.bytes());
        Ok(())
    }

    fn root_mean_square_norm(
        &self,
        tokens: &MeterTensor,
        norm: HeadNorm<'_, Vec<i64>>,
        dtype: Dtype,
    ) -> Result<MeterTensor> {
        if self.costs.kernels.on_cpu {
            return norm_of_a_copy(self, tokens, norm, dtype);
        }
        let shape = tokens.axes.extents();
        if shape.last().is_none_or(|&width| *norm.weight != [width]) {
            return Err(shape_error("a norm", &[shape, norm.weight]));
        }
        self.to_dtype(self.normed_squares(tokens, norm.weight[0])?, dtype)
    }

    fn attend_onto(
        &self,
        output: &MeterTensor,
        [query, key, value]: [&MeterTensor; 3],
        heads: i64,
        add: bool,
    ) -> Result<()> {
        let shapes = [query.axes.extents(), key.axes.extents(), value.axes.extents()];
        let (&[batch, tokens, width], &[samples, others, wide]) = (shapes[0], shapes[1]) else {
            return Err(shape_error("attention", &shapes));
        };
        let is_sound = batch == samples
            && width == wide
            && shapes[1] == shapes[2]
            && output.axes.extents() == shapes[0]
            && heads > 0
            && width % heads == 0;
        if !is_sound {
            return Err(shape_error("attention", &shapes));
        }
        let products = 4.0 * batch as f64 * tokens as f64 * others as f64 * width as f64;
        let queries = self.format().queries;
        let is_fused = self.costs.fused_attention && queries.is_none();
        self.spend(
            products / if is_fused { self.costs.heads_flops_per_second } else { self.costs.attention_flops_per_second },
        );
        if !is_fused {
            let each = width / heads;
            self.touch(pieces_bytes(batch * heads, [tokens, others], each, query.dtype, queries));
            return Ok(());
        }
        if self.costs.kernels.has_products(query.dtype) {
            self.touch(self.costs.kernels.heads_scratch_bytes(others, width / heads, batch * heads, query.dtype));
            return Ok(());
        }
        let _apart = self.hold(if self.format.heads_apart { query.bytes() + key.bytes() + value.bytes() } else { 0 });
        if !self.costs.kernels.on_cpu {
            self.moves((if add { 3 } else { 2 }) * query.bytes());
        }
        let _result = self.hold(query.bytes());
        let (samples, each) = (batch * heads, width / heads);
        self.touch(match self.costs.kernels.on_cpu {
            true => {
                let scratch = self.costs.kernels.library_scratch_bytes([tokens, others], each, query.dtype);
                scratch + 8 * (samples * tokens) as u64
            }
            false => gpu_fused_bytes(samples, tokens, each, query.dtype),
        });
        Ok(())
    }

    fn attend_biased_onto(
        &self,
        output: &MeterTensor,
        [query, key, value]: [&MeterTensor; 3],
        Biased { heads, bias, .. }: Biased<'_, MeterTensor>,
    ) -> Result<()> {
        let (shapes, summand) = ([query, key, value, output].map(|of| of.axes.extents()), bias.axes.extents());
        let &[batch, tokens, width] = shapes[0] else { return Err(shape_error("attention", &shapes)) };
        let is_sound = shapes.iter().all(|shape| *shape == shapes[0])
            && heads > 0
            && width % heads == 0
            && matches!(summand, &[1, of, queries, keys] if (of == 1 || of == heads) && [queries, keys] == [tokens; 2]);
        if !is_sound {
            return Err(shape_error("attention", &[shapes[0], shapes[1], shapes[2], summand]));
        }
        let products = 4.0 * batch as f64 * tokens as f64 * tokens as f64 * width as f64;
        self.spend(products / self.costs.attention_flops_per_second);
        self.touch(biased_bytes(batch * heads, tokens, width / heads, query.dtype));
        Ok(())
    }

    fn bias_by_distance(&self, table: &Vec<i64>, rows: &[i64], tokens: i64) -> Result<MeterTensor> {
        let &[count, heads] = &table[..] else { return Err(shape_error("a table of distances", &[table])) };
        if rows.len() as i64 != 2 * tokens - 1 || !rows.iter().all(|row| (0..count).contains(row)) {
            return Err(shape_error("a table of distances", &[table, &[rows.len() as i64, tokens]]));
        }
        self.touch(2 * 4 * (heads * (2 * tokens - 1)) as u64);
        self.contiguous_output("a bias", &[1, heads, tokens, tokens], Dtype::F32)
    }

    fn offset(&self, spans: &MeterTensor, table: &Vec<i64>, row: i64) -> Result<MeterTensor> {
        match (spans.axes.extents(), &table[..]) {
            (&[_, _, width], &[1, rows, wide]) if width == wide && row < rows => {}
            (found, _) => return Err(shape_error("a modulation", &[found, table, &[row]])),
        }
        self.moves(2 * spans.bytes());
        Ok(self.output(spans.axes.made_contiguous(), Dtype::F32))
    }

    fn gelu_onto(&self, output: &MeterTensor, tokens: &MeterTensor, gelu: Gelu) -> Result<()> {
        check_alike("a gelu", output, tokens)?;
        let on_cpu = self.costs.kernels.on_cpu;
        if gelu == Gelu::Quick && !on_cpu {
            self.moves(2 * tokens.bytes());
            self.moves(2 * tokens.bytes());
            self.moves(tokens.bytes());
        }
        self.moves(tokens.bytes() + output.bytes());
        // libtorch's on the CPU, and what is made of several, have a result beside the output.
        let kernels = &self.costs.kernels;
        let has_pass = gelu == Gelu::Tanh && [tokens, output].iter().all(|of| kernels.has_passes(of.dtype));
        let is_direct = if on_cpu { has_pass } else { gelu != Gelu::Quick };
        if !is_direct {
            self.touch(tokens.bytes());
        }
        Ok(())
    }

    fn multiply_by(&self, tokens: &MeterTensor, factors: &MeterTensor) -> Result<()> {
        check_alike("a product", tokens, factors)?;
        self.moves(3 * tokens.bytes());
        Ok(())
    }

    fn add_gated(&self, tokens: &MeterTensor, gate: Option<&MeterTensor>, other: MeterTensor) -> Result<()> {
        if let Some(gate) = gate {
            check_spans("a gate", tokens, gate)?;
        }
        let kernels = &self.costs.kernels;
        if kernels.has_passes(tokens.dtype) && kernels.has_passes(other.dtype) {
            return self.add_onto(tokens, &other);
        }
        // The sum, and before it the operand and the result in f32.
        let _operands = [self.widened(&other), self.widened(tokens), self.widened(tokens)];
        self.add_onto(tokens, &other)
    }
}
