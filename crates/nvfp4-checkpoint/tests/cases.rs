//! Loading failures that users of other engines have met: scales that are missing, zero, NaN, inverted or merged; schemes
//! resolved wrongly; layouts that differ by producer.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod models;

use models::{Tensor, Tensors};
use nvfp4_checkpoint::{
    Checkpoint, Dialect, Error, NanScales, OpenOptions, Scheme, StoredScales, Warning,
    config::pattern::FusedModules,
    shard::{Rank, column_parallel, row_parallel},
};
use nvfp4_core::{
    ActivationScheme, LinearScales, NvFp4LinearLayer, dequantize, pack::NibbleOrder, swizzle_blockscale,
};
use safetensors::Dtype;
use serde_json::{Value, json};
use std::{collections::HashMap, path::Path};

fn bytes(dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Tensor {
    Tensor { dtype, shape: shape.to_vec(), bytes }
}

fn scalar(value: f32) -> Tensor {
    Tensor::new(Dtype::F32, &[], &[value])
}

/// A ModelOpt module whose codes are `code` and whose block scales are `scale`.
fn modelopt(name: &str, n: usize, k: usize, code: u8, scale: u8, global: f32, input: Option<f32>) -> Tensors {
    let mut tensors = Tensors::from([
        (format!("{name}.weight"), bytes(Dtype::U8, &[n, k / 2], vec![code | code << 4; n * k / 2])),
        (format!("{name}.weight_scale"), bytes(Dtype::F8_E4M3, &[n, k / 16], vec![scale; n * k / 16])),
        (format!("{name}.weight_scale_2"), scalar(global)),
    ]);
    tensors.extend(input.map(|input| (format!("{name}.input_scale"), scalar(input))));
    tensors
}

/// The same in compressed-tensors' form.
fn packed(name: &str, n: usize, k: usize, code: u8, scale: u8, divisor: f32, input: Option<f32>) -> Tensors {
    let one = |v: f32| Tensor::new(Dtype::F32, &[1], &[v]);
    let mut tensors = Tensors::from([
        (format!("{name}.weight_packed"), bytes(Dtype::U8, &[n, k / 2], vec![code | code << 4; n * k / 2])),
        (format!("{name}.weight_scale"), bytes(Dtype::F8_E4M3, &[n, k / 16], vec![scale; n * k / 16])),
        (format!("{name}.weight_global_scale"), one(divisor)),
    ]);
    tensors.extend(input.map(|input| (format!("{name}.input_global_scale"), one(input))));
    tensors
}

fn modelopt_config(activations: Value, ignore: &[&str]) -> Value {
    json!({"quantization_config": {
        "quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignore,
        "config_groups": {"group_0": {"weights": {}, "input_activations": activations, "targets": ["Linear"]}},
    }})
}

fn nvfp4_args(dynamic: Value) -> Value {
    json!({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": true, "dynamic": dynamic})
}

fn ct_config(activations: Value, ignore: &[&str]) -> Value {
    json!({"quantization_config": {
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": ignore,
        "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": nvfp4_args(json!(false)), "input_activations": activations,
        }},
    }})
}

/// Writes a checkpoint, opens it, and gives both to `test`.
fn with<R>(tensors: &Tensors, config: Option<Value>, test: impl FnOnce(&Path, Checkpoint) -> R) -> R {
    with_options(tensors, config, OpenOptions::default(), test)
}

fn with_options<R>(
    tensors: &Tensors,
    config: Option<Value>,
    options: OpenOptions,
    test: impl FnOnce(&Path, Checkpoint) -> R,
) -> R {
    let folder = tempfile::tempdir().unwrap();
    models::write(folder.path(), tensors);
    if let Some(config) = config {
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    }
    let checkpoint = Checkpoint::open_with(folder.path(), options).unwrap();
    test(folder.path(), checkpoint)
}

fn error(tensors: &Tensors, config: Option<Value>, module: &str) -> String {
    with(tensors, config, |_, c| c.linear(module).unwrap_err().to_string())
}

/// Sums of the dequantized rows in f32: the outputs for an input of ones.
fn row_sums(layer: &NvFp4LinearLayer<'_>) -> Vec<f32> {
    let k = layer.weights.in_features();
    dequantize::dequantize(&layer.weights).unwrap().chunks_exact(k).map(|row| row.iter().sum()).collect()
}

const STATIC: fn() -> Value = || json!({"dynamic": false, "num_bits": 4, "type": "float", "group_size": 16});

#[test]
fn scales_that_are_missing_zero_or_not_finite() {
    let config = || Some(modelopt_config(STATIC(), &[]));
    let good = modelopt("m.p", 2, 32, 2, 0x38, 0.5, Some(0.25));
    with(&good, config(), |_, c| assert_eq!(c.linear("m.p").unwrap().input_scale.unwrap().decode().get(), 0.25));

    // W4A4 static, input scale absent or unusable.
    let absent = modelopt("m.p", 2, 32, 2, 0x38, 0.5, None);
    let text = error(&absent, config(), "m.p");
    assert!(text.contains("`m.p`") && text.contains("`m.p.input_scale` is missing"), "{text}");
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let text = error(&modelopt("m.p", 2, 32, 2, 0x38, 0.5, Some(bad)), config(), "m.p");
        assert!(text.contains("m.p.input_scale") && text.contains(&format!("found {bad}")), "{text}");
        let text = error(&modelopt("m.p", 2, 32, 2, 0x38, bad, Some(0.25)), config(), "m.p");
        assert!(text.contains("m.p.weight_scale_2") && text.contains(&format!("found {bad}")), "{text}");
    }
    let mut no_global = good.clone();
    no_global.remove("m.p.weight_scale_2");
    assert!(error(&no_global, config(), "m.p").contains("`m.p.weight_scale_2` is missing"));

    // Declared dynamic: accepted, computed for each call.
    let dynamic = || Some(modelopt_config(json!({"dynamic": true, "num_bits": 4}), &[]));
    with(&absent, dynamic(), |_, c| {
        let layer = c.linear("m.p").unwrap();
        assert_eq!((layer.activation, layer.input_scale), (ActivationScheme::Nvfp4DynamicPerTensor, None));
    });
    // Says NVFP4, but every group has null input_activations: W4A16.
    with(&absent, Some(modelopt_config(Value::Null, &[])), |_, c| {
        assert_eq!(c.linear("m.p").unwrap().activation, ActivationScheme::Unquantized);
        assert!(c.warnings().is_empty());
    });
    // W4A16 with an input scale: accepted, and said to be ignored.
    with(&good, Some(modelopt_config(Value::Null, &[])), |_, c| {
        assert_eq!(c.linear("m.p").unwrap().input_scale, None);
        assert_eq!(c.warnings(), [Warning::IgnoredInputScale { tensor: "m.p.input_scale".into() }]);
    });
    // A divisor of 0: a dead tensor if there is no code, else an error.
    let weight_only = || Some(ct_config(Value::Null, &[]));
    with(&packed("m.p", 2, 32, 0, 0x38, 0.0, None), weight_only(), |_, c| {
        assert_eq!(row_sums(&c.linear("m.p").unwrap()), [0.0, 0.0]);
        assert_eq!(c.warnings(), [Warning::DeadTensor { tensor: "m.p.weight_global_scale".into() }]);
    });
    let text = error(&packed("m.p", 2, 32, 1, 0x38, 0.0, None), weight_only(), "m.p");
    assert!(text.contains("m.p.weight_global_scale") && text.contains("found 0"), "{text}");
}

