//! The product of packed activations and packed weights: blocking, threads, and what happens to the sums.
//!
//! The output is cut into tiles of 64 columns (rows of `W`) by all rows of a *pass* (at most [`MAX_ROWS`] rows of
//! `x`, packed once). A thread owns a tile for all of `k` and keeps its sums in f32 on its stack. Along `k` it decodes
//! a panel of weights at a time and multiplies it with every group of activations; with very few rows it multiplies
//! while decoding.

use crate::{
    activation::{Groups, QuantizedBlock},
    columns::ColumnsMut,
    element::Element,
    isa::{F32Block, F32Panel, Isa, Lanes, MAX_WIDTH, PANEL_BLOCKS, Work},
    threads::{self, Divisible},
    weights::{CpuWeights, ROWS},
};
use nvfp4_core::BLOCK_SIZE;

/// Rows of `x` in a pass. The more, the less often weights are decoded; the sums of a tile (33 KiB) and a panel's
/// share of `x` (132 KiB) should stay in the second-level cache.
pub(crate) const MAX_ROWS: usize = 132;

/// Groups of 16 rows of `W` in a tile.
const TILE: usize = 4;

/// Packed activations, in groups.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Packed<'a> {
    /// W4A16.
    F32(&'a [f32]),
    /// W4A4.
    Int(&'a [QuantizedBlock]),
}

/// One pass: some rows of `x` times all of `W`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass<'a> {
    pub(crate) weights: &'a CpuWeights,
    pub(crate) x: Packed<'a>,
    /// Global scale of each row of `x`; their number, at most [`MAX_ROWS`], is the number of rows.
    pub(crate) row_scales: &'a [f32],
    /// `n` values.
    pub(crate) bias: Option<&'a [f32]>,
}

/// The columns of the output from `16 * first` on.
struct Columns<'a, T> {
    first: usize,
    out: ColumnsMut<'a, T>,
}

impl<T: Send> Divisible for Columns<'_, T> {
    fn len(&self) -> usize {
        self.out.cols().div_ceil(ROWS)
    }
    fn split_at(self, units: usize) -> (Self, Self) {
        let (a, b) = self.out.split_at(units * ROWS);
        (Self { first: self.first, out: a }, Self { first: self.first + units, out: b })
    }
}

/// Computes a pass into `out`, `[rows, n]`.
pub(crate) fn multiply<I: Isa, T: Element>(isa: I, pass: Pass<'_>, out: ColumnsMut<'_, T>) {
    let (n, k, rows) = (pass.weights.n(), pass.weights.k(), pass.row_scales.len());
    if rows == 0 {
        return;
    }
    let columns = Columns { first: 0, out };
    let grain = threads::grain(columns.len(), TILE, n.saturating_mul(k).saturating_mul(rows));
    threads::for_each_piece(columns, grain, &|piece| tiles(isa, pass, piece));
}

/// Memory that a thread reuses for all of its tiles.
struct Scratch<P> {
    /// `[group of 16 rows of W][row of x]`.
    sums: [Lanes; TILE * MAX_ROWS],
    f32_panel: F32Panel,
    int_panel: P,
}

fn tiles<I: Isa, T: Element>(isa: I, pass: Pass<'_>, columns: Columns<'_, T>) {
    let mut scratch =
        Scratch { sums: [[0.0; ROWS]; TILE * MAX_ROWS], f32_panel: F32Panel::new(), int_panel: isa.int_panel() };
    let groups = Groups::new(pass.row_scales.len(), I::WIDTH);
    let mut rest = Some(columns);
    while let Some(columns) = rest.take().filter(|c| c.len() > 0) {
        let (mut tile, after) = columns.split_at(TILE);
        rest = Some(after);
        let used = tile.len() * pass.row_scales.len();
        scratch.sums[..used].fill([0.0; ROWS]);
        match pass.x {
            Packed::F32(x) if pass.row_scales.len() <= I::STREAM_WIDTH => {
                stream_tile(isa, pass, x, tile.first, tile.len(), &mut scratch.sums[..used]);
            }
            Packed::F32(x) => f32_tile(isa, pass, x, groups, tile.first, tile.len(), &mut scratch),
            Packed::Int(x) => int_tile(isa, pass, x, groups, tile.first, tile.len(), &mut scratch),
        }
        finish(isa, pass, &scratch.sums[..used], &mut tile);
    }
}

/// Runs `$body` with the constant `$w` equal to `$width`, which is at most [`MAX_WIDTH`] and not zero.
macro_rules! with_width {
    ($width:expr, $w:ident => $body:expr) => {
        with_width!(@ $width, $w => $body; 1 2 3 4 5 6)
    };
    (@ $width:expr, $w:ident => $body:expr; $($n:literal)*) => {
        match $width {
            $($n => {
                const $w: usize = $n;
                $body
            })*
            width => unreachable!("groups have 1 to {MAX_WIDTH} rows, not {width}"),
        }
    };
}

/// `W` values as an array. Callers slice to `W`.
fn array<T, const W: usize>(slice: &mut [T]) -> &mut [T; W] {
    match slice.try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("a slice of {W} values"),
    }
}

