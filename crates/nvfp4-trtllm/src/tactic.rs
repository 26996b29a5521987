//! The kernels, as data: 34 cubins that differ in tile, pipeline depth, schedule and in the layout of the activation's
//! scales.
//!
//! All of them multiply e2m1 by e2m1 with e4m3 scales per 16 values, accumulate in f32 and write bf16. They compute the
//! transpose: their M is our N (output features, in tiles of 128), their N is our M (tokens, in tiles of
//! [`tile_n`](Tactic::tile_n)). The facts are those of the metadata that FlashInfer ships beside the cubins.

use nvfp4_core::ScaleLayout;

/// Output features of a tile, in every kernel.
pub const TILE_M: u32 = 128;

/// One kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Tactic {
    /// Its number in the vendor's table, by which tuned choices name it.
    pub index: u16,
    /// Its symbol.
    pub kernel: &'static str,
    /// sha256 of its cubin.
    pub sha256: &'static str,
    /// Tokens of a tile.
    pub tile_n: u32,
    /// Input features that a pipeline stage holds.
    pub tile_k: u32,
    /// The main loop handles two stages at once: it needs an even number of K tiles.
    pub unroll_2x: bool,
    /// Layout of the activation's block scales.
    pub activation_scales: ScaleLayout,
    /// Dynamic shared memory, bytes.
    pub shared_memory: u32,
}

impl Tactic {
    /// File of the cubin, as the vendor names it.
    pub fn file(&self) -> String {
        self.kernel.replacen("gemm_", "Gemm_", 1) + ".cubin"
    }
}

/// `8x4` and `128x4`, short for the table.
const ROWS_8: ScaleLayout = ScaleLayout::Swizzled8x4;
const ROWS_128: ScaleLayout = ScaleLayout::Swizzled128x4;

