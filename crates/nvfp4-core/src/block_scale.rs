//! Block scales: one e4m3 byte for each 16 values along `k`, and the layouts that kernels read them in.
//!
//! Checkpoints store them row-major ([`LinearScales`]); kernels read them in tiles ([`SwizzledScales`]). The two
//! are different types, so scales cannot be swizzled twice, or read in the wrong layout:
//!
//! ```compile_fail,E0308
//! use nvfp4_core::{LinearScales, swizzle_blockscale};
//! let linear = LinearScales::new(128, 4, vec![0x38; 512])?;
//! let swizzled = swizzle_blockscale(&linear)?;
//! swizzle_blockscale(&swizzled)?; // expected `&LinearScales`, found `&SwizzledScales`
//! # Ok::<(), nvfp4_core::Error>(())
//! ```
//!
//! The same without the last call compiles, and the way back is exact:
//!
//! ```
//! use nvfp4_core::{LinearScales, swizzle_blockscale};
//! let linear = LinearScales::new(128, 4, vec![0x38; 512])?;
//! let swizzled = swizzle_blockscale(&linear)?;
//! assert_eq!(swizzled.unswizzle()?, linear);
//! # Ok::<(), nvfp4_core::Error>(())
//! ```

mod layout;
mod mma_view;
mod swizzle;
mod values;

pub use layout::ScaleLayout;
pub use mma_view::MmaScaleView;
pub use swizzle::{swizzle_blockscale, swizzle_blockscale_batched};
pub use values::ScaleRepair;

use crate::error::{Error, check_size, checked_mul};
use alloc::{borrow::Cow, vec::Vec};
use core::ops::Range;

/// Row-major block scales `[rows, cols]`, as checkpoints store them.
///
/// They remember that their values were examined ([`checked`](Self::checked)), so that a reader examines them once and
/// those who take them from it need not do so again.
#[derive(Clone, Debug)]
pub struct LinearScales<'a> {
    rows: usize,
    cols: usize,
    bytes: Cow<'a, [u8]>,
    /// No byte is NaN or negative. Bytes never change while this is set, except by a repair that sets it anew.
    sound: bool,
}

/// By shape and bytes: whether somebody has examined them makes no difference.
impl PartialEq for LinearScales<'_> {
    fn eq(&self, other: &Self) -> bool {
        (self.rows, self.cols, &self.bytes) == (other.rows, other.cols, &other.bytes)
    }
}
impl Eq for LinearScales<'_> {}

