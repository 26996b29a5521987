//! Failures that users of other implementations have met, as small tests with known answers.

use crate::support::{Layer, Values, constant_weights, decode, kernels, normal, random_weights};
use nvfp4_core::{
    ActivationScale, ActivationScheme, DType, DeviceFacts, Error, GlobalScale, GlobalScales, KernelSupport,
    LinearScales, MatrixRef, NvFp4LinearKernel, NvFp4LinearLayerConfig, NvFp4Weights, PreparedWeights, QuantKey,
    QuantizedActivation, ScaleLayout, Unsupported,
    kernel::{LinearInput, WeightLayout},
    quantize::{QuantizeOptions, scaled_fp4_quant, scaled_fp4_quant_per_token},
};
use nvfp4_cpu::{CpuNvFp4LinearKernel, facts, reference};
use nvfp4_testkit::random::{Rng, seed};
use std::sync::Arc;

const ALL_DTYPES: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];

fn encode(scale: f32) -> GlobalScale {
    GlobalScale::from_encode(scale).unwrap()
}

fn w4a16(n: usize, k: usize, dtype: DType) -> NvFp4LinearLayerConfig {
    NvFp4LinearLayerConfig::w4a16(n, k).with_dtypes(dtype, dtype)
}

/// Ones, quantized without error: code 1.0, block scale 1.0, global scale 1.
fn quantized_ones(rows: usize, k: usize) -> QuantizedActivation {
    QuantizedActivation {
        data: vec![0x22; rows * k / 2],
        scale: vec![0x38; rows * k / 16],
        scale_layout: ScaleLayout::Linear,
        global_scale: ActivationScale::PerTensor(GlobalScale::ONE),
        rows,
        k,
        padded_k: k,
        orig_dtype: DType::F32,
        orig_shape: vec![rows, k],
        quant_key: QuantKey::NVFP4_DYNAMIC,
    }
}

/// `x = 1` times a layer of `weights`, in both schemes and with both sets of kernels: the outputs of each.
fn times_ones(weights: &NvFp4Weights<'_>, output: DType) -> Vec<Vec<f32>> {
    let (n, k) = (weights.out_features(), weights.in_features());
    let both = |kernel| {
        let a16 = w4a16(n, k, DType::F32).with_dtypes(DType::F32, output);
        let a4 = a16.with_activation(ActivationScheme::Nvfp4Static);
        [
            Layer::new(kernel, a16, weights, None, 1).run(&vec![1.0; k]).to_f32(),
            Layer::new(kernel, a4, weights, None, 1).run_quantized(&quantized_ones(1, k)).to_f32(),
        ]
    };
    kernels().into_iter().flat_map(both).collect()
}

// Parts of a fused layer with different global scales (vllm#54974).

#[test]
fn fused_parts_keep_their_global_scales_exactly() {
    let parts = [4096.0, 2048.0, 1024.0].map(|divisor| (1, encode(divisor)));
    let weights = constant_weights(3, 16, 2, |_, _| 0x38, GlobalScales::from_parts(parts));
    for output in [DType::F32, DType::Bf16] {
        for y in times_ones(&weights, output) {
            assert_eq!(y, [0.00390625, 0.0078125, 0.015625]);
        }
    }
}

#[test]
fn fused_parts_keep_their_global_scales_with_real_numbers() {
    let divisors = [12343.1035f64, 5334.3257, 8001.4883];
    let parts = divisors.map(|divisor| (1, encode(divisor as f32)));
    let weights = constant_weights(3, 16, 2, |_, _| 0x38, GlobalScales::from_parts(parts));
    // The second column is as printed in the report.
    let expected = [1.29627e-3, 2.99944e-3, 1.99963e-3];
    for y in times_ones(&weights, DType::F32) {
        for ((y, divisor), printed) in y.into_iter().zip(divisors).zip(expected) {
            assert!((f64::from(y) * divisor / 16.0 - 1.0).abs() <= 1e-6, "{y}");
            assert!((f64::from(y) / printed - 1.0).abs() < 4e-6, "{y} {printed}");
        }
    }
}

