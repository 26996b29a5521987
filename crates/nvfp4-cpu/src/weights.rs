//! Weights in the layout that the CPU kernels read.
//!
//! The `[n, k]` tensor is cut into blocks of 16 rows × 16 columns. A block keeps its 256 codes (128 bytes) beside its
//! 16 block scales, so that one pass over memory has all that a row of outputs needs, and a vector lane is a row:
//! no sum across lanes, and a block's scales are one vector. Blocks of the same rows follow each other along `k`.
//! Rows are padded to 16 with zero codes and zero scales; nothing else is added to the format's own bytes.
//!
//! Within a block, the code of row `r` and column `j` is in byte `(j / 8) * 64 + r * 4 + j % 4`, in the low half if
//! `(j / 4) % 2 == 0`: masking 32 bytes gives 8 rows × 4 columns with 4 columns in each 32-bit lane, as the 8-bit
//! dot product instructions of x86 and Arm want them.

use crate::threads::{self, Divisible};
use nvfp4_core::{BLOCK_SIZE, Error, NvFp4Weights, PreparedWeights, kernel::WeightLayout};

/// Rows in a block; lanes of an accumulator.
pub(crate) const ROWS: usize = 16;

/// The layout described above.
pub(crate) const LAYOUT: WeightLayout = WeightLayout::new("cpu-16x16", 1);

/// 16 rows × 16 columns of weights.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub(crate) struct Block {
    /// Codes; see the file's head for their order.
    pub(crate) codes: [u8; ROWS * BLOCK_SIZE / 2],
    /// The e4m3 scale of each row, finite and not negative.
    pub(crate) scales: [u8; ROWS],
}

const ZERO: Block = Block { codes: [0; ROWS * BLOCK_SIZE / 2], scales: [0; ROWS] };

/// Byte of [`Block::codes`] and shift in it for row `r` and column `j`.
pub(crate) const fn position(r: usize, j: usize) -> (usize, u32) {
    ((j / 8) * 64 + r * 4 + j % 4, 4 * ((j / 4) % 2) as u32)
}

/// The global scale of each row.
#[derive(Clone, Debug)]
enum GlobalScale {
    PerTensor(f32),
    /// One for each of the `n` rows.
    PerRow(Vec<f32>),
}

/// Prepared weights.
#[derive(Clone, Debug)]
pub(crate) struct CpuWeights {
    n: usize,
    k: usize,
    /// `n / 16` (rounded up) times `k / 16` blocks.
    blocks: Vec<Block>,
    global: GlobalScale,
}

impl PreparedWeights for CpuWeights {
    fn layout(&self) -> WeightLayout {
        LAYOUT
    }
    fn bytes(&self) -> usize {
        let global = match &self.global {
            GlobalScale::PerTensor(_) => 0,
            GlobalScale::PerRow(scales) => size_of_val(&scales[..]),
        };
        size_of_val(&self.blocks[..]) + global
    }
}

impl CpuWeights {
    /// Repacks checkpoint weights. Block scales that are NaN or negative are refused with [`Error::BlockScale`].
    pub(crate) fn new(weights: &NvFp4Weights<'_>) -> Result<Self, Error> {
        weights.scales().check_values()?;
        let (n, k) = (weights.out_features(), weights.in_features());
        let count = n.div_ceil(ROWS).checked_mul(k / BLOCK_SIZE);
        let count = count.ok_or(Error::Overflow { what: "blocks of prepared weights" })?;
        let mut blocks = vec![ZERO; count];
        let work = RowBlocks { blocks: &mut blocks, per_row: k / BLOCK_SIZE, first: 0 };
        // Repacking a code costs about as much as a multiply-add.
        let grain = threads::grain(work.len(), 1, n.saturating_mul(k));
        threads::for_each_piece(work, grain, &|piece| piece.repack(weights));
        let global = match weights.global().as_per_tensor() {
            Some(scale) => GlobalScale::PerTensor(scale.decode().get()),
            None => GlobalScale::PerRow(weights.global().iter_rows().map(|s| s.decode().get()).collect()),
        };
        Ok(Self { n, k, blocks, global })
    }

    /// Output features.
    pub(crate) fn n(&self) -> usize {
        self.n
    }
    /// Input features.
    pub(crate) fn k(&self) -> usize {
        self.k
    }
    /// Blocks along `k`.
    pub(crate) fn blocks_per_row(&self) -> usize {
        self.k / BLOCK_SIZE
    }
    /// The blocks of `count` groups of 16 rows, from group `first` on; fewer past the end.
    pub(crate) fn row_blocks(&self, first: usize, count: usize) -> &[Block] {
        let per_row = self.blocks_per_row();
        let end = (first + count).saturating_mul(per_row).min(self.blocks.len());
        self.blocks.get(first * per_row..end).unwrap_or_default()
    }
    /// Global scales (multipliers) of the rows from `first` on; rows past the end get 0.
    pub(crate) fn global_scales(&self, first: usize, out: &mut [f32]) {
        match &self.global {
            GlobalScale::PerTensor(scale) => out.fill(*scale),
            GlobalScale::PerRow(scales) => {
                let rows = scales.get(first..).unwrap_or_default();
                out.fill(0.0);
                out.iter_mut().zip(rows).for_each(|(o, s)| *o = *s);
            }
        }
    }
}

