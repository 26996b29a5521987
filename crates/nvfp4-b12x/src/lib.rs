//! The `b12x` backend: FlashInfer's block-scaled GEMM with warp-level MMA for compute capabilities 12.0 and 12.1, a CuTe
//! DSL program that is compiled ahead of time.

pub mod configurations;

use nvfp4_cuda::cute_dsl::Recipe;

/// Name of the packs.
pub const BACKEND: &str = "b12x";
/// Revision of what this crate expects of a pack.
pub const REVISION: u32 = 1;

/// How the packs are built.
pub const RECIPE: Recipe = Recipe {
    backend: BACKEND,
    revision: REVISION,
    targets: &["sm_120a", "sm_121a"],
    packed: configurations::packed,
    tunable: configurations::packed,
    needs_ptx: "mma.sync.aligned.kind::mxf4nvf4.block_scale",
};
