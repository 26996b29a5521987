use super::{extents, pattern};
use nvfp4_core::{
    ActivationScale, DType, Error, GlobalScale, GlobalScales, LinearScales, NvFp4Weights, QuantKey,
    QuantizedActivation, ScaleLayout,
    padding::{
        PaddingPlan, nvfp4_weight_padding_bytes, pad_nvfp4_activation_for_cutlass, pad_nvfp4_weight_for_cutlass,
        slice_nvfp4_output,
    },
};
use nvfp4_testkit::golden::File;
use proptest::prelude::*;
use std::borrow::Cow;

fn scale(decode: f32) -> GlobalScale {
    GlobalScale::from_decode(decode).unwrap()
}

/// Weights whose bytes are never zero.
fn weights(n: usize, k: usize, global: GlobalScales) -> NvFp4Weights<'static> {
    let scales = LinearScales::new(n, k / 16, pattern(n * k / 16)).unwrap();
    NvFp4Weights::new(n, k, pattern(n * k / 2), scales, global).unwrap()
}

#[test]
fn weights_match_vllm() {
    let golden = File::open("padding.safetensors");
    let info: serde_json::Value = serde_json::from_str(&golden.metadata["info"]).unwrap();
    let info = info.as_object().unwrap();
    assert!(!info.is_empty());
    for (name, row) in info {
        let number = |key: &str| row[key].as_u64().unwrap() as usize;
        let (n, k, alignment) = (number("n"), number("k"), number("alignment"));
        let input = golden.get(&format!("w_n{n}_k{k}"));
        let expected = golden.get(&format!("padded_{name}"));
        let padded = pad_nvfp4_weight_for_cutlass(&input.bytes, n, k, alignment).unwrap();
        assert_eq!((padded.rows, padded.row_bytes), extents(expected), "{name}");
        assert_eq!(serde_json::json!([padded.rows, padded.row_bytes]), row["out_shape"], "{name}");
        assert_eq!(padded.pad_bytes, number("pad_bytes"), "{name}");
        assert_eq!(
            nvfp4_weight_padding_bytes(padded.row_bytes, k),
            Ok(number("nvfp4_weight_padding_bytes")),
            "{name}"
        );
        assert_eq!(padded.packed, expected.bytes, "{name}");
        let unchanged = extents(input) == extents(expected);
        assert_eq!(matches!(padded.packed, Cow::Borrowed(_)), unchanged, "{name}");

        // The plan pads alike, codes and scales.
        let plan = PaddingPlan::new(n, k, alignment).unwrap();
        let scales = LinearScales::new(n, k / 16, pattern(n * k / 16)).unwrap();
        let global = GlobalScales::per_tensor(n, GlobalScale::ONE);
        let whole = NvFp4Weights::new(n, k, &input.bytes[..], scales, global).unwrap();
        let by_plan = plan.pad_weights(whole.clone()).unwrap();
        assert_eq!(by_plan.packed(), expected.bytes, "{name}");
        assert_eq!(plan.pad_bytes(), number("pad_bytes"), "{name}");
        assert_eq!(plan.is_identity(), unchanged, "{name}");
        assert_eq!(by_plan.scales().cols(), by_plan.in_features() / 16, "{name}");
        for r in 0..by_plan.out_features() {
            for c in 0..by_plan.scales().cols() {
                let inside = r < n && c < k / 16;
                let expected = if inside { whole.scales().bytes()[r * (k / 16) + c] } else { 0 };
                assert_eq!(by_plan.scales().bytes()[r * by_plan.scales().cols() + c], expected, "{name}");
            }
        }
    }
}

#[test]
fn activations_and_outputs_match_vllm() {
    let golden = File::open("padding.safetensors");
    let input = golden.get("act_in");
    let (rows, row_bytes) = extents(input);
    for pad in golden.suffixes("act_pad") {
        let bytes = pad.parse().unwrap();
        let padded = pad_nvfp4_activation_for_cutlass(&input.bytes, rows, row_bytes, bytes).unwrap();
        assert_eq!(padded, golden.get(&format!("act_pad{pad}")).bytes, "{pad}");
        assert_eq!(matches!(padded, Cow::Borrowed(_)), bytes == 0, "{pad}");
    }
    let out = golden.get("slice_in");
    let (rows, padded_n) = extents(out);
    let values = out.floats();
    let mut sliced = 0;
    for n in golden.suffixes("slice_").iter().filter_map(|n| n.parse::<usize>().ok()) {
        let kept = slice_nvfp4_output(&values, rows, padded_n, n).unwrap();
        assert_eq!(kept, golden.get(&format!("slice_{n}")).floats(), "{n}");
        assert_eq!(matches!(kept, Cow::Borrowed(_)), n == padded_n, "{n}");
        sliced += 1;
    }
    assert!(sliced > 0);
}