#[test]
fn one_scale_of_a_fused_tensor_reaches_all_of_its_rows() {
    // sglang#29151: a scalar that filled only the first slot.
    let weights = constant_weights(8, 16, 2, |_, _| 0x38, GlobalScales::per_tensor(8, decode(0.5)));
    for y in times_ones(&weights, DType::F32) {
        assert_eq!(y, [8.0; 8]);
    }
}

#[test]
fn many_parts_each_have_their_scale_and_bias_comes_after_it() {
    let n = 150;
    let parts = (0..n).map(|r| (1, decode(2f32.powi(r as i32 % 11 - 5))));
    let weights = constant_weights(n, 32, 2, |_, _| 0x38, GlobalScales::from_parts(parts));
    let bias: Vec<f32> = (0..n).map(|r| r as f32).collect();
    for kernel in kernels() {
        let layer = Layer::new(kernel, w4a16(n, 32, DType::F32), &weights, None, 3).with_bias(bias.clone());
        let y = layer.run(&[1.0; 3 * 32]).to_f32();
        for (i, y) in y.into_iter().enumerate() {
            let r = i % n;
            assert_eq!(y, 32.0 * 2f32.powi(r as i32 % 11 - 5) + r as f32, "row {}, output {r}", i / n);
        }
    }
}

// Divisors and multipliers (modular#6600).

#[test]
fn a_divisor_and_a_multiplier_give_the_same() {
    let make = |scale| constant_weights(1, 16, 2, |_, _| 0x38, GlobalScales::per_tensor(1, scale));
    let divided = times_ones(&make(encode(3584.0)), DType::F32);
    let multiplied = times_ones(&make(decode(2.790_178_6e-4)), DType::F32);
    for (a, b) in divided.into_iter().flatten().zip(multiplied.into_iter().flatten()) {
        assert!((a - 0.004464286).abs() < 1e-9, "{a}");
        assert!(a.to_bits().abs_diff(b.to_bits()) <= 1, "{a} {b}");
    }
}

// K that is not a multiple of 64 (vllm#48898): padding changes nothing.

#[test]
fn padding_along_k_changes_nothing() {
    let (m, n, k, padded) = (3, 20, 3696, 3712);
    let mut rng = Rng::new(seed());
    let weights = random_weights(n, k, &mut rng);
    let pad = |bytes: &[u8], width: usize, to: usize| -> Vec<u8> {
        let row = |row: &[u8]| [row, &vec![0; to - width]].concat();
        bytes.chunks_exact(width).flat_map(row).collect()
    };
    let padded_weights = NvFp4Weights::new(
        n,
        padded,
        pad(weights.packed(), k / 2, padded / 2),
        LinearScales::new(n, padded / 16, pad(weights.scales().bytes(), k / 16, padded / 16)).unwrap(),
        weights.global().clone(),
    )
    .unwrap();
    let x = normal(m * k, &mut rng);
    let padded_x: Vec<f32> = x.chunks_exact(k).flat_map(|row| [row, &[0.0; 16]].concat()).collect();
    let scale = decode(0.002);
    for kernel in kernels() {
        for scheme in [ActivationScheme::Unquantized, ActivationScheme::Nvfp4Static] {
            let layer = |w: &NvFp4Weights<'_>| {
                let config = w4a16(n, w.in_features(), DType::F32).with_activation(scheme);
                Layer::new(kernel, config, w, Some(scale), m)
            };
            let plain = layer(&weights).run(&x);
            assert_eq!(plain.bits(), layer(&padded_weights).run(&padded_x).bits(), "{scheme}");
            if scheme == ActivationScheme::Nvfp4Static {
                for scale_layout in [ScaleLayout::Linear, ScaleLayout::Swizzled128x4] {
                    let options = QuantizeOptions { layout: scale_layout, padded_n: Some(padded), exact: false };
                    let x = scaled_fp4_quant(MatrixRef::new(&x[..], m, k).unwrap(), scale, options).unwrap();
                    assert_eq!(plain.bits(), layer(&weights).run_quantized(&x).bits(), "{scale_layout:?}");
                }
            }
        }
    }
}

