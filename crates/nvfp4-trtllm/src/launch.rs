//! What a launch consists of, computed without a device: the kernel, its grid, its tensor maps and its parameter block.

use crate::{
    choice::Problem,
    tactic::{TILE_M, Tactic},
};
use nvfp4_core::ScaleLayout;
use nvfp4_cuda::{
    LaunchConfig, TensorMap, TensorMapSpec,
    tensor_map::{ElementType, Swizzle},
};

/// Threads of a CTA.
pub const THREADS: u32 = 512;
/// Input features that a 4-bit operand's tensor map copies at once; larger tiles take several copies.
const BOX_K: u32 = 256;
/// Output features that the output's tensor map copies at once: 128 bytes of bf16.
const BOX_OUT: u32 = 64;
/// Input features that share a word of four block scales.
const SCALE_TILE_K: u32 = 64;

/// Device addresses of a launch. Tensors are multiples of 16 bytes apart and aligned to 16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operands {
    /// Activation codes `[m, k / 2]`.
    pub activation: u64,
    /// Activation block scales, in the tactic's layout.
    pub activation_scales: u64,
    /// Weight codes `[n, k / 2]`, rows shuffled.
    pub weight: u64,
    /// Weight block scales, rows shuffled, then in 128x4 tiles.
    pub weight_scales: u64,
    /// One f32, the factor of every output. Read without a test for null.
    pub alpha: u64,
    /// bf16 output `[m, n]`.
    pub output: u64,
    /// Bytes from one output row to the next; a multiple of 16.
    pub output_row_bytes: u64,
}

/// A launch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LaunchRecord {
    /// The kernel.
    pub tactic: &'static Tactic,
    /// Grid, threads, shared memory, attributes.
    pub config: LaunchConfig,
    /// The five tensor maps, in the order of the parameter block: weight, activation, output, weight scales, activation
    /// scales.
    pub maps: [TensorMapSpec; 5],
    /// What follows the tensor maps.
    pub words: Words,
}

/// The parameter block behind its tensor maps, field for field.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Words {
    /// Output.
    pub ptr_c: u64,
    /// Weight scales.
    pub ptr_sf_a: u64,
    /// Activation scales.
    pub ptr_sf_b: u64,
    /// Bias, per-token scales of either operand, output scales: null, these kernels have none.
    pub unused_pointers: [u64; 4],
    /// The factor of every output.
    pub ptr_scale_c: u64,
    /// The factor before an activation function: null.
    pub ptr_scale_act: u64,
    /// Output features.
    pub m: i32,
    /// Tokens.
    pub n: i32,
    /// Input features.
    pub k: i32,
    /// Rank in a tensor-parallel group: 0.
    pub rank: i32,
    /// Size of that group: 1.
    pub tp_grp_size: i32,
    /// Padding of the C struct, zero here.
    pub padding: i32,
    /// Buffers of the all-reduce and of split K: null.
    pub unused_buffers: [u64; 8],
    /// Padding of the C struct to a multiple of 64 bytes, zero here.
    pub tail: [u64; 4],
}

/// The one parameter of the kernels, by value: 960 bytes.
#[repr(C, align(64))]
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct KernelParams {
    /// Weight, activation, output, weight scales, activation scales.
    pub maps: [TensorMap; 5],
    /// Metadata of structured sparsity, which these kernels do not read.
    pub sparsity: TensorMap,
    /// The rest.
    pub words: Words,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<KernelParams>() == 960);
    assert!(offset_of!(KernelParams, sparsity) == 640 && offset_of!(KernelParams, words) == 768);
    assert!(offset_of!(Words, ptr_scale_c) == 824 - 768 && offset_of!(Words, ptr_scale_act) == 832 - 768);
    assert!(offset_of!(Words, m) == 840 - 768 && offset_of!(Words, tp_grp_size) == 856 - 768);
    assert!(offset_of!(Words, unused_buffers) == 864 - 768 && offset_of!(Words, tail) == 928 - 768);
};

