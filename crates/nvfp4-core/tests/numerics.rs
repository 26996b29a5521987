//! Quantizer corners, format error levels, scale folding: stated values and properties.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use half::{bf16, f16};
use nvfp4_core::{
    ActivationScale, DType, Error, GlobalScale, GlobalScales, LinearScales, MatrixRef, NvFp4Weights, ScaleLayout,
    dequantize, e2m1, e4m3, fold, gguf,
    pack::{self, NibbleOrder},
    quantize::{self, QuantizeOptions},
    quantize_weight::{self, WeightQuantizer, quantize_weight},
    swizzle_blockscale,
};
use nvfp4_testkit::random::Rng;
use proptest::prelude::*;

const LINEAR: QuantizeOptions = QuantizeOptions { layout: ScaleLayout::Linear, padded_n: None, exact: false };

fn matrix(values: &[f32], cols: usize) -> MatrixRef<'_> {
    MatrixRef::new(values, values.len() / cols, cols).unwrap()
}

fn normal(random: &mut Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.normal() as f32).collect()
}

/// ‖found − expected‖ / ‖expected‖.
fn relative(found: &[f32], expected: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(f, e)| f64::from(*f) - f64::from(*e)));
    difference / norm(&mut expected.iter().map(|e| f64::from(*e)))
}

#[test]
fn ties_go_to_even_codes() {
    let ties: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    for (lower, (value, even)) in ties.into_iter().zip([0, 2, 2, 4, 4, 6, 6]).enumerate() {
        let lower = lower as u8;
        assert_eq!((e2m1::encode(value), e2m1::encode(-value)), (even, even | 8), "{value}");
        assert_eq!(e2m1::encode(value.next_down()), lower, "below {value}");
        assert_eq!(e2m1::encode(value.next_up()), lower + 1, "above {value}");
    }
    for (value, code) in [(0.0, 0), (-0.0, 8), (f32::INFINITY, 7), (f32::NEG_INFINITY, 15), (-1e-30, 8), (1e30, 7)]
    {
        assert_eq!(e2m1::encode(value), code, "{value}");
    }
    assert_eq!((e2m1::encode(f32::NAN), e2m1::encode(-f32::NAN)), (7, 7));
}

/// Every value between two neighbours rounds to one of them, the nearer one, over the whole range.
#[test]
fn e2m1_is_the_nearest_value() {
    for bits in (0..0x4120_0000u32).step_by(997) {
        let value = f32::from_bits(bits);
        let nearest = (0..8u8)
            .min_by(|a, b| {
                let distance = |c: u8| (f64::from(e2m1::decode(c)) - f64::from(value).min(6.0)).abs();
                distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1)))
            })
            .unwrap();
        assert_eq!(e2m1::encode(value), nearest, "{value}");
    }
}

/// The field multiplies by a reciprocal where division would round otherwise; so do we, on the CPU and on the GPU.
#[test]
fn reciprocals_are_part_of_the_format() {
    let (scale, value) = (e4m3::decode(0x07), f32::from_bits(0x3cc3_ffff));
    assert_eq!((e2m1::encode(value / scale), e2m1::encode(value * (1.0 / scale))), (3, 4));
    // Around all ties within 3 ulp, for all 126 scales.
    let (mut differing, mut all) = (0, 0);
    for byte in 1..=0x7eu8 {
        let scale = e4m3::decode(byte);
        for tie in [0.25f32, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0] {
            for ulp in -3i32..=3 {
                let value = f32::from_bits((scale * tie).to_bits().wrapping_add_signed(ulp));
                all += 1;
                differing += usize::from(e2m1::encode(value / scale) != e2m1::encode(value * (1.0 / scale)));
            }
        }
    }
    assert_eq!((differing, all), (116, 6174));
}