/// Whatever tensor is dropped, the error names it.
#[test]
fn a_dropped_tensor_is_named() {
    for (all, config) in [
        (modelopt("m.p", 4, 32, 3, 0x40, 0.5, Some(0.25)), modelopt_config(STATIC(), &[])),
        (packed("m.p", 4, 32, 3, 0x40, 2.0, Some(4.0)), ct_config(nvfp4_args(json!("local")), &[])),
    ] {
        with(&all, Some(config.clone()), |_, c| {
            let values = dequantize::dequantize(&c.linear("m.p").unwrap().weights).unwrap();
            assert!(values.iter().all(|v| v.is_finite() && *v != 0.0));
        });
        for dropped in all.keys() {
            let mut rest = all.clone();
            rest.remove(dropped);
            let text = error(&rest, Some(config.clone()), "m.p");
            assert!(text.contains(&format!("`{dropped}`")) && text.contains("missing"), "{dropped}: {text}");
        }
    }
}

/// q, k and v with divisors 4096, 2048 and 1024: each row keeps its own.
#[test]
fn parts_of_a_fused_layer_keep_their_global_scales() {
    let mut tensors = Tensors::new();
    for (part, divisor) in [("q_proj", 4096.0), ("k_proj", 2048.0), ("v_proj", 1024.0)] {
        tensors.extend(packed(&format!("a.{part}"), 1, 16, 2, 0x38, divisor, None));
    }
    with(&tensors, Some(ct_config(Value::Null, &[])), |_, c| {
        let layer = c.linear("a.qkv_proj").unwrap();
        assert_eq!(layer.name, "a.qkv_proj");
        assert_eq!(row_sums(&layer), [0.00390625, 0.0078125, 0.015625]);
    });
    // Real numbers, and the fingerprints of the known mistakes, which must not appear.
    #[allow(clippy::excessive_precision, reason = "the figures as they were reported")]
    let divisors = [12343.1035, 5334.3257, 8001.4883];
    let mut tensors = Tensors::new();
    for (part, divisor) in ["q_proj", "k_proj", "v_proj"].into_iter().zip(divisors) {
        tensors.extend(packed(&format!("a.{part}"), 1, 16, 2, 0x38, divisor, None));
    }
    with(&tensors, Some(ct_config(Value::Null, &[])), |_, c| {
        let sums = row_sums(&c.linear("a.qkv_proj").unwrap());
        for (sum, expected) in sums.iter().zip([1.29627e-3, 2.99944e-3, 1.99963e-3]) {
            assert!((sum / expected - 1.0f32).abs() < 2e-6, "{sums:?}");
        }
    });
    // A part that is missing is named.
    tensors.retain(|name, _| !name.contains("k_proj"));
    let text = error(&tensors, Some(ct_config(Value::Null, &[])), "a.qkv_proj");
    assert!(text.contains("a.k_proj") && text.contains("missing"), "{text}");
}

/// The input scale of a fused layer is the largest: it clips no part.
#[test]
fn a_fused_layer_takes_the_largest_input_scale() {
    let mut tensors = modelopt("m.gate_proj", 2, 16, 2, 0x38, 0.5, Some(0.25));
    tensors.extend(modelopt("m.up_proj", 3, 16, 2, 0x38, 0.5, Some(0.75)));
    with(&tensors, Some(modelopt_config(STATIC(), &[])), |_, c| {
        let layer = c.linear("m.gate_up_proj").unwrap();
        assert_eq!(layer.input_scale.unwrap().decode().get(), 0.75);
        assert_eq!((layer.weights.out_features(), layer.weights.global().parts().len()), (5, 1));
    });
}

/// One scalar for a tensor that is stored fused covers all of its parts; a vector gives one to each.
#[test]
fn scalar_scales_of_fused_tensors() {
    let rows = [4, 2, 2];
    for shape in [&[][..], &[1]] {
        let mut tensors = modelopt("a.qkv_proj", 8, 16, 2, 0x38, 0.5, None);
        tensors.insert("a.qkv_proj.weight_scale_2".into(), Tensor::new(Dtype::F32, shape, &[0.5]));
        with(&tensors, None, |_, c| {
            assert_eq!(row_sums(&c.linear("a.qkv_proj").unwrap()), [8.0; 8]);
            let layer = c.linear_with_parts("a.qkv_proj", &rows).unwrap();
            assert_eq!(row_sums(&layer), [8.0; 8]);
            // Block scales go with the rows.
            let part = layer.weights.slice_rows(4..6).unwrap();
            assert_eq!((part.out_features(), part.scales().rows()), (2, 2));
        });
    }
    let mut tensors = modelopt("a.qkv_proj", 8, 16, 2, 0x38, 0.5, None);
    tensors.insert("a.qkv_proj.weight_scale_2".into(), Tensor::new(Dtype::F32, &[3], &[0.5, 0.25, 0.125]));
    with(&tensors, None, |_, c| {
        let layer = c.linear_with_parts("a.qkv_proj", &rows).unwrap();
        assert_eq!(row_sums(&layer), [8.0, 8.0, 8.0, 8.0, 4.0, 4.0, 2.0, 2.0]);
        let text = c.linear("a.qkv_proj").unwrap_err().to_string();
        assert!(text.contains("a.qkv_proj.weight_scale_2") && text.contains("found 3"), "{text}");
        let text = c.linear_with_parts("a.qkv_proj", &[4, 2, 1]).unwrap_err().to_string();
        assert!(text.contains("7 rows in all, the weight has 8"), "{text}");
    });
}

