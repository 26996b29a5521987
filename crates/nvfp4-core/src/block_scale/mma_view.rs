//! The 6-D view of 128x4 scales that FlashInfer's CuTe DSL kernels take (`convert_sf_to_mma_layout`).

use super::ScaleLayout;
use crate::error::{Error, check_size};

/// Shape and strides, in bytes, of the 6-D view of a 128x4 buffer: `(32, 4, mt, 4, kt, 1)` with `mt` row tiles and
/// `kt` column tiles. Index `(a, b, i, c, j, 0)` is the scale of row `128 i + 32 b + a` and column `4 j + c`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MmaScaleView {
    /// Extent of each dimension.
    pub shape: [usize; 6],
    /// Bytes from one index to the next in each dimension.
    pub strides: [usize; 6],
}

impl MmaScaleView {
    /// The view of the 128x4 scales of a `[n, k]` operand with `cols = k / 16` columns of scales. `bytes` is the
    /// size of the buffer, which must be exactly the tiles: FlashInfer refuses others with "Scale factor tensor has
    /// X elements, expected Y".
    pub fn new(rows: usize, cols: usize, bytes: usize) -> Result<Self, Error> {
        check_size("swizzled block scale bytes", ScaleLayout::Swizzled128x4.len(rows, cols)?, bytes)?;
        let (mt, kt) = (rows.div_ceil(128), cols.div_ceil(4));
        // Products of tile counts fit, because the number of bytes does.
        Ok(Self { shape: [32, 4, mt, 4, kt, 1], strides: [16, 4, 512 * kt, 1, 512, 512 * mt * kt] })
    }
}