#[test]
fn wrong_sizes_are_errors() {
    assert!(matches!(pad_nvfp4_weight_for_cutlass(&[0; 7], 1, 16, 32), Err(Error::Size { expected: 8, .. })));
    assert!(matches!(pad_nvfp4_weight_for_cutlass(&[0; 8], 1, 16, 0), Err(Error::Zero { .. })));
    assert!(matches!(pad_nvfp4_weight_for_cutlass(&[0; 8], 1, 17, 32), Err(Error::NotMultiple { .. })));
    assert!(matches!(pad_nvfp4_weight_for_cutlass(&[], usize::MAX, 32, 32), Err(Error::Overflow { .. })));
    assert!(matches!(pad_nvfp4_activation_for_cutlass(&[0; 7], 1, 8, 8), Err(Error::Size { .. })));
    assert!(matches!(pad_nvfp4_activation_for_cutlass(&[0; 8], 1, 8, usize::MAX), Err(Error::Overflow { .. })));
    assert!(matches!(slice_nvfp4_output(&[0; 8], 1, 8, 9), Err(Error::Size { expected: 9, found: 8, .. })));
    assert!(matches!(slice_nvfp4_output(&[0; 7], 1, 8, 4), Err(Error::Size { .. })));
    assert!(matches!(nvfp4_weight_padding_bytes(7, 16), Err(Error::Size { .. })));
    assert!(matches!(PaddingPlan::new(1, 24, 32), Err(Error::NotMultiple { multiple: 16, found: 24, .. })));
    assert!(matches!(PaddingPlan::new(1, 16, 24), Err(Error::NotMultiple { multiple: 16, found: 24, .. })));
    assert!(matches!(PaddingPlan::new(usize::MAX, 16, 32), Err(Error::Overflow { .. })));
    assert!(matches!(PaddingPlan::for_parts(&[], 16, 32, 32), Err(Error::Zero { .. })));
    let plan = PaddingPlan::new(4, 16, 32).unwrap();
    let other = weights(5, 16, GlobalScales::per_tensor(5, GlobalScale::ONE));
    assert!(matches!(plan.pad_weights(other), Err(Error::Size { expected: 4, found: 5, .. })));
}

/// vLLM issues 48898 and others: one operand padded, another not.
#[test]
fn one_plan_pads_all_operands() {
    for alignment in [32, 64, 128] {
        let plan = PaddingPlan::new(1, 3_696, alignment).unwrap();
        assert_eq!(plan.padded_k(), 3_712, "{alignment}");
        let padded = plan.pad_weights(weights(1, 3_696, GlobalScales::per_tensor(1, GlobalScale::ONE))).unwrap();
        assert_eq!((padded.packed().len() / padded.out_features(), padded.scales().cols()), (1_856, 232));
    }
    let plan = PaddingPlan::new(32, 5_472, 32).unwrap();
    let whole = plan.pad_weights(weights(32, 5_472, GlobalScales::per_tensor(32, GlobalScale::ONE))).unwrap();
    assert_eq!(whole.scales().cols(), 342);
    let (_, cols) = ScaleLayout::Swizzled128x4.padded_shape(32, whole.scales().cols()).unwrap();
    assert_eq!(cols, 344);
}

fn quantized(rows: usize, k: usize, layout: ScaleLayout) -> QuantizedActivation {
    let scales = LinearScales::new(rows, k / 16, pattern(rows * k / 16)).unwrap();
    let mut scale = vec![0; layout.len(rows, k / 16).unwrap()];
    scales.write_into(layout, &mut scale).unwrap();
    QuantizedActivation {
        data: pattern(rows * k / 2),
        scale,
        scale_layout: layout,
        global_scale: ActivationScale::PerTensor(GlobalScale::ONE),
        rows,
        k,
        padded_k: k,
        orig_dtype: DType::Bf16,
        orig_shape: vec![rows, k],
        quant_key: QuantKey::NVFP4_DYNAMIC,
    }
}

#[test]
fn quantized_activations_are_padded_with_their_scales() {
    for layout in [ScaleLayout::Linear, ScaleLayout::Swizzled128x4, ScaleLayout::Swizzled8x4] {
        for (rows, k, alignment) in [(1, 3_696, 32), (9, 48, 64), (130, 80, 128), (3, 64, 64), (0, 48, 64)] {
            let x = quantized(rows, k, layout);
            let plan = PaddingPlan::new(7, k, alignment).unwrap();
            let padded = plan.pad_quantized_activation(&x).unwrap();
            padded.check().unwrap();
            assert_eq!((padded.k, padded.padded_k), (k, plan.padded_k()));
            assert_eq!(matches!(padded, Cow::Borrowed(_)), plan.padded_k() == k);
            let columns = plan.padded_k() / 16;
            for r in 0..rows {
                for c in 0..columns {
                    let found = padded.scale[layout.offset(r, c, columns)];
                    let expected = if c < k / 16 { x.scale[layout.offset(r, c, k / 16)] } else { 0 };
                    assert_eq!(found, expected, "{layout:?} {r}, {c}");
                }
                let (row, wide) = (k / 2, plan.padded_k() / 2);
                let codes = &padded.data[r * wide..(r + 1) * wide];
                assert_eq!(&codes[..row], &x.data[r * row..(r + 1) * row]);
                assert!(codes[row..].iter().all(|&b| b == 0));
            }
        }
    }
    let plan = PaddingPlan::new(7, 64, 64).unwrap();
    assert!(matches!(
        plan.pad_quantized_activation(&quantized(2, 48, ScaleLayout::Linear)),
        Err(Error::Size { expected: 64, found: 48, .. })
    ));
    let mut wide = quantized(2, 128, ScaleLayout::Linear);
    wide.k = 64;
    assert!(matches!(plan.pad_quantized_activation(&wide), Err(Error::Size { expected: 64, found: 128, .. })));
    let mut broken = quantized(2, 64, ScaleLayout::Linear);
    broken.scale.pop();
    assert!(plan.pad_quantized_activation(&broken).is_err());
}

