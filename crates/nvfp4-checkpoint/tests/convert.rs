//! Checkpoints from one format to another, and back to dense models.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod models;

use models::{Tensor, contents, golden_checkpoints, golden_values, json, names};
use nvfp4_checkpoint::{
    Checkpoint, CheckpointFormat, Dialect, ModelError, convert,
    convert::{ConvertOptions, ConvertReport},
    dequantize,
    dequantize::DequantizeOptions,
};
use nvfp4_core::{ActivationScheme, DType, dequantize::dequantize as core_dequantize};
use safetensors::Dtype;
use std::{collections::HashMap, fs, path::Path};

const FORMATS: [CheckpointFormat; 2] = [CheckpointFormat::ModelOpt, CheckpointFormat::CompressedTensors];

fn dialect(format: CheckpointFormat) -> Dialect {
    match format {
        CheckpointFormat::ModelOpt => Dialect::ModelOpt,
        _ => Dialect::CompressedTensors,
    }
}

fn run(source: &Path, target: &Path, format: CheckpointFormat) -> Result<ConvertReport, ModelError> {
    convert(source, target, &ConvertOptions::new(format), &())
}

/// The numbers are the same, up to `ulps` units in the last place.
fn assert_close(found: &[f32], expected: &[f32], ulps: i64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let apart = (i64::from(found.to_bits()) - i64::from(expected.to_bits())).abs();
        assert!(apart <= ulps, "{what}[{i}]: {found:e}, expected {expected:e}");
    }
}

#[test]
fn golden_checkpoints_in_their_own_format_are_written_byte_for_byte() {
    let mut compared = 0;
    for source in golden_checkpoints() {
        let own = Checkpoint::open(&source).unwrap().dialect();
        for format in FORMATS.into_iter().filter(|f| dialect(*f) == own) {
            let folder = tempfile::tempdir().unwrap();
            let target = folder.path().join("out");
            let report = run(&source, &target, format).unwrap();
            assert!(report.layers.iter().all(|l| l.exact));
            let same = |file: &str| fs::read(source.join(file)).unwrap() == fs::read(target.join(file)).unwrap();
            assert!(same("model.safetensors"), "{source:?}");
            for file in ["config.json", "hf_quant_config.json"] {
                assert_eq!(source.join(file).exists(), target.join(file).exists(), "{source:?} {file}");
                if source.join(file).exists() {
                    assert_eq!(json(&source.join(file)), json(&target.join(file)), "{source:?} {file}");
                }
            }
            compared += 1;
        }
    }
    assert!(compared >= FORMATS.len());
}

#[test]
fn golden_checkpoints_keep_their_values_in_every_format() {
    for source in golden_checkpoints() {
        let original = Checkpoint::open(&source).unwrap();
        let expected = golden_values(&source);
        for format in FORMATS {
            for shard_bytes in [1 << 30, 10_000] {
                let folder = tempfile::tempdir().unwrap();
                let target = folder.path().join("out");
                let mut options = ConvertOptions::new(format);
                options.write.shard_bytes = shard_bytes;
                let report = convert(&source, &target, &options, &()).unwrap();
                assert_eq!(report.from, original.dialect().to_string());
                assert_eq!(report.layers.len(), expected.len());

                let written = Checkpoint::open(&target).unwrap();
                assert_eq!(written.dialect(), dialect(format));
                for layer in &report.layers {
                    let (before, after) =
                        (original.linear(&layer.name).unwrap(), written.linear(&layer.name).unwrap());
                    assert_eq!(before.activation, after.activation);
                    assert_eq!(before.weights.packed(), after.weights.packed());
                    assert_eq!(before.weights.scales(), after.weights.scales());
                    if layer.exact {
                        assert_eq!(before.weights.global(), after.weights.global());
                        assert_eq!(before.input_scale, after.input_scale);
                    }
                    let found = core_dequantize(&after.weights).unwrap();
                    let ulps = if layer.exact { 0 } else { 3 };
                    assert_close(&found, &expected[&layer.name], ulps, &layer.name);
                }
                // What is not part of a quantized module is copied.
                let (before, after) = (models::read_model(&source), models::read(&target));
                let quantized =
                    |name: &str| report.layers.iter().any(|l| name.starts_with(&format!("{}.", l.name)));
                let mut copied = 0;
                for (name, tensor) in before.iter().filter(|(name, _)| !quantized(name)) {
                    assert_eq!(&after[name], tensor, "{name}");
                    copied += 1;
                }
                assert!(copied > 0);
                let config = json(&target.join("config.json"));
                if source.join("config.json").exists() {
                    assert_eq!(config["hidden_size"], json(&source.join("config.json"))["hidden_size"]);
                    assert_eq!(config["quantization_config"]["ignore"], serde_json::json!(["lm_head"]));
                }
            }
        }
    }
}

