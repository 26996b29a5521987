//! Weight layouts of FlashInfer's BF16 × FP4 kernels (`prepare_bf16_fp4_weights`).
//!
//! All of them start from weights that [`PaddingPlan`](crate::padding::PaddingPlan) has padded to
//! [`BF16_FP4_ALIGNMENT`](crate::padding::BF16_FP4_ALIGNMENT).

use crate::{
    block_scale::{LinearScales, MmaScaleView, SwizzledScales, swizzle_blockscale},
    device::ComputeCapability,
    e4m3::to_s0e5m3,
    error::{Error, check_multiple},
    support::Unsupported,
    weights::NvFp4Weights,
};
use alloc::{format, string::ToString, vec, vec::Vec};

/// Rows of a tile of the SM12x layout.
const TILE_ROWS: usize = 64;
/// Bytes of packed codes that a tile of the SM12x layout has of each row: one block of 16.
const TILE_BYTES: usize = 8;
/// Rows of a tile that lie side by side in memory: `r`, `r + 16`, `r + 32` and `r + 48`.
const ROW_STEP: usize = 16;
/// Bytes that a row and the three beside it fill.
const GROUP: usize = 4 * TILE_BYTES;

/// The layout that FlashInfer's CuTe DSL BF16 × FP4 kernel reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Bf16Fp4Layout {
    /// Row-major codes, 128x4 block scales seen through a [`MmaScaleView`].
    Sm100,
    /// Codes in tiles for the registers of `mma.sync`, block scales `[k / 16, n]` as S0E5M3.
    Sm12x,
}

impl Bf16Fp4Layout {
    /// The layout for a GPU: compute capability 10.0, 10.3, 10.7 or 12.x.
    pub fn of(device: ComputeCapability) -> Result<Self, Unsupported> {
        match device.number() {
            100 | 103 | 107 => Ok(Self::Sm100),
            120..130 => Ok(Self::Sm12x),
            _ => Err(Unsupported::Device {
                needed: "sm_100 | sm_103 | sm_107 | sm_12x".to_string(),
                found: format!("{device}"),
            }),
        }
    }
}

/// Weights for the SM100 kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sm100Weights {
    /// Packed codes, `[n, k / 2]`, as they were.
    pub packed: Vec<u8>,
    /// Block scales in 128x4 tiles.
    pub scales: SwizzledScales,
    /// How the kernel sees the scales.
    pub scale_view: MmaScaleView,
}

/// Weights for the SM12x kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sm12xWeights {
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
    /// Codes, `[k / 16, 2 n]` little-endian 32-bit words.
    pub words: Vec<u8>,
    /// Block scales, `[k / 16, n]` S0E5M3 bytes: the bits 14..7 of the scale as half-precision number.
    pub scales: Vec<u8>,
}

/// Prepares weights for the SM100 kernel ("cute-dsl" on compute capability 10.x). Codes stay as they are.
pub fn prepare_bf16_fp4_sm100(weights: &NvFp4Weights<'_>) -> Result<Sm100Weights, Error> {
    let scales = swizzle_blockscale(weights.scales())?;
    let scale_view = scales.mma_view()?;
    Ok(Sm100Weights { packed: weights.packed().to_vec(), scales, scale_view })
}

/// Prepares weights for FlashInfer's "cudnn" BF16 × FP4 backend: the codes stay as they are, the block scales are
/// row-major. The inverse of [`swizzle_blockscale`], for scales that come in tiles.
pub fn prepare_bf16_fp4_cudnn(scales: &SwizzledScales) -> Result<LinearScales<'static>, Error> {
    scales.unswizzle()
}

/// Prepares weights for the SM12x kernel ("cute-dsl" on compute capability 12.x). `n` must be a multiple of 64.
///
/// A tile is 64 rows × 16 values along `k`. Its 128 words lie at `[kt, 128 nt ..]`; rows `r`, `r + 16`, `r + 32`
/// and `r + 48` fill eight words, in the order in which the lanes of a warp need them. The scales lose their sign:
/// [`LinearScales::check_values`] refuses negative ones.
pub fn prepare_bf16_fp4_sm12x(weights: &NvFp4Weights<'_>) -> Result<Sm12xWeights, Error> {
    let (n, k) = (weights.out_features(), weights.in_features());
    check_multiple("n (output features)", TILE_ROWS, n)?;
    Ok(Sm12xWeights { n, k, words: pack_sm12x(weights.packed(), n), scales: transpose_scales(weights.scales()) })
}

