//! Kernels for x86-64 processors with AVX2, FMA and F16C (Intel since 2013, AMD since 2015).
//!
//! Codes become f32 by table: `vpshufb` looks up the two bytes of the bf16 value, `vpunpck` joins them, and a shift
//! or a mask of a 32-bit lane widens one of its two bf16 halves. Codes become integers by one look-up.
//!
//! Loops are written out where `map` would be shorter: a closure that uses these instructions is not inlined into
//! `array::map`, which knows nothing of them, and then each step would be a call.

use super::{F32Block, F32Panel, Isa, Lanes, PANEL_BLOCKS, Work};
use crate::{
    activation::QuantizedBlock,
    weights::{Block, ROWS},
};
use std::arch::x86_64::*;

/// AVX2, FMA and F16C. A value exists only where the processor has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// `Some` if this processor has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c"))
            .then_some(Self(()))
    }
}

/// Up to [`PANEL_BLOCKS`] blocks decoded to `2 * e2m1 + 12`, which is unsigned as `vpmaddubsw` wants it.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct IntPanel {
    /// `[block][quarter of the columns][half of the rows]`; a 32-bit lane is one row, with 4 columns.
    values: [[[[u8; 32]; 2]; 4]; PANEL_BLOCKS],
    scales: [Lanes; PANEL_BLOCKS],
}

/// Added to twice the e2m1 value to make it unsigned.
pub(crate) const BIAS: i8 = 12;

/// A table for `vpshufb`, the same for both halves of a vector.
const fn twice(table: [u8; 16]) -> [u8; 32] {
    let mut out = [0; 32];
    let mut i = 0;
    while i < 32 {
        out[i] = table[i % 16];
        i += 1;
    }
    out
}

/// Byte `byte` of the bf16 value of each e2m1 code.
const fn bf16_bytes(byte: u32) -> [u8; 32] {
    let mut table = [0; 16];
    let mut code = 0;
    while code < 16 {
        table[code] = (nvfp4_core::e2m1::VALUES[code].to_bits() >> (16 + 8 * byte)) as u8;
        code += 1;
    }
    twice(table)
}

const BF16_LOW: [u8; 32] = bf16_bytes(0);
const BF16_HIGH: [u8; 32] = bf16_bytes(1);

/// `2 * e2m1 + 12` of each code.
const BIASED: [u8; 32] = {
    let mut table = [0; 16];
    let mut code = 0;
    while code < 16 {
        table[code] = (super::portable::DOUBLED[code] + BIAS) as u8;
        code += 1;
    }
    twice(table)
};

/// Brings columns 0 and 1 of four rows before columns 2 and 3 of the same rows.
const PAIRS_OF_COLUMNS: [u8; 32] = twice([0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15]);

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_bytes(from: &[u8; 32]) -> __m256i {
    // SAFETY: `from` is 32 readable bytes; the instruction needs no alignment.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store_bytes(to: &mut [u8; 32], v: __m256i) {
    // SAFETY: `to` is 32 writable bytes; the instruction needs no alignment.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), v) }
}

/// The lanes of rows `8 * HALF` to `8 * HALF + 8`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load<const HALF: usize>(from: &Lanes) -> __m256 {
    const { assert!(HALF < 2) };
    // SAFETY: `from` holds 16 values, of which these are 8; the instruction needs no alignment.
    unsafe { _mm256_loadu_ps(from.as_ptr().add(8 * HALF)) }
}

/// Stores what [`load`] loads.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store<const HALF: usize>(to: &mut Lanes, v: __m256) {
    const { assert!(HALF < 2) };
    // SAFETY: `to` holds 16 values, of which these are 8; the instruction needs no alignment.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr().add(8 * HALF), v) }
}

/// The codes of 8 rows (half `HALF`) and 8 columns (half `COLUMNS`): a 32-bit lane is a row; its low halves of bytes
/// are columns 0 to 3 and the high halves columns 4 to 7.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn codes<const COLUMNS: usize, const HALF: usize>(block: &Block) -> __m256i {
    const { assert!(COLUMNS < 2 && HALF < 2) };
    let (chunks, _) = block.codes.as_chunks::<32>();
    load_bytes(&chunks[2 * COLUMNS + HALF])
}

/// The low and the high halves of bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles(v: __m256i) -> [__m256i; 2] {
    let mask = _mm256_set1_epi8(0xf);
    [_mm256_and_si256(v, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(v), mask)]
}

/// The values of 8 rows and 8 columns, a vector for each column.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn decode_columns<const COLUMNS: usize, const HALF: usize>(block: &Block) -> [__m256; 8] {
    let pairs = _mm256_shuffle_epi8(codes::<COLUMNS, HALF>(block), load_bytes(&PAIRS_OF_COLUMNS));
    let [low, high] = nibbles(pairs);
    let [[a, b], [c, d]] = decode_pairs(low);
    let [[e, f], [g, h]] = decode_pairs(high);
    [a, b, c, d, e, f, g, h]
}

