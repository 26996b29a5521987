//! The configurations of the kernels: which exist, and which of them a pack holds.

use nvfp4_cuda::cute_dsl::{Configuration, L2Policy, Output, Program};

/// Elements along k of a pipeline stage, and of the stage with twice as many instructions.
pub const TILE_K: u32 = 256;
/// See [`TILE_K`].
pub const DEEP_TILE_K: u32 = 512;

/// Tiles in the order in which upstream's selector tries them (`_SM100_MMA_TILER_MN_CANDIDATES`).
pub const TILES: [[u32; 2]; 11] = [
    [128, 8],
    [128, 16],
    [128, 32],
    [128, 64],
    [256, 64],
    [128, 128],
    [256, 128],
    [128, 192],
    [256, 192],
    [128, 256],
    [256, 256],
];

/// Clusters in the order in which upstream's selector tries them (`_CLUSTER_SHAPE_MN_CANDIDATES`).
pub const CLUSTERS: [[u32; 2]; 9] = [[1, 1], [1, 2], [1, 4], [2, 1], [2, 2], [2, 4], [4, 1], [4, 2], [4, 4]];

/// Tiles narrower than this are limited to [`NARROW_TILE_MOST_COLUMNS`] columns and to clusters of one column.
pub const NARROW_TILE: u32 = 64;
/// Most columns (in the kernel's own orientation) that a narrow tile may be launched over: the scales of 32 columns
/// are one group in tensor memory.
pub const NARROW_TILE_MOST_COLUMNS: u32 = 32;

/// Numbers of CTAs that may share a sum over k.
pub const SPLITS: [u32; 2] = [2, 4];
/// Most rows of an activation that the split-k program takes.
pub const SPLIT_MOST_ROWS: u32 = 32;

/// True if the program accepts the tile in the cluster: 256 rows need two CTAs along m, narrow tiles one along n.
pub fn is_legal(tile: [u32; 2], cluster: [u32; 2]) -> bool {
    (tile[0] == 128 || cluster[0].is_multiple_of(2)) && (tile[1] >= NARROW_TILE || cluster[1] == 1)
}

/// The smallest legal cluster of a tile, the one that upstream's static choice takes.
pub const fn smallest_cluster(tile: [u32; 2]) -> [u32; 2] {
    if tile[0] == 256 { [2, 1] } else { [1, 1] }
}

/// A configuration of the persistent program.
pub const fn persistent(tile: [u32; 2], cluster: [u32; 2], swap_ab: bool, l2: L2Policy) -> Configuration {
    Configuration {
        program: Program::Persistent,
        tile,
        cluster,
        split_k: 1,
        tile_k: TILE_K,
        swap_ab,
        prefetch: false,
        l2,
        output: Output::Bf16,
    }
}

/// A configuration of the split-k program.
pub const fn split_k(columns: u32, split_k: u32) -> Configuration {
    Configuration {
        program: Program::SplitK,
        tile: [128, columns],
        cluster: [1, 1],
        split_k,
        tile_k: TILE_K,
        swap_ab: true,
        prefetch: false,
        l2: L2Policy::None,
        output: Output::Bf16,
    }
}

/// Cache hints that [`l2_policy`](crate::choice::l2_policy) can give, for each orientation.
const fn policies(swap_ab: bool) -> [L2Policy; 2] {
    if swap_ab { [L2Policy::AFirst, L2Policy::None] } else { [L2Policy::BFirst, L2Policy::BothLast] }
}

/// What is compiled in both orientations, clusters and hints for a tile.
fn of_tile(tile: [u32; 2], clusters: &[[u32; 2]]) -> Vec<Configuration> {
    let mut all = Vec::new();
    for &cluster in clusters.iter().filter(|&&cluster| is_legal(tile, cluster)) {
        for swap_ab in [false, true] {
            for l2 in policies(swap_ab) {
                // A narrow tile covers all columns, so that the weights are read once; unswapped it is for n = 32.
                let used = tile[1] >= NARROW_TILE
                    || if swap_ab { l2 == L2Policy::AFirst } else { tile[1] == NARROW_TILE_MOST_COLUMNS };
                if used {
                    all.push(persistent(tile, cluster, swap_ab, l2));
                }
            }
        }
    }
    all
}

/// The configurations of the default pack: what upstream's static choice gives for any shape and number of multiprocessors.
pub fn packed() -> Vec<Configuration> {
    let mut all: Vec<_> = TILES.iter().flat_map(|&tile| of_tile(tile, &[smallest_cluster(tile)])).collect();
    for columns in [8, 16, 32] {
        let narrow = persistent([128, columns], [1, 1], true, L2Policy::AFirst);
        all.push(Configuration { tile_k: DEEP_TILE_K, ..narrow });
        all.push(Configuration { prefetch: true, ..narrow });
        all.extend(SPLITS.map(|split| split_k(columns, split)));
    }
    with_outputs(all)
}

/// Every configuration that upstream's tuner can measure: [`packed`], with prefetch, deep stages and larger clusters.
pub fn tunable() -> Vec<Configuration> {
    let mut all: Vec<_> = TILES.iter().flat_map(|&tile| of_tile(tile, &CLUSTERS)).collect();
    let deep = |c: &Configuration| Configuration { tile_k: DEEP_TILE_K, ..*c };
    let narrow: Vec<_> = all.iter().filter(|c| c.tile[1] < NARROW_TILE).map(deep).collect();
    all.extend(narrow);
    let prefetching: Vec<_> = all.iter().map(|c| Configuration { prefetch: true, ..*c }).collect();
    all.extend(prefetching);
    all.extend([8, 16, 32].iter().flat_map(|&columns| SPLITS.map(|split| split_k(columns, split))));
    with_outputs(all)
}

fn with_outputs(all: Vec<Configuration>) -> Vec<Configuration> {
    all.iter().flat_map(|c| Output::ALL.map(|output| c.with_output(output))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_distinct_and_what_is_packed_can_be_tuned() {
        let (packed, tunable) = (packed(), tunable());
        for list in [&packed, &tunable] {
            let names: BTreeSet<_> = list.iter().map(Configuration::name).collect();
            assert_eq!(names.len(), list.len());
            assert!(list.iter().all(|c| is_legal(c.tile, c.cluster)));
        }
        let tunable: BTreeSet<_> = tunable.into_iter().collect();
        assert!(packed.iter().all(|c| tunable.contains(c)));
    }
}