/// A divisor is divided by: the same weight in both ecosystems' conventions gives the same values.
#[test]
fn conventions_are_not_mixed_up() {
    let ct = packed("m.p", 1, 16, 2, 0x38, 3584.0, None);
    let mo = modelopt("m.p", 1, 16, 2, 0x38, 1.0 / 3584.0, None);
    let ct = with(&ct, Some(ct_config(Value::Null, &[])), |_, c| row_sums(&c.linear("m.p").unwrap())[0]);
    let mo = with(&mo, Some(modelopt_config(Value::Null, &[])), |_, c| row_sums(&c.linear("m.p").unwrap())[0]);
    assert!((ct - 0.004464286).abs() < 1e-8 && (ct - mo).abs() <= f32::EPSILON * ct, "{ct} {mo}");
}

/// NaN block scales: an error with place and count, or repaired if asked.
#[test]
fn nan_and_negative_block_scales() {
    let spoil = |byte: u8, code: u8| {
        let mut tensors = modelopt("m.p", 4, 64, 2, 0x38, 1.0, None);
        tensors.get_mut("m.p.weight_scale").unwrap().bytes[3 * 4 + 2] = byte;
        tensors.get_mut("m.p.weight").unwrap().bytes[3 * 32 + 16..][..8].fill(code | code << 4);
        tensors
    };
    let text = error(&spoil(0x7f, 0), None, "m.p");
    assert!(
        text.contains("m.p.weight_scale") && text.contains("row 3, column 2") && text.contains("1 such"),
        "{text}"
    );
    let repair = || OpenOptions::default().with_nan_scales(NanScales::Repair);
    with_options(&spoil(0x7f, 0), None, repair(), |_, c| {
        assert_eq!(row_sums(&c.linear("m.p").unwrap()), [64.0, 64.0, 64.0, 48.0]);
        assert!(c.warnings().is_empty());
    });
    with_options(&spoil(0x7f, 1), None, repair(), |_, c| {
        assert_eq!(row_sums(&c.linear("m.p").unwrap())[3], 48.0 + 16.0 * 0.5 * 448.0);
        let expected = Warning::ClampedBlocks { tensor: "m.p.weight_scale".into(), blocks: 1, first: Some((3, 2)) };
        assert_eq!(c.warnings(), [expected]);
    });
    for byte in [0xff, 0xb8] {
        assert!(error(&spoil(byte, 0), None, "m.p").contains(&format!("{byte:#04x}")));
        let refused =
            with_options(&spoil(byte, 0), None, repair(), |_, c| c.linear("m.p").unwrap_err().to_string());
        assert!(refused.contains("row 3, column 2"), "{refused}");
    }
}

/// Nibble order and tiled scales are told by the caller.
#[test]
fn layouts_that_files_do_not_tell() {
    let (n, k) = (128, 64);
    let scales: Vec<u8> = (0..n * k / 16).map(|i| (i % 0x7e) as u8 + 1).collect();
    let mut tensors = modelopt("m.p", n, k, 0, 0, 1.0, None);
    let codes: Vec<u8> = (0..n * k / 2).map(|i| (i * 37 % 251) as u8).collect();
    tensors.get_mut("m.p.weight").unwrap().bytes = codes.clone();
    tensors.get_mut("m.p.weight_scale").unwrap().bytes = scales.clone();
    let expected = with(&tensors, None, |_, c| dequantize::dequantize(&c.linear("m.p").unwrap().weights).unwrap());

    tensors.get_mut("m.p.weight").unwrap().bytes = codes.iter().map(|b| b.rotate_left(4)).collect();
    let tiled = swizzle_blockscale(&LinearScales::new(n, k / 16, scales).unwrap()).unwrap();
    tensors.get_mut("m.p.weight_scale").unwrap().bytes = tiled.bytes().to_vec();
    let read = |options| {
        with_options(&tensors, None, options, |_, c| {
            dequantize::dequantize(&c.linear("m.p").unwrap().weights).unwrap()
        })
    };
    let both = OpenOptions::default()
        .with_nibble_order(NibbleOrder::HighFirst)
        .with_stored_scales(StoredScales::Swizzled128x4);
    assert_eq!(read(both), expected);
    assert_ne!(read(OpenOptions::default()), expected);
}

#[test]
fn schemes_of_modules() {
    let dense = |name: &str| (format!("{name}.weight"), Tensor::new(Dtype::BF16, &[2, 32], &[1.0; 64]));
    let nvfp4 = |name: &str| packed(name, 2, 32, 2, 0x38, 2.0, None);
    let config = |ignore: &[&str]| Some(ct_config(Value::Null, ignore));
    let scheme = |tensors: &Tensors, config: Option<Value>, name: &str| {
        with(tensors, config, |_, c| c.module(name).unwrap().scheme.clone())
    };

    // Ignored and stored dense.
    let tensors = Tensors::from([dense("a.q_proj"), dense("a.k_proj"), dense("a.v_proj")]);
    let ignore = ["a.q_proj", "a.k_proj", "a.v_proj"];
    assert!(matches!(scheme(&tensors, config(&ignore), "a.q_proj"), Scheme::Dense(_)));
    assert!(error(&tensors, config(&ignore), "a.qkv_proj").contains("dense"), "fused");
    // Only q is: mixed parts.
    let mut mixed = Tensors::from([dense("a.q_proj")]);
    mixed.extend(nvfp4("a.k_proj").into_iter().chain(nvfp4("a.v_proj")));
    let text = error(&mixed, config(&["a.q_proj"]), "a.qkv_proj");
    assert!(text.contains("a.q_proj is dense bf16") && text.contains("a.k_proj is NVFP4"), "{text}");
    // The fused name itself is ignored, while it is packed.
    let text = error(&nvfp4("a.qkv_proj"), config(&["a.qkv_proj"]), "a.qkv_proj");
    assert!(text.contains("ignore list") && text.contains("packed NVFP4"), "{text}");
    // lm_head is ignored, but packed: never silent.
    let text = error(&nvfp4("lm_head"), config(&["lm_head"]), "lm_head");
    assert!(text.contains("`lm_head`") && text.contains("ignore list"), "{text}");
    // The configuration knows the module under another prefix.
    let renamed = OpenOptions::default()
        .with_rename([("model.language_model.", "language_model.model.")])
        .with_fused_modules(FusedModules::default());
    let module = "model.language_model.layers.3.down_proj";
    let by_name = json!({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"g": {
        "targets": ["re:language_model[.]model.*down_proj"], "weights": nvfp4_args(json!(false)), "input_activations": null,
    }}}});
    with_options(&nvfp4(module), Some(by_name.clone()), renamed, |_, c| assert!(c.linear(module).is_ok()));
    assert!(error(&nvfp4(module), Some(by_name), module).contains("no group covers it"));
    // Two groups claim the module: its tensors decide.
    let fp8 = json!({"num_bits": 8, "type": "float", "strategy": "channel"});
    let two = json!({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
        "a": {"targets": ["re:.*57.*"], "weights": fp8, "input_activations": null},
        "b": {"targets": ["re:.*mlp.*"], "weights": nvfp4_args(json!(false)), "input_activations": null},
    }}});
    let name = "layers.57.mlp.up";
    assert_eq!(scheme(&nvfp4(name), Some(two.clone()), name), Scheme::NvFp4(ActivationScheme::Unquantized));
    let f8 = Tensors::from([(format!("{name}.weight"), bytes(Dtype::F8_E4M3, &[2, 32], vec![0x38; 64]))]);
    assert_eq!(scheme(&f8, Some(two.clone()), name), Scheme::Other("FP8".into()));
    let text = error(&nvfp4("layers.57.x"), Some(two), "layers.57.x");
    assert!(text.contains("8-bit float channel") && text.contains("packed NVFP4"), "{text}");
    // A packed module asked for as a dense one.
    with(&nvfp4("m.p"), config(&[]), |_, c| {
        let text = c.dense_weight("m.p").unwrap_err().to_string();
        assert!(text.contains("packed FP4"), "{text}");
    });
    with(&tensors, config(&ignore), |_, c| assert_eq!(c.dense_weight("a.q_proj").unwrap().shape, [2, 32]));
    // Every module has a line to print.
    with(&mixed, config(&["a.q_proj"]), |_, c| {
        let table: Vec<_> = c.modules().map(|m| format!("{} {}", m.name, m.scheme)).collect();
        assert_eq!(table, ["a.k_proj NVFP4 W4A16", "a.q_proj dense bf16", "a.v_proj NVFP4 W4A16"]);
    });
}

