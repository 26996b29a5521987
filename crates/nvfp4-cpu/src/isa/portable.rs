//! Kernels for every machine, in plain Rust that compilers turn into whatever vectors the target has.
//!
//! Products and sums are two steps here: a fused multiply-add is a slow library call on targets without the
//! instruction.

use super::{F32Block, F32Panel, Isa, Lanes, Work};
use crate::{
    activation::QuantizedBlock,
    weights::{Block, ROWS, position},
};
use nvfp4_core::{BLOCK_SIZE, e2m1, e4m3};

/// Any instruction set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

/// Twice the value of every e2m1 code.
pub(crate) const DOUBLED: [i8; 16] = {
    let mut table = [0; 16];
    let mut code = 0;
    while code < 16 {
        table[code] = (2.0 * e2m1::VALUES[code]) as i8;
        code += 1;
    }
    table
};

/// Calls `f` with every code of a block: column, row, code.
#[inline(always)]
fn for_each_code(block: &Block, mut f: impl FnMut(usize, usize, usize)) {
    for j in 0..BLOCK_SIZE {
        for r in 0..ROWS {
            let (at, shift) = position(r, j);
            f(j, r, usize::from(block.codes[at] >> shift & 0xf));
        }
    }
}

#[inline(always)]
fn decode_scales(block: &Block) -> Lanes {
    block.scales.map(e4m3::decode)
}

/// The products of a block of weights with each column of `x`: `t` for every row.
#[inline(always)]
fn dots<const W: usize>(values: &[Lanes; BLOCK_SIZE], x: &F32Block<W>) -> [Lanes; W] {
    let mut dots = [[0.0; ROWS]; W];
    for (values, x) in values.iter().zip(x) {
        for (dots, x) in dots.iter_mut().zip(x) {
            for (t, w) in dots.iter_mut().zip(values) {
                *t += w * x;
            }
        }
    }
    dots
}

/// `acc += t * scale`.
#[inline(always)]
fn add_scaled(acc: &mut Lanes, t: &Lanes, scale: impl Fn(usize) -> f32) {
    for (r, (acc, t)) in acc.iter_mut().zip(t).enumerate() {
        *acc += t * scale(r);
    }
}

#[inline(always)]
fn add_block<const W: usize>(values: &[Lanes; BLOCK_SIZE], scales: &Lanes, x: &F32Block<W>, acc: &mut [Lanes; W]) {
    for (acc, t) in acc.iter_mut().zip(&dots(values, x)) {
        add_scaled(acc, t, |r| scales[r]);
    }
}

impl Isa for Portable {
    // Integers of at most 16 · 12 · 12 are exact in f32, which every target multiplies well.
    type IntPanel = F32Panel;
    // Two columns of 16 sums are 8 vectors of 128 bits, half of the registers of the smallest targets.
    const WIDTH: usize = 2;
    const STREAM_WIDTH: usize = 1;

    fn vectorize<W: Work>(self, work: W) -> W::Output {
        work.run()
    }

    fn decode_f32(self, blocks: &[Block], panel: &mut F32Panel) {
        for ((block, values), scales) in blocks.iter().zip(&mut panel.values).zip(&mut panel.scales) {
            for_each_code(block, |j, r, code| values[j][r] = e2m1::VALUES[code]);
            *scales = decode_scales(block);
        }
    }

    fn multiply_f32<const W: usize>(self, panel: &F32Panel, x: &[F32Block<W>], acc: &mut [Lanes; W]) {
        for ((values, scales), x) in panel.values.iter().zip(&panel.scales).zip(x) {
            add_block(values, scales, x, acc);
        }
    }

    fn stream_f32<const R: usize, const W: usize>(
        self,
        blocks: [&[Block]; R],
        x: &[F32Block<W>],
        acc: &mut [[Lanes; W]; R],
    ) {
        for (blocks, acc) in blocks.iter().zip(acc) {
            for (block, x) in blocks.iter().zip(x) {
                let mut values = [[0.0; ROWS]; BLOCK_SIZE];
                for_each_code(block, |j, r, code| values[j][r] = e2m1::VALUES[code]);
                add_block(&values, &decode_scales(block), x, acc);
            }
        }
    }

    fn int_panel(self) -> F32Panel {
        F32Panel::new()
    }

    fn decode_int(self, blocks: &[Block], panel: &mut F32Panel) {
        for ((block, values), scales) in blocks.iter().zip(&mut panel.values).zip(&mut panel.scales) {
            for_each_code(block, |j, r, code| values[j][r] = DOUBLED[code].into());
            *scales = decode_scales(block);
        }
    }

    fn multiply_int<const W: usize>(self, panel: &F32Panel, x: &[[QuantizedBlock; W]], acc: &mut [Lanes; W]) {
        for ((values, scales), x) in panel.values.iter().zip(&panel.scales).zip(x) {
            let mut codes = [[0.0; W]; BLOCK_SIZE];
            for (j, codes) in codes.iter_mut().enumerate() {
                for (code, x) in codes.iter_mut().zip(x) {
                    *code = x.doubled[j].into();
                }
            }
            for ((acc, t), x) in acc.iter_mut().zip(&dots(values, &codes)).zip(x) {
                // Both products are exact.
                add_scaled(acc, t, |r| scales[r] * x.scale);
            }
        }
    }
}
