//! The weights as these kernels read them.

use crate::choice::{K_ALIGNMENT, N_ALIGNMENT};
use nvfp4_core::{
    Error, NvFp4Weights, block_scale::LinearScales, block_scale::swizzle_blockscale, padding::PaddingPlan,
    shuffle::shuffle_matrix_a,
};

/// Height of the epilogue's tile, for which the rows are shuffled; the same in every kernel.
const EPILOGUE_TILE_M: usize = 128;

/// Weights in the kernels' layout, in host memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShuffledWeights {
    /// Codes `[n, k / 2]`, the rows of each 32 shuffled.
    pub codes: Vec<u8>,
    /// Block scales, shuffled alike, then in 128x4 tiles; rows padded to 128.
    pub scales: Vec<u8>,
    /// Output features, padded to a multiple of 32.
    pub n: usize,
    /// Input features, padded to a multiple of 64.
    pub k: usize,
}

/// Pads `n` to 32 and `k` to 64 with zeros, and shuffles (FlashInfer's `shuffle_matrix_a` and `shuffle_matrix_sf_a`). Both
/// paddings are more than upstream does, which fails at such shapes; so does the scale padding for `n % 128 != 0`.
pub fn shuffle_weights(weights: &NvFp4Weights<'_>) -> Result<ShuffledWeights, Error> {
    let padding =
        PaddingPlan::for_parts(&[weights.out_features()], weights.in_features(), N_ALIGNMENT, K_ALIGNMENT)?;
    let padded = padding.pad_weights(weights.clone())?;
    let (n, k) = (padding.padded_n(), padding.padded_k());
    let scales = padded.scales();
    let shuffled = shuffle_matrix_a(scales.bytes(), n, scales.cols(), EPILOGUE_TILE_M)?;
    Ok(ShuffledWeights {
        codes: shuffle_matrix_a(padded.packed(), n, k / 2, EPILOGUE_TILE_M)?,
        scales: swizzle_blockscale(&LinearScales::new(n, scales.cols(), shuffled)?)?.into_bytes(),
        n,
        k,
    })
}