/// x = 0 … 15 with the encode scale 179.2.
#[test]
fn the_known_block() {
    let x: Vec<f32> = (0..16).map(|i| i as f32).collect();
    let scale = GlobalScale::from_encode(179.2).unwrap();
    let found = quantize::scaled_fp4_quant(matrix(&x, 16), scale, LINEAR).unwrap();
    assert_eq!(found.data, [0x10, 0x22, 0x43, 0x54, 0x65, 0x66, 0x76, 0x77]);
    assert_eq!(found.scale, [0x7e]);
    let values: Vec<f32> = found
        .data
        .iter()
        .flat_map(|&byte| pack::unpack_byte(byte, NibbleOrder::LowFirst))
        .map(|v| v * 448.0 / 179.2)
        .collect();
    let expected = [0.0, 1.25, 2.5, 2.5, 3.75, 5.0, 5.0, 7.5, 7.5, 10.0, 10.0, 10.0, 10.0, 15.0, 15.0, 15.0];
    assert!(relative(&values, &expected) < 1e-6, "{values:?}");
    found.check().unwrap();
}

#[test]
fn saturation_is_counted() {
    // Encode scale 500, largest value 6: the block needs scale 500, gets 448, and reaches 5.376.
    let scale = GlobalScale::from_decode(0.002).unwrap();
    let mut x = vec![1.0f32; 32];
    x[3] = 6.0;
    assert_eq!(quantize::saturated_blocks(matrix(&x, 32), scale).unwrap(), 1);
    let found = quantize::scaled_fp4_quant(matrix(&x, 32), scale, LINEAR).unwrap();
    let largest = e2m1::decode(found.data[1] >> 4) * e4m3::decode(found.scale[0]) * scale.decode().get();
    assert!((largest - 5.376).abs() < 1e-5, "{largest}");
}

/// Zero rows, NaN and infinity have defined outcomes, in every layout and with one scale or one a row.
#[test]
fn special_inputs() {
    let k = 64;
    let mut x = vec![0.0f32; 4 * k];
    x[k] = f32::NAN;
    x[k + 1] = 3.0;
    x[2 * k..2 * k + 16].fill(f32::NAN);
    x[3 * k] = f32::INFINITY;
    x[3 * k + 1] = -2.0;
    let scale = GlobalScale::from_encode(100.0).unwrap();
    for layout in [ScaleLayout::Linear, ScaleLayout::Swizzled128x4, ScaleLayout::Swizzled8x4] {
        let options = QuantizeOptions { layout, ..LINEAR };
        let found = quantize::scaled_fp4_quant(matrix(&x, k), scale, options).unwrap();
        let byte = |r, c| found.scale[layout.offset(r, c, 4)];
        let codes = |r: usize| &found.data[r * k / 2..][..k / 2];
        assert!(codes(0).iter().all(|&b| b == 0) && (0..4).all(|c| byte(0, c) == 0), "zeros");
        // A NaN becomes +6 and leaves the scale to the others.
        assert_eq!((codes(1)[0] & 15, byte(1, 0)), (7, e4m3::encode(50.0)));
        assert_eq!((codes(2)[0], byte(2, 0)), (0x77, 0x7f), "a block of NaN");
        assert_eq!((codes(3)[0], byte(3, 0)), (0x97, 0x7e), "infinity");
        let logical: usize =
            (0..4).flat_map(|r| (0..4).map(move |c| (r, c))).filter(|&(r, c)| byte(r, c) != 0).count();
        assert_eq!(found.scale.iter().filter(|&&b| b != 0).count(), logical, "padding is zero");
    }
    let rows = quantize::scaled_fp4_quant_per_token(matrix(&x[..2 * k], k), LINEAR).unwrap();
    let ActivationScale::PerToken(decode) = &rows.global_scale else { panic!("one scale a row") };
    assert_eq!(decode[..4], [0; 4], "a row of zeros has scale 0");
    assert!(rows.data[..k / 2].iter().chain(&rows.scale[..4]).all(|&b| b == 0));
    assert_eq!(quantize::dynamic_global_scale(matrix(&[0.0; 16], 16)).unwrap(), GlobalScale::ONE);
    for extreme in [f32::MAX, f32::INFINITY, 1e-44, f32::MIN_POSITIVE] {
        let scale = quantize::dynamic_global_scale(matrix(&[extreme; 16], 16)).unwrap();
        assert!(scale.decode().get().is_normal() && scale.encode().get().is_normal(), "{extreme}");
    }
    for empty in [0, 16] {
        let none: [f32; 0] = [];
        let x = MatrixRef::new(&none[..], 0, empty).unwrap();
        let found = quantize::scaled_fp4_quant(x, scale, LINEAR).unwrap();
        assert!(found.data.is_empty() && found.scale.is_empty());
    }
}

