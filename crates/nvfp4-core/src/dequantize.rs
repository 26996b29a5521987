//! NVFP4 back to floating point.

use crate::{
    BLOCK_SIZE, e2m1, e4m3,
    error::{Error, check_size},
    weights::NvFp4Weights,
};
use alloc::{vec, vec::Vec};
use half::{bf16, f16};

/// Writes row `n` of the weight as f32: `e2m1 * (f32(block scale) * decode scale)`, in that order, each step rounded
/// to f32 (vLLM's `dequantize_to_dtype`, ModelOpt's `NVFP4QTensor.dequantize`). `out` must hold `k` values.
pub fn dequantize_row(weights: &NvFp4Weights<'_>, n: usize, out: &mut [f32]) -> Result<(), Error> {
    let decode = row_scale(weights, n)?.decode().get();
    expand_row(weights, n, out, |scale| scale * decode)
}

/// The whole weight as f32, `[n, k]`; see [`dequantize_row`].
pub fn dequantize(weights: &NvFp4Weights<'_>) -> Result<Vec<f32>, Error> {
    let k = weights.in_features();
    let mut out = vec![0.0; weights.out_features() * k];
    for ((n, row), global) in out.chunks_exact_mut(k).enumerate().zip(weights.global().iter_rows()) {
        let decode = global.decode().get();
        expand_row(weights, n, row, |scale| scale * decode)?;
    }
    Ok(out)
}

/// [`dequantize`], each value then rounded to bf16.
pub fn dequantize_bf16(weights: &NvFp4Weights<'_>) -> Result<Vec<bf16>, Error> {
    Ok(dequantize(weights)?.into_iter().map(bf16::from_f32).collect())
}

/// [`dequantize`], each value then rounded to f16.
pub fn dequantize_f16(weights: &NvFp4Weights<'_>) -> Result<Vec<f16>, Error> {
    Ok(dequantize(weights)?.into_iter().map(f16::from_f32).collect())
}

/// The whole weight as compressed-tensors' `decompress` gives it, `[n, k]`: `e2m1 * (f32(block scale) / encode scale)`,
/// always rounded to bf16. It divides where [`dequantize_row`] multiplies, so the f32 values can differ in the last bit.
pub fn decompress(weights: &NvFp4Weights<'_>) -> Result<Vec<bf16>, Error> {
    let k = weights.in_features();
    let mut out = vec![bf16::ZERO; weights.out_features() * k];
    let mut wide = vec![0.0; k];
    for ((n, row), global) in out.chunks_exact_mut(k).enumerate().zip(weights.global().iter_rows()) {
        let encode = global.encode().get();
        expand_row(weights, n, &mut wide, |scale| scale / encode)?;
        row.iter_mut().zip(&wide).for_each(|(o, &v)| *o = bf16::from_f32(v));
    }
    Ok(out)
}

fn row_scale(weights: &NvFp4Weights<'_>, n: usize) -> Result<crate::GlobalScale, Error> {
    weights.global().row(n).ok_or(Error::Range {
        what: "rows of the weight (output features)",
        start: n,
        end: n.saturating_add(1),
        len: weights.out_features(),
        multiple: 1,
    })
}

/// Writes `e2m1 * factor(f32(block scale))` for row `n`.
fn expand_row(
    weights: &NvFp4Weights<'_>,
    n: usize,
    out: &mut [f32],
    factor: impl Fn(f32) -> f32,
) -> Result<(), Error> {
    let k = weights.in_features();
    check_size("dequantized row", k, out.len())?;
    let codes = weights.packed().chunks_exact(k / 2).nth(n).unwrap_or(&[]);
    let scales = weights.scales().bytes().chunks_exact(k / BLOCK_SIZE).nth(n).unwrap_or(&[]);
    for ((values, codes), &scale) in
        out.chunks_exact_mut(BLOCK_SIZE).zip(codes.chunks_exact(BLOCK_SIZE / 2)).zip(scales)
    {
        let factor = factor(e4m3::decode(scale));
        for (pair, &byte) in values.chunks_exact_mut(2).zip(codes) {
            pair[0] = e2m1::decode(byte & 15) * factor;
            pair[1] = e2m1::decode(byte >> 4) * factor;
        }
    }
    Ok(())
}
