//! How the packs of a backend are built.

use super::Configuration;

/// Packs of one backend.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// Name of the packs.
    pub backend: &'static str,
    /// Revision of what the crate expects of a pack.
    pub revision: u32,
    /// Targets, e.g. `sm_100a`.
    pub targets: &'static [&'static str],
    /// What is compiled.
    pub packed: fn() -> Vec<Configuration>,
    /// What a tuner may measure beyond that; compiled on request.
    pub tunable: fn() -> Vec<Configuration>,
    /// An instruction that the PTX of every kernel must hold: the block-scaled MMA of the right family.
    pub needs_ptx: &'static str,
}