impl<'a> LinearScales<'a> {
    /// `bytes` must hold exactly `rows * cols` e4m3 bytes.
    pub fn new(rows: usize, cols: usize, bytes: impl Into<Cow<'a, [u8]>>) -> Result<Self, Error> {
        let bytes = bytes.into();
        check_size("block scale bytes", checked_mul("block scale bytes", rows, cols)?, bytes.len())?;
        Ok(Self { rows, cols, bytes, sound: false })
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
    /// The bytes, row-major.
    pub fn into_bytes(self) -> Cow<'a, [u8]> {
        self.bytes
    }
    /// The same scales with their bytes owned.
    pub fn into_owned(self) -> LinearScales<'static> {
        let Self { rows, cols, bytes, sound } = self;
        LinearScales { rows, cols, bytes: Cow::Owned(bytes.into_owned()), sound }
    }
    /// The rows `range`, borrowed. Any row is a legal boundary.
    pub fn slice_rows(&self, range: Range<usize>) -> Result<LinearScales<'_>, Error> {
        let bytes = match range.start <= range.end && range.end <= self.rows {
            true => self.bytes.get(range.start * self.cols..range.end * self.cols),
            false => None,
        };
        let bytes = bytes.ok_or(Error::Range {
            what: "rows of block scales",
            start: range.start,
            end: range.end,
            len: self.rows,
            multiple: 1,
        })?;
        LinearScales::new(range.len(), self.cols, bytes).map(|rows| LinearScales { sound: self.sound, ..rows })
    }

    /// The columns `range` of all rows. Any column is a legal boundary.
    pub fn slice_columns(&self, range: Range<usize>) -> Result<LinearScales<'static>, Error> {
        if range.start > range.end || range.end > self.cols {
            return Err(Error::Range {
                what: "columns of block scales",
                start: range.start,
                end: range.end,
                len: self.cols,
                multiple: 1,
            });
        }
        let rows = self.bytes.chunks_exact(self.cols.max(1));
        let bytes: Vec<u8> = rows.filter_map(|row| row.get(range.clone())).flatten().copied().collect();
        LinearScales::new(self.rows, range.len(), bytes)
            .map(|columns| LinearScales { sound: self.sound, ..columns })
    }

    /// Scales of the same number of columns, stacked in order.
    pub fn concat_rows<'b>(
        parts: impl IntoIterator<Item = &'b LinearScales<'b>>,
    ) -> Result<LinearScales<'static>, Error> {
        let mut parts = parts.into_iter().peekable();
        let cols = parts.peek().ok_or(Error::Zero { what: "parts to concatenate" })?.cols;
        let (mut rows, mut bytes, mut sound) = (0usize, Vec::new(), true);
        for part in parts {
            check_size("columns of block scales of a part", cols, part.cols)?;
            rows = rows.saturating_add(part.rows);
            bytes.extend_from_slice(&part.bytes);
            sound &= part.sound;
        }
        LinearScales::new(rows, cols, bytes).map(|stacked| LinearScales { sound, ..stacked })
    }
}

/// Block scales in tiles. A type of its own, so that scales cannot be swizzled twice.
///
/// Bytes that belong to no scale (the padding of rows and columns to whole tiles) are zero, always.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwizzledScales {
    layout: ScaleLayout,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
}

impl SwizzledScales {
    /// Scales that are in tiles already: torchao parameters with `is_swizzled_scales`, ComfyUI files, the output of
    /// another library's quantizer. `rows` and `cols` are the scales before padding; `bytes` must hold exactly
    /// [`layout.len(rows, cols)`](ScaleLayout::len) bytes. Padding, which producers may leave as it was, is set to
    /// zero.
    ///
    /// The number of bytes cannot tell tiled from row-major scales when `rows` and `cols` fill whole tiles; whoever
    /// calls this says which they are.
    pub fn from_bytes(
        layout: ScaleLayout,
        rows: usize,
        cols: usize,
        bytes: impl Into<Vec<u8>>,
    ) -> Result<Self, Error> {
        layout.check_tiled()?;
        let bytes = bytes.into();
        check_size("swizzled block scale bytes", layout.len(rows, cols)?, bytes.len())?;
        let mut scales = Self { layout, rows, cols, bytes };
        scales.zero_padding();
        Ok(scales)
    }
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
    /// The bytes, padding included.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The bytes of the rows `range`, which are the swizzled scales of those rows alone. Only whole tiles can be
    /// cut out: `range` must start at a multiple of the tile's rows, and end at one or at the last row. For other
    /// ranges [`unswizzle`](Self::unswizzle), slice and swizzle again.
    pub fn slice_rows(&self, range: Range<usize>) -> Result<&[u8], Error> {
        let tile = self.layout.tile_rows();
        let whole = range.start.is_multiple_of(tile) && (range.end.is_multiple_of(tile) || range.end == self.rows);
        let stripe = self.layout.stripe_len(self.cols)?;
        let bytes = match whole && range.start <= range.end && range.end <= self.rows {
            true => self.bytes.get(range.start / tile * stripe..range.end.div_ceil(tile) * stripe),
            false => None,
        };
        bytes.ok_or(Error::Range {
            what: "rows of swizzled block scales",
            start: range.start,
            end: range.end,
            len: self.rows,
            multiple: tile,
        })
    }
}
