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
#[derive(Clone, Debug)]
pub struct NvFp4Weights<'a> {
    out_features: usize,
    in_features: usize,
    packed: Cow<'a, [u8]>,
    scales: LinearScales<'a>,
    global: GlobalScales,
    /// Rows of each matrix that was stacked; empty if that is not known.
    stacked_rows: Vec<usize>,
}

/// By the tensors: whether somebody knows what was stacked makes no difference.
impl PartialEq for NvFp4Weights<'_> {
    fn eq(&self, other: &Self) -> bool {
        (self.out_features, self.in_features) == (other.out_features, other.in_features)
            && (&self.packed, &self.scales, &self.global) == (&other.packed, &other.scales, &other.global)
    }
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
        Ok(Self { out_features, in_features, packed, scales, global, stacked_rows: Vec::new() })
    }

    /// The same weights, known to be several matrices stacked along `n` (q, k and v; gate and up) of these rows, or one
    /// matrix if there is one entry. No entry may be zero, and together they must be `out_features`.
    pub fn with_stacked_rows(mut self, rows: impl Into<Vec<usize>>) -> Result<Self, Error> {
        let rows = rows.into();
        if rows.contains(&0) {
            return Err(Error::Zero { what: "rows of a stacked matrix" });
        }
        let all = rows.iter().fold(0usize, |sum, &rows| sum.saturating_add(rows));
        check_size("rows of the stacked matrices", self.out_features, all)?;
        self.stacked_rows = rows;
        Ok(self)
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
    /// Rows of each matrix that was stacked along `n`, in order; `None` if nobody said. Whoever divides the rows among
    /// devices must divide each of these (each device gets its share of q, of k and of v).
    pub fn stacked_rows(&self) -> Option<&[usize]> {
        (!self.stacked_rows.is_empty()).then_some(&self.stacked_rows)
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
            stacked_rows: self.stacked_rows,
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
        let mut rows = NvFp4Weights::new(
            range.len(),
            self.in_features,
            &self.packed[range.start * width..range.end * width],
            self.scales.slice_rows(range.clone())?,
            self.global.slice(range.clone())?,
        )?;
        let mut start = 0;
        let shares = self.stacked_rows.iter().map(|&rows| {
            let (lo, hi) = (range.start.max(start), range.end.min(start + rows));
            start += rows;
            hi.saturating_sub(lo)
        });
        rows.stacked_rows = shares.filter(|&rows| rows > 0).collect();
        Ok(rows)
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
        let packed: Vec<u8> = self
            .packed
            .chunks_exact(self.in_features / 2)
            .flat_map(|row| &row[range.start / 2..range.end / 2])
            .copied()
            .collect();
        let scales = self.scales.slice_columns(range.start / BLOCK_SIZE..range.end / BLOCK_SIZE)?;
        let columns = NvFp4Weights::new(self.out_features, range.len(), packed, scales, self.global.clone())?;
        Ok(NvFp4Weights { stacked_rows: self.stacked_rows.clone(), ..columns })
    }

    /// One tensor of several that share `k`, stacked along `n` in the given order (q, k, v; gate, up). Each part
    /// keeps its own global scale, and the result knows the [rows of each](Self::stacked_rows).
    pub fn concat_rows(parts: &[NvFp4Weights<'_>]) -> Result<NvFp4Weights<'static>, Error> {
        let Some(first) = parts.first() else {
            return Err(Error::Zero { what: "parts to concatenate" });
        };
        let (mut packed, mut rows, mut stacked_rows) = (Vec::new(), 0, Vec::new());
        for part in parts {
            check_size("k (input features) of a fused part", first.in_features, part.in_features)?;
            packed.extend_from_slice(&part.packed);
            rows += part.out_features;
            match part.stacked_rows() {
                Some(rows) => stacked_rows.extend_from_slice(rows),
                None => stacked_rows.push(part.out_features),
            }
        }
        let scales = LinearScales::concat_rows(parts.iter().map(|p| &p.scales))?;
        let global = GlobalScales::from_parts(parts.iter().flat_map(|p| p.global.parts().iter().copied()));
        let stacked = NvFp4Weights::new(rows, first.in_features, packed, scales, global)?;
        Ok(NvFp4Weights { stacked_rows, ..stacked })
    }
}