#[test]
fn configurations_that_cannot_be_used() {
    let tensors = modelopt("m.p", 2, 32, 2, 0x38, 0.5, Some(0.25));
    let opened = |config: Value| {
        let folder = tempfile::tempdir().unwrap();
        models::write(folder.path(), &tensors);
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        match Checkpoint::open(folder.path()) {
            Ok(c) => c.linear("m.p").map(|_| ()).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    };
    for (config, texts) in [
        (
            json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}}),
            ["NVFP4_AWQ", "scales the input"],
        ),
        (
            json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4_SVD"}}),
            ["NVFP4_SVD", "low-rank"],
        ),
        (
            json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A8_NVFP4_FP8"}}),
            ["W4A8_NVFP4_FP8", "FP8 activations"],
        ),
        (
            json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP5"}}),
            ["NVFP5", "W4A16_NVFP4"],
        ),
        (json!({"quantization_config": {"quant_method": "fp_quant"}}), ["FP-Quant", "m.p"]),
        (json!({"quantization_config": {"quant_method": "gptq"}}), ["`gptq`", "compressed-tensors"]),
        (json!({"quantization_config": {"bits": 4}}), ["quant_method", "bits"]),
        (
            json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}}),
            ["32", "16"],
        ),
        (
            json!({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {}}}),
            ["compressed-tensors", "ModelOpt"],
        ),
        (json!({"quantization_config": {"quant_method": "compressed-tensors"}}), ["config_groups", "nothing"]),
        (
            json!({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {}, "ignore": ["re:("]}}),
            ["`(`", "ignore"],
        ),
    ] {
        let text = opened(config.clone());
        assert!(texts.iter().all(|t| text.contains(t)), "{config}: {text}");
    }
    // The older file is read if config.json says nothing.
    let folder = tempfile::tempdir().unwrap();
    models::write(folder.path(), &tensors);
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    let legacy = json!({"producer": {"name": "modelopt"}, "quantization": {
        "quant_algo": "NVFP4", "kv_cache_quant_algo": null, "group_size": 16, "exclude_modules": ["lm_head"]}});
    std::fs::write(folder.path().join("hf_quant_config.json"), legacy.to_string()).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.dialect(), Dialect::ModelOpt);
    assert_eq!(checkpoint.linear("m.p").unwrap().activation, ActivationScheme::Nvfp4Static);
    // AWQ's pre-scales are refused, not dropped.
    let mut awq = tensors.clone();
    awq.insert("m.p.pre_quant_scale".into(), Tensor::new(Dtype::F32, &[32], &[1.0; 32]));
    assert!(error(&awq, None, "m.p").contains("pre_quant_scale"));
}

/// Shards of parts join to shards of the whole, and all shards together are the whole.
#[test]
fn shards_are_the_layer_again() {
    let mut tensors = Tensors::new();
    for (i, part) in ["q_proj", "k_proj", "v_proj"].into_iter().enumerate() {
        let n = [8, 4, 4][i];
        let mut module = modelopt(&format!("a.{part}"), n, 64, 0, 0x38, 0.5 / (i + 1) as f32, Some(0.5));
        module.get_mut(&format!("a.{part}.weight")).unwrap().bytes =
            (0..n * 32).map(|j| (j * 31 + i) as u8).collect();
        module.insert(
            format!("a.{part}.bias"),
            Tensor::new(Dtype::F32, &[n], &(0..n).map(|b| b as f32).collect::<Vec<_>>()),
        );
        tensors.extend(module);
    }
    with(&tensors, Some(modelopt_config(STATIC(), &[])), |_, c| {
        let parts: Vec<_> = ["q_proj", "k_proj", "v_proj"].map(|p| c.linear(&format!("a.{p}")).unwrap()).into();
        for world in [1, 2, 4] {
            let shards: Vec<_> =
                (0..world).map(|rank| column_parallel(&parts, Rank { rank, world }).unwrap()).collect();
            // Take the parts of each shard apart again.
            let mut first = 0;
            for part in &parts {
                let rows = part.weights.out_features() / world;
                let whole = dequantize::dequantize(&part.weights).unwrap();
                let joined: Vec<f32> = shards
                    .iter()
                    .flat_map(|s| {
                        dequantize::dequantize(&s.weights.slice_rows(first..first + rows).unwrap()).unwrap()
                    })
                    .collect();
                assert_eq!(joined, whole, "{} of {world}", part.name);
                let bias: Vec<f32> =
                    shards.iter().flat_map(|s| s.bias.as_ref().unwrap()[first..first + rows].to_vec()).collect();
                assert_eq!(&bias, part.bias.as_ref().unwrap());
                first += rows;
            }
            let columns: Vec<_> =
                (0..world).map(|rank| row_parallel(&parts[0], Rank { rank, world }).unwrap()).collect();
            let whole = dequantize::dequantize(&parts[0].weights).unwrap();
            for (rank, shard) in columns.iter().enumerate() {
                let (values, width) = (dequantize::dequantize(&shard.weights).unwrap(), 64 / world);
                for row in 0..8 {
                    assert_eq!(values[row * width..(row + 1) * width], whole[row * 64 + rank * width..][..width]);
                }
                assert_eq!(shard.bias.is_some(), rank == 0);
            }
        }
        for (rank, text) in [
            (Rank { rank: 0, world: 3 }, "64 input features"),
            (Rank { rank: 0, world: 8 }, "multiple of 16"),
            (Rank { rank: 2, world: 2 }, "rank 2 of 2"),
        ] {
            let error = row_parallel(&parts[0], rank).unwrap_err().to_string();
            assert!(error.contains("a.q_proj") && error.contains(text), "{error}");
        }
        assert!(column_parallel(&parts, Rank { rank: 0, world: 8 }).unwrap_err().to_string().contains("a.k_proj"));
    });
}