/// The values of columns 0 and 1, and those of columns 2 and 3, of codes in the order of [`PAIRS_OF_COLUMNS`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn decode_pairs(codes: __m256i) -> [[__m256; 2]; 2] {
    let low = _mm256_shuffle_epi8(load_bytes(&BF16_LOW), codes);
    let high = _mm256_shuffle_epi8(load_bytes(&BF16_HIGH), codes);
    [widen_bf16(_mm256_unpacklo_epi8(low, high)), widen_bf16(_mm256_unpackhi_epi8(low, high))]
}

/// The low and the high bf16 half of each lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen_bf16(v: __m256i) -> [__m256; 2] {
    let high = _mm256_and_si256(v, _mm256_set1_epi32(0xffff_0000_u32 as i32));
    [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(v)), _mm256_castsi256_ps(high)]
}

/// The block scales of 8 rows. An e4m3 code shifted into place is an f16 that is 2⁸ times too small; subnormal codes
/// become subnormal f16 numbers, which convert exactly. (Shifted into f32 they would be subnormal f32 numbers, which
/// many processors multiply slowly.)
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn decode_scales<const HALF: usize>(block: &Block) -> __m256 {
    const { assert!(HALF < 2) };
    // SAFETY: `scales` holds 16 bytes, of which these are 8; the instruction needs no alignment.
    let bytes = unsafe { _mm_loadl_epi64(block.scales.as_ptr().add(8 * HALF).cast()) };
    let halves = _mm_slli_epi16::<7>(_mm_cvtepu8_epi16(bytes));
    _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256.0))
}

#[target_feature(enable = "avx2,fma,f16c")]
fn decode_f32(blocks: &[Block], panel: &mut F32Panel) {
    for ((block, values), scales) in blocks.iter().zip(&mut panel.values).zip(&mut panel.scales) {
        let (left, right) = values.split_at_mut(8);
        for (to, v) in left.iter_mut().zip(decode_columns::<0, 0>(block)) {
            store::<0>(to, v);
        }
        for (to, v) in left.iter_mut().zip(decode_columns::<0, 1>(block)) {
            store::<1>(to, v);
        }
        for (to, v) in right.iter_mut().zip(decode_columns::<1, 0>(block)) {
            store::<0>(to, v);
        }
        for (to, v) in right.iter_mut().zip(decode_columns::<1, 1>(block)) {
            store::<1>(to, v);
        }
        store::<0>(scales, decode_scales::<0>(block));
        store::<1>(scales, decode_scales::<1>(block));
    }
}

/// `acc += t * scales` for both halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_scaled(acc: &mut Lanes, t: [__m256; 2], scales: [__m256; 2]) {
    let sum = [_mm256_fmadd_ps(t[0], scales[0], load::<0>(acc)), _mm256_fmadd_ps(t[1], scales[1], load::<1>(acc))];
    store::<0>(acc, sum[0]);
    store::<1>(acc, sum[1]);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_f32<const W: usize>(panel: &F32Panel, x: &[F32Block<W>], acc: &mut [Lanes; W]) {
    for ((values, scales), x) in panel.values.iter().zip(&panel.scales).zip(x) {
        let mut t = [[_mm256_setzero_ps(); 2]; W];
        for (values, x) in values.iter().zip(x) {
            let w = [load::<0>(values), load::<1>(values)];
            for (t, x) in t.iter_mut().zip(x) {
                let x = _mm256_set1_ps(*x);
                *t = [_mm256_fmadd_ps(w[0], x, t[0]), _mm256_fmadd_ps(w[1], x, t[1])];
            }
        }
        let scales = [load::<0>(scales), load::<1>(scales)];
        for (acc, t) in acc.iter_mut().zip(t) {
            add_scaled(acc, t, scales);
        }
    }
}