// Rounding to 16 bits before the global scale (vllm#33972).

#[test]
fn large_sums_are_scaled_before_they_are_rounded() {
    let (n, k) = (64, 4096);
    let weights = constant_weights(n, k, 7, |_, _| 0x7e, GlobalScales::per_tensor(n, decode(1e-6)));
    let large = constant_weights(n, k, 7, |_, _| 0x7e, GlobalScales::per_tensor(n, GlobalScale::ONE));
    for kernel in kernels() {
        for m in [1, 16, 64, 128] {
            let x = vec![1.0; m * k];
            for (dtype, plain, biased) in [(DType::F16, 11.0078125, 13.0078125), (DType::Bf16, 11.0, 13.0)] {
                let layer = || Layer::new(kernel, w4a16(n, k, dtype), &weights, None, m);
                assert_eq!(layer().run(&x).to_f32(), vec![plain; m * n], "{dtype} {m}");
                assert_eq!(layer().with_bias(vec![2.0; n]).run(&x).to_f32(), vec![biased; m * n], "{dtype} {m}");
            }
            // What is too large is infinite, not clamped.
            let layer = Layer::new(kernel, w4a16(n, k, DType::F16), &large, None, m);
            assert_eq!(layer.run(&x).to_f32(), vec![f32::INFINITY; m * n]);
            let negative: Vec<f32> = x.iter().map(|v| -v).collect();
            assert_eq!(layer.run(&negative).to_f32(), vec![f32::NEG_INFINITY; m * n]);
        }
    }
}

// Small block scales flushed to zero (vllm#34577).

#[test]
fn every_block_scale_is_exact() {
    let k = 128;
    let expected = |code: u8, global: f32| 128.0 * nvfp4_core::e4m3::decode(code) * global;
    for global in [1.0, 2f32.powi(-20), 2.79e-4, 1e-38] {
        let scales = GlobalScales::per_tensor(64, decode(global));
        type Scales = fn(usize) -> u8;
        let rows: [Scales; 5] =
            [|_| 0x01, |_| 0x07, |_| 0x08, |_| 0x7e, |row| if row % 2 == 0 { 0x01 } else { 0x7e }];
        for rows in rows {
            let weights = constant_weights(64, k, 2, |r, _| rows(r), scales.clone());
            for y in times_ones(&weights, DType::F32) {
                let expected: Vec<f32> = (0..64).map(|r| expected(rows(r), global)).collect();
                assert_eq!(y, expected, "{global:e}");
            }
        }
        let all = constant_weights(126, k, 2, |r, _| r as u8 + 1, GlobalScales::per_tensor(126, decode(global)));
        for output in ALL_DTYPES {
            for y in times_ones(&all, output) {
                let expected: Vec<f32> = (1..=126).map(|code| expected(code, global)).collect();
                let expected = Values::new(output, &expected).to_f32();
                assert_eq!(y, expected, "{global:e} {output}");
            }
        }
    }
    assert_eq!([0x01, 0x07, 0x08, 0x7e].map(|code| expected(code, 1.0)), [0.25, 1.75, 2.0, 57_344.0]);
}

// Awkward sizes (vllm#49949 and others).

