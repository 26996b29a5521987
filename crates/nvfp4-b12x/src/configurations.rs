//! The configurations of the kernels.

use nvfp4_cuda::cute_dsl::{Configuration, L2Policy, Output, Program};

/// Elements along k of a pipeline stage.
pub const TILE_K: u32 = 128;

/// Tiles that upstream's static choice and its tuner use, the narrow one with operands swapped inside the kernel.
pub const TILES: [[u32; 2]; 5] = [[64, 64], [64, 128], [128, 64], [128, 128], [64, 32]];

/// The configuration of a tile.
pub const fn of_tile(tile: [u32; 2], prefetch: bool, output: Output) -> Configuration {
    Configuration {
        program: Program::B12x,
        tile,
        cluster: [1, 1],
        split_k: 1,
        tile_k: TILE_K,
        swap_ab: tile[1] < 64,
        prefetch,
        l2: L2Policy::None,
        output,
    }
}

/// Every configuration: all that upstream's static choice and its tuner can give.
pub fn packed() -> Vec<Configuration> {
    let mut all = Vec::new();
    for tile in TILES {
        for prefetch in [false, true] {
            all.extend(Output::ALL.map(|output| of_tile(tile, prefetch, output)));
        }
    }
    all
}