#[test]
fn there_and_back_is_the_same_where_reciprocals_are_exact() {
    let mut both = [0, 0];
    for source in golden_checkpoints() {
        let original = Checkpoint::open(&source).unwrap();
        let (own, other) = match original.dialect() {
            Dialect::ModelOpt => (CheckpointFormat::ModelOpt, CheckpointFormat::CompressedTensors),
            Dialect::CompressedTensors => (CheckpointFormat::CompressedTensors, CheckpointFormat::ModelOpt),
            _ => continue,
        };
        let folder = tempfile::tempdir().unwrap();
        let (there, back) = (folder.path().join("there"), folder.path().join("back"));
        let report = run(&source, &there, other).unwrap();
        run(&there, &back, own).unwrap();
        let (before, after) = (models::read_model(&source), models::read(&back));
        assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
        for layer in report.layers {
            let same = before
                .iter()
                .filter(|(name, _)| name.starts_with(&format!("{}.", layer.name)))
                .all(|(name, tensor)| &after[name] == tensor);
            // `exact` says whether the other format gives the stored scales back; each way is checked.
            assert_eq!(same, layer.exact, "{}", layer.name);
            both[usize::from(layer.exact)] += 1;
        }
    }
    assert!(both.iter().all(|count| *count > 0), "the golden scales show both cases: {both:?}");
}

#[test]
fn golden_checkpoints_dequantize_to_the_golden_values() {
    for source in golden_checkpoints() {
        let expected = golden_values(&source);
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let folder = tempfile::tempdir().unwrap();
            let target = folder.path().join("out");
            let mut options = DequantizeOptions::default();
            options.dtype = dtype;
            options.write.shard_bytes = 50_000;
            let report = dequantize(&source, &target, &options, &()).unwrap();
            assert_eq!(report.layers, expected.keys().cloned().collect::<Vec<_>>());
            assert!(report.dropped.is_empty());
            let written = models::read(&target);
            for (module, values) in &expected {
                let weight = &written[&format!("{module}.weight")];
                let dtype = match dtype {
                    DType::F32 => Dtype::F32,
                    DType::Bf16 => Dtype::BF16,
                    _ => Dtype::F16,
                };
                assert_eq!(weight, &Tensor::new(dtype, &weight.shape, values), "{module}");
            }
            let before = models::read_model(&source);
            let copied: Vec<_> =
                written.iter().filter(|(n, _)| !expected.contains_key(n.trim_end_matches(".weight"))).collect();
            assert!(!copied.is_empty());
            assert!(copied.iter().all(|(name, tensor)| &before[*name] == *tensor));
            // A dense model again: it can be quantized.
            if source.join("config.json").exists() {
                let config = json(&target.join("config.json"));
                assert!(config.get("quantization_config").is_none());
                assert_eq!(
                    config["torch_dtype"],
                    ["bfloat16", "float16", "float32"][match dtype {
                        DType::Bf16 => 0,
                        DType::F16 => 1,
                        _ => 2,
                    }]
                );
            }
            assert!(!target.join("hf_quant_config.json").exists());
            assert_eq!(Checkpoint::open(&target).unwrap().dialect(), Dialect::Unquantized);
        }
    }
}