/// `t += values · x` for 8 columns of the weights.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_columns<const W: usize>(values: [__m256; 8], x: &[[f32; W]], t: &mut [__m256; W]) {
    for (v, x) in values.into_iter().zip(x) {
        for (t, x) in t.iter_mut().zip(x) {
            *t = _mm256_fmadd_ps(v, _mm256_set1_ps(*x), *t);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn stream_f32<const R: usize, const W: usize>(blocks: [&[Block]; R], x: &[F32Block<W>], acc: &mut [[Lanes; W]; R]) {
    let mut sums = [[[_mm256_setzero_ps(); 2]; W]; R];
    for (sum, acc) in sums.as_flattened_mut().iter_mut().zip(acc.as_flattened()) {
        *sum = [load::<0>(acc), load::<1>(acc)];
    }
    for (i, x) in x.iter().enumerate() {
        for (blocks, sums) in blocks.iter().zip(&mut sums) {
            let Some(block) = blocks.get(i) else { return };
            let (x0, x1) = x.split_at(8);
            let mut t = [[_mm256_setzero_ps(); W]; 2];
            add_columns(decode_columns::<0, 0>(block), x0, &mut t[0]);
            add_columns(decode_columns::<0, 1>(block), x0, &mut t[1]);
            add_columns(decode_columns::<1, 0>(block), x1, &mut t[0]);
            add_columns(decode_columns::<1, 1>(block), x1, &mut t[1]);
            let scales = [decode_scales::<0>(block), decode_scales::<1>(block)];
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = [_mm256_fmadd_ps(t[0][c], scales[0], sum[0]), _mm256_fmadd_ps(t[1][c], scales[1], sum[1])];
            }
        }
    }
    for (acc, sum) in acc.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
        store::<0>(acc, sum[0]);
        store::<1>(acc, sum[1]);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn decode_int(blocks: &[Block], panel: &mut IntPanel) {
    let table = load_bytes(&BIASED);
    for ((block, values), scales) in blocks.iter().zip(&mut panel.values).zip(&mut panel.scales) {
        let halves = [[codes::<0, 0>(block), codes::<0, 1>(block)], [codes::<1, 0>(block), codes::<1, 1>(block)]];
        for (quarters, halves) in values.chunks_exact_mut(2).zip(halves) {
            for (half, codes) in halves.into_iter().enumerate() {
                for (quarter, codes) in quarters.iter_mut().zip(nibbles(codes)) {
                    store_bytes(&mut quarter[half], _mm256_shuffle_epi8(table, codes));
                }
            }
        }
        store::<0>(scales, decode_scales::<0>(block));
        store::<1>(scales, decode_scales::<1>(block));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_int<const W: usize>(panel: &IntPanel, x: &[[QuantizedBlock; W]], acc: &mut [Lanes; W]) {
    let ones = _mm256_set1_epi16(1);
    for ((values, scales), x) in panel.values.iter().zip(&panel.scales).zip(x) {
        // The weights stay in registers for all columns.
        let [a, b, c, d] = values;
        let w = [load_halves(a), load_halves(b), load_halves(c), load_halves(d)];
        let scales = [load::<0>(scales), load::<1>(scales)];
        for (acc, x) in acc.iter_mut().zip(x) {
            // Two 16-bit halves that take back what the bias adds. No partial sum leaves 16 bits: |start| <= 1152,
            // and the products add at most 8 · 24 · 12 to each.
            let start = _mm256_set1_epi32(x.start);
            let mut t = [start; 2];
            for (w, codes) in w.iter().zip(x.quads()) {
                let codes = _mm256_set1_epi32(codes);
                t = [
                    _mm256_add_epi16(t[0], _mm256_maddubs_epi16(w[0], codes)),
                    _mm256_add_epi16(t[1], _mm256_maddubs_epi16(w[1], codes)),
                ];
            }
            let dots = [
                _mm256_cvtepi32_ps(_mm256_madd_epi16(t[0], ones)),
                _mm256_cvtepi32_ps(_mm256_madd_epi16(t[1], ones)),
            ];
            // Exact: 12 bits times 8 bits.
            let scale = _mm256_set1_ps(x.scale);
            add_scaled(acc, dots, [_mm256_mul_ps(scales[0], scale), _mm256_mul_ps(scales[1], scale)]);
        }
    }
}

/// Both halves of the rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_halves(halves: &[[u8; 32]; 2]) -> [__m256i; 2] {
    [load_bytes(&halves[0]), load_bytes(&halves[1])]
}

#[target_feature(enable = "avx2,fma,f16c")]
fn run<W: Work>(work: W) -> W::Output {
    work.run()
}

impl Isa for Avx2 {
    type IntPanel = IntPanel;
    // Six columns of two sums are 12 of the 16 registers; two hold weights and one an activation.
    const WIDTH: usize = 6;
    const STREAM_WIDTH: usize = 4;

    fn vectorize<W: Work>(self, work: W) -> W::Output {
        // SAFETY: `self` exists only where the processor has the instructions.
        unsafe { run(work) }
    }

    fn decode_f32(self, blocks: &[Block], panel: &mut F32Panel) {
        // SAFETY: as above.
        unsafe { decode_f32(blocks, panel) }
    }

    fn multiply_f32<const W: usize>(self, panel: &F32Panel, x: &[F32Block<W>], acc: &mut [Lanes; W]) {
        // SAFETY: as above.
        unsafe { multiply_f32(panel, x, acc) }
    }

    fn stream_f32<const R: usize, const W: usize>(
        self,
        blocks: [&[Block]; R],
        x: &[F32Block<W>],
        acc: &mut [[Lanes; W]; R],
    ) {
        // SAFETY: as above.
        unsafe { stream_f32(blocks, x, acc) }
    }

    fn int_panel(self) -> IntPanel {
        IntPanel { values: [[[[0; 32]; 2]; 4]; PANEL_BLOCKS], scales: [[0.0; ROWS]; PANEL_BLOCKS] }
    }

    fn decode_int(self, blocks: &[Block], panel: &mut IntPanel) {
        // SAFETY: as above.
        unsafe { decode_int(blocks, panel) }
    }

    fn multiply_int<const W: usize>(self, panel: &IntPanel, x: &[[QuantizedBlock; W]], acc: &mut [Lanes; W]) {
        // SAFETY: as above.
        unsafe { multiply_int(panel, x, acc) }
    }
}
