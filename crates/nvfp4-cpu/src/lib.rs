//! NVFP4 linear layers on any CPU.
//!
//! * [`CpuNvFp4LinearKernel`] is the backend: it repacks a layer's weights once, at the format's own 0.5625 bytes
//!   a weight, and multiplies from there with the best instructions the machine has. The dense weights are never
//!   held. Threads come from rayon's current pool (feature `rayon`, on by default); without the feature the
//!   calling thread does the work.
//! * [`mod@reference`] is the obvious implementation, slow and independent of the backend; tests compare with it.
//! * [`facts()`] describes this machine to backend selection.
//!
//! # What is computed
//!
//! `out = x · Wᵀ + bias`, where `x` keeps its 16 or 32 bits (W4A16) or is quantized to NVFP4 first (W4A4). Products
//! and sums are made block by block, in one order, whatever the number of rows, threads or columns at hand:
//!
//! ```text
//! t   = Σ e2m1[n, j] · x[m, j]        over the 16 values j of a block
//! acc = acc + t · scale               block scale of W, times that of x for W4A4
//! out = round(acc · global_x · global_w + bias)
//! ```
//!
//! so every kernel here is batch-invariant, and a result does not depend on the number of threads. In W4A4 every
//! `t · scale` is exact in f32, so all instruction sets give the same bits. In W4A16 `t` and `acc` are rounded to
//! f32, and instruction sets with and without fused multiply-add may differ in the last bits; an element is off
//! from the exact value by at most `γ(K+2) · Σ|x·w|`, where `γ(n) = n·2⁻²⁴ / (1 - n·2⁻²⁴)`, before it is rounded,
//! once, to the type of the output.
//!
//! # Files
//!
//! `kernel` (the contract), `weights` (the packed layout), `activation` (packed inputs), `gemm` (blocking and
//! threads), `isa` (what depends on the instruction set), `columns` and `element` (outputs), `threads`, `facts`.

mod activation;
mod columns;
mod element;
mod facts;
mod gemm;
mod isa;
mod kernel;
pub mod reference;
mod threads;
mod weights;

pub use facts::facts;
pub use kernel::CpuNvFp4LinearKernel;