#[test]
fn awkward_sizes_are_within_five_per_mille_of_the_reference() {
    const SIZES: [usize; 11] = [16, 48, 64, 80, 128, 240, 256, 464, 1856, 3696, 5472];
    const ROWS: [usize; 11] = [1, 2, 7, 8, 16, 17, 33, 64, 65, 128, 257];
    let mut rng = Rng::new(seed());
    let mut cases = 0;
    for n in SIZES {
        for k in SIZES {
            let weights = random_weights(n, k, &mut rng);
            let w = reference::Operand::weights(&weights);
            let layer = Layer::new(CpuNvFp4LinearKernel::new(), w4a16(n, k, DType::Bf16), &weights, None, 257);
            for m in ROWS.into_iter().filter(|m| m * n * k <= 1 << 26) {
                let x = Values::new(DType::Bf16, &normal(m * k, &mut rng)).to_f32();
                let y = layer.run(&x).to_f32();
                // A few rows of x are enough: each is multiplied by all of W.
                let rows = [0, m / 2, m - 1];
                let budget = 1 + (1 << 20) / (n * k);
                for &row in rows.iter().take(budget.min(3)) {
                    let x = MatrixRef::new(&x[row * k..][..k], 1, k).unwrap();
                    let x = reference::Operand::unquantized(x).unwrap();
                    let truth = reference::linear_f64(&x, &w, None).unwrap();
                    let error: f64 = truth.iter().zip(&y[row * n..]).map(|(t, y)| (t - f64::from(*y)).abs()).sum();
                    let size: f64 = truth.iter().map(|t| t.abs()).sum();
                    assert!(error < 0.005 * size, "{m}x{n}x{k}, row {row}: {}", error / size);
                    cases += 1;
                }
            }
        }
    }
    assert!(cases > 1000, "{cases}");
}

// Empty batches and empty layers (prismaquant#670).

#[test]
fn no_rows_are_no_work() {
    let mut rng = Rng::new(seed());
    let weights = random_weights(33, 48, &mut rng);
    let x = normal(48, &mut rng);
    for kernel in kernels() {
        for scheme in [
            ActivationScheme::Unquantized,
            ActivationScheme::Nvfp4Static,
            ActivationScheme::Nvfp4DynamicPerTensor,
            ActivationScheme::Nvfp4DynamicPerToken,
        ] {
            let layer = |rows| {
                let config = w4a16(33, 48, DType::F32).with_activation(scheme);
                Layer::new(kernel, config, &weights, Some(decode(0.01)), rows)
            };
            let fresh = layer(1).run(&x);
            let used = layer(4);
            assert_eq!(used.run(&[]).bits(), vec![0u32; 0]);
            assert_eq!(used.run(&x).bits(), fresh.bits(), "{scheme}");
            assert_eq!(layer(0).run(&[]).bits(), vec![0u32; 0], "{scheme}");
        }
    }
}

#[test]
fn empty_layers_are_refused_when_they_are_built() {
    let cpu = DeviceFacts::Cpu(facts());
    let kernel = CpuNvFp4LinearKernel::new();
    for (n, k) in [(0, 64), (64, 0), (64, 24)] {
        let config = w4a16(n, k, DType::F32);
        assert!(matches!(kernel.can_implement(&cpu, &config), Err(Unsupported::Shape { .. })), "{n}x{k}");
        let weights: Arc<dyn PreparedWeights> = Arc::new(Foreign);
        assert!(kernel.plan(&config, &weights, None, 1).is_err(), "{n}x{k}");
    }
}

#[derive(Debug)]
struct Foreign;

impl PreparedWeights for Foreign {
    fn layout(&self) -> WeightLayout {
        WeightLayout::new("foreign", 1)
    }
    fn bytes(&self) -> usize {
        0
    }
}

#[test]
fn foreign_weights_are_refused_by_name() {
    let weights: Arc<dyn PreparedWeights> = Arc::new(Foreign);
    let refusal = CpuNvFp4LinearKernel::new().plan(&w4a16(8, 16, DType::F32), &weights, None, 1).unwrap_err();
    let Error::Layout { expected, found } = refusal else { panic!("{refusal}") };
    assert!(expected.contains("cpu-16x16@1") && found.contains("foreign@1"), "{expected} {found}");
}

// Rows that are not numbers (flashinfer#3057).

