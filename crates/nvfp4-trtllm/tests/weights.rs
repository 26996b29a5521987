//! Prepared weights against what vLLM's kernel class prepares, and layouts against known sizes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use nvfp4_core::{
    DType, GlobalScale, GlobalScales, KernelId, KernelSupport, LinearScales, NvFp4LinearLayerConfig, NvFp4Weights,
    ScaleLayout, Unsupported, requirements::Requirements,
};
use nvfp4_testkit::golden::File;
use nvfp4_trtllm::{
    TrtllmNvFp4LinearKernel,
    plan::{WorkspaceParts, activation_scale_layout},
    weights::shuffle_weights,
};

#[test]
fn shuffled_weights_equal_the_golden_ones() {
    let golden = File::open("process_weights.safetensors");
    let class = format!("{}_", Requirements::of(KernelId::TRTLLM).unwrap().vllm_class);
    let names: Vec<_> = golden.prefixes("_ws").into_iter().filter(|name| name.starts_with(&class)).collect();
    assert!(!names.is_empty());
    for name in names {
        let (_, shape) = name[class.len()..].split_once('_').unwrap();
        let (w, ws) = (golden.get(&format!("in_{shape}_w")), golden.get(&format!("in_{shape}_ws")));
        let (n, k) = (w.shape[0], w.shape[1] * 2);
        let scales = LinearScales::new(n, k / 16, &ws.bytes[..]).unwrap();
        let global = GlobalScales::per_tensor(n, GlobalScale::ONE);
        let weights = NvFp4Weights::new(n, k, &w.bytes[..], scales, global).unwrap();
        let shuffled = shuffle_weights(&weights).unwrap();
        assert_eq!(shuffled.codes, golden.get(&format!("{name}_w")).bytes, "{name}: weight");
        assert_eq!(shuffled.scales, golden.get(&format!("{name}_ws")).bytes, "{name}: scales");
        assert_eq!((shuffled.n, shuffled.k), (n, k), "{name}");
    }
}

/// The quantizer and the GEMM take the layout from one value, which changes behind 32 rows; codes that are padded, and
/// layers whose results must not depend on the number of rows, have one layout throughout.
#[test]
fn layout_of_activations() {
    let config = NvFp4LinearLayerConfig::w4a4(128, 128);
    for (m, expected) in
        [(1, ScaleLayout::Swizzled8x4), (32, ScaleLayout::Swizzled8x4), (33, ScaleLayout::Swizzled128x4)]
    {
        assert_eq!(activation_scale_layout(&config, 128, m), expected, "{m}");
        let invariant = config.with_batch_invariant(true);
        assert_eq!(activation_scale_layout(&invariant, 128, m), ScaleLayout::Swizzled128x4);
        assert_eq!(
            activation_scale_layout(&NvFp4LinearLayerConfig::w4a4(128, 80), 128, m),
            ScaleLayout::Swizzled128x4
        );
    }
}

#[test]
fn workspace_parts_do_not_overlap() {
    // 9 rows of 231 scale columns: 16 · 232 bytes.
    let parts = WorkspaceParts::new(9, 231 * 16, ScaleLayout::Swizzled8x4, 0).unwrap();
    assert_eq!(parts.staging - parts.scales, 3712usize.next_multiple_of(256));
    assert_eq!(parts.bytes, parts.staging);
    for (m, k, layout, staged) in [
        (1, 64, ScaleLayout::Swizzled8x4, 32),
        (33, 192, ScaleLayout::Swizzled128x4, 352),
        (4096, 8192, ScaleLayout::Swizzled128x4, 0),
    ] {
        let parts = WorkspaceParts::new(m, k, layout, staged).unwrap();
        assert!(parts.scales >= m * k / 2 && parts.staging - parts.scales >= layout.len(m, k / 16).unwrap());
        assert!(parts.bytes - parts.staging >= m * staged * 2);
        for offset in [parts.scales, parts.staging, parts.bytes] {
            assert!(offset.is_multiple_of(256));
        }
    }
    assert!(WorkspaceParts::new(usize::MAX / 4, 64, ScaleLayout::Swizzled128x4, 0).is_err());
}

/// Where upstream fails at load time, the shape is padded; other types than bf16 have no kernel.
#[test]
fn layers_that_can_be_run() {
    let kernel = TrtllmNvFp4LinearKernel::with_packs(vec![]);
    let device =
        nvfp4_core::DeviceFacts::Cuda(nvfp4_core::CudaFacts::new(nvfp4_core::ComputeCapability::new(10, 0)));
    let can = |config: NvFp4LinearLayerConfig| kernel.can_implement(&device, &config);
    for (n, k) in [(352, 4096), (100, 80), (1, 16)] {
        assert_eq!(can(NvFp4LinearLayerConfig::w4a4(n, k)), Ok(()));
    }
    for (input, output) in [(DType::Bf16, DType::F16), (DType::F16, DType::Bf16), (DType::Bf16, DType::F32)] {
        let refused = can(NvFp4LinearLayerConfig::w4a4(128, 128).with_dtypes(input, output));
        assert!(matches!(refused, Err(Unsupported::DType { needed: "bf16", .. })), "{refused:?}");
    }
    assert!(matches!(can(NvFp4LinearLayerConfig::w4a16(128, 128)), Err(Unsupported::Scheme { .. })));
}
