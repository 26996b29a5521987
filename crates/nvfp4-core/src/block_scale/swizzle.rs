//! From row-major to tiles and back.
//!
//! Both tiled layouts move the scales in *quads*, four neighbours of a row. The loops go through stripes (one row of
//! tiles) in pieces of sixteen tiles, so that the 64 bytes of a cache line are read at once and what is written
//! stays in the first-level cache.

use super::{
    LinearScales, MmaScaleView, ScaleLayout, SwizzledScales,
    layout::{quad_8x4, quad_128x4},
};
use crate::error::{Error, check_size};
use alloc::{vec, vec::Vec};

/// Tiles that are worked on together: their quads of one row fill a cache line.
const TILES: usize = 16;

/// Brings scales into 128x4 tiles.
///
/// vLLM's function of this name, FlashInfer's `block_scale_interleave` and torchao's `to_blocked` give the same
/// bytes. Rows are padded to 128 and columns to 4 with zeros.
pub fn swizzle_blockscale(scales: &LinearScales<'_>) -> Result<SwizzledScales, Error> {
    scales.swizzle(ScaleLayout::Swizzled128x4)
}

/// Brings the scales of `batch` matrices that are stacked along the rows (`[batch * rows, cols]`, e.g. the experts
/// of a layer) into 128x4 tiles, each matrix padded by itself. One after the other, the results are vLLM's
/// `swizzle_blockscale` of a 3-D tensor.
pub fn swizzle_blockscale_batched(scales: &LinearScales<'_>, batch: usize) -> Result<Vec<SwizzledScales>, Error> {
    if batch == 0 {
        return Err(Error::Zero { what: "batch of block scales" });
    }
    crate::error::check_multiple("rows of batched block scales", batch, scales.rows())?;
    let rows = scales.rows() / batch;
    (0..batch).map(|i| swizzle_blockscale(&scales.slice_rows(i * rows..(i + 1) * rows)?)).collect()
}

impl LinearScales<'_> {
    /// The scales in tiles. `layout` must not be [`ScaleLayout::Linear`].
    pub fn swizzle(&self, layout: ScaleLayout) -> Result<SwizzledScales, Error> {
        layout.check_tiled()?;
        let mut bytes = vec![0; layout.len(self.rows, self.cols)?];
        self.write_into(layout, &mut bytes)?;
        Ok(SwizzledScales { layout, rows: self.rows, cols: self.cols, bytes })
    }

    /// Writes the scales in `layout` to `out`, which must have exactly [`layout.len(rows, cols)`](ScaleLayout::len)
    /// bytes. Every byte is written, padding included, whatever was there before: kernels multiply by the padding.
    ///
    /// Rows of tiles are independent of each other. To use several threads, give each the
    /// [rows](Self::slice_rows) of some tiles and the piece of `out` that they fill.
    pub fn write_into(&self, layout: ScaleLayout, out: &mut [u8]) -> Result<(), Error> {
        check_size("block scale bytes", layout.len(self.rows, self.cols)?, out.len())?;
        match layout {
            ScaleLayout::Linear => out.copy_from_slice(&self.bytes),
            ScaleLayout::Swizzled128x4 => to_tiles::<512>(&self.bytes, self.cols, out, quad_128x4),
            ScaleLayout::Swizzled8x4 => to_tiles::<32>(&self.bytes, self.cols, out, quad_8x4),
        }
        Ok(())
    }
}

impl SwizzledScales {
    /// The scales row-major, without padding.
    pub fn unswizzle(&self) -> Result<LinearScales<'static>, Error> {
        let mut bytes = vec![0; ScaleLayout::Linear.len(self.rows, self.cols)?];
        match self.layout {
            ScaleLayout::Linear => return Err(Error::Invalid("swizzled scales are never linear")),
            ScaleLayout::Swizzled128x4 => from_tiles::<512>(&self.bytes, self.cols, &mut bytes, quad_128x4),
            ScaleLayout::Swizzled8x4 => from_tiles::<32>(&self.bytes, self.cols, &mut bytes, quad_8x4),
        }
        LinearScales::new(self.rows, self.cols, bytes)
    }

    /// The 6-D view that CuTe DSL kernels take. Only 128x4 scales have it.
    pub fn mma_view(&self) -> Result<MmaScaleView, Error> {
        match self.layout {
            ScaleLayout::Swizzled128x4 => MmaScaleView::new(self.rows, self.cols, self.bytes.len()),
            _ => Err(Error::Invalid("only 128x4 block scales have the 6-D view of CuTe DSL kernels")),
        }
    }

    /// Sets the bytes that belong to no scale to zero.
    pub(super) fn zero_padding(&mut self) {
        let layout = self.layout;
        let (cols, padded_cols) = (self.cols, self.cols.next_multiple_of(layout.tile_cols()));
        let padded_rows = self.rows.next_multiple_of(layout.tile_rows());
        for row in 0..padded_rows {
            for col in if row < self.rows { cols } else { 0 }..padded_cols {
                if let Some(byte) = self.bytes.get_mut(layout.offset(row, col, cols)) {
                    *byte = 0;
                }
            }
        }
    }
}

/// Fills `out` with tiles of `BYTES` bytes. `out` has the padded size; `quad_offset` says where in a tile the quad
/// of a row is.
fn to_tiles<const BYTES: usize>(src: &[u8], cols: usize, out: &mut [u8], quad_offset: impl Fn(usize) -> usize) {
    if cols == 0 {
        return;
    }
    let (tiles, _) = out.as_chunks_mut::<BYTES>();
    for (i, stripe) in tiles.chunks_mut(cols.div_ceil(4)).enumerate() {
        let src = src.get(i * (BYTES / 4) * cols..).unwrap_or_default();
        for (j, tiles) in stripe.chunks_mut(TILES).enumerate() {
            for r in 0..BYTES / 4 {
                let at = quad_offset(r) % BYTES;
                let row = src.get(r * cols..(r + 1) * cols).unwrap_or_default();
                let (quads, rest) = row.get(j * TILES * 4..).unwrap_or_default().as_chunks::<4>();
                let mut padded = [0; 4];
                padded[..rest.len()].copy_from_slice(rest);
                let quads = quads.iter().chain(core::iter::once(&padded)).chain(core::iter::repeat(&[0; 4]));
                for (tile, quad) in tiles.iter_mut().zip(quads) {
                    if let Some(place) = tile.get_mut(at..at + 4) {
                        place.copy_from_slice(quad);
                    }
                }
            }
        }
    }
}

/// The inverse of [`to_tiles`]; `out` is row-major without padding.
fn from_tiles<const BYTES: usize>(src: &[u8], cols: usize, out: &mut [u8], quad_offset: impl Fn(usize) -> usize) {
    if cols == 0 {
        return;
    }
    let (tiles, _) = src.as_chunks::<BYTES>();
    let stripes = tiles.chunks(cols.div_ceil(4)).zip(out.chunks_mut(BYTES / 4 * cols));
    for (stripe, out) in stripes {
        for (r, row) in out.chunks_mut(cols).enumerate() {
            let at = quad_offset(r) % BYTES;
            for (quad, tile) in row.chunks_mut(4).zip(stripe) {
                if let Some(place) = tile.get(at..at + quad.len()) {
                    quad.copy_from_slice(place);
                }
            }
        }
    }
}