#[test]
fn gguf_becomes_either_format_and_dense() {
    let golden = nvfp4_testkit::golden::File::open("gguf_nvfp4.safetensors");
    let (blocks, values) = (golden.get("conv_raw"), golden.get("conv_dequant").floats());
    let n = blocks.shape[0];
    let k = values.len() / n;
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("model.gguf");
    let scale = |v: f32| v.to_le_bytes().to_vec();
    models::write_gguf(
        &source,
        &[
            ("blk.0.ffn_down.weight", vec![n, k], 40, blocks.bytes.clone()),
            ("blk.0.ffn_down.scale", vec![1], 0, scale(0.25)),
            ("blk.0.ffn_up.weight", vec![n, k], 40, blocks.bytes.clone()),
            ("blk.0.ffn_up.scale", vec![1], 0, scale(0.5)),
            ("blk.0.ffn_up.input_scale", vec![1], 0, scale(0.125)),
            ("blk.0.attn_norm.weight", vec![3], 0, [1f32, 2.0, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect()),
        ],
    );
    for format in FORMATS {
        let target = folder.path().join(format!("{format:?}"));
        let report = run(&source, &target, format).unwrap();
        assert!(report.layers.iter().all(|l| l.exact));
        let written = Checkpoint::open(&target).unwrap();
        for (module, global, activation) in [
            ("blk.0.ffn_down", 0.25, ActivationScheme::Unquantized),
            ("blk.0.ffn_up", 0.5, ActivationScheme::Nvfp4Static),
        ] {
            let layer = written.linear(module).unwrap();
            assert_eq!(layer.activation, activation, "mixed schemes survive in {format:?}");
            let expected: Vec<f32> = values.iter().map(|v| v * global).collect();
            for (found, expected) in core_dequantize(&layer.weights).unwrap().iter().zip(&expected) {
                assert_eq!(found, expected); // by value: GGUF has no negative zero
            }
        }
        assert_eq!(models::read(&target)["blk.0.attn_norm.weight"].floats(), [1.0, 2.0, 3.0]);
    }
    let target = folder.path().join("dense");
    let mut options = DequantizeOptions::default();
    options.dtype = DType::F32;
    dequantize(&source, &target, &options, &()).unwrap();
    let dense = models::read(&target);
    let expected: Vec<f32> = values.iter().map(|v| v * 0.5).collect();
    assert_eq!(dense["blk.0.ffn_up.weight"].floats(), expected);
    assert_eq!(dense.len(), 3);

    // A type that cannot be read is not passed off as bytes.
    models::write_gguf(
        &source,
        &[
            ("blk.0.ffn_down.weight", vec![n, k], 40, blocks.bytes.clone()),
            ("token_embd.weight", vec![1, 32], 8, vec![0; 34]),
        ],
    );
    let before = names(folder.path());
    for format in FORMATS {
        let error = run(&source, &folder.path().join("out"), format).unwrap_err();
        assert!(
            matches!(&error, ModelError::Inexpressible { module, .. } if module.starts_with("token_embd")),
            "{error}"
        );
    }
    assert_eq!(names(folder.path()), before);
}

/// A copy of a golden checkpoint to change.
fn copy_of(name: &str, folder: &Path) -> std::path::PathBuf {
    let (from, to) = (nvfp4_testkit::golden::dir().join(name), folder.join(name));
    fs::create_dir(&to).unwrap();
    for file in names(&from).into_iter().filter(|f| !f.starts_with("expected")) {
        fs::copy(from.join(&file), to.join(&file)).unwrap();
    }
    to
}

fn edit_json(path: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    let mut value = json(path);
    edit(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

#[test]
fn the_key_value_cache_is_translated() {
    for (name, format) in
        [("ckpt_modelopt", CheckpointFormat::CompressedTensors), ("ckpt_ct", CheckpointFormat::ModelOpt)]
    {
        let folder = tempfile::tempdir().unwrap();
        let source = copy_of(name, folder.path());
        let mut tensors = models::read(&source);
        tensors.insert("model.layers.0.self_attn.k_proj.k_scale".into(), Tensor::new(Dtype::F32, &[], &[0.5]));
        models::write(&source, &tensors);
        let scheme = serde_json::json!({ "type": "float", "num_bits": 8, "dynamic": false });
        edit_json(&source.join("config.json"), |c| c["quantization_config"]["kv_cache_scheme"] = scheme);
        let target = folder.path().join("out");
        run(&source, &target, format).unwrap();
        let config = json(&target.join("config.json"));
        let written = &config["quantization_config"]["kv_cache_scheme"];
        assert_eq!((&written["type"], &written["num_bits"]), (&"float".into(), &8.into()));
        if format == CheckpointFormat::ModelOpt {
            assert_eq!(json(&target.join("hf_quant_config.json"))["quantization"]["kv_cache_quant_algo"], "FP8");
        } else {
            assert_eq!(written["strategy"], "tensor");
        }
        assert_eq!(models::read(&target)["model.layers.0.self_attn.k_proj.k_scale"].floats(), [0.5]);
        // A dense model has no such scale.
        let report = dequantize(&source, folder.path().join("dense"), &DequantizeOptions::default(), &()).unwrap();
        assert_eq!(report.dropped, ["model.layers.0.self_attn.k_proj.k_scale"]);

        edit_json(&source.join("config.json"), |c| {
            c["quantization_config"]["kv_cache_scheme"] = serde_json::json!({ "type": "int", "num_bits": 4 });
        });
        let error = run(&source, &folder.path().join("no"), format).unwrap_err();
        assert!(matches!(error, ModelError::Inexpressible { .. }), "{error}");
    }
}

#[test]
fn legacy_modelopt_becomes_current() {
    let folder = tempfile::tempdir().unwrap();
    let source = copy_of("ckpt_modelopt", folder.path());
    edit_json(&source.join("config.json"), |c| {
        c.as_object_mut().unwrap().remove("quantization_config");
    });
    let target = folder.path().join("out");
    run(&source, &target, CheckpointFormat::ModelOpt).unwrap();
    let upstream = nvfp4_testkit::golden::json("ckpt_modelopt/config.json");
    assert_eq!(json(&target.join("config.json")), upstream);
}

#[test]
fn dynamic_activations_need_a_choice() {
    let folder = tempfile::tempdir().unwrap();
    let source = copy_of("ckpt_torchao", folder.path());
    let bytes = fs::read(source.join("model.safetensors")).unwrap();
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let quantized: HashMap<String, String> = metadata
        .metadata()
        .clone()
        .unwrap()
        .into_iter()
        .map(|(k, v)| (k, v.replace("\"act_quant_kwargs\": null", "\"act_quant_kwargs\": {}")))
        .collect();
    models::write_file(&source.join("model.safetensors"), &models::read(&source), &quantized);
    for format in FORMATS {
        let error = run(&source, &folder.path().join("out"), format).unwrap_err();
        assert!(matches!(&error, ModelError::Inexpressible { .. }), "{error}");
        assert!(error.to_string().contains("weight-only"), "{error}");
        let mut options = ConvertOptions::new(format);
        options.weight_only = true;
        let target = folder.path().join(format!("{format:?}"));
        let report = convert(&source, &target, &options, &()).unwrap();
        assert!(report.layers.iter().all(|l| l.scheme == "W4A16"));
        let written = Checkpoint::open(&target).unwrap();
        for layer in &report.layers {
            assert_eq!(written.linear(&layer.name).unwrap().activation, ActivationScheme::Unquantized);
        }
    }
}

#[test]
fn what_cannot_be_written_is_an_error_that_names_the_module() {
    let folder = tempfile::tempdir().unwrap();
    // An FP8 module.
    let source = copy_of("ckpt_ct", folder.path());
    let mut tensors = models::read(&source);
    tensors
        .insert("a.fp8.weight".into(), Tensor { dtype: Dtype::F8_E4M3, shape: vec![1, 16], bytes: vec![0x38; 16] });
    models::write(&source, &tensors);
    let before = contents(folder.path());
    let fails = |expected: &str| {
        for format in FORMATS {
            let error = run(&source, &folder.path().join("out"), format).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        let error = dequantize(&source, folder.path().join("out"), &DequantizeOptions::default(), &()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    };
    fails("`a.fp8`");
    assert_eq!(contents(folder.path()), before);
    // A faulty one: detected half-way, with the output begun.
    tensors.remove("a.fp8.weight");
    tensors.get_mut("model.layers.1.mlp.up_proj.weight_scale").unwrap().bytes[5] = 0x7f;
    models::write(&source, &tensors);
    let before = contents(folder.path());
    fails("model.layers.1.mlp.up_proj.weight_scale");
    assert_eq!(contents(folder.path()), before);
    // None at all.
    models::write(&source, &models::llama(Dtype::BF16, 1, |_| 1.0));
    fails("no NVFP4 module");
}

#[test]
fn values_too_large_for_f16_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let source = copy_of("ckpt_modelopt_w4a16", folder.path());
    let mut tensors = models::read(&source);
    let global = tensors.get_mut("model.layers.1.mlp.up_proj.weight_scale_2").unwrap();
    *global = Tensor::new(Dtype::F32, &[], &[65504.0]);
    models::write(&source, &tensors);
    let mut options = DequantizeOptions::default();
    options.dtype = DType::F16;
    let error = dequantize(&source, folder.path().join("out"), &options, &()).unwrap_err();
    let ModelError::DoesNotFit { tensor, row: 0, found, .. } = &error else { panic!("{error}") };
    assert_eq!(tensor, "model.layers.1.mlp.up_proj.weight");
    assert!(found.abs() > 65504.0);
    assert_eq!(names(folder.path()), ["ckpt_modelopt_w4a16"]);
    options.dtype = DType::Bf16;
    dequantize(&source, folder.path().join("out"), &options, &()).unwrap();
}