#[test]
fn what_is_no_number_stays_in_its_row() {
    let (n, k, m) = (37, 112, 64);
    let mut rng = Rng::new(seed());
    let weights = random_weights(n, k, &mut rng);
    let own = normal(8 * k, &mut rng);
    for kernel in kernels() {
        for scheme in
            [ActivationScheme::Unquantized, ActivationScheme::Nvfp4Static, ActivationScheme::Nvfp4DynamicPerToken]
        {
            for dtype in ALL_DTYPES {
                let config = w4a16(n, k, dtype).with_activation(scheme);
                let layer = Layer::new(kernel, config, &weights, Some(decode(0.01)), m);
                let alone = layer.run(&own).bits();
                for foreign in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38, 0.0] {
                    let x = [&own[..], &vec![foreign; (m - 8) * k]].concat();
                    let y = layer.run(&x);
                    assert_eq!(y.bits()[..8 * n], alone, "{scheme} {dtype} {foreign}");
                    if foreign.is_nan() && scheme == ActivationScheme::Unquantized {
                        assert!(y.to_f32()[8 * n..].iter().all(|v| v.is_nan()), "{scheme} {dtype}");
                    }
                }
            }
        }
    }
}

#[test]
fn columns_beyond_k_are_not_read() {
    let (m, n, k, pitch) = (5, 19, 48, 64);
    let mut rng = Rng::new(seed());
    let weights = random_weights(n, k, &mut rng);
    let x = normal(m * k, &mut rng);
    for scheme in [ActivationScheme::Unquantized, ActivationScheme::Nvfp4Static] {
        let config = w4a16(n, k, DType::F32).with_activation(scheme);
        let layer = Layer::new(CpuNvFp4LinearKernel::new(), config, &weights, Some(decode(0.01)), m);
        let strided: Vec<f32> = x.chunks_exact(k).flat_map(|row| [row, &[f32::NAN; 16]].concat()).collect();
        let strided = MatrixRef::strided(&strided[..], m, k, pitch).unwrap();
        assert_eq!(layer.apply(LinearInput::Matrix(strided), m, 0).bits(), layer.run(&x).bits(), "{scheme}");
    }
}

// Vocabularies beyond 16 bits (sparkinfer#924).

#[test]
fn rows_beyond_65535_are_right() {
    let (n, k) = (248_320, 64);
    let rows = GlobalScales::from_parts((0..n / 5).map(|part| (5, decode((part % 1000 + 1) as f32))));
    let weights = constant_weights(n, k, 2, |r, b| 0x30 + ((r + b) % 16) as u8, rows);
    let layer = Layer::new(CpuNvFp4LinearKernel::new(), w4a16(n, k, DType::F32), &weights, None, 1);
    let y = layer.run(&vec![1.0; k]).to_f32();
    assert_eq!(y.len(), n);
    for (r, y) in y.into_iter().enumerate() {
        let sum: f32 = (0..4).map(|b| 16.0 * nvfp4_core::e4m3::decode(0x30 + ((r + b) % 16) as u8)).sum();
        assert_eq!(y, sum * (r / 5 % 1000 + 1) as f32, "row {r}");
    }
}

// Results that depend on the batch or the run (vllm#39912).

#[test]
fn a_row_gives_the_same_bits_in_every_batch_and_every_run() {
    let (n, k) = (75, 1040);
    let mut rng = Rng::new(seed());
    let weights = random_weights(n, k, &mut rng);
    let x = normal(512 * k, &mut rng);
    for kernel in kernels() {
        for scheme in
            [ActivationScheme::Unquantized, ActivationScheme::Nvfp4Static, ActivationScheme::Nvfp4DynamicPerToken]
        {
            for dtype in ALL_DTYPES {
                let config = w4a16(n, k, dtype).with_activation(scheme).with_batch_invariant(true);
                let layer = Layer::new(kernel, config, &weights, Some(decode(0.002)), 512);
                let alone: Vec<u32> = (0..4).flat_map(|r| layer.run(&x[r * k..][..k]).bits()).collect();
                for m in [2, 3, 4, 5, 6, 7, 8, 16, 17, 32, 64, 65, 128, 129, 257, 512] {
                    let rows = m.min(4) * n;
                    assert_eq!(layer.run(&x[..m * k]).bits()[..rows], alone[..rows], "{scheme} {dtype} {m}");
                }
                let first = layer.run(&x[..17 * k]);
                assert!((0..20).all(|_| layer.run(&x[..17 * k]) == first), "{scheme} {dtype}");
            }
        }
    }
}

