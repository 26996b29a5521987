//! The `cutedsl` backend: FlashInfer's persistent block-scaled GEMM for compute capabilities 10.0 and 10.3, a CuTe DSL
//! program that is compiled ahead of time, with its split-k variant for few rows.

pub mod configurations;

use nvfp4_cuda::cute_dsl::Recipe;

/// Name of the packs.
pub const BACKEND: &str = "cutedsl";
/// Revision of what this crate expects of a pack.
pub const REVISION: u32 = 1;

/// How the packs are built.
pub const RECIPE: Recipe = Recipe {
    backend: BACKEND,
    revision: REVISION,
    targets: &["sm_100a", "sm_103a"],
    packed: configurations::packed,
    tunable: configurations::tunable,
    needs_ptx: "tcgen05.mma.cta_group::",
};