/// Byte of a group of four rows (byte `b` of the row `16 i` further down counts as `8 i + b`) that lands at each
/// place. A word holds bytes `c` and `c + 4` of a row and of the row 16 further down; words of the upper and the
/// lower two rows alternate.
const SOURCE: [usize; GROUP] = {
    let mut source = [0; GROUP];
    let mut to = 0;
    while to < GROUP {
        let (column, pair, byte) = (to / 8, to / 4 % 2, to % 4);
        source[to] = TILE_BYTES * (2 * pair + byte / 2) + column + 4 * (byte % 2);
        to += 1;
    }
    source
};

/// `packed` is `[n, k / 2]` with `n` a multiple of 64 and `k` of 16; the result is as long.
fn pack_sm12x(packed: &[u8], n: usize) -> Vec<u8> {
    let mut words = vec![0; packed.len()];
    let row_bytes = packed.len() / n;
    for (nt, rows) in packed.chunks_exact(TILE_ROWS * row_bytes).enumerate() {
        for base in 0..ROW_STEP {
            let row = |i: usize| rows[(base + i * ROW_STEP) * row_bytes..][..row_bytes].as_chunks::<TILE_BYTES>().0;
            let quads = row(0).iter().zip(row(1)).zip(row(2).iter().zip(row(3)));
            for (((a, b), (c, d)), stripe) in quads.zip(words.chunks_exact_mut(n * TILE_BYTES)) {
                let mut group = [0; GROUP];
                for (place, row) in group.as_chunks_mut().0.iter_mut().zip([a, b, c, d]) {
                    *place = *row;
                }
                let at = nt * TILE_ROWS * TILE_BYTES + base * GROUP;
                stripe[at..][..GROUP].copy_from_slice(&SOURCE.map(|from| group[from]));
            }
        }
    }
    words
}

/// `[n, k / 16]` e4m3 to `[k / 16, n]` S0E5M3, in squares that stay in the first-level cache.
fn transpose_scales(scales: &LinearScales<'_>) -> Vec<u8> {
    const SIDE: usize = 64;
    let (n, cols) = (scales.rows(), scales.cols());
    let mut out = vec![0; scales.bytes().len()];
    for (i, rows) in scales.bytes().chunks(SIDE * cols).enumerate() {
        for (j, stripe) in out.chunks_mut(SIDE * n).enumerate() {
            for (column, out) in stripe.chunks_exact_mut(n).enumerate() {
                let column = rows.iter().skip(j * SIDE + column).step_by(cols);
                for (to, &scale) in out[i * SIDE..].iter_mut().zip(column) {
                    *to = to_s0e5m3(scale);
                }
            }
        }
    }
    out
}

impl Sm12xWeights {
    /// The packed codes `[n, k / 2]` that [`prepare_bf16_fp4_sm12x`] was given.
    pub fn unpack(&self) -> Vec<u8> {
        let row_bytes = self.k / 2;
        let mut packed = vec![0; self.words.len()];
        for (kt, stripe) in self.words.chunks(self.n.max(1) * TILE_BYTES).enumerate() {
            for (group, bytes) in stripe.as_chunks::<GROUP>().0.iter().enumerate() {
                for (&from, &byte) in SOURCE.iter().zip(bytes) {
                    let tile = group / ROW_STEP;
                    let row = tile * TILE_ROWS + group % ROW_STEP + from / TILE_BYTES * ROW_STEP;
                    if let Some(place) = packed.get_mut(row * row_bytes + kt * TILE_BYTES + from % TILE_BYTES) {
                        *place = byte;
                    }
                }
            }
        }
        packed
    }
}