/// The blocks of a group of `W` rows.
fn blocks<const W: usize>(x: &[f32]) -> &[F32Block<W>] {
    x.as_chunks::<W>().0.as_chunks::<BLOCK_SIZE>().0
}

fn stream_tile<I: Isa>(isa: I, pass: Pass<'_>, x: &[f32], first: usize, count: usize, sums: &mut [Lanes]) {
    let rows = pass.row_scales.len();
    with_width!(rows, W => {
        let x = blocks::<W>(x);
        // Two groups of 16 rows at once hide the latency of one sum behind the other's.
        let (pairs, last) = sums.as_chunks_mut::<W>().0.as_chunks_mut::<2>();
        for (i, sums) in pairs.iter_mut().enumerate() {
            let at = first + 2 * i;
            isa.stream_f32([pass.weights.row_blocks(at, 1), pass.weights.row_blocks(at + 1, 1)], x, sums);
        }
        if let [sums] = last {
            let last = pass.weights.row_blocks(first + count - 1, 1);
            isa.stream_f32([last], x, array(std::slice::from_mut(sums)));
        }
    });
}

fn f32_tile<I: Isa>(
    isa: I,
    pass: Pass<'_>,
    x: &[f32],
    groups: Groups,
    first: usize,
    count: usize,
    scratch: &mut Scratch<I::IntPanel>,
) {
    let (k, rows) = (pass.weights.k(), pass.row_scales.len());
    for block in (0..pass.weights.blocks_per_row()).step_by(PANEL_BLOCKS) {
        for (i, sums) in scratch.sums[..count * rows].chunks_exact_mut(rows).enumerate() {
            let decoded = &pass.weights.row_blocks(first + i, 1)[block..];
            let decoded = &decoded[..decoded.len().min(PANEL_BLOCKS)];
            isa.decode_f32(decoded, &mut scratch.f32_panel);
            for group in 0..groups.count() {
                let rows = groups.rows(group);
                with_width!(rows.len(), W => {
                    let x = &blocks::<W>(&x[rows.start * k..rows.end * k])[block..][..decoded.len()];
                    isa.multiply_f32::<W>(&scratch.f32_panel, x, array(&mut sums[rows]));
                });
            }
        }
    }
}

fn int_tile<I: Isa>(
    isa: I,
    pass: Pass<'_>,
    x: &[QuantizedBlock],
    groups: Groups,
    first: usize,
    count: usize,
    scratch: &mut Scratch<I::IntPanel>,
) {
    let (k, rows) = (pass.weights.blocks_per_row(), pass.row_scales.len());
    for block in (0..k).step_by(PANEL_BLOCKS) {
        for (i, sums) in scratch.sums[..count * rows].chunks_exact_mut(rows).enumerate() {
            let decoded = &pass.weights.row_blocks(first + i, 1)[block..];
            let decoded = &decoded[..decoded.len().min(PANEL_BLOCKS)];
            isa.decode_int(decoded, &mut scratch.int_panel);
            for group in 0..groups.count() {
                let rows = groups.rows(group);
                with_width!(rows.len(), W => {
                    let x = &x[rows.start * k..rows.end * k].as_chunks::<W>().0[block..][..decoded.len()];
                    isa.multiply_int::<W>(&scratch.int_panel, x, array(&mut sums[rows]));
                });
            }
        }
    }
}

/// Global scales, bias and the one rounding to the type of the output.
fn finish<I: Isa, T: Element>(isa: I, pass: Pass<'_>, sums: &[Lanes], tile: &mut Columns<'_, T>) {
    let first = tile.first * ROWS;
    let mut scales = [0.0; TILE * ROWS];
    pass.weights.global_scales(first, &mut scales);
    let mut bias = [0.0; TILE * ROWS];
    if let Some(all) = pass.bias {
        bias.iter_mut().zip(all.get(first..).unwrap_or_default()).for_each(|(b, v)| *b = *v);
    }
    let bias = pass.bias.is_some().then_some(&bias);
    isa.vectorize(Finish { sums, row_scales: pass.row_scales, scales: &scales, bias, out: &mut tile.out });
}

struct Finish<'a, 'o, T> {
    sums: &'a [Lanes],
    row_scales: &'a [f32],
    scales: &'a [f32; TILE * ROWS],
    bias: Option<&'a [f32; TILE * ROWS]>,
    out: &'a mut ColumnsMut<'o, T>,
}

impl<T: Element> Work for Finish<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let rows = self.row_scales.len();
        for (r, row_scale) in self.row_scales.iter().enumerate() {
            let mut values = [0.0; TILE * ROWS];
            let groups = values.as_chunks_mut::<ROWS>().0.iter_mut().zip(self.scales.as_chunks::<ROWS>().0);
            for ((values, scales), sums) in groups.zip(self.sums[r..].iter().step_by(rows)) {
                for ((v, sum), scale) in values.iter_mut().zip(sums).zip(scales) {
                    *v = sum * row_scale * scale;
                }
            }
            if let Some(bias) = self.bias {
                values.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
            }
            let out = self.out.row(r);
            T::narrow(&values[..out.len()], out);
        }
    }
}
