use super::{extents, linear, pattern};
use nvfp4_core::{
    ComputeCapability, Error, GlobalScale, GlobalScales, LinearScales, NvFp4Weights, e4m3,
    padding::{BF16_FP4_ALIGNMENT, PaddingPlan},
    swizzle_blockscale,
    w4a16::{Bf16Fp4Layout, prepare_bf16_fp4_cudnn, prepare_bf16_fp4_sm12x, prepare_bf16_fp4_sm100},
};
use nvfp4_testkit::golden::File;
use proptest::prelude::*;

fn weights<'a>(n: usize, k: usize, packed: &'a [u8], scales: LinearScales<'a>) -> NvFp4Weights<'a> {
    NvFp4Weights::new(n, k, packed, scales, GlobalScales::per_tensor(n, GlobalScale::ONE)).unwrap()
}

#[test]
fn layouts_match_flashinfer() {
    let golden = File::open("w4a16_prepare.safetensors");
    let info: serde_json::Value = serde_json::from_str(&golden.metadata["info"]).unwrap();
    for name in golden.suffixes("w_") {
        let (packed, scales) = (golden.get(&format!("w_{name}")), golden.get(&format!("s_{name}")));
        let (n, row_bytes) = extents(packed);
        let info = &info[&name];
        let plan = PaddingPlan::new(n, 2 * row_bytes, BF16_FP4_ALIGNMENT).unwrap();
        let padded = plan.pad_weights(weights(n, 2 * row_bytes, &packed.bytes, linear(scales))).unwrap();
        assert_eq!(serde_json::json!([plan.padded_n(), plan.padded_k() / 2]), info["padded"], "{name}");
        assert_eq!(serde_json::json!(plan.pad_bytes()), info["pad_bytes"], "{name}");

        let sm12x = prepare_bf16_fp4_sm12x(&padded).unwrap();
        let (words, sm12x_scales) =
            (golden.get(&format!("sm12x_w_{name}")), golden.get(&format!("sm12x_sf_{name}")));
        assert_eq!(extents(words), (sm12x.k / 16, 2 * sm12x.n), "{name}");
        assert_eq!(sm12x.words, words.bytes, "{name}");
        assert_eq!(extents(sm12x_scales), (sm12x.k / 16, sm12x.n), "{name}");
        assert_eq!(sm12x.scales, sm12x_scales.bytes, "{name}");
        assert_eq!(sm12x.unpack(), padded.packed(), "{name}");

        let sm100 = prepare_bf16_fp4_sm100(&padded).unwrap();
        assert_eq!(sm100.packed, padded.packed(), "{name}");
        assert_eq!(serde_json::json!(sm100.scale_view.shape), info["sm100_view_shape"], "{name}");
        assert_eq!(serde_json::json!(sm100.scale_view.strides), info["sm100_view_stride"], "{name}");
        let view = golden.get(&format!("sm100_sf6d_{name}"));
        assert_eq!(view.shape, sm100.scale_view.shape, "{name}");
        assert_eq!(contiguous(&sm100.scale_view, sm100.scales.bytes()), view.bytes, "{name}");

        let cudnn = golden.get(&format!("cudnn_sf_{name}"));
        let swizzled = swizzle_blockscale(padded.scales()).unwrap();
        assert_eq!(prepare_bf16_fp4_cudnn(&swizzled).unwrap(), linear(cudnn), "{name}");
    }
}

/// The bytes of a strided view, made contiguous.
pub(crate) fn contiguous(view: &nvfp4_core::block_scale::MmaScaleView, bytes: &[u8]) -> Vec<u8> {
    let total: usize = view.shape.iter().product();
    (0..total)
        .map(|mut i| {
            let mut offset = 0;
            for (extent, stride) in view.shape.iter().zip(view.strides).rev() {
                offset += i % extent * stride;
                i /= extent;
            }
            bytes[offset]
        })
        .collect()
}

/// What upstream refuses is refused here, or cannot be written.
#[test]
fn conditions_match_flashinfer() {
    let golden = File::open("w4a16_prepare.safetensors");
    let errors: serde_json::Value = serde_json::from_str(&golden.metadata["errors"]).unwrap();
    let errors = errors.as_object().unwrap();
    assert!(!errors.is_empty());
    for (name, text) in errors {
        let (n, k) = name.split_once('x').unwrap();
        let (n, k): (usize, usize) = (n.parse().unwrap(), k.parse().unwrap());
        let scales = LinearScales::new(n, k / 16, pattern(n * (k / 16))).unwrap();
        let global = GlobalScales::per_tensor(n, GlobalScale::ONE);
        let found = NvFp4Weights::new(n, k, pattern(n * k / 2), scales, global)
            .and_then(|weights| prepare_bf16_fp4_sm12x(&weights));
        let Err(Error::NotMultiple { what, multiple, found }) = found else { panic!("{name}: {found:?}") };
        let letter = what.chars().next().unwrap().to_ascii_uppercase();
        assert_eq!(text, &format!("ValueError: {letter} must be a multiple of {multiple} (got {letter}={found})"));
    }
}

#[test]
fn layout_of_each_gpu() {
    let of = |major, minor| Bf16Fp4Layout::of(ComputeCapability::new(major, minor));
    for minor in [0, 3, 7] {
        assert_eq!(of(10, minor), Ok(Bf16Fp4Layout::Sm100));
    }
    for minor in 0..10 {
        assert_eq!(of(12, minor), Ok(Bf16Fp4Layout::Sm12x));
    }
    for (major, minor) in [(8, 0), (9, 0), (10, 1), (11, 0), (11, 9), (13, 0)] {
        let text = of(major, minor).unwrap_err().to_string();
        assert!(text.contains(&format!("sm_{}", 10 * major + minor)), "{text}");
    }
}

proptest! {
    #[test]
    fn packing_is_reversible(tiles in 1..5usize, blocks in 1..70usize) {
        let (n, k) = (tiles * 64, blocks * 16);
        let packed = pattern(n * k / 2);
        let scale_bytes: Vec<u8> = (0..n * blocks).map(|i| (i * 5 % 0x7f) as u8).collect();
        let scales = LinearScales::new(n, blocks, &scale_bytes[..]).unwrap();
        let prepared = prepare_bf16_fp4_sm12x(&weights(n, k, &packed, scales)).unwrap();
        prop_assert_eq!(prepared.unpack(), packed);
        for r in 0..n {
            for c in 0..blocks {
                prop_assert_eq!(prepared.scales[c * n + r], e4m3::to_s0e5m3(scale_bytes[r * blocks + c]));
            }
        }
    }
}