#[test]
fn bad_shapes_are_refused() {
    let x = vec![1.0f32; 96];
    let scale = GlobalScale::ONE;
    let run = |cols: usize, options| quantize::scaled_fp4_quant(matrix(&x, cols), scale, options).unwrap_err();
    assert!(matches!(run(24, LINEAR), Error::NotMultiple { multiple: 16, found: 24, .. }));
    let padded = |n| QuantizeOptions { padded_n: Some(n), ..LINEAR };
    assert!(matches!(run(48, padded(32)), Error::Size { expected: 48, found: 32, .. }));
    assert!(matches!(run(48, padded(50)), Error::NotMultiple { found: 50, .. }));
    let small = QuantizeOptions { layout: ScaleLayout::Swizzled8x4, ..padded(64) };
    assert!(matches!(run(48, small), Error::Invalid(_)));
    let padded = quantize::scaled_fp4_quant(matrix(&x, 48), scale, padded(64)).unwrap();
    assert_eq!((padded.padded_k, padded.data.len(), padded.scale.len()), (64, 64, 8));
    assert!(padded.data.chunks_exact(32).all(|row| row[24..].iter().all(|&b| b == 0)));
}

#[test]
fn silu_and_mul_rounds_to_the_input_type() {
    let x: Vec<bf16> = [1.0f32, -2.0, 0.5, 3.0].repeat(16).into_iter().map(bf16::from_f32).collect();
    let x = MatrixRef::new(&x[..], 1, 64).unwrap();
    let product = quantize::silu_and_mul(x).unwrap();
    let expected = bf16::from_f32((1.0 / (1.0 + (-1.0f64).exp())) as f32).to_f32();
    assert_eq!((product.len(), product[0]), (32, expected));
    let direct = quantize::scaled_fp4_quant(matrix(&product, 32), GlobalScale::ONE, LINEAR).unwrap();
    let fused = quantize::silu_and_mul_scaled_fp4_quant(x, GlobalScale::ONE, LINEAR).unwrap();
    assert_eq!((direct.data, direct.scale, fused.orig_dtype), (fused.data, fused.scale, DType::Bf16));
}

/// Round trips of normal data lose 9.5 %; wrong layouts are far off, and uneven blocks show it better than even ones.
#[test]
fn error_levels_of_right_and_wrong_layouts() {
    let mut random = Rng::new(20_261_201);
    let (n, k) = (128, 256);
    let even = normal(&mut random, n * k);
    let uneven: Vec<f32> =
        even.iter().enumerate().map(|(i, v)| v * 2f32.powi((i / 16 * 7919 % 11) as i32 - 5)).collect();
    for (values, tiles) in [(&even, 0.25..0.40), (&uneven, 0.55..1.5)] {
        let weights = quantize_weight(matrix(values, k), WeightQuantizer::ModelOpt, None).unwrap();
        let error = |weights: &NvFp4Weights<'_>| relative(&dequantize::dequantize(weights).unwrap(), values);
        let right = error(&weights);
        assert!((right - 0.095).abs() < 0.003, "{right}");
        let (codes, scales, global) = weights.clone().into_parts();
        let tiled = swizzle_blockscale(&scales).unwrap().into_bytes();
        let misread = LinearScales::new(n, k / 16, tiled).unwrap();
        let misread = error(&NvFp4Weights::new(n, k, codes.clone(), misread, global.clone()).unwrap());
        assert!(tiles.contains(&misread), "tiles read as rows: {misread}");
        let mut swapped = codes.into_owned();
        pack::swap_nibbles(&mut swapped);
        let swapped = error(&NvFp4Weights::new(n, k, swapped, scales, global).unwrap());
        assert!((swapped - 1.41).abs() < 0.03, "{swapped}");
    }
}