/// torchao and GGUF: their own places for scales and activations.
#[test]
fn other_containers() {
    let metadata = |swizzled: bool, activations: Value| {
        let description = json!({"_type": "NVFP4Tensor", "_data": {"block_size": 16, "is_swizzled_scales": swizzled, "act_quant_kwargs": activations}});
        HashMap::from([("m.p.weight".to_string(), description.to_string())])
    };
    let tensors = Tensors::from([
        ("m.p._weight_qdata".to_string(), bytes(Dtype::U8, &[2, 16], vec![0x22; 32])),
        ("m.p._weight_scale".to_string(), bytes(Dtype::F8_E4M3, &[2, 2], vec![0x38; 4])),
        ("m.p._weight_per_tensor_scale".to_string(), scalar(0.5)),
    ]);
    for (activations, expected) in
        [(Value::Null, ActivationScheme::Unquantized), (json!({}), ActivationScheme::Nvfp4DynamicPerTensor)]
    {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        models::write_file(&path, &tensors, &metadata(false, activations));
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.dialect(), Dialect::TorchAo);
        let layer = checkpoint.linear("m.p").unwrap();
        assert_eq!((layer.activation, row_sums(&layer)), (expected, vec![16.0, 16.0]));
    }
    // A scale that is listed, or may be, is missed.
    let mut dropped = tensors.clone();
    dropped.remove("m.p._weight_per_tensor_scale");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    models::write_file(&path, &dropped, &metadata(false, Value::Null));
    let text = Checkpoint::open(&path).unwrap().linear("m.p").unwrap_err().to_string();
    assert!(text.contains("`m.p._weight_per_tensor_scale` is missing"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    models::write_file(&path, &tensors, &metadata(true, Value::Null));
    let error = Checkpoint::open(&path).unwrap().linear("m.p").unwrap_err();
    assert!(matches!(&error, Error::Values { tensor, .. } if tensor == "m.p._weight_scale"), "{error}");
}

/// A layer that is joined already is divided part by part, like its parts: never across them.
#[test]
fn shards_of_joined_layers() {
    let rows = [8, 4, 4];
    let mut tensors = Tensors::new();
    for (i, part) in ["q_proj", "k_proj", "v_proj"].into_iter().enumerate() {
        let mut module = modelopt(&format!("a.{part}"), rows[i], 32, 0, 0x38, 0.5 / (i + 1) as f32, Some(0.5));
        module.get_mut(&format!("a.{part}.weight")).unwrap().bytes =
            (0..rows[i] * 16).map(|j| (j * 7 + i) as u8).collect();
        module.insert(format!("a.{part}.bias"), Tensor::new(Dtype::F32, &[rows[i]], &vec![i as f32; rows[i]]));
        tensors.extend(module);
    }
    with(&tensors, Some(modelopt_config(STATIC(), &[])), |_, c| {
        let parts: Vec<_> = ["q_proj", "k_proj", "v_proj"].map(|p| c.linear(&format!("a.{p}")).unwrap()).into();
        let joined = c.linear("a.qkv_proj").unwrap();
        for world in [1, 2, 4] {
            for rank in (0..world).map(|rank| Rank { rank, world }) {
                let apart = column_parallel(&parts, rank).unwrap();
                let together = column_parallel(std::slice::from_ref(&joined), rank).unwrap();
                assert_eq!((&together.weights, &together.bias), (&apart.weights, &apart.bias), "{rank:?}");
                assert_eq!(together.weights.stacked_rows(), Some(&rows.map(|n| n / world)[..]));
                // Sharding a shard is the same as sharding once.
                let (halved, rest) = (Rank { rank: rank.rank * 2 / world, world: 2 }, world / 2);
                if rest > 1 {
                    let half = column_parallel(std::slice::from_ref(&joined), halved).unwrap();
                    let again = column_parallel(&[half], Rank { rank: rank.rank % rest, world: rest }).unwrap();
                    assert_eq!(again.weights, together.weights);
                }
            }
        }
        let error = column_parallel(&[joined], Rank { rank: 0, world: 8 }).unwrap_err().to_string();
        assert!(error.contains("4 output features of part 2 of 3"), "{error}");
        // A weight-only part beside a W4A4 one would get the other's activations.
        let mut weight_only = parts[1].clone();
        (weight_only.activation, weight_only.input_scale) = (ActivationScheme::Unquantized, None);
        let error = column_parallel(&[parts[0].clone(), weight_only], Rank { rank: 0, world: 2 }).unwrap_err();
        assert!(matches!(&error, Error::MixedParts { .. }), "{error}");
    });
}

/// A weight that is stored fused tells nothing of its parts' rows: they are given, or the layer is not divided.
#[test]
fn shards_of_layers_that_are_stored_fused() {
    for name in ["a.qkv_proj", "mlp.gate_up_proj", "attn.Wqkv", "h.0.attn.c_attn", "attn.query_key_value"] {
        let mut tensors = modelopt(name, 8, 32, 0, 0x38, 0.5, Some(0.5));
        tensors.get_mut(&format!("{name}.weight")).unwrap().bytes = (0..8 * 16).map(|i| i as u8).collect();
        with(&tensors, Some(modelopt_config(STATIC(), &[])), |_, c| {
            let half = Rank { rank: 1, world: 2 };
            let error = column_parallel(&[c.linear(name).unwrap()], half).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("rows of its parts"), "{error}");
            let known = c.linear_with_parts(name, &[4, 2, 2]).unwrap();
            let shard = column_parallel(&[known], half).unwrap();
            let codes: Vec<u8> =
                [2..4, 5..6, 7..8].into_iter().flatten().flat_map(|row| row * 16..(row + 1) * 16).collect();
            assert_eq!(shard.weights.packed(), codes);
            // The caller may know that any row is a boundary.
            let mut whole = c.linear(name).unwrap();
            whole.weights = whole.weights.with_stacked_rows([8]).unwrap();
            assert_eq!(
                column_parallel(&[whole], half).unwrap().weights.packed()[..],
                tensors[&format!("{name}.weight")].bytes[64..]
            );
            // Columns are the same for all parts.
            assert!(row_parallel(&c.linear(name).unwrap(), half).is_ok());
        });
    }
}

