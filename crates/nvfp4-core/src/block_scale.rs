//! Block scales: one e4m3 byte for each 16 values along `k`, and the layouts that kernels read them in.
use crate::error::Error;
use alloc::{borrow::Cow, vec::Vec};

/// Order of block scales in memory.
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
    /// Bytes that `rows × cols` scales take, padding included.
    pub fn len(self, rows: usize, cols: usize) -> Result<usize, Error> {
        let _ = (rows, cols);
        todo!()
    }
    /// Byte offset of the scale `(row, col)` of a matrix with `cols` columns.
    pub const fn offset(self, row: usize, col: usize, cols: usize) -> usize {
        let _ = (row, col, cols);
        todo!()
    }
}

/// Row-major block scales `[rows, cols]`, as checkpoints store them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinearScales<'a> {
    rows: usize,
    cols: usize,
    bytes: Cow<'a, [u8]>,
}

impl<'a> LinearScales<'a> {
    /// `bytes` must hold exactly `rows * cols` e4m3 bytes.
    pub fn new(rows: usize, cols: usize, bytes: impl Into<Cow<'a, [u8]>>) -> Result<Self, Error> {
        let bytes = bytes.into();
        let expected = crate::error::checked_mul("block scale bytes", rows, cols)?;
        crate::error::check_size("block scale bytes", expected, bytes.len())?;
        Ok(Self { rows, cols, bytes })
    }
    /// Rows (`n` or `m`).
    pub const fn rows(&self) -> usize {
        self.rows
    }
    /// Columns (`k / 16`).
    pub const fn cols(&self) -> usize {
        self.cols
    }
    /// The bytes, row-major.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// The same scales with their bytes owned.
    pub fn into_owned(self) -> LinearScales<'static> {
        LinearScales { rows: self.rows, cols: self.cols, bytes: Cow::Owned(self.bytes.into_owned()) }
    }
    /// `Ok` if no byte is NaN or negative; otherwise [`Error::BlockScale`] with the first bad byte and the count.
    pub fn check_values(&self) -> Result<(), Error> {
        todo!()
    }
}

/// Block scales in tiles. A type of its own, so that scales cannot be swizzled twice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwizzledScales {
    layout: ScaleLayout,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
}

impl SwizzledScales {
    /// The layout, never [`ScaleLayout::Linear`].
    pub const fn layout(&self) -> ScaleLayout {
        self.layout
    }
    /// Rows before padding.
    pub const fn rows(&self) -> usize {
        self.rows
    }
    /// Columns before padding.
    pub const fn cols(&self) -> usize {
        self.cols
    }
    /// The bytes, padding included.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Brings scales into 128x4 tiles.
pub fn swizzle_blockscale(scales: &LinearScales<'_>) -> Result<SwizzledScales, Error> {
    let _ = scales;
    todo!()
}
