//! Activations in the form that the CPU kernels read.
//!
//! Rows of `x` (columns of a product) are taken in groups of at most `Isa::WIDTH`. The values of a group stand
//! beside each other: for f32 products `[block][j][column]`, for integer products `[block][column]` of
//! [`QuantizedBlock`]. Groups follow each other.

use crate::{
    element::Element,
    isa::{Isa, portable::DOUBLED},
    threads::{self, Divisible},
};
use bytemuck::{Pod, Zeroable};
use nvfp4_core::{BLOCK_SIZE, E2M1_MAX, E4M3_MAX, GlobalScale, QuantizedActivation, e4m3};
use std::ops::Range;

/// 16 activation values quantized to NVFP4.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct QuantizedBlock {
    /// Twice the e2m1 values.
    pub(crate) doubled: [i8; BLOCK_SIZE],
    /// A quarter of the block scale: the codes of both operands are doubled.
    pub(crate) scale: f32,
    /// Two 16-bit numbers, each `-6 · Σ doubled`: what a sum must start from if [`BIAS`](crate::isa::avx2::BIAS) is
    /// added to each weight and the sum is kept in two halves.
    pub(crate) start: i32,
}

// SAFETY: three integers and floats of 16, 4 and 4 bytes at offsets 0, 16 and 20 of a type of 24 bytes and
// alignment 4: no padding, and every bit pattern is a value.
unsafe impl Zeroable for QuantizedBlock {}
// SAFETY: as above.
unsafe impl Pod for QuantizedBlock {}

impl QuantizedBlock {
    fn new(doubled: [i8; BLOCK_SIZE], scale: u8) -> Self {
        let sum: i16 = doubled.iter().map(|&v| i16::from(v)).sum();
        let [a, b] = (-6 * sum).to_ne_bytes();
        Self { doubled, scale: 0.25 * e4m3::decode(scale), start: i32::from_ne_bytes([a, b, a, b]) }
    }

    /// The codes, four at a time, the first in the lowest byte.
    pub(crate) fn quads(&self) -> [i32; 4] {
        bytemuck::cast(self.doubled)
    }
}

/// How the rows of `x` are grouped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Groups {
    rows: usize,
    count: usize,
}

impl Groups {
    /// Groups of at most `width` rows, of equal size but for one row.
    pub(crate) fn new(rows: usize, width: usize) -> Self {
        Self { rows, count: rows.div_ceil(width) }
    }
    /// Number of groups.
    pub(crate) fn count(self) -> usize {
        self.count
    }
    /// Number of rows.
    pub(crate) fn len(self) -> usize {
        self.rows
    }
    fn start(self, group: usize) -> usize {
        group * self.rows / self.count.max(1)
    }
    /// The rows of a group.
    pub(crate) fn rows(self, group: usize) -> Range<usize> {
        self.start(group)..self.start(group + 1)
    }
}

/// Consecutive rows of a matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a, E> {
    data: &'a [E],
    k: usize,
    stride: usize,
    first: usize,
}

impl<'a, E: Element> Rows<'a, E> {
    /// The rows from `first` on of the matrix whose row `r` is `data[r * stride..][..k]`.
    pub(crate) fn new(data: &'a [E], k: usize, stride: usize, first: usize) -> Self {
        Self { data, k, stride, first }
    }

    fn row(&self, r: usize) -> &'a [E] {
        &self.data[(self.first + r) * self.stride..][..self.k]
    }
}

/// Groups to fill: `T` holds the `per_row` values of each row.
struct GroupsMut<'a, T> {
    groups: Groups,
    which: Range<usize>,
    per_row: usize,
    out: &'a mut [T],
}

impl<T: Send> Divisible for GroupsMut<'_, T> {
    fn len(&self) -> usize {
        self.which.len()
    }
    fn split_at(self, units: usize) -> (Self, Self) {
        let middle = self.which.start + units;
        let rows = self.groups.start(middle) - self.groups.start(self.which.start);
        let (a, b) = self.out.split_at_mut(rows * self.per_row);
        (
            Self { which: self.which.start..middle, out: a, ..self },
            Self { which: middle..self.which.end, out: b, ..self },
        )
    }
}

/// Calls `fill(rows, values)` for each group, on several threads if `work` (about a nanosecond a unit) is worth it.
fn for_each_group<T: Send>(
    groups: Groups,
    per_row: usize,
    out: &mut [T],
    work: usize,
    fill: &(impl Fn(Range<usize>, &mut [T]) + Sync),
) {
    let all = GroupsMut { groups, which: 0..groups.count, per_row, out };
    let grain = threads::grain(groups.count, 1, work.saturating_mul(4));
    threads::for_each_piece(all, grain, &|piece: GroupsMut<'_, T>| {
        let mut rest = piece.out;
        for group in piece.which {
            let rows = groups.rows(group);
            let (values, after) = std::mem::take(&mut rest).split_at_mut(rows.len() * per_row);
            rest = after;
            fill(rows, values);
        }
    });
}