#[test]
fn one_dynamic_scale_for_all_rows_is_not_batch_invariant() {
    let cpu = DeviceFacts::Cpu(facts());
    let config = w4a16(16, 16, DType::F32).with_activation(ActivationScheme::Nvfp4DynamicPerTensor);
    let kernel = CpuNvFp4LinearKernel::new();
    assert_eq!(kernel.can_implement(&cpu, &config), Ok(()));
    let refusal = kernel.can_implement(&cpu, &config.with_batch_invariant(true));
    assert_eq!(refusal, Err(Unsupported::BatchInvariance));
}

// Quantizing inside the layer and before it are the same thing.

#[test]
fn a_row_of_zeros_gives_the_bias() {
    let mut rng = Rng::new(seed());
    let weights = random_weights(21, 64, &mut rng);
    let bias = normal(21, &mut rng);
    for kernel in kernels() {
        for scheme in [
            ActivationScheme::Unquantized,
            ActivationScheme::Nvfp4Static,
            ActivationScheme::Nvfp4DynamicPerTensor,
            ActivationScheme::Nvfp4DynamicPerToken,
        ] {
            let config = w4a16(21, 64, DType::F32).with_activation(scheme);
            let layer = Layer::new(kernel, config, &weights, Some(decode(0.01)), 2).with_bias(bias.clone());
            assert_eq!(layer.run(&[0.0; 2 * 64]).to_f32(), [&bias[..], &bias[..]].concat(), "{scheme}");
        }
    }
}

#[test]
fn activations_quantized_ahead_give_the_same_bits() {
    let (m, n, k) = (9, 40, 208);
    let mut rng = Rng::new(seed());
    let weights = random_weights(n, k, &mut rng);
    let mut x = normal(m * k, &mut rng);
    x[3 * k..4 * k].fill(0.0);
    x[5 * k + 3] = f32::NAN;
    x[6 * k + 40] = f32::INFINITY;
    let matrix = MatrixRef::new(&x[..], m, k).unwrap();
    let options = QuantizeOptions { layout: ScaleLayout::Swizzled128x4, padded_n: None, exact: false };
    let scale = decode(0.0013);
    let tokens = scaled_fp4_quant_per_token(matrix, options).unwrap();
    let fixed = scaled_fp4_quant(matrix, scale, options).unwrap();
    for kernel in kernels() {
        for (scheme, quantized) in
            [(ActivationScheme::Nvfp4Static, &fixed), (ActivationScheme::Nvfp4DynamicPerToken, &tokens)]
        {
            let config = w4a16(n, k, DType::F32).with_activation(scheme);
            let layer = Layer::new(kernel, config, &weights, Some(scale), m);
            assert_eq!(layer.run(&x).bits(), layer.run_quantized(quantized).bits(), "{scheme}");
        }
    }
}

#[test]
fn a_static_layer_without_input_scale_runs_quantized_inputs_only() {
    let weights = constant_weights(4, 16, 2, |_, _| 0x38, GlobalScales::per_tensor(4, GlobalScale::ONE));
    let config = w4a16(4, 16, DType::F32).with_activation(ActivationScheme::Nvfp4Static);
    let kernel = CpuNvFp4LinearKernel::new();
    let prepared = kernel.process_weights_after_loading(&(), &config, &weights).unwrap();
    let plan = kernel.plan(&config, &prepared, None, 1).unwrap();
    let mut workspace = vec![0; plan.workspace_size().div_ceil(8)];
    let (x, mut y) = ([1.0f32; 16], [0.0f32; 4]);
    let x = LinearInput::Matrix(MatrixRef::new(&x[..], 1, 16).unwrap());
    let out = nvfp4_core::MatrixMut::new(&mut y[..], 1, 4).unwrap();
    let refusal = plan.apply_weights((), x, None, out, &mut workspace).unwrap_err();
    assert!(refusal.to_string().contains("input scale"), "{refusal}");
    assert_eq!(
        Layer::new(kernel, config, &weights, None, 1).run_quantized(&quantized_ones(1, 16)).to_f32(),
        [16.0; 4]
    );
}