/// Scales come one for all parts, or one for each; any other number is a file of something else.
#[test]
fn scale_vectors_of_other_lengths() {
    for scale in ["input_scale", "weight_scale_2"] {
        for (count, parts, fits) in [
            (1, None, true),
            (1, Some(&[4, 2, 2][..]), true),
            (3, Some(&[4, 2, 2]), true),
            (3, None, false),
            (2, Some(&[4, 2, 2]), false),
            (5, None, false),
            (0, None, false),
            (0, Some(&[4, 2, 2]), false),
        ] {
            let mut tensors = modelopt("a.qkv_proj", 8, 32, 2, 0x38, 0.5, Some(0.5));
            let values: Vec<f32> = (0..count).map(|i| 0.5 / (i + 1) as f32).collect();
            tensors.insert(format!("a.qkv_proj.{scale}"), Tensor::new(Dtype::F32, &[count], &values));
            with(&tensors, Some(modelopt_config(STATIC(), &[])), |_, c| {
                let layer = match parts {
                    Some(parts) => c.linear_with_parts("a.qkv_proj", parts),
                    None => c.linear("a.qkv_proj"),
                };
                match layer {
                    Ok(layer) => {
                        assert!(fits, "{scale}: {count} values, parts {parts:?}");
                        assert_eq!(layer.input_scale.unwrap().decode().get(), 0.5, "the largest");
                    }
                    Err(error) => {
                        let text = error.to_string();
                        assert!(!fits, "{text}");
                        let found = format!("found {count} ([{count}])");
                        assert!(text.contains(scale) && text.contains(&found), "{text}");
                    }
                }
            });
        }
    }
    let tensors = modelopt("m", 8, 32, 2, 0x38, 0.5, Some(0.5));
    with(&tensors, Some(modelopt_config(STATIC(), &[])), |_, c| {
        for parts in [&[4, 3][..], &[8, 0], &[], &[usize::MAX, 9]] {
            assert!(c.linear_with_parts("m", parts).is_err(), "{parts:?}");
        }
    });
}

/// One part that was never used (scale 0, no code) spoils none of the others; one with codes is an error.
#[test]
fn a_dead_part_of_a_fused_layer() {
    let mut tensors = Tensors::new();
    for (part, divisor, code) in [("q_proj", 4096.0, 2), ("k_proj", 0.0, 0), ("v_proj", 1024.0, 2)] {
        tensors.extend(packed(&format!("a.{part}"), 1, 16, code, 0x38, divisor, None));
    }
    let config = || Some(ct_config(Value::Null, &[]));
    with(&tensors, config(), |_, c| {
        assert_eq!(row_sums(&c.linear("a.qkv_proj").unwrap()), [0.00390625, 0.0, 0.015625]);
        assert_eq!(c.warnings(), [Warning::DeadTensor { tensor: "a.k_proj.weight_global_scale".into() }]);
    });
    tensors.get_mut("a.k_proj.weight_packed").unwrap().bytes[7] = 0x10;
    let text = error(&tensors, config(), "a.qkv_proj");
    assert!(text.contains("a.k_proj.weight_global_scale") && text.contains("found 0"), "{text}");
    // Stored fused, with a scale for each part.
    let mut fused = packed("a.qkv_proj", 3, 16, 2, 0x38, 1.0, None);
    fused.get_mut("a.qkv_proj.weight_packed").unwrap().bytes[8..16].fill(0);
    let scales = Tensor::new(Dtype::F32, &[3], &[4096.0, 0.0, 1024.0]);
    fused.insert("a.qkv_proj.weight_global_scale".into(), scales);
    with(&fused, config(), |_, c| {
        let layer = c.linear_with_parts("a.qkv_proj", &[1, 1, 1]).unwrap();
        assert_eq!(row_sums(&layer), [0.00390625, 0.0, 0.015625]);
        assert!(layer.weights.global().iter_rows().all(|scale| scale.decode().get().is_finite()));
    });
}

/// Modules that are stored fused, under ignore lists that name the fused module, all of its parts, or some.
#[test]
fn ignore_lists_and_modules_that_are_stored_fused() {
    let dense = Tensors::from([("a.qkv_proj.weight".to_string(), Tensor::new(Dtype::BF16, &[6, 32], &[1.0; 192]))]);
    for (ignore, agrees) in [
        (&["a.q_proj", "a.k_proj", "a.v_proj"][..], true),
        (&["re:.*[.][qkv]_proj"], true),
        (&["a.qkv_proj"], true),
        (&["re:a[.]qkv.*"], true),
        (&["a.q_proj"], false),
        (&["b.q_proj", "b.k_proj", "b.v_proj"], false),
        (&[], false),
    ] {
        with(&dense, Some(ct_config(Value::Null, ignore)), |_, c| {
            let module = c.module("a.qkv_proj").unwrap();
            assert!(matches!(module.scheme, Scheme::Dense(_)), "{ignore:?}: {}", module.scheme);
            assert_eq!(module.contradiction.is_none(), agrees, "{ignore:?}: {:?}", module.contradiction);
        });
        // The other way round: packed.
        let text =
            match with(&packed("a.qkv_proj", 6, 32, 2, 0x38, 2.0, None), Some(ct_config(Value::Null, ignore)), {
                |_, c| c.linear("a.qkv_proj").map(drop)
            }) {
                Ok(()) => {
                    assert!(!agrees && ignore.first() != Some(&"a.q_proj"), "{ignore:?}");
                    continue;
                }
                Err(error) => error.to_string(),
            };
        let expected = if agrees { "ignore list" } else { "some of its parts" };
        assert!(text.contains("a.qkv_proj") && text.contains(expected), "{ignore:?}: {text}");
    }
}