/// A block of zeros beside a large tensor scale: ModelOpt's stand-in for it must not become NaN.
#[test]
fn no_quantizer_writes_nan_scales() {
    let mut w = vec![0.0f32; 64];
    w[20] = 5.0;
    for (quantizer, zero) in [
        (WeightQuantizer::ModelOpt, 0x38),
        (WeightQuantizer::CompressedTensors, 0x20),
        (WeightQuantizer::TorchAo, 0x08),
        (WeightQuantizer::TorchAoSingleLevel, 0x08),
    ] {
        let found = quantize_weight(matrix(&w, 64), quantizer, None).unwrap();
        found.scales().check_values().unwrap();
        assert_eq!(found.scales().bytes()[0], zero, "{quantizer:?}");
        // A global scale that is far too small saturates the block scales at 448.
        let tiny = GlobalScale::from_decode(1e-9).unwrap();
        let found = quantize_weight(matrix(&w, 64), quantizer, Some(tiny)).unwrap();
        found.scales().check_values().unwrap();
        let zeros = quantize_weight(matrix(&[0.0; 32], 32), quantizer, None).unwrap();
        assert_eq!(zeros.global().as_per_tensor(), Some(GlobalScale::ONE));
        assert!(dequantize::dequantize(&zeros).unwrap().iter().all(|v| *v == 0.0));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            w[37] = bad;
            let error = quantize_weight(matrix(&w, 32), quantizer, None).unwrap_err();
            assert!(matches!(error, Error::NotFinite { row: 1, column: 5, .. }), "{error}");
            w[37] = 0.0;
        }
    }
}

/// Blocks far below the tensor's largest value: normal scales until their ratio passes 28,672, gone at 458,752.
#[test]
fn the_window_of_block_scales() {
    let scale = |ratio: f32| {
        let mut w = vec![0.0f32; 32];
        (w[0], w[16]) = (ratio, 1.0);
        let found = quantize_weight(matrix(&w, 32), WeightQuantizer::CompressedTensors, None).unwrap();
        let dynamic = quantize::scaled_fp4_quant_dynamic(matrix(&w, 32), LINEAR).unwrap();
        assert_eq!(found.scales().bytes()[0], 0x7e);
        dynamic.scale[1]
    };
    assert_eq!(scale(28_672.0), 0x08, "still normal");
    assert!((1..8).contains(&scale(60_000.0)), "subnormal");
    assert_eq!(scale(458_752.0), 0, "rounds to 0");
    // ModelOpt holds such a block at 2^-9 instead: the scale survives, the values become codes that it can hold.
    let mut w = vec![0.0f32; 32];
    (w[0], w[16]) = (458_752.0, 1.0);
    let found = quantize_weight(matrix(&w, 32), WeightQuantizer::ModelOpt, None).unwrap();
    assert_eq!((found.scales().bytes()[1], found.packed()[8]), (0x01, 0x05));
    // Within a block, what is up to 1/24 of the largest value becomes 0.
    for (value, code) in [(1.0f32 / 24.0, 0), ((1.0f32 / 24.0) * 1.01, 1)] {
        let mut x = [0.0f32; 16];
        (x[0], x[1]) = (1.0, value);
        let found = quantize::scaled_fp4_quant_dynamic(matrix(&x, 16), LINEAR).unwrap();
        assert_eq!(found.data[0], 0x07 | code << 4, "{value}");
    }
}

fn parts(scales: [f32; 3], bytes: Vec<u8>) -> NvFp4Weights<'static> {
    let global = GlobalScales::from_parts(scales.map(|s| (2, GlobalScale::from_decode(s).unwrap())));
    let codes = (0..6 * 16).map(|i| (i * 29 % 256) as u8).collect::<Vec<_>>();
    NvFp4Weights::new(6, 32, codes, LinearScales::new(6, 2, bytes).unwrap(), global).unwrap()
}

#[test]
fn powers_of_two_fold_exactly() {
    let weights = parts([1.0, 0.5, 0.125], vec![0x38; 12]);
    let folded = fold::fold_powers_of_two(&weights).unwrap().unwrap();
    assert!(folded.global().as_per_tensor().is_some());
    assert_eq!(dequantize::dequantize(&folded).unwrap(), dequantize::dequantize(&weights).unwrap());
    // 448 cannot grow and 2^-9 cannot shrink: with both, no base fits.
    let mut bytes = vec![0x38; 12];
    (bytes[0], bytes[4]) = (0x7e, 0x01);
    assert_eq!(fold::fold_powers_of_two(&parts([1.0, 0.5, 0.5], bytes)).unwrap(), None);
    assert_eq!(fold::fold_powers_of_two(&parts([1.0, 0.3, 0.5], vec![0x38; 12])).unwrap(), None);
    // One scale is nothing to fold.
    let same = parts([0.3, 0.3, 0.3], vec![0x38; 12]);
    assert_eq!(fold::fold_powers_of_two(&same).unwrap().unwrap(), same);
}

