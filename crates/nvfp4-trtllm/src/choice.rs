//! Which kernel runs a problem.

use crate::tactic::{Tactic, in_order};
use nvfp4_core::{Error, ScaleLayout};

/// `n` must be a multiple of this: the rows that the weight shuffle permutes among themselves.
pub const N_ALIGNMENT: usize = 32;
/// `k` must be a multiple of this: four block scales, the width of a scale tile.
pub const K_ALIGNMENT: usize = 64;

/// A GEMM `[m, k] · [n, k]ᵀ`, padding of `n` and `k` included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Problem {
    m: u32,
    n: u32,
    k: u32,
}

impl Problem {
    /// `m` tokens, `n` output features, `k` input features.
    ///
    /// Errors: a zero, `n` or `k` that is not a multiple of what the kernels need, or more than their 32-bit counters hold.
    pub fn new(m: usize, n: usize, k: usize) -> Result<Self, Error> {
        for (what, size) in [("m (tokens)", m), ("n (output features)", n), ("k (input features)", k)] {
            if size == 0 {
                return Err(Error::Zero { what });
            }
        }
        for (what, multiple, found) in
            [("n (output features)", N_ALIGNMENT, n), ("k (input features)", K_ALIGNMENT, k)]
        {
            if !found.is_multiple_of(multiple) {
                return Err(Error::NotMultiple { what, multiple, found });
            }
        }
        let count = |what, size: usize| {
            // The kernels count in signed 32 bits, and round up to a tile.
            u32::try_from(size).ok().filter(|&size| size <= i32::MAX as u32 - 127).ok_or(Error::Overflow { what })
        };
        Ok(Self {
            m: count("m (tokens)", m)?,
            n: count("n (output features)", n)?,
            k: count("k (input features)", k)?,
        })
    }

    /// Tokens.
    pub const fn m(self) -> u32 {
        self.m
    }
    /// Output features.
    pub const fn n(self) -> u32 {
        self.n
    }
    /// Input features.
    pub const fn k(self) -> u32 {
        self.k
    }
}

impl Tactic {
    /// True if the kernel can run the problem.
    pub const fn is_valid(&self, problem: Problem) -> bool {
        !self.unroll_2x || problem.k.div_ceil(self.tile_k).is_multiple_of(2)
    }
}

/// The kernels that can run the problem with activations whose scales have this layout, in the order of preference.
pub fn valid_tactics(problem: Problem, layout: ScaleLayout) -> impl Iterator<Item = &'static Tactic> {
    in_order(layout).filter(move |tactic| tactic.is_valid(problem))
}

/// The kernel that runs the problem when nothing has been measured: the first valid one. It depends on `k` and the layout,
/// not on `m` or `n`.
pub fn default_tactic(problem: Problem, layout: ScaleLayout) -> Option<&'static Tactic> {
    valid_tactics(problem, layout).next()
}

/// The kernel for a problem: a measured choice if there is one that can run it, else the [default](default_tactic).
pub fn chosen_tactic(problem: Problem, layout: ScaleLayout, measured: Option<u16>) -> Option<&'static Tactic> {
    let measured = measured.and_then(|index| valid_tactics(problem, layout).find(|tactic| tactic.index == index));
    measured.or_else(|| default_tactic(problem, layout))
}

/// The kernels that upstream's tuner measures: the valid ones up to, and without, the first that is not unrolled behind
/// one that is. The default is the first of them.
pub fn tuning_candidates(problem: Problem, layout: ScaleLayout) -> Vec<&'static Tactic> {
    let mut candidates: Vec<&'static Tactic> = Vec::new();
    for tactic in valid_tactics(problem, layout) {
        let ends = !tactic.unroll_2x && candidates.iter().any(|earlier| earlier.unroll_2x);
        candidates.push(tactic);
        if ends {
            break;
        }
    }
    candidates
}