/// A mixed configuration gives each layer a size of its blocks; so do config groups. Only 16 is NVFP4.
#[test]
fn group_sizes_of_layers_and_groups() {
    let tensors: Tensors =
        ["a", "b", "c"].into_iter().flat_map(|m| modelopt(m, 2, 32, 2, 0x38, 0.5, Some(0.25))).collect();
    let mixed = |size: Value, all: Value| {
        json!({"quantization_config": {
            "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "group_size": all,
            "quantized_layers": {
                "a": {"quant_algo": "NVFP4", "group_size": size}, "b": {"quant_algo": "NVFP4", "group_size": 16},
                "c": {"quant_algo": "W4A16_NVFP4"},
            },
        }})
    };
    with(&tensors, Some(mixed(json!(16), Value::Null)), |_, c| {
        assert!(["a", "b", "c"].iter().all(|m| c.linear(m).is_ok()));
    });
    with(&tensors, Some(mixed(json!("32"), Value::Null)), |_, c| {
        let text = c.linear("a").unwrap_err().to_string();
        assert!(text.contains("`a`") && text.contains("32") && text.contains("16"), "{text}");
        assert!(c.linear("b").is_ok() && c.linear("c").is_ok(), "only the layer that says so");
    });
    with(&tensors, Some(mixed(json!(16), json!(32))), |_, c| {
        assert!(c.linear("a").is_ok() && c.linear("b").is_ok());
        assert!(c.linear("c").unwrap_err().to_string().contains("32"), "what a layer does not say, the whole does");
    });
    let group = |size: Value| {
        json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": {
            "group_0": {"weights": {"group_size": 16}, "input_activations": {"dynamic": false}, "targets": ["Linear"]},
            "group_1": {"weights": {"group_size": size}, "input_activations": {"dynamic": false}, "targets": ["x"]},
        }}})
    };
    with(&tensors, Some(group(json!(16))), |_, c| assert!(c.linear("a").is_ok()));
    with(&tensors, Some(group(json!(128))), |_, c| {
        assert!(c.linear("a").unwrap_err().to_string().contains("128"));
    });
    for wrong in [mixed(json!("many"), Value::Null), mixed(json!(-1), Value::Null), group(json!([16]))] {
        let folder = tempfile::tempdir().unwrap();
        models::write(folder.path(), &tensors);
        std::fs::write(folder.path().join("config.json"), wrong.to_string()).unwrap();
        let text = Checkpoint::open(folder.path()).unwrap_err().to_string();
        assert!(text.contains("group_size") && text.contains("an integer"), "{text}");
    }
}

/// Exclusion lists of thousands of patterns over models of thousands of modules.
#[test]
fn long_exclusion_lists() {
    let entries: Vec<String> = (0..500).map(|i| format!("model.layers.{i}.*[0-9].never?")).collect();
    let config = json!({"quant_algo": "NVFP4", "exclude_modules": entries});
    let config = nvfp4_checkpoint::config::modelopt::Config::parse(&config).unwrap();
    let fused = FusedModules::default();
    // What is taken apart here for each entry and module would take minutes.
    let excluded = (0..10_000)
        .map(|i| {
            format!(
                "model.layers.{}.mlp.experts.{}.{}",
                i % 100,
                i / 100,
                if i == 77 { "7.never1" } else { "up_proj" }
            )
        })
        .filter(|name| config.is_excluded(name, &fused).unwrap())
        .count();
    assert_eq!(excluded, 1);
}

/// The configuration and the tensors disagree, either way: the module says so, and nothing loads as what it is not.
#[test]
fn contradictions() {
    let dense = || Tensors::from([("m.weight".to_string(), Tensor::new(Dtype::BF16, &[2, 32], &[1.0; 64]))]);
    let fp8 = || {
        Tensors::from([
            ("m.weight".to_string(), bytes(Dtype::F8_E4M3, &[2, 32], vec![0x38; 64])),
            ("m.weight_scale".to_string(), scalar(1.0)),
        ])
    };
    let torchao = || {
        Tensors::from([
            ("m._weight_qdata".to_string(), bytes(Dtype::U8, &[2, 16], vec![0x22; 32])),
            ("m._weight_scale".to_string(), bytes(Dtype::F8_E4M3, &[2, 2], vec![0x38; 4])),
        ])
    };
    let (mo, ct) = (modelopt("m", 2, 32, 2, 0x38, 0.5, Some(0.25)), packed("m", 2, 32, 2, 0x38, 2.0, Some(4.0)));
    let ct_static = || ct_config(nvfp4_args(json!("local")), &[]);
    let mixed = |algorithm: &str| {
        json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {"m": {"quant_algo": algorithm}}}})
    };
    let nothing: Option<(&str, &str)> = None;
    let (excluded, nvfp4) = ("it is excluded from quantization", "it is NVFP4");
    for (tensors, config, expected, loads) in [
        (dense(), None, nothing, false),
        (dense(), Some(modelopt_config(STATIC(), &["m"])), nothing, false),
        (dense(), Some(modelopt_config(STATIC(), &[])), Some((nvfp4, "dense bf16")), false),
        (dense(), Some(ct_static()), Some((nvfp4, "dense bf16")), false),
        (dense(), Some(mixed("NVFP4")), Some((nvfp4, "dense bf16")), false),
        (dense(), Some(mixed("FP8")), Some(("it is FP8", "dense bf16")), false),
        (fp8(), None, nothing, false),
        (fp8(), Some(modelopt_config(STATIC(), &[])), Some((nvfp4, "FP8")), false),
        (fp8(), Some(modelopt_config(STATIC(), &["m"])), Some((excluded, "FP8")), false),
        (fp8(), Some(mixed("FP8")), nothing, false),
        (fp8(), Some(mixed("W4A16_NVFP4")), Some((nvfp4, "FP8")), false),
        (mo.clone(), None, nothing, true),
        (mo.clone(), Some(modelopt_config(STATIC(), &[])), nothing, true),
        (mo.clone(), Some(modelopt_config(STATIC(), &["m"])), Some((excluded, "packed NVFP4")), false),
        (mo.clone(), Some(mixed("FP8")), Some(("it is FP8", "packed NVFP4")), false),
        (mo.clone(), Some(ct_static()), Some(("the format is compressed-tensors", "ModelOpt")), false),
        (ct.clone(), Some(ct_static()), nothing, true),
        (
            ct.clone(),
            Some(ct_config(nvfp4_args(json!("local")), &["m"])),
            Some(("ignore list", "packed NVFP4")),
            false,
        ),
        (ct, Some(modelopt_config(STATIC(), &[])), Some(("the format is ModelOpt", "compressed-tensors")), false),
        (torchao(), Some(modelopt_config(STATIC(), &[])), Some(("the format is ModelOpt", "torchao")), false),
    ] {
        let metadata = r#"{"_type": "NVFP4Tensor", "_data": {"block_size": 16, "is_swizzled_scales": false}}"#;
        let metadata = HashMap::from([("m.weight".to_string(), metadata.to_string())]);
        let folder = tempfile::tempdir().unwrap();
        models::write_file(&folder.path().join("model.safetensors"), &tensors, &metadata_if(&tensors, metadata));
        if let Some(config) = &config {
            std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        }
        let c = Checkpoint::open(folder.path()).unwrap();
        let module = c.module("m").unwrap();
        let found = module.contradiction.as_ref();
        let shown = found.map(ToString::to_string).unwrap_or_default();
        assert_eq!(found.is_some(), expected.is_some(), "{config:?}: {shown}");
        if let (Some(found), Some((says, holds))) = (found, expected) {
            assert!(found.config.contains(says) && found.tensors.contains(holds), "{shown}");
            let error = c.linear("m").unwrap_err();
            assert!(matches!(error, Error::Contradiction { .. }), "{error}");
        }
        assert_eq!(c.linear("m").is_ok(), loads, "{config:?}");
        // A dense weight is what it is.
        assert_eq!(c.dense_weight("m").is_ok(), tensors == dense());
    }
    // Embedding tables are no linear modules.
    let table = Tensors::from([("model.embed_tokens.weight".to_string(), dense().remove("m.weight").unwrap())]);
    with(&table, Some(modelopt_config(STATIC(), &[])), |_, c| {
        assert_eq!(c.module("model.embed_tokens").unwrap().contradiction, None);
    });
}