/// Divisors of a published checkpoint: row multipliers are exact to a unit, requantizing costs up to 1.23 % and 3.13 %.
#[test]
fn folding_what_is_no_power_of_two() {
    let divisors = [12_343.104_f32, 5334.3257, 8001.488];
    let weights = parts(divisors.map(|d| 1.0 / d), vec![0x38; 12]);
    let (base, factors) = fold::row_multipliers(weights.global());
    for (factor, scale) in factors.iter().zip(weights.global().iter_rows()) {
        let product = factor * base.decode().get();
        assert!((product / scale.decode().get() - 1.0).abs() <= f32::EPSILON);
    }
    let (folded, errors) = fold::requantize_block_scales(&weights).unwrap();
    assert!(folded.global().as_per_tensor().is_some());
    for (error, percent) in errors.iter().zip([1.23, 0.0, 3.13]) {
        assert!((error.max_relative * 100.0 - percent).abs() < 0.006, "{error:?}");
    }
    assert_eq!(errors.iter().map(|e| (e.first_row, e.rows)).collect::<Vec<_>>(), [(0, 2), (2, 2), (4, 2)]);
    let (found, expected) = (dequantize::dequantize(&folded).unwrap(), dequantize::dequantize(&weights).unwrap());
    for error in &errors {
        let rows = error.first_row * 32..(error.first_row + error.rows) * 32;
        let measured = relative(&found[rows.clone()], &expected[rows]);
        assert!((measured - f64::from(error.relative_l2)).abs() < 1e-5, "{measured} {error:?}");
    }
}

/// A base that is no part's own scale: part 0 may shrink by 4 and not grow, part 1 may grow by 8 and not shrink.
#[test]
fn folding_finds_a_base_between_the_parts() {
    let global = GlobalScales::from_parts([1.0, 16.0].map(|s| (1, GlobalScale::from_decode(s).unwrap())));
    let bytes = [448.0, 0.0625 * 1.125, 56.0, 1.0 / 512.0].map(e4m3::encode).to_vec();
    let weights =
        NvFp4Weights::new(2, 32, vec![0x25; 32], LinearScales::new(2, 2, bytes).unwrap(), global).unwrap();
    let folded = fold::fold_powers_of_two(&weights).unwrap().unwrap();
    assert_eq!(folded.global().as_per_tensor().unwrap().decode().get(), 4.0);
    assert_eq!(dequantize::dequantize(&folded).unwrap(), dequantize::dequantize(&weights).unwrap());
}

/// Damage is not repaired on the way: NaN scales stay NaN where the fold is exact, and are refused where it rounds.
#[test]
fn folding_keeps_or_refuses_nan_scales() {
    let mut bytes = vec![0x38; 12];
    bytes[3] = 0x7f;
    let weights = parts([1.0, 0.5, 0.125], bytes.clone());
    let folded = fold::fold_powers_of_two(&weights).unwrap().unwrap();
    assert_eq!(folded.scales().bytes()[3], 0x7f);
    for bad in [0x7f, 0xff, 0xb8] {
        bytes[3] = bad;
        let error = fold::requantize_block_scales(&parts([1.0, 0.3, 0.5], bytes.clone())).unwrap_err();
        assert!(matches!(error, Error::BlockScale { row: 1, column: 1, byte, count: 1 } if byte == bad), "{error}");
    }
}

/// compressed-tensors computes the global scale in the weight's type. In f16 that overflows below 0.041, where upstream's
/// stand-in of 1 would lose all of a tensor of small values; the round trip must cost the same at every magnitude.
#[test]
fn small_f16_weights_keep_their_precision() {
    let values = normal(&mut Rng::new(41), 64 * 64);
    for magnitude in [1.0, 0.01, 0.002] {
        let w: Vec<f16> = values.iter().map(|v| f16::from_f32(v * magnitude)).collect();
        let expected: Vec<f32> = w.iter().map(|v| v.to_f32()).collect();
        for quantizer in [WeightQuantizer::CompressedTensors, WeightQuantizer::ModelOpt] {
            let found = quantize_weight(MatrixRef::new(&w[..], 64, 64).unwrap(), quantizer, None).unwrap();
            let error = relative(&dequantize::dequantize(&found).unwrap(), &expected);
            assert!((error - 0.095).abs() < 0.003, "{magnitude} {quantizer:?}: {error}");
        }
    }
}