/// vLLM issue 46879: gate and up of 176 rows; the padding lies behind each, not behind both.
#[test]
fn gated_pairs_are_padded_and_sliced_by_part() {
    let plan = PaddingPlan::for_parts(&[176, 176], 64, 128, 64).unwrap();
    assert_eq!((plan.n(), plan.padded_n()), (352, 384));
    assert_eq!(PaddingPlan::for_parts(&[352], 64, 128, 64).unwrap().padded_n(), 384);

    let global = GlobalScales::from_parts([(176, scale(0.5)), (176, scale(0.25))]);
    let whole = weights(352, 64, global);
    let padded = plan.pad_weights(whole.clone()).unwrap();
    assert_eq!(padded.global().parts(), [(192, scale(0.5)), (192, scale(0.25))]);
    for (from, to, rows) in [(0, 0, 176), (176, 192, 176)] {
        assert_eq!(padded.packed()[to * 32..][..rows * 32], whole.packed()[from * 32..][..rows * 32]);
        assert_eq!(padded.scales().bytes()[to * 4..][..rows * 4], whole.scales().bytes()[from * 4..][..rows * 4]);
    }
    for row in (176..192).chain(368..384) {
        assert!(padded.packed()[row * 32..][..32].iter().all(|&b| b == 0), "{row}");
        assert!(padded.scales().bytes()[row * 4..][..4].iter().all(|&b| b == 0), "{row}");
    }

    let out: Vec<usize> = (0..2 * 384).collect();
    let kept = plan.slice_output(&out, 2).unwrap();
    let expected: Vec<usize> =
        (0..2 * 384).filter(|i| !(176..192).contains(&(i % 384)) && !(368..384).contains(&(i % 384))).collect();
    assert_eq!(kept, expected);
    assert!(plan.slice_output(&out, 1).is_err());

    // Unequal parts are padded to whole tiles each.
    let uneven = PaddingPlan::for_parts(&[100, 20, 20], 64, 128, 64).unwrap();
    assert_eq!(uneven.padded_n(), 3 * 128);
}

proptest! {
    #[test]
    fn plans_are_aligned_and_reversible(
        parts in prop::collection::vec(1..200usize, 1..4),
        equal: bool,
        blocks in 1..20usize,
        n_alignment in prop::sample::select(vec![1usize, 32, 64, 96, 128]),
        k_alignment in prop::sample::select(vec![16usize, 32, 64, 128]),
        rows in 0..4usize,
    ) {
        let parts = if equal { vec![parts[0]; parts.len()] } else { parts };
        let k = blocks * 16;
        let plan = PaddingPlan::for_parts(&parts, k, n_alignment, k_alignment).unwrap();
        prop_assert!(plan.padded_n().is_multiple_of(n_alignment) && plan.padded_k().is_multiple_of(k_alignment));
        prop_assert!(plan.padded_k() - k < k_alignment);

        // A weight of one column whose rows are numbered: slicing the padded "output" gives the numbers back.
        let global = GlobalScales::per_tensor(plan.n(), GlobalScale::ONE);
        let padded = plan.pad_weights(weights(plan.n(), k, global.clone())).unwrap();
        prop_assert_eq!(padded.global().rows(), plan.padded_n());
        let column: Vec<u8> = padded.packed().chunks(plan.padded_k() / 2).map(|row| row[0]).collect();
        let original = weights(plan.n(), k, global);
        let expected: Vec<u8> = original.packed().chunks(k / 2).map(|row| row[0]).collect();
        let kept = plan.slice_output(&column, 1).unwrap().into_owned();
        prop_assert_eq!(kept, expected);

        let x: Vec<u16> = (0..rows * k).map(|i| i as u16 | 1).collect();
        let wide = plan.pad_activation(&x, rows).unwrap();
        prop_assert_eq!(wide.len(), rows * plan.padded_k());
        let back = slice_nvfp4_output(&wide, rows, plan.padded_k(), k).unwrap();
        prop_assert_eq!(&back[..], &x[..]);
        prop_assert_eq!(wide.iter().filter(|&&v| v != 0).count(), x.len());
    }
}
