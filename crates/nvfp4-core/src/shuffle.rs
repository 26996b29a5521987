//! The row order that TensorRT-LLM kernels read weights in (FlashInfer's `shuffle_matrix_a`).
//!
//! Their epilogue writes the outputs of a thread side by side, so the rows of the weight, which become columns of
//! the output, are dealt out to the threads in advance: within each block of 32 rows (16 for epilogue tiles that are
//! not a multiple of 128) row `r` of the shuffled matrix is row `4 * (r % 8) + r / 8` (`2 * (r % 8) + r / 8`) of the
//! original. Block scales are shuffled alike and then brought into 128x4 tiles.

use crate::{
    block_scale::{LinearScales, ScaleLayout, SwizzledScales, swizzle_blockscale},
    error::{Error, check_multiple, check_size, checked_mul},
};
use alloc::{vec, vec::Vec};

/// Rows that are permuted among themselves.
const fn shuffle_block_size(epilogue_tile_m: usize) -> usize {
    if epilogue_tile_m.is_multiple_of(128) { 32 } else { 16 }
}

/// Row of the original that row `r` of the shuffled matrix is.
const fn source_row(r: usize, block: usize) -> usize {
    let in_block = r % block;
    r - in_block + block / 8 * (in_block % 8) + in_block / 8
}

/// For each row of the shuffled matrix, the row of the original (FlashInfer's
/// `get_shuffle_matrix_a_row_indices`). vLLM uses `epilogue_tile_m` 128. `rows` must be a multiple of 32, of 16 for
/// tiles that are not a multiple of 128.
pub fn shuffle_matrix_a_row_indices(rows: usize, epilogue_tile_m: usize) -> Result<Vec<usize>, Error> {
    let block = shuffle_block_size(epilogue_tile_m);
    check_multiple("rows to shuffle", block, rows)?;
    Ok((0..rows).map(|r| source_row(r, block)).collect())
}

/// Shuffles the rows of a packed weight `[rows, row_bytes]`. `rows` must be a multiple of 32 (16).
pub fn shuffle_matrix_a(
    data: &[u8],
    rows: usize,
    row_bytes: usize,
    epilogue_tile_m: usize,
) -> Result<Vec<u8>, Error> {
    permute_rows(data, rows, row_bytes, epilogue_tile_m, |to, from| (to, from))
}

/// Undoes [`shuffle_matrix_a`].
pub fn unshuffle_matrix_a(
    data: &[u8],
    rows: usize,
    row_bytes: usize,
    epilogue_tile_m: usize,
) -> Result<Vec<u8>, Error> {
    permute_rows(data, rows, row_bytes, epilogue_tile_m, |to, from| (from, to))
}

/// Shuffles the rows of block scales and brings them into 128x4 tiles. `rows` must be a multiple of 128.
///
/// In the result, row `r` belongs to row `r` of the shuffled weight.
pub fn shuffle_matrix_sf_a(scales: &LinearScales<'_>, epilogue_tile_m: usize) -> Result<SwizzledScales, Error> {
    check_multiple("rows of block scales to shuffle", ScaleLayout::Swizzled128x4.tile_rows(), scales.rows())?;
    let shuffled = shuffle_matrix_a(scales.bytes(), scales.rows(), scales.cols(), epilogue_tile_m)?;
    swizzle_blockscale(&LinearScales::new(scales.rows(), scales.cols(), shuffled)?)
}

/// Undoes [`shuffle_matrix_sf_a`].
pub fn unshuffle_matrix_sf_a(
    scales: &SwizzledScales,
    epilogue_tile_m: usize,
) -> Result<LinearScales<'static>, Error> {
    let shuffled = scales.unswizzle()?;
    let bytes = unshuffle_matrix_a(shuffled.bytes(), scales.rows(), scales.cols(), epilogue_tile_m)?;
    LinearScales::new(scales.rows(), scales.cols(), bytes)
}

/// `direct` orders a row's place in the shuffled matrix and its place in the original as (destination, source).
fn permute_rows(
    data: &[u8],
    rows: usize,
    row_bytes: usize,
    epilogue_tile_m: usize,
    direct: impl Fn(usize, usize) -> (usize, usize),
) -> Result<Vec<u8>, Error> {
    let block = shuffle_block_size(epilogue_tile_m);
    check_multiple("rows to shuffle", block, rows)?;
    check_size("bytes to shuffle", checked_mul("bytes to shuffle", rows, row_bytes)?, data.len())?;
    let mut out = vec![0; data.len()];
    if out.is_empty() {
        return Ok(out);
    }
    for (out, data) in out.chunks_exact_mut(block * row_bytes).zip(data.chunks_exact(block * row_bytes)) {
        for r in 0..block {
            let (to, from) = direct(r, source_row(r, block));
            out[to * row_bytes..][..row_bytes].copy_from_slice(&data[from * row_bytes..][..row_bytes]);
        }
    }
    Ok(out)
}
