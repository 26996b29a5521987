//! Global scales: one f32 per tensor, or per part of a fused tensor.
//!
//! Checkpoints store them in two conventions that are reciprocals of each other. A *decode* scale multiplies:
//! `value = e2m1 * block_scale * decode`, with `decode = amax / (6 * 448)`; an *encode* scale divides:
//! `value = e2m1 * block_scale / encode`. Mixing them up yields plausible garbage, so each has its own type and
//! nothing converts a bare `f32` without naming the convention.
//!
//! | convention | stored by |
//! | --- | --- |
//! | decode | ModelOpt `weight_scale_2`, `input_scale`; torchao `per_tensor_scale`; GGUF `.scale`, `.input_scale` |
//! | encode | compressed-tensors `weight_global_scale`, `input_global_scale`; FlashInfer `a_global_sf` |

use crate::error::{Error, check_size};
use alloc::{vec, vec::Vec};
use core::ops::Range;

/// A global scale that multiplies: `value = e2m1 * block_scale * decode`.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct DecodeScale(f32);

/// A global scale that divides: `value = e2m1 * block_scale / encode`.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct EncodeScale(f32);

impl DecodeScale {
    /// The multiplier.
    pub const fn get(self) -> f32 {
        self.0
    }
}

impl EncodeScale {
    /// The divisor.
    pub const fn get(self) -> f32 {
        self.0
    }
}

/// A global scale in both conventions. The one that the checkpoint stores is kept to the bit, the other is its
/// f32 reciprocal, as vLLM's loaders compute it.
///
/// ```
/// use nvfp4_core::GlobalScale;
/// let modelopt = GlobalScale::from_decode(0.25)?; // `weight_scale_2`
/// let compressed_tensors = GlobalScale::from_encode(4.0)?; // `weight_global_scale`
/// assert_eq!(modelopt, compressed_tensors);
/// assert!(GlobalScale::from_decode(f32::NAN).is_err());
/// # Ok::<(), nvfp4_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GlobalScale {
    decode: f32,
    encode: f32,
}

impl GlobalScale {
    /// The scale 1.
    pub const ONE: Self = Self { decode: 1.0, encode: 1.0 };

    /// From a multiplier (ModelOpt, torchao, GGUF). It must be positive and finite, and so must `1 / scale`.
    pub fn from_decode(scale: f32) -> Result<Self, Error> {
        Self::checked(scale, scale, 1.0 / scale)
    }

    /// From a divisor (compressed-tensors, FlashInfer). It must be positive and finite, and so must `1 / scale`.
    pub fn from_encode(scale: f32) -> Result<Self, Error> {
        Self::checked(scale, 1.0 / scale, scale)
    }

    fn checked(found: f32, decode: f32, encode: f32) -> Result<Self, Error> {
        let usable = |v: f32| v.is_finite() && v > 0.0;
        if usable(decode) && usable(encode) {
            Ok(Self { decode, encode })
        } else {
            Err(Error::GlobalScale { found })
        }
    }

    /// The multiplier.
    pub const fn decode(self) -> DecodeScale {
        DecodeScale(self.decode)
    }

    /// The divisor.
    pub const fn encode(self) -> EncodeScale {
        EncodeScale(self.encode)
    }

    /// The output multiplier of a W4A4 GEMM: the product of the two decode scales.
    pub fn alpha(input: Self, weight: Self) -> f32 {
        input.decode * weight.decode
    }
}

/// The global scales of a weight tensor: one for all rows, or one for each part of a fused tensor (q, k and v;
/// gate and up). Parts keep their own scale, so that a fused layer stays exact; neighbours with equal scales are
/// joined.
#[derive(Clone, PartialEq, Debug)]
pub struct GlobalScales {
    /// (rows, scale); rows are never zero and neighbouring scales differ.
    parts: Vec<(usize, GlobalScale)>,
}

impl GlobalScales {
    /// One scale for all `rows`.
    pub fn per_tensor(rows: usize, scale: GlobalScale) -> Self {
        Self { parts: vec![(rows, scale)] }
    }

