//! Activations in the form that the CPU kernels read.
//!
//! Rows of `x` (columns of a product) are taken in groups of at most `Isa::WIDTH`. The values of a group stand
//! beside each other: for f32 products `[block][j][column]`, for integer products `[block][column]` of
//! [`QuantizedBlock`]. Groups follow each other.

use crate::{
    element::Element,
    isa::{Isa, Work, portable::DOUBLED},
    threads::{self, Divisible},
};
use bytemuck::{Pod, Zeroable};
use nvfp4_core::{BLOCK_SIZE, E2M1_MAX, GlobalScale, QuantizedActivation, e4m3, quantize::FULL_RANGE};
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
    #[inline(always)]
    fn new(doubled: [i8; BLOCK_SIZE], scale: u8) -> Self {
        let sum: i16 = doubled.iter().map(|&v| i16::from(v)).sum();
        let [a, b] = (-6 * sum).to_ne_bytes();
        Self { doubled, scale: 0.25 * e4m3::decode(scale), start: i32::from_ne_bytes([a, b, a, b]) }
    }

    /// The codes, four at a time, the first in the lowest byte. For dot products of four pairs.
    #[cfg(target_arch = "x86_64")]
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
    for_each_group(groups, x.k, out, groups.rows * x.k, &|rows, out| isa.vectorize(PackGroup { x, rows, out }));
}

struct PackGroup<'a, E> {
    x: Rows<'a, E>,
    rows: Range<usize>,
    out: &'a mut [f32],
}

impl<E: Element> Work for PackGroup<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let width = self.rows.len();
        if width == 1 {
            return E::widen(self.x.row(self.rows.start), self.out);
        }
        for (column, r) in self.rows.enumerate() {
            let row = self.x.row(r).as_chunks::<BLOCK_SIZE>().0;
            for (values, out) in row.iter().zip(self.out.chunks_exact_mut(BLOCK_SIZE * width)) {
                let mut wide = [0.0; BLOCK_SIZE];
                E::widen(values, &mut wide);
                for (value, out) in wide.iter().zip(out.chunks_exact_mut(width)) {
                    out[column] = *value;
                }
            }
        }
    }
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
        let width = rows.len();
        for (column, r) in rows.enumerate() {
            let encode = scale(r).encode().get();
            isa.vectorize(QuantizeRow { row: x.row(r), encode, out, column, width });
        }
    });
}

/// Quantizes a row into one column of a group.
struct QuantizeRow<'a, E> {
    row: &'a [E],
    encode: f32,
    out: &'a mut [QuantizedBlock],
    column: usize,
    width: usize,
}

impl<E: Element> Work for QuantizeRow<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let row = self.row.as_chunks::<BLOCK_SIZE>().0;
        for (values, out) in row.iter().zip(self.out.chunks_exact_mut(self.width)) {
            let mut wide = [0.0; BLOCK_SIZE];
            E::widen(values, &mut wide);
            out[self.column] = quantize_block(&wide, self.encode);
        }
    }
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

/// The largest magnitude in the rows `rows` of `x`; NaN is skipped.
pub(crate) fn absmax<I: Isa, E: Element>(isa: I, x: Rows<'_, E>, rows: Range<usize>) -> f32 {
    isa.vectorize(Absmax { x, rows })
}

struct Absmax<'a, E> {
    x: Rows<'a, E>,
    rows: Range<usize>,
}

impl<E: Element> Work for Absmax<'_, E> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        let mut lanes = [0.0f32; BLOCK_SIZE];
        for r in self.rows {
            for values in self.x.row(r).as_chunks::<BLOCK_SIZE>().0 {
                let mut wide = [0.0; BLOCK_SIZE];
                E::widen(values, &mut wide);
                for (lane, v) in lanes.iter_mut().zip(wide) {
                    *lane = lane.max(v.abs());
                }
            }
        }
        lanes.into_iter().fold(0.0, f32::max)
    }
}

/// The global scale that brings `absmax` to the end of the range, as `nvfp4_core::quantize` computes it:
/// `absmax / (6 · 448)`, where it and its reciprocal are normal numbers. 1 for 0.
pub(crate) fn dynamic_scale(absmax: f32) -> GlobalScale {
    let decode = (absmax.min(f32::MAX) / FULL_RANGE).max(f32::MIN_POSITIVE);
    if absmax == 0.0 { GlobalScale::ONE } else { GlobalScale::from_decode(decode).unwrap_or(GlobalScale::ONE) }
}