/// Every kernel, by index.
#[rustfmt::skip]
pub const TACTICS: &[Tactic] = &[
    Tactic {
        index: 15,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x128x256_s4_et128x128_m128x128x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "f8b39e1d23d95581ad6b16134855b4136574f2ad6146e8526ce4981f45c56219",
        tile_n: 128, tile_k: 256, unroll_2x: false, activation_scales: ROWS_128, shared_memory: 185_696,
    },
    Tactic {
        index: 25,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x128x256u2_s4_et128x128_m128x128x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "e4ce335a1e800be7e94b484b08079e1f3511ca97eba4a2156bc943efa7c45123",
        tile_n: 128, tile_k: 256, unroll_2x: true, activation_scales: ROWS_128, shared_memory: 185_696,
    },
    Tactic {
        index: 30,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x128x256_s4_et128x128_m128x128x64_c1x1x1_rM_TN_transOut_schPd2x1x2x3_sm100f",
        sha256: "9bcdbe12b6796464baf392d8b2a65e7ebdbe6cb5e6821b9521d62d2f41e2918e",
        tile_n: 128, tile_k: 256, unroll_2x: false, activation_scales: ROWS_128, shared_memory: 185_936,
    },
    Tactic {
        index: 31,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x128x256u2_s4_et128x128_m128x128x64_c1x1x1_rM_TN_transOut_schPd2x1x2x3_sm100f",
        sha256: "66620d4fd981d9159e1ca63709e923f868862d63289ce2219e1622b7795c0e4f",
        tile_n: 128, tile_k: 256, unroll_2x: true, activation_scales: ROWS_128, shared_memory: 185_936,
    },
    Tactic {
        index: 32,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x64x256u2_s6_et128x64_m128x64x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "bdc9a6f9b5bd07d14c34bc3a4b522ad985defcf2b869ca8aa1a8b631da9ed65b",
        tile_n: 64, tile_k: 256, unroll_2x: true, activation_scales: ROWS_8, shared_memory: 186_976,
    },
    Tactic {
        index: 33,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x16x512_s3_et128x16_m128x16x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "f4b21432991d2213a98a896ad19c237e2fa7345ddf1171a38ed46a3dac0cae1b",
        tile_n: 16, tile_k: 512, unroll_2x: false, activation_scales: ROWS_8, shared_memory: 133_440,
    },
    Tactic {
        index: 34,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x64x256_s6_et128x64_m128x64x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "2a9372012877b6c94b11b50b487c8dd052b176269c2a6082739109f2699b8062",
        tile_n: 64, tile_k: 256, unroll_2x: false, activation_scales: ROWS_8, shared_memory: 186_976,
    },
    Tactic {
        index: 35,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x16x512u2_s3_et128x16_m128x16x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "e6ddd168d7ef43cea83f450d9f88454fd2eb6c5e5e6f996a2764619a43f04da3",
        tile_n: 16, tile_k: 512, unroll_2x: true, activation_scales: ROWS_8, shared_memory: 133_440,
    },
    Tactic {
        index: 36,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x32x256_s2_et128x32_m128x32x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "c69105af32ac46692b6eaf8c642eacf6e98f4524207b4e1b988ad9b246d9291e",
        tile_n: 32, tile_k: 256, unroll_2x: false, activation_scales: ROWS_8, shared_memory: 58_592,
    },
    Tactic {
        index: 37,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x32x256u2_s2_et128x32_m128x32x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "f1e03e861fa42d342a76e8f34dc66079963252a5aed64524242068b03ba526e8",
        tile_n: 32, tile_k: 256, unroll_2x: true, activation_scales: ROWS_8, shared_memory: 58_592,
    },
    Tactic {
        index: 38,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x8x256_s2_et128x8_m128x8x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "39ddf3bde2635b15bd4e45c18fcc34b3797d3626905941d2b99ed9b168a8779c",
        tile_n: 8, tile_k: 256, unroll_2x: false, activation_scales: ROWS_8, shared_memory: 46_304,
    },
    Tactic {
        index: 39,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x8x512_s4_et128x8_m128x8x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "16f9c82683236a9f62c12d63dbd20e5354e138e089e5fc5b938570188d4c9e08",
        tile_n: 8, tile_k: 512, unroll_2x: false, activation_scales: ROWS_8, shared_memory: 163_232,
    },
    Tactic {
        index: 40,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x8x512_s2_et128x8_m128x8x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "570fdb4bae8a1f5e3bf0f6e6f80b154ceb401bd786ea635e46abe4bf04b40b5e",
        tile_n: 8, tile_k: 512, unroll_2x: false, activation_scales: ROWS_8, shared_memory: 85_216,
    },
    Tactic {
        index: 41,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x16x512u2_s4_et128x16_m128x16x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "c78f083fa95493f31307b2491d6961c19013384949e707e5064532cbf183cf82",
        tile_n: 16, tile_k: 512, unroll_2x: true, activation_scales: ROWS_8, shared_memory: 174_496,
    },
    Tactic {
        index: 42,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x16x512_s4_et128x16_m128x16x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "d987f51f3cc14a551e311f84ba742538cd7cdda3f872556235e639b7e9671022",
        tile_n: 16, tile_k: 512, unroll_2x: false, activation_scales: ROWS_8, shared_memory: 174_496,
    },
    Tactic {
        index: 43,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x32x256_s6_et128x32_m128x32x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "ae5f1d5d5803315aef69c6949bbb36cca34d9aff284c064c2dec2615d0849261",
        tile_n: 32, tile_k: 256, unroll_2x: false, activation_scales: ROWS_8, shared_memory: 151_136,
    },
    Tactic {
        index: 44,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x8x256u2_s2_et128x8_m128x8x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "e0fd485eef6fa36c9504128c63e3fc7c7b34d6406155255e4097e956610a555c",
        tile_n: 8, tile_k: 256, unroll_2x: true, activation_scales: ROWS_8, shared_memory: 46_304,
    },
    Tactic {
        index: 45,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x8x512u2_s3_et128x8_m128x8x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "41467f3e7ad21786b515c06a46b7d05a368159b704732206f0f36136f51654c7",
        tile_n: 8, tile_k: 512, unroll_2x: true, activation_scales: ROWS_8, shared_memory: 124_224,
    },
    Tactic {
        index: 46,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x128x256_s2_et128x128_m128x128x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "9ae85a0a37469d7b0fd91bbf3557e474eaa1582d29cd78ebc1664bdff8029542",
        tile_n: 128, tile_k: 256, unroll_2x: false, activation_scales: ROWS_128, shared_memory: 111_808,
    },
    Tactic {
        index: 47,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x8x512_s3_et128x8_m128x8x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "216ee84f31f854899251dfab575b17857570a21898cf0ef5b5f81e0f769e0578",
        tile_n: 8, tile_k: 512, unroll_2x: false, activation_scales: ROWS_8, shared_memory: 124_224,
    },
    Tactic {
        index: 48,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x8x512u2_s4_et128x8_m128x8x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "bf3f0efe91ea3f8ff61bd6d3e641ca2180ce7a3bea13834f1473fabfcda9836c",
        tile_n: 8, tile_k: 512, unroll_2x: true, activation_scales: ROWS_8, shared_memory: 163_232,
    },
    Tactic {
        index: 49,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x8x512u2_s2_et128x8_m128x8x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "c438c8e43fbba2c61b458878b45e2b205f40c2a6e4730f0be5b9703225b97f02",
        tile_n: 8, tile_k: 512, unroll_2x: true, activation_scales: ROWS_8, shared_memory: 85_216,
    },
    Tactic {
        index: 51,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x16x512u2_s2_et128x16_m128x16x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "81bd95128c6cd7b354709892f9804dbf4caebf0840a9d68ab5728cc69f5a1bc3",
        tile_n: 16, tile_k: 512, unroll_2x: true, activation_scales: ROWS_8, shared_memory: 91_360,
    },
    Tactic {
        index: 52,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x128x128_s3_et128x128_m128x128x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "05a5d7c792f54648149ca5513400cc86aa38ea755be3ef31bb3ad99f00458c53",
        tile_n: 128, tile_k: 128, unroll_2x: false, activation_scales: ROWS_128, shared_memory: 93_456,
    },
    Tactic {
        index: 53,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x16x512_s2_et128x16_m128x16x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "472036bf792713f6a77bc42b40b3dd869c81e76303cafa7447f772df85441159",
        tile_n: 16, tile_k: 512, unroll_2x: false, activation_scales: ROWS_8, shared_memory: 91_360,
    },
    Tactic {
        index: 54,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x128x256_s3_et128x128_m128x128x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "ae64c4dfdc1b75067e6af432642fd33d79184ad3946ff12932ddf342069ae7e8",
        tile_n: 128, tile_k: 256, unroll_2x: false, activation_scales: ROWS_128, shared_memory: 148_752,
    },
    Tactic {
        index: 55,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x128x256u2_s3_et128x128_m128x128x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "17ad921fec519bf4480bf54447576f127714bd9957340b5ae0c5987b0009032f",
        tile_n: 128, tile_k: 256, unroll_2x: true, activation_scales: ROWS_128, shared_memory: 148_752,
    },
    Tactic {
        index: 56,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x32x256u2_s6_et128x32_m128x32x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "15da90689b7e6b77e73f1153779d472cb76bd6732173d8511d192986ad98791e",
        tile_n: 32, tile_k: 256, unroll_2x: true, activation_scales: ROWS_8, shared_memory: 151_136,
    },
    Tactic {
        index: 57,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x128x128u2_s3_et128x128_m128x128x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "05d961732cd5e4e48c582503604c5f04c00471d4362747c89006b9febc7a72dc",
        tile_n: 128, tile_k: 128, unroll_2x: true, activation_scales: ROWS_128, shared_memory: 93_456,
    },
    Tactic {
        index: 58,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x64x256_s3_et128x64_m128x64x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "d34dec290306560f33d88db499a2f0607eff0c341f388d626cde714ad2d961e8",
        tile_n: 64, tile_k: 256, unroll_2x: false, activation_scales: ROWS_8, shared_memory: 103_744,
    },
    Tactic {
        index: 59,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x64x256u2_s3_et128x64_m128x64x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "b61f11db8decc29b4f855e99e7fc4de56b8e8b70638b7952c0899153dc3d586d",
        tile_n: 64, tile_k: 256, unroll_2x: true, activation_scales: ROWS_8, shared_memory: 103_744,
    },
    Tactic {
        index: 61,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x128x128_s6_et128x128_m128x128x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "e33001c70692ae1368384648dc882d4a65f0ff6b0cc6e291b6d5d464a5470089",
        tile_n: 128, tile_k: 128, unroll_2x: false, activation_scales: ROWS_128, shared_memory: 148_992,
    },
    Tactic {
        index: 62,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x128x256u2_s2_et128x128_m128x128x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "b91c6182b43538eb9e2700393e64d3511d2071bc3e369a067fcce859350d2397",
        tile_n: 128, tile_k: 256, unroll_2x: true, activation_scales: ROWS_128, shared_memory: 111_808,
    },
    Tactic {
        index: 63,
        kernel: "gemm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x128x128u2_s6_et128x128_m128x128x64_c1x1x1_rM_TN_transOut_schedS_sm100f",
        sha256: "f6caae4dbec8c1c45ae6519aaa33005f59e304c1fff2d5940baf57121280c760",
        tile_n: 128, tile_k: 128, unroll_2x: true, activation_scales: ROWS_128, shared_memory: 148_992,
    },
];

