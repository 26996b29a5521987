//! What each FlashInfer kernel class keeps in memory after loading, from checkpoint tensors, byte for byte.

use super::{extents, linear, w4a16::contiguous};
use nvfp4_core::{
    ComputeCapability, Error, GlobalScale, GlobalScales, NvFp4Weights, padding,
    requirements::REQUIREMENTS,
    shuffle::{shuffle_matrix_a, shuffle_matrix_sf_a},
    swizzle_blockscale, vllm,
    w4a16::{Bf16Fp4Layout, prepare_bf16_fp4_sm12x, prepare_bf16_fp4_sm100},
};
use nvfp4_testkit::golden::File;

/// Bytes of the weight and of the scales, prepared as the class `kernel` does.
fn prepare(
    kernel: &str,
    device: ComputeCapability,
    weights: NvFp4Weights<'_>,
) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let (n, k) = (weights.out_features(), weights.in_features());
    let padded = |alignment| padding::PaddingPlan::new(n, k, alignment)?.pad_weights(weights.clone());
    match kernel {
        "FlashInferTrtllmNvFp4LinearKernel" => Ok((
            shuffle_matrix_a(weights.packed(), n, k / 2, 128)?,
            shuffle_matrix_sf_a(weights.scales(), 128)?.into_bytes(),
        )),
        "FlashInferCuteDslNvFp4W4A16LinearKernel" => {
            let padded = padded(padding::BF16_FP4_ALIGNMENT)?;
            match Bf16Fp4Layout::of(device)? {
                Bf16Fp4Layout::Sm100 => {
                    let prepared = prepare_bf16_fp4_sm100(&padded)?;
                    let scales = contiguous(&prepared.scale_view, prepared.scales.bytes());
                    Ok((prepared.packed, scales))
                }
                _ => {
                    let prepared = prepare_bf16_fp4_sm12x(&padded)?;
                    Ok((prepared.words, prepared.scales))
                }
            }
        }
        _ => {
            let padded = padded(padding::CUTLASS_ALIGNMENT)?;
            Ok((padded.packed().to_vec(), swizzle_blockscale(padded.scales())?.into_bytes()))
        }
    }
}

#[test]
fn every_kernel_matches_vllm() {
    let golden = File::open("process_weights.safetensors");
    let mut kernels = std::collections::BTreeSet::new();
    for name in golden.prefixes("_ws") {
        let Some((kernel, rest)) = name.split_once('_').filter(|(kernel, _)| *kernel != "in") else { continue };
        let (number, shape) = rest.split_once('_').unwrap();
        let device: ComputeCapability = number.parse().unwrap();
        let input = golden.get(&format!("in_{shape}_w"));
        let scales = linear(golden.get(&format!("in_{shape}_ws")));
        let (n, row_bytes) = extents(input);
        let global = GlobalScales::per_tensor(n, GlobalScale::ONE);
        let weights = NvFp4Weights::new(n, 2 * row_bytes, &input.bytes[..], scales, global).unwrap();

        let (codes, scales) = prepare(kernel, device, weights).unwrap();
        assert_eq!(codes, golden.get(&format!("{name}_w")).bytes, "{name}: weight");
        assert_eq!(scales, golden.get(&format!("{name}_ws")).bytes, "{name}: scales");

        // The shapes that the vLLM model announces are those of the golden tensors.
        let class = vllm::Kernel::of(kernel).unwrap();
        let shapes =
            vllm::process_weights_after_loading(class, device.number(), n, 2 * row_bytes).unwrap().unwrap();
        assert_eq!(shapes.weight.shape, golden.get(&format!("{name}_w")).shape, "{name}");
        assert_eq!(shapes.weight_scale.shape, golden.get(&format!("{name}_ws")).shape, "{name}");
        kernels.insert(kernel.to_string());
    }
    let expected: std::collections::BTreeSet<_> = REQUIREMENTS.iter().map(|r| r.vllm_class.to_string()).collect();
    assert_eq!(kernels, expected, "all six classes are covered");
}
