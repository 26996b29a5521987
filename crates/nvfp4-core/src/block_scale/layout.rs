//! Where a scale lies in memory, and how many bytes all of them take.

use crate::error::{Error, checked_mul, checked_round_up};

/// Order of block scales in memory.
///
/// A kernel reads scales in tiles of four columns, which are 64 values along `k`. With `T` the number of column
/// tiles, the scale `(r, c)` lies at byte
///
/// | layout | offset |
/// | --- | --- |
/// | linear | `r * cols + c` |
/// | 128x4 | `((r / 128) * T + c / 4) * 512 + (r % 32) * 16 + (r % 128) / 32 * 4 + c % 4` |
/// | 8x4 | `((r / 8) * T + c / 4) * 32 + (r % 8) * 4 + c % 4` |
///
/// 128x4 is what cuBLAS, cuDNN, CUTLASS and the device quantizers call the 128x4 scale layout, torchao `to_blocked`
/// and vLLM `swizzle_blockscale`. 8x4 is for the activations of TensorRT-LLM kernels with few rows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ScaleLayout {
    /// Row-major `[rows, k / 16]`, as checkpoints store them.
    Linear,
    /// Tiles of 128 rows × 4 columns, 512 bytes each; rows padded to 128 and columns to 4 with zeros.
    Swizzled128x4,
    /// Tiles of 8 rows × 4 columns, 32 bytes each; rows padded to 8 and columns to 4 with zeros.
    Swizzled8x4,
}

impl ScaleLayout {
    /// Most rows for which TensorRT-LLM kernels read activation scales in the 8x4 layout.
    pub const TRTLLM_8X4_ROWS: usize = 32;

    /// The layout of the activation scales that TensorRT-LLM kernels read for `m` rows: 8x4 up to 32, else 128x4.
    /// The quantizer and the GEMM both take it from here.
    pub const fn for_trtllm(m: usize) -> Self {
        if m <= Self::TRTLLM_8X4_ROWS { Self::Swizzled8x4 } else { Self::Swizzled128x4 }
    }

    /// Rows of a tile: rows are padded to a multiple of this.
    pub const fn tile_rows(self) -> usize {
        match self {
            Self::Linear => 1,
            Self::Swizzled128x4 => 128,
            Self::Swizzled8x4 => 8,
        }
    }

    /// Columns of a tile: columns are padded to a multiple of this.
    pub const fn tile_cols(self) -> usize {
        match self {
            Self::Linear => 1,
            Self::Swizzled128x4 | Self::Swizzled8x4 => 4,
        }
    }

    /// Rows and columns after padding to whole tiles.
    pub fn padded_shape(self, rows: usize, cols: usize) -> Result<(usize, usize), Error> {
        Ok((
            checked_round_up("rows of block scales", rows, self.tile_rows())?,
            checked_round_up("columns of block scales", cols, self.tile_cols())?,
        ))
    }

    /// Bytes that `rows × cols` scales take, padding included.
    pub fn len(self, rows: usize, cols: usize) -> Result<usize, Error> {
        let (rows, cols) = self.padded_shape(rows, cols)?;
        checked_mul("block scale bytes", rows, cols)
    }

    /// Bytes of one row of tiles, of `cols` columns before padding.
    pub(super) fn stripe_len(self, cols: usize) -> Result<usize, Error> {
        self.len(self.tile_rows(), cols)
    }

    /// Byte offset of the scale `(row, col)` of a matrix with `cols` columns.
    ///
    /// It has a meaning for positions inside a matrix whose [`len`](Self::len) exists (the product of its dimensions
    /// fits `usize`); for others the result wraps around and is of no use, but nothing panics.
    pub const fn offset(self, row: usize, col: usize, cols: usize) -> usize {
        let in_tile = match self {
            Self::Linear => return row.wrapping_mul(cols).wrapping_add(col),
            Self::Swizzled128x4 => quad_128x4(row % 128) + col % 4,
            Self::Swizzled8x4 => quad_8x4(row % 8) + col % 4,
        };
        let tile = (row / self.tile_rows()).wrapping_mul(cols.div_ceil(4)).wrapping_add(col / 4);
        tile.wrapping_mul(self.tile_rows() * 4).wrapping_add(in_tile)
    }

    /// `Ok` for the layouts that have tiles.
    pub(super) const fn check_tiled(self) -> Result<(), Error> {
        match self {
            Self::Linear => Err(Error::Invalid(
                "swizzled scales have the layout 128x4 or 8x4; linear scales are `LinearScales`",
            )),
            Self::Swizzled128x4 | Self::Swizzled8x4 => Ok(()),
        }
    }
}

/// Offset in a 128x4 tile of the four scales of row `r < 128`: rows 32 apart lie side by side.
const fn quad_128x4(r: usize) -> usize {
    r % 32 * 16 + r / 32 * 4
}

/// Offset in an 8x4 tile of the four scales of row `r < 8`.
const fn quad_8x4(r: usize) -> usize {
    r * 4
}

/// Row of a 128x4 tile whose four scales lie at byte `16 * group + 4 * member`.
pub(super) const fn row_128x4(group: usize, member: usize) -> usize {
    group + 32 * member
}

/// Row of an 8x4 tile whose four scales lie at byte `16 * group + 4 * member`.
pub(super) const fn row_8x4(group: usize, member: usize) -> usize {
    4 * group + member
}
