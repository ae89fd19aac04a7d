//! Attention of one head, plain and fused, and the choice between the two on a device.

use std::{
    ffi::c_int,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tch::{Device, Kind, Tensor};
use tilewright_kernels::plain_rows;
use tilewright_plan::Dtype;

use crate::{
    Error, Result, ffi, kind, multi_head, packed,
    pieces::{Operation, Pieces},
    scalar,
};

/// Attention as plain matrix products, over rows of queries so that the score matrix stays small.
/// `query`, `key`, `value`: [N, tokens, width]; scores and softmax in f32.
///
/// # Errors
/// libtorch's error.
pub fn plain(query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
    let (batch, tokens, width) = query.size3()?;
    let rows = plain_rows(batch, tokens);
    let scale = 1.0 / (width as f64).sqrt();
    let transposed = key.f_transpose(1, 2)?;
    let output = Tensor::f_empty([batch, tokens, width], (value.f_kind()?, query.device()))?;
    let pieces = pieces(query, key)?.of_at_most(rows);
    pieces.write(1, &output, query, |rows| weighted(rows, &transposed, value, scale, None))?;
    Ok(output)
}

/// Attention by products with transposed keys. The products are multiplied by `scale`, and have a
/// bias added; scores and softmax are f32. In f16, whose largest value is 65504, it is the queries
/// that are multiplied: the products of wide heads would be infinite before.
pub(crate) fn weighted(
    query: &Tensor,
    transposed: &Tensor,
    value: &Tensor,
    scale: f64,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let is_narrow = query.f_kind()? == Kind::Half && scale != 1.0;
    let products = match is_narrow {
        true => scalar::multiply(query, scale)?.f_matmul(transposed)?,
        false => query.f_matmul(transposed)?,
    };
    let scores = products.f_to_kind(Kind::Float)?;
    drop(products);
    let mut scores = if is_narrow { scores } else { scalar::multiply_in_place(scores, scale)? };
    if let Some(bias) = bias {
        scores = scores.f_add_(bias)?;
    }
    let softmax = scores.f_softmax(-1, Kind::Float)?;
    drop(scores);
    let weights = softmax.f_to_kind(value.f_kind()?)?;
    drop(softmax);
    Ok(weights.f_matmul(value)?)
}

/// Attention of one head that holds no matrix of scores: libtorch's, or this crate's own in f32 and
/// bf16 on processors that have the products for it. `query`, `key`, `value`: [N, tokens, width];
/// the result may take the query's place.
///
/// # Errors
/// libtorch's error.
pub fn attend(query: Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
    if query.device() == Device::Cpu && query.f_kind()? == Kind::Float && packed::has_products(Kind::Float) {
        return attend_in_blocks(query, key, value);
    }
    if query.device() == Device::Cpu && query.f_kind()? == Kind::BFloat16 && packed::has_products(Kind::BFloat16) {
        let (query, key, value) = (query.f_contiguous()?, key.f_contiguous()?, value.f_contiguous()?);
        multi_head::attend_onto(&query, [&query, &key, &value], 1, false, multi_head::Way::Fused { apart: false })?;
        return Ok(query);
    }
    let head = |tensor: &Tensor| tensor.f_unsqueeze(1);
    let (key_heads, value_heads) = (head(key)?, head(value)?);
    let mixed = |query: &Tensor| Ok(library(&head(query)?, &key_heads, &value_heads)?.f_squeeze_dim(1)?);
    let mut pieces = pieces(&query, key)?;
    if pieces.is_whole() {
        pieces.begin()?;
        return mixed(&query);
    }
    pieces.write(1, &query, &query, mixed)?;
    Ok(query)
}

/// libtorch's attention of heads [N, heads, tokens, width].
pub(crate) fn library(query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
    let mask = None::<Tensor>;
    Ok(Tensor::f_scaled_dot_product_attention(query, key, value, mask, 0.0, false, None, false)?)
}

/// The pieces of attention over queries, for queries and keys [samples …, tokens, width].
pub(crate) fn pieces(query: &Tensor, key: &Tensor) -> Result<Pieces> {
    let (size, of_keys) = (query.size(), key.size());
    let [tokens, others] = [&size, &of_keys].map(|size| size[size.len() - 2]);
    let operations = 4.0 * query.numel() as f64 * others as f64;
    Ok(Pieces::of(query.device(), query.f_kind()?, tokens, Operation::Attention(operations)))
}

/// By `shim/attention.cpp`.
fn attend_in_blocks(query: Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
    let shape = query.size();
    let (samples, tokens, width) = query.size3()?;
    let fits = |tensor: &Tensor| -> Result<bool> {
        Ok(tensor.size() == shape && tensor.f_kind()? == Kind::Float && tensor.device() == Device::Cpu)
    };
    if !fits(key)? || !fits(value)? || query.numel() == 0 {
        return Err(Error::Torch(format!("attention of {shape:?} with {:?} and {:?}", key.size(), value.size())));
    }
    let (query, key, value) = (query.f_contiguous()?, key.f_contiguous()?, value.f_contiguous()?);
    for sample in 0..samples {
        let at = |tensor: &Tensor| -> Result<*mut f32> { Ok(tensor.f_select(0, sample)?.data_ptr().cast()) };
        let (query, key, value) = (at(&query)?, at(&key)?, at(&value)?);
        // SAFETY: each is tokens · width contiguous f32 that live through the call; the output may
        // be the query, which has no other user.
        unsafe { ffi::tw_attention(query, key, value, query, tokens, width) }?;
    }
    Ok(query)
}

/// True if attention goes in pieces everywhere.
static IN_PIECES: AtomicBool = AtomicBool::new(false);

/// Lets no network that is loaded from now on use fused attention, in the whole process: for checks
/// of the other way.
pub fn forbid_fused() {
    IN_PIECES.store(true, Ordering::Relaxed);
}

/// A device, and the width and type of attention.
type Question = (Device, i64, Dtype);

/// True if fused attention of this width and type is to be used on a device: there is a kernel for
/// it that holds no matrix of scores, and it agrees with plain attention.
///
/// Without such a kernel libtorch computes the whole matrix in f32 and says nothing: so on gfx11,
/// whose kernels end at a width of 256, below that of the VAEs' middle blocks (pytorch v2.11.0,
/// aten/src/ATen/native/transformers/hip/sdp_utils.cpp).
pub fn is_fused(device: Device, width: i64, dtype: Dtype) -> bool {
    /// Answers of this process.
    static KNOWN: Mutex<Vec<(Question, bool)>> = Mutex::new(Vec::new());
    if IN_PIECES.load(Ordering::Relaxed) {
        return false;
    }
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let of = (device, width, dtype);
    if let Some((_, fused)) = known.iter().find(|(key, _)| *key == of) {
        return *fused;
    }
    let ask =
        || Ok((device == Device::Cpu || has_kernel(device, width, dtype)?) && fused_agrees(device, width, dtype)?);
    // A device that has no memory for the question now may have some later.
    let answer: Result<bool> = ask();
    known.extend(answer.as_ref().ok().map(|fused| (of, *fused)));
    answer.unwrap_or(false)
}

/// libtorch's choice for as many tokens as a picture of 512×512 pixels has.
fn has_kernel(device: Device, width: i64, dtype: Dtype) -> Result<bool> {
    let _no_grad = tch::no_grad_guard();
    let tokens = || Tensor::f_zeros([1, 1, 4096, width], (kind(dtype)?, device)).map_err(Error::from);
    let (query, key, value) = (tokens()?, tokens()?, tokens()?);
    let pointer = |tensor: &Tensor| tensor.as_ptr().cast();
    let mut fused: c_int = 0;
    // SAFETY: the tensors live through the call; the integer is valid for writing.
    unsafe { ffi::tw_has_fused_attention(pointer(&query), pointer(&key), pointer(&value), &mut fused) }?;
    Ok(fused != 0)
}

/// True if fused attention of this width and type agrees with plain attention on this device. It
/// has been silently wrong at the widths of the VAEs' middle blocks on gfx1100 and gfx1151.
fn fused_agrees(device: Device, width: i64, dtype: Dtype) -> Result<bool> {
    let _no_grad = tch::no_grad_guard();
    let kind = kind(dtype)?;
    let random = || -> Result<Tensor> { Ok(Tensor::f_randn([1, 160, width], (Kind::Float, device))?.f_to_kind(kind)?) };
    let (query, key, value) = (random()?, random()?, random()?);
    let single = |tensor: &Tensor| tensor.f_to_kind(Kind::Float);
    let plain = plain(&single(&query)?, &single(&key)?, &single(&value)?)?;
    let fused = single(&attend(query, &key, &value)?)?;
    let difference = f64::try_from(&fused.f_sub(&plain)?.f_norm()?)? / f64::try_from(&plain.f_norm()?)?.max(1e-12);
    // Far above the rounding of each type, far below the error of a wrong kernel.
    Ok(difference < if dtype == Dtype::F32 { 1e-3 } else { 3e-2 })
}

#[cfg(test)]
mod tests {
    use tilewright_kernels::{SCORES, plain_bytes};

    use super::*;

    #[test]
    fn attention_agrees_with_its_definition() {
        let _no_grad = tch::no_grad_guard();
        let options = (Kind::Float, Device::Cpu);
        for (samples, tokens, width) in [(1, 1, 8), (2, 77, 40), (1, 600, 512), (3, 513, 24), (1, 1100, 65)] {
            let random = || Tensor::randn([samples, tokens, width], options);
            let (query, key, value) = (random(), random() * 3.0, random());
            let wide = |tensor: &Tensor| tensor.to_kind(Kind::Double);
            let scores = wide(&query).matmul(&wide(&key).transpose(1, 2)) / (width as f64).sqrt();
            let expected = scores.softmax(-1, Kind::Double).matmul(&wide(&value));
            let found = attend(query, &key, &value).unwrap();
            let difference = f64::try_from((wide(&found) - expected).abs().max()).unwrap();
            assert!(difference < 3e-5, "{samples}×{tokens}×{width}: {difference}");
        }
    }

    #[test]
    fn plain_attention_in_pieces_is_that_of_the_whole() {
        let _no_grad = tch::no_grad_guard();
        // More scores than are held at once.
        let (tokens, options) = (5000, (Kind::Float, Device::Cpu));
        let random = || Tensor::randn([1, tokens, 16], options);
        let (query, key, value) = (random(), random(), random());
        let whole = (query.matmul(&key.transpose(1, 2)) / 4.0).softmax(-1, Kind::Float).matmul(&value);
        let difference = f64::try_from((plain(&query, &key, &value).unwrap() - whole).abs().max()).unwrap();
        assert!(difference < 1e-5, "{difference}");
        assert!(plain_bytes(1, tokens, 16) < (9 * SCORES) as u64);
    }

    #[test]
    fn products_of_wide_heads_are_finite_in_f16() {
        let _no_grad = tch::no_grad_guard();
        // 12 · 12 · 512 is more than f16 holds, and an eleventh of it less.
        let twelves = Tensor::full([1, 40, 512], 12.0, (Kind::Half, Device::Cpu));
        let value = Tensor::randn([1, 40, 512], (Kind::Float, Device::Cpu)).to_kind(Kind::Half);
        let expected = value.to_kind(Kind::Float).mean_dim(1_i64, true, Kind::Float);
        let agrees = |found: &Tensor| {
            let difference = f64::try_from((found.to_kind(Kind::Float) - &expected).abs().max()).unwrap();
            assert!(difference < 2e-3, "{difference}");
        };
        agrees(&plain(&twelves, &twelves, &value).unwrap());
        let several = Tensor::empty([1, 40, 512], (Kind::Half, Device::Cpu));
        let way = multi_head::Way::Pieces(Some(16));
        multi_head::attend_onto(&several, [&twelves, &twelves, &value], 1, false, way).unwrap();
        agrees(&several);
    }

    #[test]
    fn wider_types_keep_their_bits() {
        let _no_grad = tch::no_grad_guard();
        for kind in [Kind::Float, Kind::BFloat16] {
            let random = || Tensor::randn([1, 24, 64], (Kind::Float, Device::Cpu)).to_kind(kind);
            let (query, key, value) = (random(), random(), random());
            let scores = query.matmul(&key.transpose(1, 2)).to_kind(Kind::Float) * 0.125;
            let expected = scores.softmax(-1, Kind::Float).to_kind(kind).matmul(&value);
            assert_eq!(plain(&query, &key, &value).unwrap(), expected, "{kind:?}");
        }
    }

    #[test]
    fn fused_and_plain_attention_agree_on_a_cpu() {
        for width in [32, 384, 512] {
            assert!(is_fused(Device::Cpu, width, Dtype::F32), "{width}");
        }
    }
}