    /// One scale for each run of rows, in order. Runs of zero rows are dropped.
    pub fn from_parts(parts: impl IntoIterator<Item = (usize, GlobalScale)>) -> Self {
        let mut joined: Vec<(usize, GlobalScale)> = Vec::new();
        for (rows, scale) in parts.into_iter().filter(|p| p.0 > 0) {
            match joined.last_mut() {
                Some(last) if last.1 == scale => last.0 = last.0.saturating_add(rows),
                _ => joined.push((rows, scale)),
            }
        }
        Self { parts: joined }
    }

    /// Rows covered, at most `usize::MAX`.
    pub fn rows(&self) -> usize {
        self.parts.iter().fold(0, |sum, part| part.0.saturating_add(sum))
    }

    /// The runs of rows with equal scale: `(rows, scale)`.
    pub fn parts(&self) -> &[(usize, GlobalScale)] {
        &self.parts
    }

    /// The one scale of the tensor, or `None` if parts differ.
    pub fn as_per_tensor(&self) -> Option<GlobalScale> {
        match self.parts[..] {
            [(_, scale)] => Some(scale),
            _ => None,
        }
    }

    /// The scale of row `n`, or `None` past the last row.
    pub fn row(&self, n: usize) -> Option<GlobalScale> {
        let mut end = 0;
        self.parts.iter().find_map(|&(rows, scale)| {
            end = rows.saturating_add(end);
            (n < end).then_some(scale)
        })
    }

    /// The scale of each row, in order.
    pub fn iter_rows(&self) -> impl Iterator<Item = GlobalScale> + '_ {
        self.parts.iter().flat_map(|&(rows, scale)| core::iter::repeat_n(scale, rows))
    }

    /// The scales of the rows `range`.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, Error> {
        let len = self.rows();
        if range.start > range.end || range.end > len {
            return Err(Error::Range {
                what: "rows of global scales",
                start: range.start,
                end: range.end,
                len,
                multiple: 1,
            });
        }
        let mut start = 0;
        Ok(Self::from_parts(self.parts.iter().map(|&(rows, scale)| {
            let end = rows.saturating_add(start);
            let (lo, hi) = (start.max(range.start), end.min(range.end));
            start = end;
            (hi.saturating_sub(lo), scale)
        })))
    }

    /// `Ok` if the scales cover exactly `rows` rows.
    pub fn check_rows(&self, rows: usize) -> Result<(), Error> {
        check_size("rows of global scales", rows, self.rows())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_would_poison_the_output() {
        // 1e-39 and f32::MAX have reciprocals that overflow or vanish (as normal numbers they would be usable).
        for bad in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-39] {
            assert!(GlobalScale::from_decode(bad).is_err(), "{bad}");
            assert!(GlobalScale::from_encode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn parts_join_slice_and_index() {
        let (a, b) = (GlobalScale::from_decode(0.5).unwrap(), GlobalScale::from_decode(0.25).unwrap());
        let s = GlobalScales::from_parts([(4, a), (0, b), (2, a), (3, b)]);
        assert_eq!(s.parts(), [(6, a), (3, b)]);
        assert_eq!(s.as_per_tensor(), None);
        assert_eq!((s.row(5), s.row(6), s.row(9)), (Some(a), Some(b), None));
        assert_eq!(s.slice(5..7).unwrap().parts(), [(1, a), (1, b)]);
        assert_eq!(s.slice(6..9).unwrap().as_per_tensor(), Some(b));
        assert!(s.slice(6..10).is_err());
        assert_eq!(s.iter_rows().count(), 9);
    }

    #[test]
    fn impossible_row_counts_do_not_wrap() {
        let (a, b) = (GlobalScale::from_decode(0.5).unwrap(), GlobalScale::from_decode(0.25).unwrap());
        let s = GlobalScales::from_parts([(usize::MAX, a), (2, a), (usize::MAX, b)]);
        assert_eq!((s.rows(), s.row(7), s.row(usize::MAX)), (usize::MAX, Some(a), None));
        assert_eq!(s.slice(3..usize::MAX).unwrap().as_per_tensor(), Some(a));
        assert!(s.check_rows(1).is_err());
    }
}
