//! What depends on the instruction set.
//!
//! An instruction set is a value of a type that implements [`Isa`]. It can only be made where the machine has the
//! instructions, so having one is the proof that they may be executed. To add one, implement the trait in a file of
//! its own and add a variant to [`Selected`].

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
pub(crate) mod portable;

use crate::{
    activation::QuantizedBlock,
    weights::{Block, ROWS},
};
use nvfp4_core::BLOCK_SIZE;

/// Blocks along `k` that a panel holds: 256 values of 16 rows, 16 KiB as f32, so that a panel and the activations
/// beside it stay in the first-level cache.
pub(crate) const PANEL_BLOCKS: usize = 16;

/// Most columns that a kernel multiplies at once.
pub(crate) const MAX_WIDTH: usize = 6;

/// One value for each of the 16 rows of a block.
pub(crate) type Lanes = [f32; ROWS];

/// A block of `W` columns of f32 activations: `[j][column]`.
pub(crate) type F32Block<const W: usize> = [[f32; W]; BLOCK_SIZE];

/// Up to [`PANEL_BLOCKS`] blocks of the same rows, decoded to f32.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct F32Panel {
    /// e2m1 values (or multiples of them), not scaled: `[block][j][row]`.
    pub(crate) values: [[Lanes; BLOCK_SIZE]; PANEL_BLOCKS],
    /// Block scales.
    pub(crate) scales: [Lanes; PANEL_BLOCKS],
}

impl F32Panel {
    /// A panel to decode into.
    pub(crate) const fn new() -> Self {
        Self { values: [[[0.0; ROWS]; BLOCK_SIZE]; PANEL_BLOCKS], scales: [[0.0; ROWS]; PANEL_BLOCKS] }
    }
}

/// Work in plain Rust that is worth compiling for each instruction set. Implementations put `#[inline(always)]` on
/// [`run`](Self::run) and on what it calls: what is not inlined is compiled for every machine.
pub(crate) trait Work {
    /// What it gives.
    type Output;
    /// Does it.
    fn run(self) -> Self::Output;
}

/// Kernels for one instruction set. `acc` holds one [`Lanes`] for each column (row of `x`), `x` and weights as many
/// blocks as each other. Every kernel adds to `acc` block by block, in order, as the crate's documentation says;
/// within a block the products of `t` are added in order of `j`.
pub(crate) trait Isa: Copy + Send + Sync + 'static {
    /// Decoded codes for integer products.
    type IntPanel: Send;
    /// Most columns in a group, at most [`MAX_WIDTH`].
    const WIDTH: usize;
    /// Up to this many columns, f32 products read codes directly instead of through a panel.
    const STREAM_WIDTH: usize;

    /// Runs `work` compiled for this instruction set.
    fn vectorize<W: Work>(self, work: W) -> W::Output;

    /// Decodes at most [`PANEL_BLOCKS`] blocks.
    fn decode_f32(self, blocks: &[Block], panel: &mut F32Panel);

    /// Adds the first `x.len()` blocks of `panel` times `x` to `acc`.
    fn multiply_f32<const W: usize>(self, panel: &F32Panel, x: &[F32Block<W>], acc: &mut [Lanes; W]);

    /// The same without a panel, for any number of blocks, and for `R` groups of 16 rows at once.
    fn stream_f32<const R: usize, const W: usize>(
        self,
        blocks: [&[Block]; R],
        x: &[F32Block<W>],
        acc: &mut [[Lanes; W]; R],
    );

    /// An empty panel to decode into.
    fn int_panel(self) -> Self::IntPanel;

    /// Decodes at most [`PANEL_BLOCKS`] blocks to integers.
    fn decode_int(self, blocks: &[Block], panel: &mut Self::IntPanel);

    /// Adds the first `x.len()` blocks of `panel` times `x` to `acc`.
    fn multiply_int<const W: usize>(self, panel: &Self::IntPanel, x: &[[QuantizedBlock; W]], acc: &mut [Lanes; W]);
}

/// The instruction set that a kernel uses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Selected {
    Portable(portable::Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
}

impl Selected {
    /// The best that this machine has.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(isa) = avx2::Avx2::detect() {
            return Self::Avx2(isa);
        }
        Self::portable()
    }

    /// What every machine has.
    pub(crate) fn portable() -> Self {
        Self::Portable(portable::Portable)
    }

    /// Names of the extensions in use.
    pub(crate) fn features(self) -> &'static [&'static str] {
        match self {
            Self::Portable(_) => &[],
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => &["avx2", "fma", "f16c"],
        }
    }
}