/// The launch of `tactic` on a problem that it [can run](Tactic::is_valid).
pub fn launch_record(tactic: &'static Tactic, problem: Problem, operands: &Operands) -> LaunchRecord {
    let (m, n, k) = (problem.m(), problem.n(), problem.k());
    let config = LaunchConfig {
        grid: [n.div_ceil(TILE_M), m.div_ceil(tactic.tile_n), 1],
        block: [THREADS, 1, 1],
        // A cluster of one CTA is what a launch without the attribute has.
        cluster: [1, 1, 1],
        shared_memory: tactic.shared_memory,
        overlap_previous: true,
    };
    let weight_scales = scales_128x4(operands.weight_scales, n, k, tactic.tile_k);
    let activation_scales = match tactic.activation_scales {
        ScaleLayout::Swizzled8x4 => scales_8x4(operands.activation_scales, m, k, tactic),
        _ => scales_128x4(operands.activation_scales, m, k, tactic.tile_k),
    };
    let maps = [
        codes(operands.weight, n, k, TILE_M, tactic.tile_k),
        codes(operands.activation, m, k, tactic.tile_n, tactic.tile_k),
        output(operands, m, n, tactic.tile_n),
        weight_scales,
        activation_scales,
    ];
    let words = Words {
        ptr_c: operands.output,
        ptr_sf_a: operands.weight_scales,
        ptr_sf_b: operands.activation_scales,
        ptr_scale_c: operands.alpha,
        // A problem's sizes are below 2^31.
        m: n as i32,
        n: m as i32,
        k: k as i32,
        tp_grp_size: 1,
        ..Words::default()
    };
    LaunchRecord { tactic, config, maps, words }
}

/// 4-bit codes `[rows, k]`.
fn codes(address: u64, rows: u32, k: u32, tile_rows: u32, tile_k: u32) -> TensorMapSpec {
    // A row of the tile fills 64 bytes, or 128 and more.
    let swizzle = if tile_k >= BOX_K { Swizzle::B128 } else { Swizzle::B64 };
    TensorMapSpec::new(
        ElementType::U4Align8B,
        address,
        &[k.into(), rows.into()],
        &[u64::from(k) / 2],
        &[tile_k.min(BOX_K), tile_rows],
        swizzle,
    )
}

/// bf16 output `[m, n]`.
fn output(operands: &Operands, m: u32, n: u32, tile_rows: u32) -> TensorMapSpec {
    TensorMapSpec::new(
        ElementType::Bf16,
        operands.output,
        &[n.into(), m.into()],
        &[operands.output_row_bytes],
        &[BOX_OUT, tile_rows],
        Swizzle::B128,
    )
}

/// Block scales in tiles of 128 rows and 4 columns: 512 bytes, which the map sees as two halves of 256.
fn scales_128x4(address: u64, rows: u32, k: u32, tile_k: u32) -> TensorMapSpec {
    let (tiles_k, tiles_rows) = (u64::from(k.div_ceil(SCALE_TILE_K)), u64::from(rows.div_ceil(128)));
    TensorMapSpec::new(
        ElementType::U8,
        address,
        &[256, 2, tiles_k, tiles_rows],
        &[256, 512, 512 * tiles_k],
        &[256, 2, tile_k / SCALE_TILE_K, 1],
        Swizzle::None,
    )
}

/// Block scales in tiles of 8 rows and 4 columns: 32 bytes.
fn scales_8x4(address: u64, rows: u32, k: u32, tactic: &Tactic) -> TensorMapSpec {
    let (tiles_k, tiles_rows) = (u64::from(k.div_ceil(SCALE_TILE_K)), u64::from(rows.div_ceil(8)));
    TensorMapSpec::new(
        ElementType::U8,
        address,
        &[32, tiles_k, tiles_rows],
        &[32, 32 * tiles_k],
        &[32, tactic.tile_k / SCALE_TILE_K, tactic.tile_n / 8],
        Swizzle::None,
    )
}