#[test]
fn rows_quantized_apart_refuse_what_is_not_finite() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut w = [1.0f32; 64];
        w[37] = bad;
        let (mut packed, mut scales) = ([0; 32], [0; 4]);
        let quantizer = WeightQuantizer::ModelOpt;
        let error =
            quantize_weight::quantize_rows(matrix(&w, 32), quantizer, GlobalScale::ONE, &mut packed, &mut scales);
        assert!(matches!(error, Err(Error::NotFinite { row: 1, column: 5, .. })), "{error:?}");
    }
}

/// A row of nothing but NaN is not a row of zeros: static, dynamic and per-token scales all keep it NaN.
#[test]
fn rows_of_nan_stay_nan() {
    let mut x = [0.0f32; 64];
    x[..16].fill(f32::NAN);
    let row = matrix(&x, 64);
    let tokens = quantize::scaled_fp4_quant_per_token(row, LINEAR).unwrap();
    let dynamic = quantize::scaled_fp4_quant_dynamic(row, LINEAR).unwrap();
    assert_eq!((&tokens.scale[..], &dynamic.scale[..]), (&[0x7f, 0, 0, 0][..], &[0x7f, 0, 0, 0][..]));
    let ActivationScale::PerToken(decode) = &tokens.global_scale else { panic!("one scale a row") };
    assert_eq!(decode[..], 1f32.to_ne_bytes());
}