/// Groups of 16 rows to fill, from group `first` on.
struct RowBlocks<'a> {
    blocks: &'a mut [Block],
    per_row: usize,
    first: usize,
}

impl Divisible for RowBlocks<'_> {
    fn len(&self) -> usize {
        self.blocks.len() / self.per_row
    }
    fn split_at(self, units: usize) -> (Self, Self) {
        let (a, b) = self.blocks.split_at_mut(units * self.per_row);
        (Self { blocks: a, ..self }, Self { blocks: b, first: self.first + units, ..self })
    }
}

impl RowBlocks<'_> {
    fn repack(self, weights: &NvFp4Weights<'_>) {
        let (packed, scales) = (weights.packed(), weights.scales().bytes());
        for (i, blocks) in self.blocks.chunks_exact_mut(self.per_row).enumerate() {
            let first_row = (self.first + i) * ROWS;
            for r in 0..ROWS.min(weights.out_features().saturating_sub(first_row)) {
                let row = first_row + r;
                let codes = packed[row * self.per_row * 8..][..self.per_row * 8].as_chunks::<8>().0;
                let scales = &scales[row * self.per_row..][..self.per_row];
                for ((block, codes), scale) in blocks.iter_mut().zip(codes).zip(scales) {
                    block.scales[r] = *scale;
                    for half in 0..2 {
                        let quads = &codes[half * 4..][..4];
                        let at = half * 64 + r * 4;
                        // Columns 4q .. 4q + 4 are the low halves, 4q + 4 .. 4q + 8 the high ones.
                        let [a, b, c, d] = [quads[0], quads[1], quads[2], quads[3]];
                        block.codes[at] = a & 0xf | c << 4;
                        block.codes[at + 1] = a >> 4 | c & 0xf0;
                        block.codes[at + 2] = b & 0xf | d << 4;
                        block.codes[at + 3] = b >> 4 | d & 0xf0;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfp4_core::{GlobalScale as Scale, GlobalScales, LinearScales};

    #[test]
    fn every_code_and_scale_is_where_position_says() {
        let (n, k) = (37, 48);
        let mut state = 1u32;
        let mut byte = || {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 24) as u8
        };
        let packed: Vec<u8> = (0..n * k / 2).map(|_| byte()).collect();
        let scales: Vec<u8> = (0..n * k / 16).map(|_| byte() % 0x7f).collect();
        let parts = [(20, Scale::from_decode(0.5).unwrap()), (17, Scale::from_decode(2.0).unwrap())];
        let weights = NvFp4Weights::new(
            n,
            k,
            packed.clone(),
            LinearScales::new(n, k / 16, scales.clone()).unwrap(),
            GlobalScales::from_parts(parts),
        )
        .unwrap();
        let prepared = CpuWeights::new(&weights).unwrap();
        assert_eq!(prepared.blocks.len(), 3 * 3);
        assert_eq!(prepared.bytes(), 48 * 48 * 9 / 16 + 4 * n, "0.5625 bytes a weight, and the global scales");
        for row in 0..48 {
            for col in 0..k {
                let block = &prepared.row_blocks(row / 16, 1)[col / 16];
                let (at, shift) = position(row % 16, col % 16);
                let (code, scale) = if row < n {
                    (packed[(row * k + col) / 2] >> (4 * (col % 2)) & 0xf, scales[row * (k / 16) + col / 16])
                } else {
                    (0, 0)
                };
                assert_eq!(block.codes[at] >> shift & 0xf, code, "row {row} column {col}");
                assert_eq!(block.scales[row % 16], scale, "row {row} column {col}");
            }
        }
        let mut global = [9.0; 32];
        prepared.global_scales(16, &mut global);
        assert_eq!(global[..], [vec![0.5; 4], vec![2.0; 17], vec![0.0; 11]].concat());
    }

    #[test]
    fn bad_block_scales_are_refused() {
        for byte in [0x7f, 0xff, 0x80, 0x81] {
            let mut scales = vec![0x38; 6];
            scales[5] = byte;
            let weights = NvFp4Weights::new(
                2,
                48,
                vec![0u8; 48],
                LinearScales::new(2, 3, scales).unwrap(),
                GlobalScales::per_tensor(2, Scale::ONE),
            )
            .unwrap();
            let error = CpuWeights::new(&weights).unwrap_err();
            assert_eq!(error, Error::BlockScale { row: 1, column: 2, byte, count: 1 });
        }
    }
}