/// Widens rows of `x` into groups of f32 values.
pub(crate) fn pack_f32<I: Isa, E: Element>(isa: I, x: Rows<'_, E>, groups: Groups, out: &mut [f32]) {
    for_each_group(groups, x.k, out, groups.rows * x.k, &|rows, out| {
        isa.vectorize(|| {
            let width = rows.len();
            if width == 1 {
                return E::widen(x.row(rows.start), out);
            }
            for (column, r) in rows.enumerate() {
                let row = x.row(r).as_chunks::<BLOCK_SIZE>().0;
                for (values, out) in row.iter().zip(out.chunks_exact_mut(BLOCK_SIZE * width)) {
                    let mut wide = [0.0; BLOCK_SIZE];
                    E::widen(values, &mut wide);
                    for (value, out) in wide.iter().zip(out.chunks_exact_mut(width)) {
                        out[column] = *value;
                    }
                }
            }
        });
    });
}

/// Quantizes rows of `x` into groups of blocks, row `r` with `scale(r)`.
pub(crate) fn quantize<I: Isa, E: Element>(
    isa: I,
    x: Rows<'_, E>,
    scale: impl Fn(usize) -> GlobalScale + Sync,
    groups: Groups,
    out: &mut [QuantizedBlock],
) {
    for_each_group(groups, x.k / BLOCK_SIZE, out, 4 * groups.rows * x.k, &|rows, out| {
        isa.vectorize(|| {
            let width = rows.len();
            for (column, r) in rows.enumerate() {
                let scale = scale(r);
                let row = x.row(r).as_chunks::<BLOCK_SIZE>().0;
                for (values, out) in row.iter().zip(out.chunks_exact_mut(width)) {
                    let mut wide = [0.0; BLOCK_SIZE];
                    E::widen(values, &mut wide);
                    out[column] = quantize_block(&wide, scale);
                }
            }
        });
    });
}

/// Brings the rows from `first` on of an activation that is already quantized into groups of blocks of `k` values.
pub(crate) fn unpack(x: &QuantizedActivation, first: usize, groups: Groups, out: &mut [QuantizedBlock]) {
    let (blocks, padded_blocks) = (x.k / BLOCK_SIZE, x.padded_k / BLOCK_SIZE);
    for_each_group(groups, blocks, out, groups.rows * x.k, &|rows, out| {
        let width = rows.len();
        for (column, r) in rows.enumerate() {
            let row = first + r;
            let codes = x.data[row * padded_blocks * 8..].as_chunks::<8>().0;
            for (b, (codes, out)) in codes.iter().zip(out.chunks_exact_mut(width)).enumerate() {
                let mut doubled = [0; BLOCK_SIZE];
                for (pair, code) in doubled.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                    *pair = [DOUBLED[usize::from(code & 0xf)], DOUBLED[usize::from(code >> 4)]];
                }
                let scale = x.scale[x.scale_layout.offset(row, b, padded_blocks)];
                out[column] = QuantizedBlock::new(doubled, scale);
            }
        }
    });
}

/// The largest finite magnitude in the first `rows` rows of `x`.
pub(crate) fn largest_finite<I: Isa, E: Element>(isa: I, x: Rows<'_, E>, rows: Range<usize>) -> f32 {
    isa.vectorize(|| {
        let mut lanes = [0.0f32; BLOCK_SIZE];
        for r in rows {
            for values in x.row(r).as_chunks::<BLOCK_SIZE>().0 {
                let mut wide = [0.0; BLOCK_SIZE];
                E::widen(values, &mut wide);
                for (lane, v) in lanes.iter_mut().zip(wide) {
                    let v = v.abs();
                    // False for NaN.
                    *lane = if v < f32::INFINITY && v > *lane { v } else { *lane };
                }
            }
        }
        lanes.into_iter().fold(0.0, f32::max)
    })
}

/// The global scale that brings `largest` to the end of the range, 6 · 448. It is 1 if there are no values to scale.
pub(crate) fn dynamic_scale(largest: f32) -> GlobalScale {
    // Below the smallest normal number the reciprocal would overflow; block scales take up the rest.
    let decode = (largest / (E2M1_MAX * E4M3_MAX)).max(f32::MIN_POSITIVE);
    if largest == 0.0 { GlobalScale::ONE } else { GlobalScale::from_decode(decode).unwrap_or(GlobalScale::ONE) }
}

/// Quantizes a block as `nvfp4_core::quantize` does (the arithmetic of `scaled_fp4_quant`).
#[inline(always)]
fn quantize_block(x: &[f32; BLOCK_SIZE], scale: GlobalScale) -> QuantizedBlock {
    let encode = scale.encode().get();
    // `max` drops NaN.
    let largest = x.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
    let code = e4m3::encode(encode * (largest * (1.0 / 6.0)));
    let block_scale = e4m3::decode(code);
    let factor = if block_scale == 0.0 { 0.0 } else { 1.0 / (block_scale * (1.0 / encode)) };
    QuantizedBlock::new(x.map(|v| round_doubled(v * factor)), code)
}

/// Twice the e2m1 value nearest to `v`: ties to even, NaN to +6. Sums of comparisons, which compilers turn into
/// vectors.
#[inline(always)]
fn round_doubled(v: f32) -> i8 {
    let v = if v.is_nan() { E2M1_MAX } else { v };
    let a = v.abs();
    let above = |limit: f32| i32::from(a > limit);
    let from = |limit: f32| i32::from(a >= limit);
    let magnitude =
        above(0.25) + from(0.75) + above(1.25) + from(1.75) + 2 * (above(2.5) + from(3.5)) + 4 * above(5.0);
    (if v < 0.0 { -magnitude } else { magnitude }) as i8
}
