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
/// Bytes of a row that are moved together: two cache lines.
const LINE: usize = 128;

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

/// `packed` is `[n, k / 2]` with `n` a multiple of 64 and `k` of 16; the result is as long.
fn pack_sm12x(packed: &[u8], n: usize) -> Vec<u8> {
    let mut words = vec![0; packed.len()];
    let row_bytes = packed.len() / n;
    for (nt, rows) in packed.chunks_exact(TILE_ROWS * row_bytes).enumerate() {
        for (j, stripes) in words.chunks_mut(LINE * n).enumerate() {
            // A piece of each row is staged, so that memory is read and written in runs.
            let mut lines = [[0; LINE]; TILE_ROWS];
            for (line, row) in lines.iter_mut().zip(rows.chunks_exact(row_bytes)) {
                let piece = &row[j * LINE..row_bytes.min((j + 1) * LINE)];
                line[..piece.len()].copy_from_slice(piece);
            }
            for (block, stripe) in stripes.chunks_exact_mut(n * TILE_BYTES).enumerate() {
                let (groups, _) = stripe[nt * TILE_ROWS * TILE_BYTES..].as_chunks_mut::<GROUP>();
                for (base, group) in groups.iter_mut().take(ROW_STEP).enumerate() {
                    let row = |i: usize| u64::from_le_bytes(lines[base + i * ROW_STEP].as_chunks().0[block]);
                    *group = pack_group([row(0), row(1), row(2), row(3)]);
                }
            }
        }
    }
    words
}

/// Eight 32-bit words, two by two, of one block of each of four rows.
fn pack_group(rows: [u64; 4]) -> [u8; GROUP] {
    let [a, b, c, d] = rows.map(interleave_halves);
    let mut group = [0; GROUP];
    for (column, place) in group.as_chunks_mut().0.iter_mut().enumerate() {
        let pair = |row: u64| row >> (16 * column) & 0xffff;
        *place = (pair(a) | pair(b) << 16 | pair(c) << 32 | pair(d) << 48).to_le_bytes();
    }
    group
}

/// Bytes 0, 4, 1, 5, 2, 6, 3, 7 of a block.
fn interleave_halves(block: u64) -> u64 {
    let spread = |four: u64| {
        let two = (four | four << 16) & 0x0000_ffff_0000_ffff;
        (two | two << 8) & 0x00ff_00ff_00ff_00ff
    };
    spread(block & 0xffff_ffff) | spread(block >> 32) << 8
}

/// `[n, k / 16]` e4m3 to `[k / 16, n]` S0E5M3, in squares that stay in the first-level cache.
fn transpose_scales(scales: &LinearScales<'_>) -> Vec<u8> {
    let (n, cols) = (scales.rows(), scales.cols());
    let mut out = vec![0; scales.bytes().len()];
    for (i, rows) in scales.bytes().chunks(LINE * cols).enumerate() {
        for (j, columns) in out.chunks_mut(LINE * n).enumerate() {
            let mut square = [[0; LINE]; LINE];
            for (r, row) in rows.chunks_exact(cols).enumerate() {
                for (column, &scale) in square.iter_mut().zip(&row[j * LINE..]) {
                    column[r % LINE] = S0E5M3[scale as usize];
                }
            }
            for (column, square) in columns.chunks_exact_mut(n).zip(&square) {
                let piece = &mut column[i * LINE..n.min((i + 1) * LINE)];
                piece.copy_from_slice(&square[..piece.len()]);
            }
        }
    }
    out
}

/// The S0E5M3 byte of each e4m3 byte.
const S0E5M3: [u8; 256] = {
    let mut table = [0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = to_s0e5m3(code as u8);
        code += 1;
    }
    table
};

/// Byte of a group of four rows (byte `b` of the row `16 i` further down counts as `8 i + b`) that [`pack_group`]
/// brings to each place. A word holds bytes `c` and `c + 4` of a row and of the row 16 further down; words of the
/// upper and the lower two rows alternate.
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