/// Indices in the order in which they are tried for activations whose scales have the 8x4 layout. It does not depend on
/// the problem: large K tiles first, among those unrolled loops first, and among equals as the vendor's sort leaves them.
const ORDER_8X4: &[u16] = &[35, 51, 41, 49, 48, 45, 33, 53, 39, 40, 42, 47, 59, 32, 56, 44, 37, 43, 38, 36, 58, 34];

/// The same for the 128x4 layout.
const ORDER_128X4: &[u16] = &[25, 31, 55, 62, 15, 30, 46, 54, 57, 63, 52, 61];

/// The kernel of an index of the vendor's table.
pub fn tactic(index: u16) -> Option<&'static Tactic> {
    TACTICS.binary_search_by_key(&index, |tactic| tactic.index).ok().map(|at| &TACTICS[at])
}

/// The kernels for a layout of the activation's scales, in the order in which they are tried. None for layouts that no
/// kernel reads.
pub fn in_order(layout: ScaleLayout) -> impl Iterator<Item = &'static Tactic> {
    let order = match layout {
        ScaleLayout::Swizzled8x4 => ORDER_8X4,
        ScaleLayout::Swizzled128x4 => ORDER_128X4,
        _ => &[],
    };
    order.iter().filter_map(|&index| tactic(index))
}
