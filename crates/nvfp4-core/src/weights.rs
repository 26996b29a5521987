//! NVFP4 weights as checkpoints hold them, after their dialect's conventions have been resolved.

use crate::{
    BLOCK_SIZE,
    block_scale::LinearScales,
    error::{Error, check_multiple, check_size, checked_mul},
    global_scale::GlobalScales,
};
use alloc::{borrow::Cow, vec::Vec};
use core::ops::Range;

/// An NVFP4 weight tensor `[n, k]`: packed codes, linear block scales, global scales. The bytes may be borrowed
/// from a memory-mapped file.
#[derive(Clone, PartialEq, Debug)]
pub struct NvFp4Weights<'a> {
    out_features: usize,
    in_features: usize,
    packed: Cow<'a, [u8]>,
    scales: LinearScales<'a>,
    global: GlobalScales,
}

impl<'a> NvFp4Weights<'a> {
    /// Checks the shapes and takes the parts.
    ///
    /// * `packed`: `[out_features, in_features / 2]` bytes, two e2m1 codes each, low nibble = even `k`;
    /// * `scales`: `[out_features, in_features / 16]` e4m3 bytes;
    /// * `global`: `out_features` rows.
    ///
    /// `in_features` must be a multiple of 16 and neither dimension zero. Block scale *values* are not examined
    /// here; see [`LinearScales::check_values`].
    pub fn new(
        out_features: usize,
        in_features: usize,
        packed: impl Into<Cow<'a, [u8]>>,
        scales: LinearScales<'a>,
        global: GlobalScales,
    ) -> Result<Self, Error> {
        let packed = packed.into();
        if out_features == 0 {
            return Err(Error::Zero { what: "n (output features)" });
        }
        if in_features == 0 {
            return Err(Error::Zero { what: "k (input features)" });
        }
        check_multiple("k (input features)", BLOCK_SIZE, in_features)?;
        let bytes = checked_mul("packed weight bytes", out_features, in_features / 2)?;
        check_size("packed weight bytes", bytes, packed.len())?;
        check_size("rows of block scales", out_features, scales.rows())?;
        check_size("columns of block scales", in_features / BLOCK_SIZE, scales.cols())?;
        global.check_rows(out_features)?;
        Ok(Self { out_features, in_features, packed, scales, global })
    }

    /// Output features (`n`), rows of the tensor.
    pub const fn out_features(&self) -> usize {
        self.out_features
    }
    /// Input features (`k`), columns of the tensor in elements.
    pub const fn in_features(&self) -> usize {
        self.in_features
    }
    /// Packed codes, `[n, k / 2]`.
    pub fn packed(&self) -> &[u8] {
        &self.packed
    }
    /// Block scales, `[n, k / 16]`.
    pub const fn scales(&self) -> &LinearScales<'a> {
        &self.scales
    }
    /// Global scales.
    pub const fn global(&self) -> &GlobalScales {
        &self.global
    }
    /// Bytes of codes, block scales and global scales.
    pub fn bytes(&self) -> usize {
        self.packed.len() + self.scales.bytes().len() + 4 * self.global.parts().len()
    }

    /// The same weights with their bytes owned.
    pub fn into_owned(self) -> NvFp4Weights<'static> {
        NvFp4Weights {
            out_features: self.out_features,
            in_features: self.in_features,
            packed: Cow::Owned(self.packed.into_owned()),
            scales: self.scales.into_owned(),
            global: self.global,
        }
    }

    /// The parts: packed codes, block scales, global scales.
    pub fn into_parts(self) -> (Cow<'a, [u8]>, LinearScales<'a>, GlobalScales) {
        (self.packed, self.scales, self.global)
    }

    /// The rows `range` (column-parallel sharding). Any row is a legal boundary.
    pub fn slice_rows(&self, range: Range<usize>) -> Result<NvFp4Weights<'_>, Error> {
        if range.start >= range.end || range.end > self.out_features {
            return Err(Error::Range {
                what: "rows of the weight (output features)",
                start: range.start,
                end: range.end,
                len: self.out_features,
                multiple: 1,
            });
        }
        let width = self.in_features / 2;
        let cols = self.scales.cols();
        NvFp4Weights::new(
            range.len(),
            self.in_features,
            &self.packed[range.start * width..range.end * width],
            LinearScales::new(range.len(), cols, &self.scales.bytes()[range.start * cols..range.end * cols])?,
            self.global.slice(range)?,
        )
    }

    /// The columns `range` in elements (row-parallel sharding). Boundaries must be multiples of 16.
    pub fn slice_columns(&self, range: Range<usize>) -> Result<NvFp4Weights<'static>, Error> {
        if range.start >= range.end
            || range.end > self.in_features
            || !range.start.is_multiple_of(BLOCK_SIZE)
            || !range.end.is_multiple_of(BLOCK_SIZE)
        {
            return Err(Error::Range {
                what: "columns of the weight (input features)",
                start: range.start,
                end: range.end,
                len: self.in_features,
                multiple: BLOCK_SIZE,
            });
        }
        let gather = |bytes: &[u8], width: usize, elements_per_byte: usize| -> Vec<u8> {
            bytes
                .chunks_exact(width)
                .flat_map(|row| &row[range.start / elements_per_byte..range.end / elements_per_byte])
                .copied()
                .collect()
        };
        NvFp4Weights::new(
            self.out_features,
            range.len(),
            gather(&self.packed, self.in_features / 2, 2),
            LinearScales::new(
                self.out_features,
                range.len() / BLOCK_SIZE,
                gather(self.scales.bytes(), self.scales.cols(), BLOCK_SIZE),
            )?,
            self.global.clone(),
        )
    }

    /// One tensor of several that share `k`, stacked along `n` in the given order (q, k, v; gate, up). Each part
    /// keeps its own global scale.
    pub fn concat_rows(parts: &[NvFp4Weights<'_>]) -> Result<NvFp4Weights<'static>, Error> {
        let Some(first) = parts.first() else {
            return Err(Error::Zero { what: "parts to concatenate" });
        };
        let (mut packed, mut scales, mut rows) = (Vec::new(), Vec::new(), 0);
        for part in parts {
            check_size("k (input features) of a fused part", first.in_features, part.in_features)?;
            packed.extend_from_slice(&part.packed);
            scales.extend_from_slice(part.scales.bytes());
            rows += part.out_features;
        }
        let global = GlobalScales::from_parts(parts.iter().flat_map(|p| p.global.parts().iter().copied()));
        NvFp4Weights::new(
            rows,
            first.in_features,
            packed,
            LinearScales::new(rows, first.in_features / BLOCK_SIZE, scales)?,
            global,
        )
    }
}
