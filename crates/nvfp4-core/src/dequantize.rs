//! NVFP4 back to floating point.
use crate::{error::Error, weights::NvFp4Weights};

/// Writes row `n` of the weight as f32: `e2m1 * (f32(block scale) * decode scale)`, in that order, each step rounded
/// to f32 (vLLM's `dequantize_to_dtype`). `out` must hold `k` values.
pub fn dequantize_row(weights: &NvFp4Weights<'_>, n: usize, out: &mut [f32]) -> Result<(), Error> {
    let _ = (weights, n, out);
    todo!()
}
