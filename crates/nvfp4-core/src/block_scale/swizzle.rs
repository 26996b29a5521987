//! From row-major to tiles and back.
//!
//! Both tiled layouts move the scales in *quads*, four neighbours of a row. The loops go through stripes (one row of
//! tiles) in pieces of sixteen tiles, so that the 64 bytes of a cache line are read at once and what is written
//! stays in the first-level cache.

use super::{
    LinearScales, MmaScaleView, ScaleLayout, SwizzledScales,
    layout::{row_8x4, row_128x4},
};
use crate::error::{Error, check_size};
use alloc::{vec, vec::Vec};

/// Scales of a row that are neighbours in every layout.
const QUAD: usize = 4;
/// Bytes of a group: four quads, of four rows, that are neighbours in a tile.
const GROUP: usize = 4 * QUAD;
/// Tiles that are worked on together: their quads of one row fill a cache line.
const TILES: usize = LINE / QUAD;
/// Bytes of a cache line.
const LINE: usize = 64;

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
            ScaleLayout::Swizzled128x4 => to_tiles::<512>(&self.bytes, self.cols, out, row_128x4),
            ScaleLayout::Swizzled8x4 => to_tiles::<32>(&self.bytes, self.cols, out, row_8x4),
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
            ScaleLayout::Swizzled128x4 => from_tiles::<512>(&self.bytes, self.cols, &mut bytes, row_128x4),
            ScaleLayout::Swizzled8x4 => from_tiles::<32>(&self.bytes, self.cols, &mut bytes, row_8x4),
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
        if self.bytes.is_empty() {
            return;
        }
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

/// Fills `out` with tiles of `BYTES` bytes; `out` has the padded size. A tile is made of groups of 16 bytes: the
/// quads of four rows. `row_of` tells which row of the tile is member `j` of group `i`.
fn to_tiles<const BYTES: usize>(src: &[u8], cols: usize, out: &mut [u8], row_of: impl Fn(usize, usize) -> usize) {
    if out.is_empty() {
        return;
    }
    let (tiles, _) = out.as_chunks_mut::<BYTES>();
    for (i, stripe) in tiles.chunks_mut(cols.div_ceil(QUAD)).enumerate() {
        let src = src.get(i * (BYTES / QUAD) * cols..).unwrap_or_default();
        for (j, tiles) in stripe.chunks_mut(TILES).enumerate() {
            let columns = j * LINE..cols.min((j + 1) * LINE);
            for group in 0..BYTES / GROUP {
                let line = |member: usize| -> [u8; LINE] {
                    let start = row_of(group, member) * cols;
                    let scales = src.get(start + columns.start..start + columns.end).unwrap_or_default();
                    scales.try_into().unwrap_or_else(|_| zero_extended(scales))
                };
                let rows = [line(0), line(1), line(2), line(3)];
                match <&mut [[u8; BYTES]; TILES]>::try_from(&mut *tiles) {
                    Ok(tiles) => gather_quads(&rows, tiles, group),
                    Err(_) => gather_quads(&rows, tiles, group),
                }
            }
        }
    }
}

/// The start of a line of which the rest is padding.
#[cold]
fn zero_extended(scales: &[u8]) -> [u8; LINE] {
    let mut line = [0; LINE];
    line[..scales.len()].copy_from_slice(scales);
    line
}

/// Writes a group of each tile: quad `t` of the rows to tile `t`. Inlined, so that a known number of tiles unrolls.
#[inline(always)]
fn gather_quads<const BYTES: usize>(rows: &[[u8; LINE]; 4], tiles: &mut [[u8; BYTES]], group: usize) {
    let rows = rows.each_ref().map(|row| row.as_chunks::<QUAD>().0);
    for (t, tile) in tiles.iter_mut().enumerate() {
        if let Some(place) = tile.as_chunks_mut::<GROUP>().0.get_mut(group) {
            let word = |member: usize| u128::from(u32::from_le_bytes(rows[member][t % TILES]));
            *place = (word(0) | word(1) << 32 | word(2) << 64 | word(3) << 96).to_le_bytes();
        }
    }
}

/// The inverse of [`gather_quads`].
#[inline(always)]
fn scatter_quads<const BYTES: usize>(tiles: &[[u8; BYTES]], rows: &mut [[u8; LINE]; 4], group: usize) {
    for (t, tile) in tiles.iter().enumerate() {
        if let Some(group) = tile.as_chunks::<GROUP>().0.get(group) {
            for (row, quad) in rows.iter_mut().zip(group.as_chunks::<QUAD>().0) {
                row.as_chunks_mut::<QUAD>().0[t % TILES] = *quad;
            }
        }
    }
}

/// The inverse of [`to_tiles`]; `out` is row-major without padding.
fn from_tiles<const BYTES: usize>(src: &[u8], cols: usize, out: &mut [u8], row_of: impl Fn(usize, usize) -> usize) {
    if out.is_empty() {
        return;
    }
    let (tiles, _) = src.as_chunks::<BYTES>();
    let stripes = tiles.chunks(cols.div_ceil(QUAD)).zip(out.chunks_mut(BYTES / QUAD * cols));
    for (stripe, out) in stripes {
        for (j, tiles) in stripe.chunks(TILES).enumerate() {
            let columns = j * LINE..cols.min((j + 1) * LINE);
            for group in 0..BYTES / GROUP {
                let mut rows = [[0; LINE]; 4];
                match <&[[u8; BYTES]; TILES]>::try_from(tiles) {
                    Ok(tiles) => scatter_quads(tiles, &mut rows, group),
                    Err(_) => scatter_quads(tiles, &mut rows, group),
                }
                for (member, row) in rows.iter().enumerate() {
                    let start = row_of(group, member) * cols;
                    if let Some(scales) = out.get_mut(start + columns.start..start + columns.end) {
                        scales.copy_from_slice(&row[..columns.len()]);
                    }
                }
            }
        }
    }
}