/// The metadata for tensors that need it.
fn metadata_if(tensors: &Tensors, metadata: HashMap<String, String>) -> HashMap<String, String> {
    if tensors.keys().any(|name| name.contains("_qdata")) { metadata } else { HashMap::new() }
}

/// Each format that is not read is named by what it stores, with what to do.
#[test]
fn formats_that_are_not_read() {
    let raw = |dtype, shape: &[usize]| {
        let bits = match dtype {
            Dtype::I32 | Dtype::U32 | Dtype::F32 => 32,
            Dtype::F16 | Dtype::BF16 | Dtype::I16 => 16,
            _ => 8,
        };
        bytes(dtype, shape, vec![0; shape.iter().product::<usize>() * bits / 8])
    };
    type Named<'a> = Vec<(&'a str, Tensor)>;
    let fp_quant = |block: usize| -> Named<'_> {
        vec![
            ("qweight", raw(Dtype::U8, &[8, 64])),
            ("scales", raw(Dtype::U8, &[8, 128 / block])),
            ("weight_global_scale", raw(Dtype::F32, &[1])),
            ("act_global_scale", raw(Dtype::F32, &[1])),
            ("forward_hadamard_matrix", raw(Dtype::BF16, &[16, 16])),
            // Kept, though nothing is in them.
            ("weight", raw(Dtype::BF16, &[0])),
            ("dqweight", raw(Dtype::BF16, &[0])),
        ]
    };
    let gptq: Named<'_> = vec![
        ("qweight", raw(Dtype::I32, &[16, 8])),
        ("qzeros", raw(Dtype::I32, &[1, 1])),
        ("scales", raw(Dtype::F16, &[1, 8])),
        ("g_idx", raw(Dtype::I32, &[128])),
    ];
    let awq: Named<'_> = vec![
        ("qweight", raw(Dtype::I32, &[128, 1])),
        ("qzeros", raw(Dtype::I32, &[1, 1])),
        ("scales", raw(Dtype::F16, &[1, 8])),
    ];
    for (tensors, what, hint) in [
        (fp_quant(16), "FP-Quant NVFP4", "forward_hadamard_matrix"),
        (fp_quant(32), "FP-Quant MXFP4", "forward_hadamard_matrix"),
        (
            vec![
                ("dqweight", raw(Dtype::BF16, &[8, 128])),
                ("forward_hadamard_matrix", raw(Dtype::BF16, &[16, 16])),
                ("act_global_scale", raw(Dtype::F32, &[1])),
                ("weight", raw(Dtype::BF16, &[0])),
                ("qweight", raw(Dtype::U8, &[0])),
                ("scales", raw(Dtype::U8, &[0])),
            ],
            "FP-Quant, pseudo-quantized",
            "forward_hadamard_matrix",
        ),
        (gptq.clone(), "GPTQ", ""),
        (gptq.into_iter().take(3).collect(), "GPTQ", ""),
        (awq, "AWQ", ""),
        (
            vec![
                ("weight", raw(Dtype::U8, &[512, 1])),
                ("weight.absmax", raw(Dtype::U8, &[16])),
                ("weight.quant_map", raw(Dtype::F32, &[16])),
            ],
            "bitsandbytes 4-bit",
            "",
        ),
        (vec![("weight", raw(Dtype::I8, &[8, 128])), ("SCB", raw(Dtype::F32, &[8]))], "bitsandbytes 8-bit", ""),
        (
            vec![
                ("weight_packed", raw(Dtype::I32, &[8, 16])),
                ("weight_scale", raw(Dtype::BF16, &[8, 1])),
                ("weight_shape", raw(Dtype::I32, &[2])),
            ],
            "packed integers",
            "",
        ),
        (vec![("weight", raw(Dtype::U32, &[8, 16])), ("scales", raw(Dtype::U8, &[8, 8]))], "MLX", ""),
        (
            vec![
                ("weight", raw(Dtype::U8, &[8, 64])),
                ("weight_sf", raw(Dtype::U8, &[128, 8])),
                ("weight_global_scale", raw(Dtype::F32, &[1])),
            ],
            "weight_sf",
            "original model",
        ),
        (vec![("weight", raw(Dtype::F8_E4M3, &[8, 128])), ("weight_scale", raw(Dtype::F32, &[1]))], "FP8", ""),
        (vec![("qweight", raw(Dtype::I16, &[8, 16]))], "`qweight` of I16", ""),
        (vec![("weight", raw(Dtype::I16, &[8, 16]))], "`weight` of I16", ""),
    ] {
        let named: Tensors = tensors.into_iter().map(|(suffix, t)| (format!("m.{suffix}"), t)).collect();
        with(&named, None, |_, c| {
            let scheme = c.module("m").unwrap_or_else(|| panic!("{what}")).scheme.to_string();
            assert!(scheme.contains(what), "{what}: {scheme}");
            let error = c.linear("m").unwrap_err();
            assert!(matches!(error, Error::NotNvFp4 { .. }) && error.to_string().contains(hint), "{error}");
            assert!(c.dense_weight("m").is_err());
        });
    }
}