/// Quantizes a block to the bits that `nvfp4_core::quantize::quantize_block` gives, in a form that compilers turn into
/// vectors.
#[inline(always)]
fn quantize_block(x: &[f32; BLOCK_SIZE], encode: f32) -> QuantizedBlock {
    // `max` skips NaN unless all are.
    let absmax = x.iter().fold(f32::NAN, |absmax, v| absmax.max(v.abs()));
    let code = e4m3::encode(encode * (absmax * (1.0 / 6.0)));
    let factor = if code == 0 { 0.0 } else { 1.0 / (e4m3::decode(code) * (1.0 / encode)) };
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

#[cfg(test)]
mod tests {
    use super::*;
    use nvfp4_core::{
        MatrixRef, ScaleLayout, e2m1,
        quantize::{self as core_quantize, QuantizeOptions},
    };

    fn assert_same(x: &[f32; BLOCK_SIZE], encode: f32) {
        let ours = quantize_block(x, encode);
        let core = core_quantize::quantize_block(x, encode, false);
        let doubled: Vec<i8> =
            core.codes.iter().flat_map(|c| [c & 0xf, c >> 4]).map(|c| (2.0 * e2m1::decode(c)) as i8).collect();
        assert_eq!(ours.doubled[..], doubled, "{x:?} {encode}");
        let scale = 0.25 * e4m3::decode(core.scale);
        assert!(ours.scale == scale || (ours.scale.is_nan() && scale.is_nan()), "{x:?} {encode}");
        let sum: i32 = doubled.iter().map(|&v| i32::from(v)).sum();
        let halves: [i16; 2] = bytemuck::cast(ours.start);
        assert_eq!(halves.map(i32::from), [-6 * sum; 2]);
    }

    #[test]
    fn blocks_are_quantized_as_the_core_does() {
        let mut state = 7u64;
        let mut bits = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 32) as u32
        };
        let specials = [0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-40, 6.0];
        let rounds = if cfg!(miri) { 210 } else { 20_000 }; // the interpreter takes a second for each ten
        for round in 0..rounds {
            let mut x: [f32; BLOCK_SIZE] = match round % 3 {
                // Ordinary values, any bits, and values on a grid (ties).
                0 => std::array::from_fn(|_| bits() as f32 / 2f32.powi(31) - 1.0),
                1 => std::array::from_fn(|_| f32::from_bits(bits())),
                _ => std::array::from_fn(|_| (bits() % 49) as f32 / 4.0 - 6.0),
            };
            if round % 7 == 0 {
                (0..bits() % 17).for_each(|_| x[bits() as usize % 16] = specials[bits() as usize % specials.len()]);
            }
            let encode = [1.0, 448.0, 2688.0, 0.37, 1e-3, 1e6, 74.667][bits() as usize % 7];
            assert_same(&x, encode);
        }
        for special in specials {
            assert_same(&[special; BLOCK_SIZE], 448.0);
        }
    }

    #[test]
    fn every_neighbour_of_a_tie_rounds_as_the_core_does() {
        for tie in [0.25f32, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] {
            for ulps in -3i32..=3 {
                let v = f32::from_bits((tie.to_bits() as i32 + ulps) as u32);
                for v in [v, -v] {
                    assert_eq!(f32::from(round_doubled(v)), 2.0 * e2m1::decode(e2m1::encode(v)), "{v}");
                }
            }
        }
    }

    #[test]
    fn dynamic_scales_are_those_of_the_core() {
        for value in [0.0, 1e-45, 1e-38, 1e-30, 0.3, 6.0, 2688.0, 1e30, f32::MAX, f32::INFINITY] {
            let x = [0.0, value, -value / 2.0, f32::NAN];
            let x16: Vec<f32> = x.into_iter().cycle().take(16).collect();
            let rows = Rows::new(&x16, 16, 16, 0);
            let ours = dynamic_scale(absmax(crate::isa::portable::Portable, rows, 0..1));
            let core = core_quantize::dynamic_global_scale(MatrixRef::new(&x16[..], 1, 16).unwrap()).unwrap();
            assert_eq!(ours, core, "{value}");
        }
    }

    #[test]
    fn groups_are_even_and_complete() {
        for (rows, width) in [(1, 6), (6, 6), (7, 6), (13, 6), (128, 6), (132, 6), (5, 2), (0, 6)] {
            let groups = Groups::new(rows, width);
            assert_eq!((groups.len(), groups.count()), (rows, rows.div_ceil(width)));
            let sizes: Vec<usize> = (0..groups.count()).map(|g| groups.rows(g).len()).collect();
            assert_eq!(sizes.iter().sum::<usize>(), rows);
            let (least, most) = (sizes.iter().min(), sizes.iter().max());
            assert!(most <= Some(&width) && most.zip(least).is_none_or(|(a, b)| a - b <= 1), "{rows} {sizes:?}");
        }
    }

    #[test]
    fn unpacking_gives_what_quantizing_gives() {
        let (m, k) = (13, 80);
        let x: Vec<f32> = (0..m * k).map(|i| ((i * 7919) % 1000) as f32 / 100.0 - 5.0).collect();
        let scale = GlobalScale::from_decode(0.002).unwrap();
        let groups = Groups::new(m - 2, 6);
        let mut direct = vec![QuantizedBlock::zeroed(); (m - 2) * k / 16];
        quantize(crate::isa::portable::Portable, Rows::new(&x, k, k, 2), |_| scale, groups, &mut direct);
        for (layout, padded_n) in
            [(ScaleLayout::Linear, None), (ScaleLayout::Swizzled128x4, Some(128)), (ScaleLayout::Swizzled8x4, None)]
        {
            let options = QuantizeOptions { layout, padded_n, exact: false };
            let x = MatrixRef::new(&x[..], m, k).unwrap();
            let quantized = core_quantize::scaled_fp4_quant(x, scale, options).unwrap();
            let mut unpacked = vec![QuantizedBlock::zeroed(); direct.len()];
            unpack(&quantized, 2, groups, &mut unpacked);
            assert_eq!(
                bytemuck::cast_slice::<_, u8>(&unpacked),
                bytemuck::cast_slice::<_, u8>(&direct),
                "{layout:?}"
            );
        }
    }
}