proptest! {
    #[test]
    fn packing_is_undone_by_unpacking(codes in prop::collection::vec(0u8..16, 0..64)) {
        let codes = &codes[..codes.len() / 2 * 2];
        let (mut packed, mut back) = (vec![0; codes.len() / 2], vec![0; codes.len()]);
        pack::pack_codes(codes, &mut packed).unwrap();
        pack::unpack_codes(&packed, &mut back).unwrap();
        prop_assert_eq!(codes, &back[..]);
        pack::swap_nibbles(&mut packed);
        pack::swap_nibbles(&mut packed);
        let mut again = vec![0; codes.len()];
        pack::unpack_codes(&packed, &mut again).unwrap();
        prop_assert_eq!(codes, &again[..]);
    }

    /// Values on the grid stay where they are when they are quantized again with the same scale.
    #[test]
    fn quantizing_twice_changes_nothing(
        values in prop::collection::vec(-1e4f32..1e4, 48),
        quantizer in prop::sample::select(vec![WeightQuantizer::ModelOpt, WeightQuantizer::TorchAo]),
    ) {
        let first = quantize_weight(matrix(&values, 48), quantizer, None).unwrap();
        let on_grid = dequantize::dequantize(&first).unwrap();
        let global = first.global().as_per_tensor();
        let second = quantize_weight(matrix(&on_grid, 48), quantizer, global).unwrap();
        let again = dequantize::dequantize(&second).unwrap();
        for (a, b) in on_grid.iter().zip(&again) {
            // A block whose largest code is not 6 may take a finer scale; its values are then still on the grid.
            prop_assert!((a - b).abs() <= 2e-7 * a.abs() + 0.1 * on_grid.iter().fold(0.0f32, |m, v| m.max(v.abs())));
        }
        // With the largest code present in each block, it is exact.
        let full = on_grid.chunks_exact(16).zip(first.packed().chunks_exact(8));
        for (i, (_, codes)) in full.enumerate() {
            if codes.iter().any(|b| b & 7 == 7 || b >> 4 & 7 == 7) {
                prop_assert_eq!(&on_grid[i * 16..][..16], &again[i * 16..][..16]);
            }
        }
    }

    /// Rows quantized a few at a time are the rows of the whole.
    #[test]
    fn rows_can_be_quantized_apart(values in prop::collection::vec(-3f32..3.0, 5 * 32), cut in 0usize..=5) {
        for quantizer in [WeightQuantizer::ModelOpt, WeightQuantizer::CompressedTensors, WeightQuantizer::TorchAo] {
            let whole = quantize_weight(matrix(&values, 32), quantizer, None).unwrap();
            let global = quantize_weight::weight_global_scale(matrix(&values, 32), quantizer).unwrap();
            let (mut packed, mut scales) = (vec![0; 5 * 16], vec![0; 5 * 2]);
            let (a, b) = values.split_at(cut * 32);
            let (pa, pb) = packed.split_at_mut(cut * 16);
            let (sa, sb) = scales.split_at_mut(cut * 2);
            quantize_weight::quantize_rows(MatrixRef::new(a, cut, 32).unwrap(), quantizer, global, pa, sa).unwrap();
            quantize_weight::quantize_rows(MatrixRef::new(b, 5 - cut, 32).unwrap(), quantizer, global, pb, sb).unwrap();
            prop_assert_eq!(whole.packed(), packed);
            prop_assert_eq!(whole.scales().bytes(), scales);
        }
    }

    /// Strides, types and padding change nothing about the codes of a row.
    #[test]
    fn strides_and_types(values in prop::collection::vec(-100f32..100.0, 3 * 48), gap in 0usize..9) {
        let values: Vec<f32> = values.iter().map(|v| f16::from_f32(bf16::from_f32(*v).to_f32()).to_f32()).collect();
        let scale = GlobalScale::from_encode(25.0).unwrap();
        let expected = quantize::scaled_fp4_quant(matrix(&values, 48), scale, LINEAR).unwrap();
        let mut strided = vec![f32::NAN; 3 * (48 + gap)];
        for (to, from) in strided.chunks_exact_mut(48 + gap).zip(values.chunks_exact(48)) {
            to[..48].copy_from_slice(from);
        }
        let halves: Vec<f16> = strided.iter().map(|v| f16::from_f32(*v)).collect();
        for x in [
            MatrixRef::strided(&strided[..], 3, 48, 48 + gap).unwrap(),
            MatrixRef::strided(&halves[..], 3, 48, 48 + gap).unwrap(),
        ] {
            let found = quantize::scaled_fp4_quant(x, scale, LINEAR).unwrap();
            prop_assert_eq!((&found.data, &found.scale), (&expected.data, &expected.scale));
        }
    }

    #[test]
    fn gguf_blocks_are_undone(codes in prop::collection::vec(any::<u8>(), 64), scales in prop::collection::vec(0u8..0x7f, 8)) {
        let mut blocks = vec![0; 2 * gguf::BLOCK_BYTES];
        let linear = LinearScales::new(2, 4, &scales[..]).unwrap();
        gguf::from_checkpoint(&codes, &linear, &mut blocks).unwrap();
        let (mut back, mut back_scales) = (vec![0; 64], vec![0; 8]);
        gguf::to_checkpoint(&blocks, 4, &mut back, &mut back_scales).unwrap();
        prop_assert_eq!((codes, scales), (back, back_scales));
    }

    /// Neither direction loses what a scale means without saying where.
    #[test]
    fn gguf_scales_that_the_other_form_lacks(at in 0usize..8, byte in 0x7fu8..) {
        let mut scales = [0x38; 8];
        scales[at] = byte;
        let mut blocks = vec![0x22; 2 * gguf::BLOCK_BYTES];
        let place = Error::BlockScale { row: at / 4, column: at % 4, byte, count: 1 };
        let linear = LinearScales::new(2, 4, &scales[..]).unwrap();
        prop_assert_eq!(gguf::from_checkpoint(&[0x22; 64], &linear, &mut blocks), Err(place.clone()));

        blocks[at / 4 * gguf::BLOCK_BYTES + at % 4] = byte;
        let (mut codes, mut found) = (vec![0; 64], vec![0; 8]);
        match gguf::to_checkpoint(&blocks, 4, &mut codes, &mut found) {
            Ok(()) => prop_assert_eq!(nvfp4_core::e4m3::decode(found[at]), gguf::decode_scale(byte)),
            Err(error) => prop_assert_eq!((byte, error), (0xff, place)),
        }
    }
}
